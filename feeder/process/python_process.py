"""How Python processes of ours are started: the command line and the environment of each.

A child imports the very package that its parent runs, and nothing from the folder that the command
happens to run in: a folder ``feeder`` or a file ``random.py`` there is not ours.
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
    """Return the variables that keep numeric libraries at one thread; set before importing them."""
    return dict.fromkeys(_NUMERIC_THREADS, "1")


def use_single_threads() -> None:
    """Keep this process's numeric libraries, which are not imported yet, at one thread."""
    os.environ.update(single_thread_environment())


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of a child of ours, with the variables ``more``."""
    return {**os.environ, **_package_path(), **(more or {})}


def _package_path() -> dict[str, str]:
    """Return PYTHONPATH such that a child finds our packages, where it would not by itself.

    Installed ones it finds; and site-packages must not come before the standard library, where an
    old backport of one of its modules may lie.
    """
    import site

    root = str(Path(__file__).resolve().parents[2])
    installed = [*site.getsitepackages(), site.getusersitepackages()]
    if root in map(os.path.realpath, installed):
        return {}
    return {"PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))}
