"""Exponential backoff for node processes that crash: when to restart, when to give up. Pure.

The backoff doubles with each crash, from BACKOFF_MIN_S to BACKOFF_MAX_S; WINDOW_S without a crash
resets it. A node process that has never served is given up after more than CRASHES_MAX crashes
within WINDOW_S: it cannot work here. One that has served is always restarted, because the cause
may pass.
"""

from collections import deque
from typing import Final

BACKOFF_MIN_S: Final = 0.25
BACKOFF_MAX_S: Final = 10.0
CRASHES_MAX: Final = 5
WINDOW_S: Final = 60.0


class RestartPolicy:
    """The crashes of one node process."""

    def __init__(self) -> None:
        self._crashes_s: deque[float] = deque(maxlen=CRASHES_MAX + 1)
        self._backoff_s = BACKOFF_MIN_S
        self.crashes = 0

    def on_crash(self, now_s: float, *, has_served: bool) -> float | None:
        """Return the seconds until the restart, None to give up; ``has_served``: at any time."""
        self.crashes += 1
        if self._crashes_s and now_s - self._crashes_s[-1] >= WINDOW_S:
            self._backoff_s = BACKOFF_MIN_S
        self._crashes_s.append(now_s)
        is_often = len(self._crashes_s) > CRASHES_MAX and now_s - self._crashes_s[0] < WINDOW_S
        if is_often and not has_served:
            return None
        backoff_s = self._backoff_s
        self._backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)
        return backoff_s
