"""Finds Feeder's processes in /proc, and how loaded the machine is."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from feeder.doctor.findings.facts import Load
from feeder.doctor.kernel_files import KernelFiles, to_bytes
from feeder.errors import FeederError
from feeder.host.kernel_files import cgroup_folders

_PROCESSES_MAX = 20_000
_WITH_VALUE = ("-W", "-X")
"""Options of Python that may have their value in the next word."""

_AVERAGE: Final = re.compile(r"([0-9]{1,6}\.[0-9]{1,6}) ")
_PRESSURE: Final = re.compile(r"some avg10=([0-9]{1,3}(?:\.[0-9]{1,6})?) ")


def read_processes(files: KernelFiles) -> tuple[set[int], tuple[int, ...], int]:
    """Return the numbers of Feeder's processes, those of its daemons, and its swapped bytes."""
    ours: set[int] = set()
    daemons: list[int] = []
    swapped = 0
    for number in _numbers(files):
        # Each word ends with a zero byte.
        program = _find_program(files.text(f"proc/{number}/cmdline", 4096).split("\0"))
        if program in ("feeder serve", "feeder.node", "feeder.worker"):
            ours.add(int(number))
            swapped += to_bytes(files.fields(f"proc/{number}/status").get("VmSwap", "")) or 0
        if program == "feeder serve":
            daemons.append(int(number))
    return ours, tuple(sorted(daemons)), swapped


def _numbers(files: KernelFiles) -> list[str]:
    names = [name for name in files.entries("proc") if name.isascii() and name.isdigit()]
    return names[:_PROCESSES_MAX]


def read_load(files: KernelFiles) -> Load:
    """Return the load average and pressures."""
    average = _AVERAGE.match(files.text("proc/loadavg", 256))
    try:
        folders = cgroup_folders(files.root, "cpu", files.process)
        groups = [folder for folder, is_unified in folders if is_unified][-1:]
    except FeederError:  # reported by ``read_allowed``
        groups = []

    def read_pressure(name: str) -> float | None:
        paths = [Path(f"proc/pressure/{name}"), *(group / f"{name}.pressure" for group in groups)]
        matches = [_PRESSURE.match(files.text(path, 256)) for path in paths]
        shares = [min(1.0, float(match[1]) / 100) for match in matches if match]
        return max(shares, default=None)

    return Load(
        average=float(average[1]) if average else None,
        cpu=read_pressure("cpu"),
        memory=read_pressure("memory"),
        io=read_pressure("io"),
    )


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
