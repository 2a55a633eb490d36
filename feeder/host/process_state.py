"""What the kernel shows of a process: what its main thread does, and its CPU time.

Only the main thread counts: other threads, such as those of libzmq, may run on in a process that
hangs. Source: proc(5), /proc/PID/task/TID/stat.
"""

import os
from pathlib import Path
from typing import Final

from feeder.metrics.process_looks import KernelState, ProcessLook

_BYTES_MAX: Final = 4096
_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")
_PROC: Final = Path("/proc")

_STATES: Final[dict[bytes, KernelState]] = {
    b"R": "runs",
    b"S": "sleeps",
    b"I": "sleeps",
    b"D": "storage",
    b"T": "stopped",
    b"t": "traced",
    b"Z": "ended",
    b"X": "ended",
    b"x": "ended",
}
_STATE, _USER_TICKS, _SYSTEM_TICKS = 0, 11, 12  # after the name, which may contain anything


def look_at(pid: int, proc: Path = _PROC) -> ProcessLook | None:
    """Return what a process does now; None if it has ended and was reaped, or is not readable."""
    try:
        with (proc / f"{pid}/task/{pid}/stat").open("rb", buffering=0) as file:
            return parse_stat(file.read(_BYTES_MAX))
    except OSError:
        return None


def parse_stat(stat: bytes) -> ProcessLook | None:
    """Return the state and the CPU time of a line of /proc; None if it has another form."""
    words = stat.rpartition(b")")[2].split()
    if len(words) <= _SYSTEM_TICKS or words[_STATE] not in _STATES:
        return None
    ticks = words[_USER_TICKS], words[_SYSTEM_TICKS]
    if not all(word.isdigit() and len(word) <= 18 for word in ticks):
        return None
    return ProcessLook(_STATES[words[_STATE]], sum(map(int, ticks)) / _TICKS_A_S)
