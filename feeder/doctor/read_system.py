"""Reads memory, limits and the clock, finds Feeder's processes, and how loaded the machine is."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Final

from feeder.doctor.findings.facts import (
    UNLIMITED,
    Clock,
    HugePages,
    Limits,
    Load,
    Memory,
    SwapDevice,
)
from feeder.doctor.kernel_files import KernelFiles, to_bytes, to_number
from feeder.errors import FeederError
from feeder.host.kernel_files import cgroup_folders

_CHOSEN: Final = re.compile(r"\[(\w+)\]")
_SIZE: Final = re.compile(r"hugepages-([0-9]{1,12})kB")
_LIMIT: Final = re.compile(r"^(Max [a-z ]+?)  +([a-z]+|[0-9]+) +([a-z]+|[0-9]+)", re.MULTILINE)
_NO_LIMIT: Final = 1 << 60  # cgroup v1 writes the largest number of pages for no limit
_PROCESSES_MAX: Final = 20_000
_WITH_VALUE: Final = ("-W", "-X")
"""Options of Python that may have their value in the next word."""

_AVERAGE: Final = re.compile(r"([0-9]{1,6}\.[0-9]{1,6}) ")
_PRESSURE: Final = re.compile(r"some avg10=([0-9]{1,3}(?:\.[0-9]{1,6})?) ")


def read_memory(files: KernelFiles) -> Memory:
    info = files.fields("proc/meminfo")
    version, limit, swap_limit = _read_cgroup(files)
    chosen = _CHOSEN.search(files.text("sys/kernel/mm/transparent_hugepage/enabled", 256))
    return Memory(
        total_bytes=to_bytes(info.get("MemTotal", "")),
        available_bytes=to_bytes(info.get("MemAvailable", "")),
        limit_bytes=limit,
        transparent=chosen[1] if chosen else "",
        reserved=_read_reserved(files),
        swap=_read_swap(files),
        swap_limit_bytes=swap_limit,
        cgroup_version=version,
    )


def _read_cgroup(files: KernelFiles) -> tuple[int | None, int | None, int | None]:
    """The version of the process's cgroups, and the least of their limits and swap limits.

    Where both versions are mounted, version 1 has the memory controller, as its mount shows.
    """
    version: int | None = None
    limits: list[int] = []
    swaps: list[int] = []
    try:
        for folder, unified in cgroup_folders(files.root, "memory", files.process):
            version = 2 if unified and version != 1 else 1
            limit = files.number(folder / ("memory.max" if unified else "memory.limit_in_bytes"))
            if limit is not None and 0 <= limit < _NO_LIMIT:
                limits.append(limit)
            swap = files.number(
                folder / ("memory.swap.max" if unified else "memory.memsw.limit_in_bytes")
            )
            if swap is not None and 0 <= swap < _NO_LIMIT:
                # Version 1 limits memory and swap together.
                swaps.append(swap if unified else max(0, swap - (limit or 0)))
    except FeederError:
        pass  # read_allowed reports it
    return version, min(limits, default=None), min(swaps, default=None)


def _read_reserved(files: KernelFiles) -> tuple[HugePages, ...]:
    pools: list[HugePages] = []
    for name in files.entries("sys/kernel/mm/hugepages"):
        size = _SIZE.fullmatch(name)
        folder = f"sys/kernel/mm/hugepages/{name}"
        total = files.number(f"{folder}/nr_hugepages") or 0
        free = files.number(f"{folder}/free_hugepages") or 0
        mapped = files.number(f"{folder}/resv_hugepages") or 0  # by programs, and not yet written
        if size and total > 0:
            free = min(max(0, free - max(0, mapped)), total)
            pools.append(HugePages(size_bytes=int(size[1]) * 1024, total=total, free=free))
    return tuple(pools)


def _read_swap(files: KernelFiles) -> tuple[SwapDevice, ...]:
    """The lines of /proc/swaps: name, kind, size and use in KiB, priority."""
    devices: list[SwapDevice] = []
    for line in files.text("proc/swaps").splitlines()[1:]:
        words = line.split()
        if len(words) >= 5:
            size, used = to_number(words[-3]), to_number(words[-2])
            if size is not None and used is not None and size > 0 <= used:
                devices.append(
                    SwapDevice(name=words[0], size_bytes=size * 1024, used_bytes=used * 1024)
                )
    return tuple(devices)


def read_limits(files: KernelFiles) -> Limits:
    rows = {name: columns for name, *columns in _LIMIT.findall(files.own("limits"))}

    def read_column(name: str, column: int) -> int | None:
        text = rows.get(name, ("", ""))[column]
        return UNLIMITED if text == "unlimited" else to_number(text)

    return Limits(
        files_soft=read_column("Max open files", 0),
        files_hard=read_column("Max open files", 1),
        locked_bytes=read_column("Max locked memory", 1),
    )


def read_clock(files: KernelFiles) -> Clock:
    folder = "sys/devices/system/clocksource/clocksource0"
    return Clock(
        current=files.text(f"{folder}/current_clocksource", 64),
        available=tuple(files.text(f"{folder}/available_clocksource", 256).split()),
    )


def read_processes(files: KernelFiles) -> tuple[set[int], tuple[int, ...], int]:
    """The numbers of Feeder's processes, those of its daemons, and its swapped bytes."""
    ours: dict[int, str] = {}
    swapped = 0
    names = [name for name in files.entries("proc") if name.isascii() and name.isdigit()]
    for number in names[:_PROCESSES_MAX]:
        # Each word ends with a zero byte.
        program = _find_program(files.text(f"proc/{number}/cmdline", 4096).split("\0"))
        if program in ("feeder serve", "feeder.node", "feeder.worker"):
            ours[int(number)] = program
            swapped += to_bytes(files.fields(f"proc/{number}/status").get("VmSwap", "")) or 0
    daemons = sorted(number for number, program in ours.items() if program == "feeder serve")
    return {*ours}, tuple(daemons), swapped


def read_load(files: KernelFiles) -> Load:
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
