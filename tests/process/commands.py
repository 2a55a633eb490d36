"""Successful runs of each command, for tests of their streams, signals and limits."""

import sys
from pathlib import Path

SCRIPT = Path(sys.executable).with_name("feeder")
"""The installed command, as users start it: sys.path does not contain the working directory."""

COMMANDS = "pack", "verify", "help"
"""With and without worker processes, and without any work; all commands end in one place."""


def run_of(name: str, packed: Path, folder: Path) -> tuple[str | Path, ...]:
    """The arguments of a run of the command ``name`` that succeeds and writes into ``folder``."""
    match name:
        case "pack":
            return "pack", packed.parent / "source", folder / "made", "--jobs", "1"
        case "verify":
            return "verify", packed, "--jobs", "1"
        case "keygen":
            return "keygen", folder / "made"
        case _:
            return (f"--{name}",)
