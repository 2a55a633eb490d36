"""Parses a line of /proc/PID/stat or /proc/PID/task/TID/stat.

Source: proc_pid_stat(5).
"""

import os
from dataclasses import dataclass
from typing import Final

from feeder.metrics.hangs import KernelState

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
_STATE, _PARENT, _USER_TICKS, _SYSTEM_TICKS, _CPU = 0, 1, 11, 12, 36
"""Positions after the name; the manual counts name and number, too, and from one."""

_DIGITS_MAX: Final = 18
_TICKS_A_S: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """What the kernel counts of a process, or of one of its threads."""

    state: KernelState
    cpu_s: float
    """CPU time since it began."""
    last_cpu: int
    """The CPU that it last ran on; -1 if unknown."""
    parent: int
    """The number of its parent process; -1 if unknown."""


def parse_stat(stat: bytes) -> ProcessStat | None:
    """Return what a line holds; None if it has another form."""
    words = stat.rpartition(b")")[2].split()  # the name before it may contain anything
    if len(words) <= _SYSTEM_TICKS or words[_STATE] not in _STATES:
        return None
    user, system = _to_count(words[_USER_TICKS]), _to_count(words[_SYSTEM_TICKS])
    if user is None or system is None:
        return None
    cpu = _to_count(words[_CPU]) if len(words) > _CPU else None
    parent = _to_count(words[_PARENT])
    return ProcessStat(
        state=_STATES[words[_STATE]],
        cpu_s=(user + system) / _TICKS_A_S,
        last_cpu=-1 if cpu is None else cpu,
        parent=-1 if parent is None else parent,
    )


def _to_count(word: bytes) -> int | None:
    return int(word) if word.isdigit() and len(word) <= _DIGITS_MAX else None
