"""Feeder: packs image datasets and serves ready batches to training jobs.

    feeder.pack_samples(samples, dst)      packs what a Python iterable gives
    feeder.select(name, {dst: ids}, out)   writes a selection of samples of datasets

docs/architecture.md draws its packages. The modules here, ``errors``, ``installation``, ``metrics``
and ``remedies``, serve all of them; ``__main__`` is the process of the ``feeder`` command. Public
names are imported at their first use, because clients lack the libraries that packing needs;
``__init__.pyi`` has their types.

May import: nothing.
"""

__all__ = ["PackedSamples", "__version__", "pack_samples", "select"]

__version__ = "0.1.0"

_MODULES = {"select": "feeder.choose.make"}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        module = import_module(_MODULES.get(name, "feeder.pack.samples"))
        value = globals()[name] = getattr(module, name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == __name__:
            raise
        raise ImportError(
            f"feeder.{name} needs {error.name}, which is not installed here: "
            + import_module("feeder.installation").install_command("daemon")
        ) from None
    except ImportError as error:  # a part in C that was not built, or whose libraries are missing
        explained = import_module("feeder.process.shortage").explain_shortage(error)
        raise ImportError(f"feeder.{name} cannot be imported: {explained or error}") from error
    return value
