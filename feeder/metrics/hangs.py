"""Judges a process from which progress is due: what it does, and whether it hangs. Pure.

A *watch* has the facts: when the process last made progress, and repeated looks at its main thread
since then. A *policy* says how long each condition may last. One look does not show enough: a
process that is stopped now may have run until a moment ago. So a condition counts only once it has
lasted.

    look_s      without progress: the shell looks at it, every LOOK_INTERVAL_S
    silent_s    it is *silent*, unless what it does usually takes long
    stopped_s   it hangs if it was stopped all the time
    deadline    it hangs if it slept all the time, or used CPU time for all of it
    most_s      it hangs in any case: until then it may wait for storage, or for the CPU of a busy
                machine, where a successor would be no better

A wake-up that is late shows that the watching process itself was suspended, stopped or starved, and
most likely the watched one with it, as by a cgroup freezer. That time does not count.

The supervisor watches node processes (``daemon.node_process``), a node process its workers
(``session.worker_watch``).
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

LOOK_INTERVAL_S: Final = 0.5

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


class ProcessLooks:
    """Looks at a process since it has made no progress."""

    __slots__ = (
        "_first",
        "_first_s",
        "_last",
        "_last_s",
        "_read_s",
        "_state_cpu_s",
        "_state_since_s",
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
        """Its condition, which has lasted, or used CPU time, for ``lasting_s``."""
        state, since_s = _kind(self._last.state), self._last_s - self._state_since_s
        if state == "storage":
            return "storage"
        if state in ("stopped", "sleeps") and since_s >= lasting_s:
            if self._last.cpu_s - self._state_cpu_s <= _ASLEEP_SHARE * since_s:
                return "stopped" if state == "stopped" else "asleep"
            return "unclear"  # it worked between the looks
        if state == "stopped":
            return "unclear"
        watched_s, used_s = self._last_s - self._first_s, self._last.cpu_s - self._first.cpu_s
        if used_s >= lasting_s:
            return "looping"
        if state == "runs" and watched_s >= lasting_s and used_s < _STARVED_SHARE * watched_s:
            return "starved"
        return "unclear"

    def describe(self) -> str:
        """Its state now, such as "stopped by a signal"."""
        words, watched_s = STATE_WORDS[self._last.state], self._last_s - self._first_s
        if self._last.state != "runs" or watched_s <= 0:
            return words
        used_s = max(0.0, self._last.cpu_s - self._first.cpu_s)
        return f"{words}, {used_s:.1f} s of CPU time in {watched_s:.1f} s"


@dataclass(slots=True, eq=False)
class Watch:
    """A process from which progress is due."""

    policy: Policy
    progress_s: float = 0.0
    """When it last made progress, or began to owe some."""
    looks: ProcessLooks | None = None
    """None until one has succeeded."""

    def is_quiet(self, now_s: float) -> bool:
        """Whether to look at it."""
        return now_s >= self.progress_s + self.policy.look_s

    def add_look(self, look: ProcessLook | None, now_s: float) -> None:
        """Take a look at a process that is quiet; None: it failed."""
        if look is None:
            return
        if self.looks is None:
            self.looks = ProcessLooks(look, now_s)
        else:
            self.looks.add(look, now_s)

    def resume(self, lost_s: float, now_s: float) -> None:
        """Discount time in which nothing ran; what was seen before proves nothing."""
        self.progress_s, self.looks = min(self.progress_s + lost_s, now_s), None

    def is_silent(self, now_s: float, usual_s: float = 0.0) -> bool:
        """Whether to report it; ``usual_s``: what its work takes at most as a rule."""
        silent_s = self.policy.silent_s
        if usual_s and not self._was_stopped(silent_s):
            silent_s = min(max(silent_s, SILENT_AFTER * usual_s), self.policy.most_s / 2)
        return now_s >= self.progress_s + silent_s

    def judge(self, now_s: float, deadline_s: float) -> tuple[Condition, bool]:
        """What it does, and whether it hangs."""
        policy, limit_s = self.policy, self.policy.most_s
        condition: Condition = "unclear"
        if self._was_stopped(policy.stopped_s):
            return "stopped", now_s >= self.progress_s + policy.stopped_s
        if self.looks is not None:
            silent_s = now_s - self.progress_s
            condition = self.looks.condition(self._watched(min(deadline_s, silent_s)))
        if condition in ("asleep", "looping"):
            limit_s = deadline_s
        return condition, now_s >= self.progress_s + limit_s

    def is_read_hanging(self) -> bool:
        """Whether a silent process waits for a read that does not return; slow storage returns
        some."""
        return self.looks is not None and self.looks.is_read_hanging(
            self._watched(self.policy.silent_s)
        )

    def describe(self) -> str:
        """Its state at the last look, "unknown" if none has succeeded."""
        return "unknown" if self.looks is None else self.looks.describe()

    def check_at_s(self, now_s: float, *limits_s: float) -> float:
        """When to look at it, or to judge it again; ``limits_s``: besides those of the policy."""
        policy = self.policy
        if not self.is_quiet(now_s):
            return self.progress_s + policy.look_s
        limits_s = (policy.silent_s, policy.stopped_s, policy.most_s, *limits_s)
        later_s = [at_s for at_s in (self.progress_s + s for s in limits_s) if at_s > now_s]
        return min([now_s + LOOK_INTERVAL_S, *later_s])

    def _was_stopped(self, for_s: float) -> bool:
        looks = self.looks
        return looks is not None and looks.condition(self._watched(for_s)) == "stopped"

    def _watched(self, silent_s: float) -> float:
        """How long a process is looked at that is silent for so long."""
        return silent_s - self.policy.look_s - _SLACK_S


class SuspensionWatch:
    """Knows when this process last ran, and until when it may sleep.

    While anything depends on it, the event loop wakes up every CHECK_S. Messages that waited
    meanwhile may be handled before what was due, so every event is an occasion to look.
    """

    CHECK_S: Final = 0.2

    def __init__(self) -> None:
        self._seen_s = 0.0
        self.due_s = float("inf")
        """When the process wakes up at the latest."""

    def observe(self, now_s: float, due_s: float | None = None) -> float:
        """How long the process did not run though it was due, 0 for less than SUSPENDED_S.

        Each suspension is returned once. ``due_s`` replaces the attribute.
        """
        lost_s = now_s - max(self.due_s if due_s is None else due_s, self._seen_s)
        self._seen_s = max(now_s, self._seen_s)
        return lost_s if lost_s > SUSPENDED_S else 0.0


def _kind(state: KernelState) -> KernelState:
    return "stopped" if state == "traced" else state
