"""Virtual time: calls in the order of their times, those of one time in the order they were made.

Invariant: ``now_s`` never decreases, and the same calls give the same order in every run.
"""

import heapq
from collections.abc import Callable


class Agenda:
    """The pending calls of a simulation."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.calls = 0
        """Calls made so far."""
        self._made = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Make a call at a time; a time in the past means now."""
        self._made += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._made, call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Make a call after a delay."""
        self.at(self.now_s + delay_s, call)

    def run(self, until_s: float) -> None:
        """Make all calls up to a time, which is ``now_s`` afterwards."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(heap)
            self.calls += 1
            call()
        self.now_s = max(self.now_s, until_s)
