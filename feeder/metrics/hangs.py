"""Judges a process from which progress is due: what it does, and whether it hangs. Pure.

A *watch* has the facts: when the process last made progress, and repeated looks at its main thread
since then. A *policy* says how long each condition may last. One look does not show enough: a
process that is stopped now may have run until a moment ago. So a condition counts only once it has
lasted.

    look_s      without progress: the shell looks at it at every check
    silent_s    it is *silent*, unless what it does usually takes long
    stopped_s   it hangs if it was stopped all the time
    deadline    it hangs if it slept all the time, or used CPU time for all of it
    most_s      it hangs in any case: until then it may wait for storage, or for the CPU of a busy
                machine, where a successor would be no better

The supervisor watches node processes (``daemon.node_process``), a node process its workers
(``session.worker_watch``). Where the watching process itself was suspended, the watched one most
likely was, too, as by a cgroup freezer: then all silences start again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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

CHECK_S: Final = 0.2
"""While anything depends on it, an event loop wakes up this often: it looks at silent processes,
and notices that it was suspended itself."""

SUSPENDED_S: Final = 0.5
"""A wake-up this late means that the process was suspended. Clients ping every second and the
shortest lease is 2 s, so shorter delays cannot expire a lease."""

CATCH_UP_S: Final = 1.0
"""Time to read the messages that waited meanwhile, including what libzmq has not read yet."""

SILENT_AFTER: Final = 3.0
"""Times what the work usually takes."""

_SLACK_S: Final = 0.25  # looks come late on a busy machine
_STARVED_SHARE: Final = 0.5  # with less of a CPU, a process that could run is starved
_ASLEEP_SHARE: Final = 0.05  # a process that sleeps uses less: a wake-up costs microseconds


@dataclass(frozen=True, slots=True)
class ProcessLook:
    """The main thread of a process at one time."""

    state: KernelState
    cpu_s: float
    """CPU time since it began."""
    requested_bytes: int = 0
    """Bytes that it has read, from page cache or storage; 0 if unknown."""
    read_bytes: int = 0  # those that storage had to deliver
    run_delay_s: float = 0.0  # it could run, and waited for a CPU
    cpu: int = -1  # on which it ran last; -1 if unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How long a process may make no progress; the module says what follows."""

    look_s: float
    silent_s: float
    stopped_s: float
    most_s: float


@dataclass(slots=True, eq=False)
class Watch:
    """A process from which progress is due."""

    policy: Policy
    progress_s: float = 0.0
    """When it last made progress, or began to owe some."""
    looks: list[tuple[float, ProcessLook]] = field(default_factory=list)
    """When and what was seen since then."""

    def restart(self, now_s: float) -> None:
        """Record progress; what was seen before proves nothing."""
        self.progress_s = now_s
        self.looks.clear()

    def is_quiet(self, now_s: float) -> bool:
        """Whether to look at it."""
        return now_s >= self.progress_s + self.policy.look_s

    def is_silent(self, now_s: float, usual_s: float = 0.0) -> bool:
        """Whether to report it; ``usual_s``: what its work takes at most as a rule."""
        silent_s = self.policy.silent_s
        if usual_s and self.condition(self._watched(silent_s)) != "stopped":
            silent_s = min(max(silent_s, SILENT_AFTER * usual_s), self.policy.most_s / 2)
        return now_s >= self.progress_s + silent_s

    def judge(self, now_s: float, deadline_s: float) -> tuple[Condition, bool]:
        """What it does, and whether it hangs."""
        silent_s, limit_s = now_s - self.progress_s, self.policy.most_s
        if self.condition(self._watched(self.policy.stopped_s)) == "stopped":
            return "stopped", silent_s >= self.policy.stopped_s
        condition = self.condition(self._watched(min(deadline_s, silent_s)))
        if condition in ("asleep", "looping"):
            limit_s = deadline_s
        return condition, silent_s >= limit_s

    def condition(self, lasting_s: float) -> Condition:
        """Its condition, which has lasted, or used CPU time, for ``lasting_s``."""
        if not self.looks:
            return "unclear"
        last_s, last = self.looks[-1]
        state = _kind(last)
        if state == "storage":
            return "storage"
        since_s, since = self._alike_since(_kind)
        if state in ("stopped", "sleeps") and last_s - since_s >= lasting_s:
            if last.cpu_s - since.cpu_s <= _ASLEEP_SHARE * (last_s - since_s):
                return "stopped" if state == "stopped" else "asleep"
            return "unclear"  # it worked between the looks
        if state == "stopped":
            return "unclear"
        watched_s, used_s = self._used()
        if used_s >= lasting_s:
            return "looping"
        if state == "runs" and watched_s >= lasting_s and used_s < _STARVED_SHARE * watched_s:
            return "starved"
        return "unclear"

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped at the last look."""
        return bool(self.looks) and _kind(self.looks[-1][1]) == "stopped"

    @property
    def is_busy(self) -> bool:
        """Whether it has used more than half of a CPU since the first look."""
        watched_s, used_s = self._used()
        return used_s > _STARVED_SHARE * watched_s

    @property
    def is_read_hanging(self) -> bool:
        """Whether a silent process waits for a read that does not return; slow storage returns
        some."""
        if not self.looks or self.looks[-1][1].state != "storage":
            return False
        since_s, _ = self._alike_since(lambda look: look.requested_bytes)
        return self.looks[-1][0] - since_s >= self._watched(self.policy.silent_s)

    def describe(self) -> str:
        """Its state at the last look, such as "stopped by a signal"."""
        if not self.looks:
            return "unknown"
        state = self.looks[-1][1].state
        watched_s, used_s = self._used()
        if state != "runs" or watched_s <= 0:
            return STATE_WORDS[state]
        return f"{STATE_WORDS[state]}, {max(0.0, used_s):.1f} s of CPU time in {watched_s:.1f} s"

    def _used(self) -> tuple[float, float]:
        """For how long it has been looked at, and the CPU time that it used meanwhile."""
        if not self.looks:
            return 0.0, 0.0
        (first_s, first), (last_s, last) = self.looks[0], self.looks[-1]
        return last_s - first_s, last.cpu_s - first.cpu_s

    def _alike_since(self, aspect: Callable[[ProcessLook], object]) -> tuple[float, ProcessLook]:
        """The first of the latest looks that are all alike in an aspect."""
        since = self.looks[-1]
        for look in reversed(self.looks):
            if aspect(look[1]) != aspect(since[1]):
                break
            since = look
        return since

    def _watched(self, silent_s: float) -> float:
        """How long a process is looked at that is silent for so long."""
        return silent_s - self.policy.look_s - _SLACK_S


def _kind(look: ProcessLook) -> KernelState:
    return "stopped" if look.state == "traced" else look.state
