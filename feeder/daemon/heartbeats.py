"""Notices node processes that hang: no heartbeat comes, and their kernel state shows why.

    FIRST_LOOK_S without a heartbeat   look at the process, again and again
    HUNG_S                             *silent*; *hung* if it was stopped, asleep or looping all
                                       the time, and then to be ended
    HUNG_MAX_S                         hung in any case: until then it may wait for storage, or for
                                       the CPU of a busy machine, where a successor would be no
                                       better

A check that is late means that the supervisor was suspended or starved, and most likely the node
processes with it, as by a cgroup freezer or a suspended virtual machine. That time does not count:
their silences start again. Pure: the caller passes the time, and a function to look at a process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from feeder.metrics.process_looks import ProcessLook, ProcessLooks, describe_looks

FIRST_LOOK_S: Final = 2.0
"""Heartbeats come twice a second."""

LOOK_INTERVAL_S: Final = 0.5
HUNG_S: Final = 4.0
HUNG_MAX_S: Final = 30.0

LATE_S: Final = 0.5
"""A check this late means that the supervisor was suspended or starved."""

CATCH_UP_S: Final = 1.0
"""Time to read the heartbeats that waited, and for new ones."""

_SLACK_S: Final = 0.25  # looks come late on a busy machine
_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Hang:
    """A node process that hangs."""

    number: int
    silent_s: float
    kernel_state: str
    """In words, such as "stopped by a signal"."""


@dataclass(slots=True, eq=False)
class _Watched:
    pid: int
    beat_s: float
    due_s: float
    looks: ProcessLooks | None = None


class HeartbeatWatch:
    """The node processes from which heartbeats are due."""

    def __init__(self, look: Callable[[int], ProcessLook | None]) -> None:
        """``look`` returns what the process with this id does, None if that is unknown."""
        self._look = look
        self._watched: dict[int, _Watched] = {}
        self._hung: set[int] = set()  # until they have ended

    @property
    def due_s(self) -> float:
        """When to call ``check``; heartbeats postpone it, so that none costs a wake-up."""
        return min((watched.due_s for watched in self._watched.values()), default=_NEVER)

    def begin(self, number: int, pid: int, now_s: float) -> None:
        """Expect heartbeats from a node process from now on."""
        self._watched[number] = _Watched(pid, now_s, now_s + FIRST_LOOK_S)

    def beat(self, number: int, now_s: float) -> None:
        """Record a heartbeat."""
        watched = self._watched.get(number)
        if watched is not None:
            watched.beat_s, watched.due_s, watched.looks = now_s, now_s + FIRST_LOOK_S, None

    def end(self, number: int) -> None:
        """Expect none any more: the process drains or has ended."""
        self._watched.pop(number, None)
        self._hung.discard(number)

    def silence_of(self, number: int, now_s: float) -> Literal["silent", "hung"] | None:
        """Return whether a node process is silent, or hung and about to end; None for neither."""
        if number in self._hung:
            return "hung"
        watched = self._watched.get(number)
        return "silent" if watched is not None and now_s - watched.beat_s >= HUNG_S else None

    def check(self, now_s: float) -> list[Hang]:
        """Return the node processes to replace: they are hung, and no longer watched."""
        due_s = self.due_s
        if now_s < due_s:
            return []
        if now_s - due_s > LATE_S:
            for watched in self._watched.values():
                watched.beat_s, watched.due_s, watched.looks = now_s, now_s + CATCH_UP_S, None
            return []
        hangs: list[Hang] = []
        for number, watched in list(self._watched.items()):
            silent_s = now_s - watched.beat_s
            watched.due_s = _due_s(watched, now_s)
            if silent_s < FIRST_LOOK_S:
                continue
            look = self._look(watched.pid)
            if look is not None and watched.looks is None:
                watched.looks = ProcessLooks(look, now_s)
            elif look is not None and watched.looks is not None:
                watched.looks.add(look, now_s)
            if silent_s >= HUNG_MAX_S or (silent_s >= HUNG_S and _is_dead(watched.looks)):
                hangs.append(Hang(number, silent_s, describe_looks(watched.looks)))
                del self._watched[number]
                self._hung.add(number)
        return hangs


def _is_dead(looks: ProcessLooks | None) -> bool:
    """Whether a process has done nothing of use for as long as HUNG_S allows to see."""
    lasting_s = HUNG_S - FIRST_LOOK_S - _SLACK_S
    return looks is not None and looks.condition(lasting_s) in ("stopped", "asleep", "looping")


def _due_s(watched: _Watched, now_s: float) -> float:
    silent_s = now_s - watched.beat_s
    if silent_s < FIRST_LOOK_S:
        return watched.beat_s + FIRST_LOOK_S
    next_s = (limit_s for limit_s in (HUNG_S, HUNG_MAX_S) if limit_s > silent_s)
    return min(now_s + LOOK_INTERVAL_S, watched.beat_s + min(next_s, default=_NEVER))
