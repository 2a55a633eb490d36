"""The machine's load as the kernel counts it: totals since it booted, for differences between two.

    <root>/proc/stat                        CPU time, of the CPUs that the daemon may use
    <root>/proc/pressure/cpu, io, memory    pressure stall information
    <root>/proc/vmstat                      pages read again soon after their eviction
    cpu.stat of the cgroups                 time for which a quota stopped the daemon, v1 and v2

Whatever is missing or cannot be parsed counts as zero: the daemon serves without these figures.

Source: proc(5), Documentation/accounting/psi.rst and Documentation/admin-guide/cgroup-v2.rst.
"""

import os
import re
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from feeder.errors import ResourceError
from feeder.host.cgroups import cgroup_folders
from feeder.host.memory_budget import available_bytes
from feeder.host.topology import UsableCpus
from feeder.metrics.report import HostLoad
from feeder.process.regular_file import read_regular

_FILE_BYTES_MAX: Final = 4 << 20
"""/proc/stat has a line for each CPU, and one with a number for each interrupt."""

_CPU_LINE: Final = re.compile(rb"^cpu([0-9]{1,5}) ([0-9 ]{1,400})$", re.MULTILINE)
_SOME_TOTAL: Final = re.compile(rb"^some .*\btotal=([0-9]{1,18})\b", re.MULTILINE)
_REFAULTS: Final = re.compile(
    rb"^workingset_refault(?:_file)? ([0-9]{1,18})$",  # without "_file" before Linux 5.9
    re.MULTILINE,
)
_THROTTLED_V2: Final = re.compile(rb"^throttled_usec ([0-9]{1,18})$", re.MULTILINE)
_THROTTLED_V1: Final = re.compile(rb"^throttled_time ([0-9]{1,18})$", re.MULTILINE)

_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")
_IDLE: Final = 3
_IO_WAIT: Final = 4
_FIELDS: Final = 8
"""user nice system idle iowait irq softirq steal; the guests' time after them is in user and nice.
Stolen time counts as busy: the machine's owner has given these CPUs to another one meanwhile."""


class LoadReader:
    """Reads the load of the machine below a root."""

    __slots__ = ("_available", "_clock", "_cpus", "_cpus_usable", "_groups", "_pressure", "_root")

    def __init__(
        self,
        root: Path,
        usable: UsableCpus,
        *,
        clock: Callable[[], float] = time.monotonic,
        available: Callable[[Path], int] = available_bytes,
    ) -> None:
        """Find the files to read; ``available`` returns the free memory in bytes."""
        self._root = root
        self._cpus = usable.affinity
        quota = usable.quota
        self._cpus_usable = float(len(self._cpus) if quota is None else min(len(self._cpus), quota))
        self._clock = clock
        self._available = available
        try:
            self._groups = tuple(dict.fromkeys(cgroup_folders(root, "cpu")))
        except ResourceError:
            self._groups = ()
        self._pressure = root / "proc/pressure"

    def read(self) -> HostLoad:
        """Return the load until now."""
        busy_s, io_wait_s = parse_cpu_seconds(_read(self._root / "proc/stat"), self._cpus)
        pressures = [
            parse_pressure_s(_read(self._pressure / name)) for name in ("cpu", "io", "memory")
        ]
        throttled = [parse_throttled_s(_read(group / "cpu.stat")) for group, _ in self._groups]
        try:
            free_bytes = self._available(self._root)
        except ResourceError:
            free_bytes = 0
        return HostLoad(
            clock_s=self._clock(),
            usable_cpus=self._cpus_usable,
            cpus=len(self._cpus),
            busy_s=busy_s,
            io_wait_s=io_wait_s,
            # A group's own figure; the one above that was stopped longest sets the pace.
            throttled_s=max(throttled, default=0.0),
            pressure_cpu_s=pressures[0],
            pressure_io_s=pressures[1],
            pressure_memory_s=pressures[2],
            refaults=parse_refaults(_read(self._root / "proc/vmstat")),
            free_memory_bytes=max(0, free_bytes),
        )


def parse_cpu_seconds(stat: bytes, cpus: Collection[int]) -> tuple[float, float]:
    """Return the busy and the I/O-wait seconds of some CPUs in /proc/stat."""
    busy, waited = 0, 0
    for match in _CPU_LINE.finditer(stat):
        ticks = [int(word) for word in match[2].split()[:_FIELDS] if len(word) <= 18]
        if int(match[1]) in cpus and len(ticks) > _IO_WAIT:
            waited += ticks[_IO_WAIT]
            busy += sum(ticks) - ticks[_IDLE] - ticks[_IO_WAIT]
    return busy / _TICKS_A_S, waited / _TICKS_A_S


def parse_pressure_s(pressure: bytes) -> float:
    """Return the seconds in which some task waited, of a file of /proc/pressure."""
    return _first(_SOME_TOTAL, pressure) / 1e6


def parse_throttled_s(cpu_stat: bytes) -> float:
    """Return the seconds for which a quota stopped the group's threads, summed over its CPUs."""
    return max(_first(_THROTTLED_V2, cpu_stat) / 1e6, _first(_THROTTLED_V1, cpu_stat) / 1e9)


def parse_refaults(vmstat: bytes) -> int:
    """Return the pages of files that were read again soon after their eviction."""
    return _first(_REFAULTS, vmstat)


def _first(pattern: re.Pattern[bytes], data: bytes) -> int:
    match = pattern.search(data)
    return int(match[1]) if match else 0


def _read(path: Path) -> bytes:
    """Return a kernel file's bytes, or none where it is absent or not readable."""
    try:
        return read_regular(path, _FILE_BYTES_MAX)
    except (OSError, ValueError):
        return b""
