"""Exponential backoff: waits that double, and when to restart a process or to give it up. Pure."""

from collections import deque
from typing import Final

BACKOFF_MIN_S: Final = 0.25
BACKOFF_MAX_S: Final = 10.0
CRASHES_MAX: Final = 5
WINDOW_S: Final = 60.0


class Backoff:
    __slots__ = ("_first_s", "_max_s", "_wait_s")

    def __init__(self, first_s: float, max_s: float = float("inf")) -> None:
        self._first_s = self._wait_s = first_s
        self._max_s = max_s

    def next_s(self) -> float:
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, self._max_s)
        return wait_s

    def reset(self) -> None:
        self._wait_s = self._first_s


class RestartPolicy:
    """The crashes of one process; WINDOW_S without one resets the backoff.

    After more than CRASHES_MAX within WINDOW_S a process that has never served is given up; one
    that has is always restarted, because the cause may pass.
    """

    def __init__(self) -> None:
        self._crashes_s: deque[float] = deque(maxlen=CRASHES_MAX + 1)
        self._backoff = Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S)
        self.crashes = 0

    def on_crash(self, now_s: float, *, has_served: bool) -> float | None:
        """Count a crash; return the seconds until the restart, None to give up."""
        self.crashes += 1
        if self._crashes_s and now_s - self._crashes_s[-1] >= WINDOW_S:
            self._backoff.reset()
        self._crashes_s.append(now_s)
        is_often = len(self._crashes_s) > CRASHES_MAX and now_s - self._crashes_s[0] < WINDOW_S
        if is_often and not has_served:
            return None
        return self._backoff.next_s()
