"""Durations counted in fixed buckets, as Prometheus histograms have them.

The buckets grow by a factor of about two, from a millisecond to a minute: a chunk takes 30 ms, a
batch that waits for its turn a second. Adding a duration costs a microsecond and no allocation.
"""

from bisect import bisect_left
from typing import Annotated, Final

from msgspec import Meta, Struct

BOUNDS_S: Final = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 60.0),
)
"""Upper bounds of the buckets, inclusive; one more bucket has no upper bound."""


class HistogramSnapshot(Struct, frozen=True, kw_only=True):
    """A histogram at one time."""

    counts: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(max_length=32)]
    """Durations in each bucket of BOUNDS_S, not accumulated; the last bucket has no bound."""
    total_s: Annotated[float, Meta(ge=0)]
    """Sum of all durations."""


class Histogram:
    """Durations since the process started."""

    __slots__ = ("_counts", "_total_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._total_s = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration; a negative one, after a clock's correction, counts as 0."""
        seconds = max(0.0, seconds)
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._total_s += seconds

    def snapshot(self) -> HistogramSnapshot:
        """Return the counts so far."""
        return HistogramSnapshot(counts=tuple(self._counts), total_s=self._total_s)
