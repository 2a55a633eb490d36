"""When a node process that crashed is started again, and when that is given up: no clock, no I/O.

The pause doubles with each crash, from FIRST_PAUSE_S to LAST_PAUSE_S; WINDOW_S without a crash
resets it. One that has never served is given up after more than
CRASHES_MAX crashes within WINDOW_S: it cannot work here. One that has served is always started
again, as whatever ends it may pass and other clients need it then.
"""

from collections import deque
from typing import Final

FIRST_PAUSE_S: Final = 0.25
LAST_PAUSE_S: Final = 10.0
CRASHES_MAX: Final = 5
WINDOW_S: Final = 60.0


class RestartPolicy:
    """The crashes of one node process."""

    def __init__(self) -> None:
        self._crashes_s: deque[float] = deque(maxlen=CRASHES_MAX + 1)
        self._pause_s = FIRST_PAUSE_S
        self.crashes = 0
        """How many there were."""

    def crashed(self, now_s: float, *, has_served: bool) -> float | None:
        """Return when to start it again, or None to give up; ``has_served``: it or one before."""
        self.crashes += 1
        if self._crashes_s and now_s - self._crashes_s[-1] >= WINDOW_S:
            self._pause_s = FIRST_PAUSE_S
        self._crashes_s.append(now_s)
        is_often = len(self._crashes_s) > CRASHES_MAX and now_s - self._crashes_s[0] < WINDOW_S
        if is_often and not has_served:
            return None
        at_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, LAST_PAUSE_S)
        return at_s
