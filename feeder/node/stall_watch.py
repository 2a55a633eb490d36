"""Notices that this process did not run: it was suspended, or stopped, or starved of CPU time.

A wake-up shows that if it comes much later than it was due, so while anything depends on it the
event loop wakes up every STALL_CHECK_S. Messages that waited meanwhile may be handled before what
was due, so every event is an occasion to look. Pure: the caller passes the time.
"""

from typing import Final

STALL_S: Final = 0.5
"""A wake-up this late means that the process was suspended. Clients ping every second and the
shortest lease is 2 s, so shorter stalls cannot expire a lease."""

STALL_CHECK_S: Final = 0.2


class StallWatch:
    """Knows when the process last ran, and until when it may sleep."""

    def __init__(self) -> None:
        self._seen_s = 0.0
        self._due_s = float("inf")

    def expect(self, due_s: float) -> None:
        """Record when the process wakes up at the latest."""
        self._due_s = due_s

    def observe(self, now_s: float, due_s: float | None = None) -> float:
        """Return how long the process did not run though it was due, 0 for less than STALL_S.

        Each stall is returned once. ``due_s`` replaces the time of ``expect``.
        """
        lost_s = now_s - max(self._due_s if due_s is None else due_s, self._seen_s)
        self._seen_s = max(now_s, self._seen_s)
        return lost_s if lost_s > STALL_S else 0.0
