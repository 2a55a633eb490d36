"""The machine's load as the kernel counts it: totals since it booted, for differences between two.

Whatever is missing or cannot be parsed counts as zero: the daemon serves without these figures.

Source: proc(5), Documentation/accounting/psi.rst and Documentation/admin-guide/cgroup-v2.rst.
"""

import contextlib
import os
import re
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from feeder.errors import ResourceError
from feeder.host.kernel_files import cgroup_folders, read_bytes
from feeder.host.memory_budget import available_bytes
from feeder.host.topology import UsableCpus
from feeder.metrics.report import HostLoad

_CPU_LINE: Final = re.compile(rb"^cpu([0-9]{1,5})((?: [0-9]{1,18}){8})", re.MULTILINE)
"""user nice system idle iowait irq softirq steal; the guests' time after them is in user and nice.
Stolen time counts as busy: the machine's owner has given these CPUs to another one meanwhile."""

_SOME_TOTAL: Final = re.compile(rb"^some .*\btotal=([0-9]{1,18})\b", re.MULTILINE)
_REFAULTS: Final = re.compile(
    rb"^workingset_refault(?:_file)? ([0-9]{1,18})$",  # without "_file" before Linux 5.9
    re.MULTILINE,
)
_THROTTLED: Final = re.compile(rb"^throttled_(?:usec|time) ([0-9]{1,18})$", re.MULTILINE)

_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")
_IDLE: Final = 3
_IO_WAIT: Final = 4


def read_load(root: Path, usable: UsableCpus) -> HostLoad:
    """Read the load of the machine below a root."""
    proc, cpus = root / "proc", len(usable.affinity)
    busy_s, io_wait_s = parse_cpu_seconds(read_bytes(proc / "stat"), usable.affinity)
    pressure_s = {
        f"pressure_{name}_s": _first(_SOME_TOTAL, read_bytes(proc / "pressure" / name)) / 1e6
        for name in ("cpu", "io", "memory")
    }
    # A group's own figure; the one above that was stopped longest sets the pace.
    throttled_s, free_bytes = 0.0, 0
    with contextlib.suppress(ResourceError):
        for group, unified in cgroup_folders(root, "cpu"):
            count = _first(_THROTTLED, read_bytes(group / "cpu.stat"))  # summed over CPUs
            throttled_s = max(throttled_s, count / (1e6 if unified else 1e9))  # us in v2, ns in v1
    with contextlib.suppress(ResourceError):
        free_bytes = available_bytes(root)
    return HostLoad(
        clock_s=time.monotonic(),
        usable_cpus=float(cpus if usable.quota is None else min(cpus, usable.quota)),
        cpus=cpus,
        busy_s=busy_s,
        io_wait_s=io_wait_s,
        throttled_s=throttled_s,
        refaults=_first(_REFAULTS, read_bytes(proc / "vmstat")),
        free_memory_bytes=free_bytes,
        **pressure_s,
    )


def parse_cpu_seconds(stat: bytes, cpus: Collection[int]) -> tuple[float, float]:
    """The busy and the I/O-wait seconds of some CPUs in /proc/stat."""
    busy, waited = 0, 0
    for match in _CPU_LINE.finditer(stat):
        if int(match[1]) in cpus:
            ticks = [int(word) for word in match[2].split()]
            waited += ticks[_IO_WAIT]
            busy += sum(ticks) - ticks[_IDLE] - ticks[_IO_WAIT]
    return busy / _TICKS_A_S, waited / _TICKS_A_S


def _first(pattern: re.Pattern[bytes], data: bytes) -> int:
    match = pattern.search(data)
    return int(match[1]) if match else 0
