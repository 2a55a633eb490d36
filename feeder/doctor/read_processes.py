"""Finds Feeder's processes in /proc: daemons, and how much of their memory is swapped out."""

from collections.abc import Sequence
from pathlib import PurePosixPath

from feeder.doctor.kernel_files import KernelFiles, to_bytes

_PROCESSES_MAX = 20_000
_WITH_VALUE = ("-W", "-X")
"""Options of Python that may have their value in the next word."""


def read_processes(files: KernelFiles) -> tuple[tuple[int, ...], int]:
    """Return the numbers of the daemons, and the swapped bytes of all of Feeder's processes."""
    daemons: list[int] = []
    swapped = 0
    numbers = [name for name in files.entries("proc") if name.isascii() and name.isdigit()]
    for number in numbers[:_PROCESSES_MAX]:
        # Each word ends with a zero byte.
        program = _find_program(files.text(f"proc/{number}/cmdline", 4096).split("\0"))
        if program in ("feeder serve", "feeder.node", "feeder.worker"):
            swapped += to_bytes(files.fields(f"proc/{number}/status").get("VmSwap", "")) or 0
        if program == "feeder serve":
            daemons.append(int(number))
    return tuple(sorted(daemons)), swapped


def _find_program(words: Sequence[str]) -> str:
    """Return Feeder's module that a command line runs, or "feeder serve"; "" if it runs neither.

    The first word decides: sudo, timeout and shells that start a daemon have its words, too.
    """
    at = 0
    if PurePosixPath(words[0]).name.startswith("python"):
        at = 1
        while at < len(words) and words[at].startswith("-") and words[at] != "-m":
            at += 2 if words[at] in _WITH_VALUE else 1
        at += at < len(words) and words[at] == "-m"
    name, *rest = [PurePosixPath(word).name for word in words[at : at + 2]] or [""]
    return "feeder serve" if name == "feeder" and rest == ["serve"] else name
