"""What the kernel counts of processes: state, CPU time, waits, reads, and which are busiest.

What is missing or may not be read counts as zero: kernels without CONFIG_SCHEDSTATS or
CONFIG_TASK_IO_ACCOUNTING, and processes of another user.

Source: proc(5): /proc/PID/stat, schedstat and io, /proc/PID/task/TID/stat and wchan.
"""

import contextlib
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final, NamedTuple

from feeder.metrics.hangs import KernelState, ProcessLook
from feeder.process.path_text import printable

_PROC: Final = Path("/proc")
_BYTES_MAX: Final = 4096
_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")

_STATES: Final[dict[bytes, KernelState]] = {
    b"R": "runs",
    b"S": "sleeps",
    b"I": "sleeps",
    b"D": "storage",
    b"T": "stopped",
    b"t": "traced",
    b"Z": "ended",
}
_STATE, _PARENT, _USER_TICKS, _SYSTEM_TICKS, _CPU = 0, 1, 11, 12, 36
"""Positions after the name; the manual counts name and number, too, and from one."""

# File systems of user space and networks may wait in an interruptible sleep. The kernel function
# in which they wait tells them from others.
_STORAGE_WAITS: Final = (
    b"request_wait_answer",  # FUSE, virtiofs
    b"fuse_",
    b"rpc_",  # NFS
    b"nfs",
    b"wait_for_response",  # CIFS
    b"cifs_",
    b"smb2_",
    b"ceph_",
    b"p9_",  # 9p
    b"folio_wait",
    b"io_schedule",
)

NEIGHBOURS_MAX: Final = 3
LITTLE_CPUS: Final = 0.05  # a process that uses less is not named
_NAME_CHARS: Final = 64

Busy = tuple[str, int, float]
"""A process: its name, its number, and the CPUs that it uses. No msgspec: the doctor has none."""


class ProcessStat(NamedTuple):
    """The kernel's line about a process or thread."""

    state: KernelState
    cpu_s: float  # since it began
    last_cpu: int  # on which it ran last
    parent: int


def parse_stat(stat: bytes) -> ProcessStat | None:
    """Parse a line; None if it has another form."""
    words = stat.rpartition(b")")[2].split()  # the name before it may contain anything
    if len(words) <= _CPU or words[_STATE] not in _STATES:
        return None
    cpu_s = (int(words[_USER_TICKS]) + int(words[_SYSTEM_TICKS])) / _TICKS_A_S
    return ProcessStat(_STATES[words[_STATE]], cpu_s, int(words[_CPU]), int(words[_PARENT]))


def look_at(pid: int, proc: Path = _PROC) -> ProcessLook | None:
    """Look at what a process does now; None if it has ended and was reaped, or is not readable.

    Only its main thread counts: others, such as those of libzmq, may run on in one that hangs.
    """
    folder = f"{proc}/{pid}"
    thread = f"{folder}/task/{pid}"
    stat = parse_stat(_read(f"{thread}/stat"))
    if stat is None:
        return None
    waits = stat.state == "sleeps" and _read(f"{thread}/wchan").startswith(_STORAGE_WAITS)
    run_ns, delay_ns = (_read(f"{folder}/schedstat").split() or [b"0", b"0"])[:2]
    counts = (line.split(b":") for line in _read(f"{folder}/io").splitlines())
    io = {name: int(count) for name, count in counts}
    return ProcessLook(
        state="storage" if waits else stat.state,
        cpu_s=int(run_ns) / 1e9 or stat.cpu_s,
        requested_bytes=io.get(b"rchar", 0),
        read_bytes=io.get(b"read_bytes", 0),
        run_delay_s=int(delay_ns) / 1e9,
        cpu=stat.last_cpu,
    )


def _read(path: str) -> bytes:
    # Plain calls take half as long as a file object, and node processes read three files of each
    # worker every second.
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _BYTES_MAX)
        finally:
            os.close(fd)
    return b""


class NeighbourFinder:
    """Finds the processes that use most CPU time; a look takes 10 ms for a thousand processes."""

    def __init__(self, proc: Path = _PROC) -> None:
        self._proc = proc
        self._cpu_s: dict[int, float] = {}  # by process, at the last look
        self._looked_s = 0.0

    def look(self, known: Collection[int], now_s: float) -> tuple[Busy, ...]:
        """Find the busiest processes since the last look, none at the first one, without ``known``,
        those of the daemon and its clients, and the children of these."""
        elapsed_s, before = now_s - self._looked_s, self._cpu_s
        self._cpu_s, self._looked_s = {}, now_s
        neighbours: list[Busy] = []
        for entry in filter(str.isdigit, os.listdir(self._proc)):
            line = _read(f"{self._proc}/{entry}/stat")
            stat, pid = parse_stat(line), int(entry)
            if stat is None:  # it has ended
                continue
            self._cpu_s[pid] = stat.cpu_s
            if before and elapsed_s > 0 and pid not in known and stat.parent not in known:
                cpus = (stat.cpu_s - before.get(pid, 0.0)) / elapsed_s
                name = line.partition(b"(")[2].rpartition(b")")[0].decode(errors="replace")
                if cpus >= LITTLE_CPUS:
                    neighbours.append((printable(name)[:_NAME_CHARS], pid, cpus))
        neighbours.sort(key=lambda neighbour: -neighbour[2])
        return tuple(neighbours[:NEIGHBOURS_MAX])
