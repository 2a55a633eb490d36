"""How long the training loop has waited for each node, for its pings.

    begin ─► advance … ─► end        time between two calls counts for the links awaited meanwhile

A wait is counted while it lasts, so that a node learns of a training loop that it blocks. The
totals only grow. Pure: the caller passes the time.
"""

from collections.abc import Iterable


class WaitClock:
    """The waits of one consumer, by link. A hedged batch counts for both of its nodes."""

    def __init__(self) -> None:
        self._totals_s: dict[int, float] = {}
        self._since_s: float | None = None  # while it waits: counted up to here

    def begin(self, now_s: float) -> None:
        """Record that the consumer begins to wait."""
        self._since_s = now_s

    def advance(self, now_s: float, awaited: Iterable[int]) -> None:
        """Count the time since the last call for the links that the next batch is requested on."""
        if self._since_s is None:
            return
        waited_s = max(0.0, now_s - self._since_s)
        self._since_s += waited_s  # never back: a turn begins with the time of the turn before
        for link in awaited:
            self._totals_s[link] = self._totals_s.get(link, 0.0) + waited_s

    def end(self, now_s: float, awaited: Iterable[int]) -> None:
        """Record that the consumer no longer waits; ``awaited``: the link that ended the wait."""
        self.advance(now_s, awaited)
        self._since_s = None

    def total_s(self, link: int) -> float:
        """Return how long the consumer has waited for a link."""
        return self._totals_s.get(link, 0.0)

    def forget(self, link: int) -> None:
        """Drop the total of a link that is gone; its number is never used again."""
        self._totals_s.pop(link, None)
