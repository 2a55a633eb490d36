"""Successful runs of each command, for tests of their streams, signals and limits."""

import sys
from pathlib import Path

import pytest

SCRIPT = Path(sys.executable).with_name("feeder")
"""The installed command, as users start it: sys.path does not contain the working directory."""

COMMANDS = (
    *("pack", "verify", "help"),
    *(
        pytest.param(name, marks=pytest.mark.extensive("more commands, which end in one place"))
        for name in ("unpack", "status", "preview", "keygen", "serve", "version")
    ),
)
"""What `make test` runs: with and without worker processes, and without any work."""


def run_of(name: str, packed: Path, folder: Path, endpoint: str = "") -> tuple[str | Path, ...]:
    """The arguments of a run of the command ``name`` that writes into ``folder``.

    It succeeds, but for ``status`` without an endpoint, which ends with status 5.
    """
    match name:
        case "pack":
            return "pack", packed.parent / "source", folder / "made", "--jobs", "1"
        case "verify":
            return "verify", packed, "--jobs", "1"
        case "unpack":
            return "unpack", packed, folder / "made", "--jobs", "1"
        case "status":
            return "status", endpoint or f"ipc://{folder}/none", "--timeout", "0.1"
        case "preview":
            return "preview", packed, "--out", folder / "made"
        case "keygen":
            return "keygen", folder / "made"
        case "serve":
            return "serve", "--show", "--data", f"d={packed}"
        case _:
            return (f"--{name}",)
