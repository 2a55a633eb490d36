"""Reads memory, swap, huge pages, resource limits and the clock source."""

import re

from feeder.doctor.findings.facts import (
    UNLIMITED,
    Clock,
    HugePages,
    Limits,
    Memory,
    SwapDevice,
)
from feeder.doctor.kernel_files import KernelFiles, to_bytes, to_number
from feeder.errors import FeederError
from feeder.host.kernel_files import cgroup_folders

_CHOSEN = re.compile(r"\[(\w+)\]")
_SIZE = re.compile(r"hugepages-([0-9]{1,12})kB")
_NO_LIMIT = 1 << 60  # cgroup v1 writes the largest number of pages for no limit


def read_memory(files: KernelFiles, feeder_swapped_bytes: int = 0) -> Memory:
    """Return what the machine has and the cgroup allows; the argument is passed on."""
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
        feeder_swapped_bytes=feeder_swapped_bytes,
    )


def _read_cgroup(files: KernelFiles) -> tuple[int | None, int | None, int | None]:
    """Return the version of the process's cgroups, and the least of their limits and swap limits.

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
    """Return the lines of /proc/swaps: name, kind, size and use in KiB, priority."""
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
    """Return the process's limits of open files and of locked memory, from /proc."""
    rows: dict[str, list[str]] = {}
    for line in files.own("limits").splitlines():
        name, _, rest = line.partition("  ")
        rows[name.strip()] = rest.split()
    return Limits(
        files_soft=_limit(rows.get("Max open files", []), 0),
        files_hard=_limit(rows.get("Max open files", []), 1),
        locked_bytes=_limit(rows.get("Max locked memory", []), 1),
    )


def _limit(words: list[str], column: int) -> int | None:
    if len(words) <= column:
        return None
    if words[column] == "unlimited":
        return UNLIMITED
    number = to_number(words[column])
    return number if number is not None and number >= 0 else None


def read_clock(files: KernelFiles) -> Clock:
    """Return the kernel's clock source and its alternatives."""
    folder = "sys/devices/system/clocksource/clocksource0"
    return Clock(
        current=files.text(f"{folder}/current_clocksource", 64),
        available=tuple(files.text(f"{folder}/available_clocksource", 256).split()),
    )


def read_kernel(files: KernelFiles) -> str:
    """Return the kernel's release."""
    return files.text("proc/sys/kernel/osrelease", 256)
