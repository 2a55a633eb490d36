"""What the kernel counts of one process: waits for a CPU, reads, where it ran last.

What is missing or may not be read counts as zero: kernels without CONFIG_SCHEDSTATS or
CONFIG_TASK_IO_ACCOUNTING, and processes of another user.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_STATES: Final = {
    "R": "running or waiting for a CPU",
    "S": "sleeping",
    "D": "blocked in the kernel, as by a disk or network file system",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended, not yet reaped",
    "X": "ended",
}
"""State letters of /proc/PID/stat in words; ``man 5 proc``."""

_TEXT_BYTES_MAX: Final = 4096
_LAST_CPU_FIELD: Final = 36
"""Of /proc/PID/stat, counted from the state: field 39 of the manual, where the state is field 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLoad:
    """A process's totals since its start, and its present state."""

    state: str = ""
    """In words; "" if unknown."""
    cpu: int = -1
    """The CPU that its main thread last ran on; -1 if unknown."""
    run_delay_s: float = 0.0
    """Time in which its main thread could run and waited for a CPU."""
    read_bytes: int = 0
    """Bytes that storage had to deliver."""
    requested_bytes: int = 0
    """Bytes that it has read, from page cache or storage."""


def read_process_load(pid: int, root: Path = Path("/proc")) -> ProcessLoad:
    """Return what the kernel counts of a process; zeros where it has ended."""
    folder = f"{root}/{pid}"
    state, cpu = _parse_stat(_read(f"{folder}/stat"))
    delay_ns = _read(f"{folder}/schedstat").split()
    io = _parse_io(_read(f"{folder}/io"))
    return ProcessLoad(
        state=state,
        cpu=cpu,
        run_delay_s=int(delay_ns[1]) / 1e9 if len(delay_ns) > 1 and delay_ns[1].isdigit() else 0.0,
        read_bytes=io.get("read_bytes", 0),
        requested_bytes=io.get("rchar", 0),
    )


def _parse_stat(text: str) -> tuple[str, int]:
    """Return the state in words and the last CPU; the name before them may hold anything."""
    fields = text.rpartition(")")[2].split()
    state = _STATES.get(fields[0], "") if fields else ""
    if len(fields) <= _LAST_CPU_FIELD or not fields[_LAST_CPU_FIELD].isdigit():
        return state, -1
    return state, int(fields[_LAST_CPU_FIELD])


def _parse_io(text: str) -> dict[str, int]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: int(count) for name, _, count in pairs if count.strip().isdigit()}


def _read(path: str) -> str:
    """Return the file's text, "" if there is none. Plain calls take half as long as a file object,
    and node processes read three files of each worker every second."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(fd, _TEXT_BYTES_MAX).decode("ascii", "replace")
        finally:
            os.close(fd)
    return ""
