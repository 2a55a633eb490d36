"""The command line and environment with which Feeder starts its Python processes.

Invariant: a child imports the same package as its parent, and nothing from the working directory,
where a folder ``feeder`` or a file ``random.py`` would shadow the right one.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

_NUMERIC_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)


def python_command(module: str, *arguments: str | int, options: tuple[str, ...] = ()) -> list[str]:
    """Return the command that runs ``module``, given interpreter ``options`` and ``arguments``."""
    return [sys.executable, "-P", *options, "-m", module, *map(str, arguments)]


def single_thread_environment() -> dict[str, str]:
    """Return the variables that limit numeric libraries to one thread, if set before imports."""
    return dict.fromkeys(_NUMERIC_THREADS, "1")


def use_single_threads() -> None:
    """Limit this process's numeric libraries to one thread; call it before they are imported."""
    os.environ.update(single_thread_environment())


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a Feeder child process, with the variables ``more``."""
    return {**os.environ, **_package_path(), **(more or {})}


def _package_path() -> dict[str, str]:
    """Return PYTHONPATH with Feeder's packages, or nothing where they are installed.

    site-packages must not come before the standard library: it may hold an old backport of one of
    its modules.
    """
    import site

    root = str(Path(__file__).resolve().parents[2])
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    if root in map(os.path.realpath, installed):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
