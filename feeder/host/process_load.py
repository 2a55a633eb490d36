"""What the kernel counts of one process: CPU time, waits for a CPU, reads, where it ran last.

What is missing or may not be read counts as zero: kernels without CONFIG_SCHEDSTATS or
CONFIG_TASK_IO_ACCOUNTING, and processes of another user.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feeder.host.process_stat import parse_stat
from feeder.metrics.hangs import KernelState

_BYTES_MAX: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLoad:
    """A process's totals since its start, and its present state."""

    state: KernelState | None = None
    """None if unknown."""
    cpu: int = -1
    """The CPU that its main thread last ran on; -1 if unknown."""
    cpu_s: float = 0.0
    """CPU time of its main thread."""
    run_delay_s: float = 0.0
    """Time in which its main thread could run and waited for a CPU."""
    read_bytes: int = 0
    """Bytes that storage had to deliver."""
    requested_bytes: int = 0
    """Bytes that it has read, from page cache or storage."""


def read_process_load(pid: int, root: Path = Path("/proc")) -> ProcessLoad:
    """Return what the kernel counts of a process; zeros where it has ended."""
    folder = f"{root}/{pid}"
    stat = parse_stat(read_small(f"{folder}/stat"))
    cpu_s, run_delay_s = _parse_schedstat(read_small(f"{folder}/schedstat"))
    io = _parse_io(read_small(f"{folder}/io"))
    return ProcessLoad(
        state=stat.state if stat else None,
        cpu=stat.last_cpu if stat else -1,
        cpu_s=cpu_s,
        run_delay_s=run_delay_s,
        read_bytes=io.get(b"read_bytes", 0),
        requested_bytes=io.get(b"rchar", 0),
    )


def _parse_schedstat(data: bytes) -> tuple[float, float]:
    """Return the seconds on a CPU, and those waiting for one."""
    words = data.split()
    if len(words) < 2 or not (words[0].isdigit() and words[1].isdigit()):
        return 0.0, 0.0
    return int(words[0]) / 1e9, int(words[1]) / 1e9


def _parse_io(data: bytes) -> dict[bytes, int]:
    pairs = (line.partition(b":") for line in data.splitlines())
    return {name: int(count) for name, _, count in pairs if count.strip().isdigit()}


def read_small(path: str) -> bytes:
    """Return the first bytes of a file of the kernel, none if it is absent.

    Plain calls take half as long as a file object, and node processes read three files of each
    worker every second.
    """
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _BYTES_MAX)
        finally:
            os.close(fd)
    return b""
