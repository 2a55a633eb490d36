"""Whether a series of samples has grown: pure arithmetic.

The median of the last third after the warm-up is compared with that of the first
(``bench.soak.windows``). Medians, because sessions come and go: moments with one more of them do
not look like growth as long as they are as frequent at the end as at the beginning.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .windows import find_thirds


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How much larger the last third may be: ``absolute``, or ``relative`` to the first."""

    absolute: float
    relative: float

    def allowed(self, first: float) -> float:
        """Return the largest growth that is tolerated."""
        return max(self.absolute, self.relative * first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """The medians of the first and the last third."""

    first: float
    last: float

    @property
    def growth(self) -> float:
        """The difference, last less first; negative when the series has shrunk."""
        return self.last - self.first

    def exceeds(self, tolerance: Tolerance) -> bool:
        """Return whether the growth is above the tolerance."""
        return self.growth > tolerance.allowed(self.first)


def find_trend(values: Sequence[float]) -> Trend:
    """Return the trend of values sampled at even intervals, warm-up included.

    ConfigError when there are too few.
    """
    first, last = find_thirds(len(values))
    return Trend(first=first.median(values), last=last.median(values))
