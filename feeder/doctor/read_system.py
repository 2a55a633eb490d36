"""Reads memory, limits and the clock, finds Feeder's processes, and how loaded the machine is."""

import re
from itertools import dropwhile
from pathlib import Path, PurePosixPath
from typing import Final

from feeder.doctor.facts import UNLIMITED, Clock, HugePages, Limits, Load, Memory, SwapDevice
from feeder.doctor.kernel_files import KernelFiles, to_bytes, to_fields, to_number

_CHOSEN: Final = re.compile(r"\[(\w+)\]")
_LIMIT: Final = re.compile(r"^(Max [a-z ]+?)  +([a-z]+|[0-9]+) +([a-z]+|[0-9]+)", re.MULTILINE)
_SWAP: Final = re.compile(
    r"^(\S+)[ \t]+\S+[ \t]+([0-9]{1,18})[ \t]+([0-9]{1,18})[ \t]+\S+$", re.MULTILINE
)
"""A line of /proc/swaps: name, kind, size and use in KiB, priority."""

_V1_LIMITS: Final = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
_V2_LIMITS: Final = ("memory.max", "memory.swap.max")
_AVERAGE: Final = re.compile(r"([0-9]{1,6}\.[0-9]{1,6}) ")
_PRESSURE: Final = re.compile(r"some avg10=([0-9]{1,3}(?:\.[0-9]{1,6})?) ")


def read_memory(files: KernelFiles) -> Memory:
    info = to_fields(files.text("proc/meminfo"))
    chosen = _CHOSEN.search(files.text("sys/kernel/mm/transparent_hugepage/enabled"))
    swap = [
        SwapDevice(name=name, size_bytes=int(size) * 1024, used_bytes=int(used) * 1024)
        for name, size, used in _SWAP.findall(files.text("proc/swaps"))
    ]
    version: int | None = None
    limits: list[int] = []
    swap_limits: list[int] = []
    for folder, is_unified in files.cgroups("memory"):
        # Where both versions are mounted, version 1 has the memory controller.
        version = 2 if is_unified and version != 1 else 1
        limit_name, swap_name = _V2_LIMITS if is_unified else _V1_LIMITS
        limit, swap_limit = files.number(folder / limit_name), files.number(folder / swap_name)
        if limit is not None:
            limits.append(limit)
        if swap_limit is not None:  # version 1 limits memory and swap together
            swap_limits.append(swap_limit if is_unified else max(0, swap_limit - (limit or 0)))
    return Memory(
        total_bytes=to_bytes(info.get("MemTotal", "")),
        available_bytes=to_bytes(info.get("MemAvailable", "")),
        limit_bytes=min(limits, default=None),
        transparent=chosen[1] if chosen else "",
        reserved=_read_reserved(files),
        swap=tuple(swap),
        swap_limit_bytes=min(swap_limits, default=None),
        cgroup_version=version,
    )


def _read_reserved(files: KernelFiles) -> tuple[HugePages, ...]:
    pools: list[HugePages] = []
    for size_kib, folder in files.numbered("sys/kernel/mm/hugepages", "hugepages-", "kB"):
        total = files.number(f"{folder}/nr_hugepages") or 0
        free = files.number(f"{folder}/free_hugepages") or 0
        mapped = files.number(f"{folder}/resv_hugepages") or 0  # by programs, and not yet written
        if total:
            free = min(max(0, free - mapped), total)
            pools.append(HugePages(size_bytes=size_kib * 1024, total=total, free=free))
    return tuple(pools)


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
        current=files.text(f"{folder}/current_clocksource"),
        available=tuple(files.text(f"{folder}/available_clocksource").split()),
    )


def read_processes(files: KernelFiles) -> tuple[set[int], tuple[int, ...], int]:
    """The numbers of Feeder's processes, those of its daemons, and its swapped bytes."""
    ours: dict[int, str] = {}
    swapped = 0
    for number, folder in files.numbered("proc"):
        # Each word ends with a zero byte.
        program = _find_program(files.text(f"{folder}/cmdline", 4096).split("\0"))
        if program in ("feeder serve", "feeder.node", "feeder.worker"):
            ours[number] = program
            status = to_fields(files.text(f"{folder}/status"))
            swapped += to_bytes(status.get("VmSwap", "")) or 0
    daemons = sorted(number for number, program in ours.items() if program == "feeder serve")
    return {*ours}, tuple(daemons), swapped


def read_load(files: KernelFiles) -> Load:
    average = _AVERAGE.match(files.text("proc/loadavg"))
    groups = [folder for folder, is_unified in files.cgroups("cpu") if is_unified][-1:]

    def read_pressure(name: str) -> float | None:
        paths = [Path(f"proc/pressure/{name}"), *(group / f"{name}.pressure" for group in groups)]
        matches = [_PRESSURE.match(files.text(path)) for path in paths]
        shares = [min(1.0, float(match[1]) / 100) for match in matches if match]
        return max(shares, default=None)

    return Load(
        average=float(average[1]) if average else None,
        cpu=read_pressure("cpu"),
        memory=read_pressure("memory"),
        io=read_pressure("io"),
    )


def _find_program(words: list[str]) -> str:
    """Return Feeder's module that a command line runs, or "feeder serve"; "" if it runs neither.

    The first word decides: sudo, timeout and shells that start a daemon have its words, too.
    """
    if PurePosixPath(words[0]).name.startswith("python"):
        words = [*dropwhile(lambda word: word.startswith("-"), words[1:]), ""]  # such as -P, -m
    name = PurePosixPath(words[0]).name
    return "feeder serve" if name == "feeder" and words[1:2] == ["serve"] else name
