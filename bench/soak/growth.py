"""Whether a series of samples has grown: pure arithmetic.

The first fifth of the time is warm-up and left out: buffers reach the size of the largest image,
and every session is opened once. The remaining samples are cut into thirds, and the median of the
last is compared with that of the first. Medians, because sessions come and go: moments with one
more of them do not look like growth as long as they are as frequent at the end as at the beginning.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from feeder.errors import ConfigError

WARM_UP_SHARE: Final = 0.2
SAMPLES_MIN: Final = 9
"""After the warm-up: three for each median."""


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
    first, last = cut_thirds(values)
    return Trend(first=statistics.median(first), last=statistics.median(last))


def cut_thirds(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    """Return the first and the last third of the values after the warm-up, of equal length.

    ConfigError when there are too few.
    """
    kept = values[int(len(values) * WARM_UP_SHARE) :]
    if len(kept) < SAMPLES_MIN:
        raise ConfigError(
            f"{len(values)} samples are too few to tell growth from noise: soak for longer or "
            f"sample more often, so that {SAMPLES_MIN} remain after the warm-up"
        )
    third = len(kept) // 3
    return kept[:third], kept[-third:]
