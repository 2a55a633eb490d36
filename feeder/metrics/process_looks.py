"""What a process without progress does, judged by repeated looks at its main thread. Pure.

One look does not show enough: a process that is stopped now may have run until a moment ago. So a
condition counts only once it has lasted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

KernelState = Literal["runs", "sleeps", "storage", "stopped", "traced", "ended"]
"""Storage is the uninterruptible sleep, in which a process waits for a disk or a file server; a
traced process is stopped by a debugger."""

Condition = Literal["stopped", "asleep", "looping", "storage", "starved", "unclear"]
"""Stopped by a signal or a debugger; asleep all the time; looping: it uses CPU time; it waits for
storage; starved: it could run, but the machine gives it little CPU time; none of these for long
enough, or no look succeeded."""

STATE_WORDS: Final[Mapping[KernelState, str]] = {
    "runs": "running or waiting for a CPU",
    "sleeps": "sleeping",
    "storage": "blocked in the kernel, as by a disk or network file system",
    "stopped": "stopped by a signal",
    "traced": "stopped by a debugger",
    "ended": "ended, not yet reaped",
}

_STARVED_SHARE: Final = 0.5
"""With less than this share of a CPU, a process that could run is starved."""

_ASLEEP_SHARE: Final = 0.05
"""A process that sleeps uses less: a wake-up costs microseconds."""


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """The main thread of a process at one time."""

    state: KernelState
    cpu_s: float
    """CPU time since it began."""
    requested_bytes: int = 0
    """Bytes that it has read, from page cache or storage; 0 if unknown."""


class ProcessLooks:
    """Looks at a process since it has made no progress, oldest first."""

    __slots__ = (
        *("_first", "_first_s", "_last", "_last_s"),
        *("_read_s", "_state_cpu_s", "_state_since_s"),
    )

    def __init__(self, look: ProcessLook, now_s: float) -> None:
        """Begin with the first look."""
        self._first = self._last = look
        self._first_s = self._last_s = self._state_since_s = self._read_s = now_s
        self._state_cpu_s = look.cpu_s

    def add(self, look: ProcessLook, now_s: float) -> None:
        """Add a later look."""
        if _kind(look.state) != _kind(self._last.state):
            self._state_since_s, self._state_cpu_s = now_s, look.cpu_s
        if look.requested_bytes != self._last.requested_bytes:
            self._read_s = now_s
        self._last, self._last_s = look, now_s

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped now."""
        return _kind(self._last.state) == "stopped"

    @property
    def is_busy(self) -> bool:
        """Whether it has used more than half of a CPU since the first look."""
        watched_s, used_s = self._last_s - self._first_s, self._last.cpu_s - self._first.cpu_s
        return used_s > _STARVED_SHARE * watched_s

    def is_read_hanging(self, lasting_s: float) -> bool:
        """Whether it waits for storage, from which nothing has come for ``lasting_s``."""
        return self._last.state == "storage" and self._last_s - self._read_s >= lasting_s

    def condition(self, lasting_s: float) -> Condition:
        """Return its condition, which has lasted, or used CPU time, for ``lasting_s``."""
        state, since_s = _kind(self._last.state), self._last_s - self._state_since_s
        if state == "storage":
            return "storage"
        if state in ("stopped", "sleeps") and since_s >= lasting_s:
            if self._last.cpu_s - self._state_cpu_s <= _ASLEEP_SHARE * since_s:
                return "stopped" if state == "stopped" else "asleep"
            return "unclear"
        if state == "stopped":
            return "unclear"
        watched_s, used_s = self._last_s - self._first_s, self._last.cpu_s - self._first.cpu_s
        if used_s >= lasting_s:
            return "looping"
        if state == "runs" and watched_s >= lasting_s and used_s < _STARVED_SHARE * watched_s:
            return "starved"
        return "unclear"

    def describe(self) -> str:
        """Return its state now, such as "stopped by a signal"."""
        words, watched_s = STATE_WORDS[self._last.state], self._last_s - self._first_s
        if self._last.state != "runs" or watched_s <= 0:
            return words
        used_s = max(0.0, self._last.cpu_s - self._first.cpu_s)
        return f"{words}, {used_s:.1f} s of CPU time in {watched_s:.1f} s"


def describe_looks(looks: ProcessLooks | None) -> str:
    """Return the state that the last look showed, "unknown" if none has succeeded."""
    return "unknown" if looks is None else looks.describe()


def _kind(state: KernelState) -> KernelState:
    return "stopped" if state == "traced" else state
