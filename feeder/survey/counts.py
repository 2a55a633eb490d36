"""Counts of values, added piece by piece in constant memory, and the distributions they become.

Whole numbers below a limit are counted exactly. Positive numbers of any size are counted in bins of
1/256 octave, so that quantiles are right within 0.14 %; their least and largest value are exact.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

BINS_PER_OCTAVE: Final = 256
_OCTAVE_MIN: Final = -16  # an aspect ratio of 1 : 65,535
_OCTAVE_MAX: Final = 33  # a blob of 4 GiB
_ROUNDING: Final = 1e-9  # log2 may be a little less than a whole number


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Distribution:
    """Different values in ascending order, and how often each occurs."""

    values: NDArray[np.float64]
    """(k,), at least one."""
    counts: NDArray[np.int64]
    low: float
    high: float

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    def quantile(self, share: float) -> float:
        """Return the value that ``share`` of all values do not exceed."""
        position = min(int(np.ceil(share * self.total)), self.total)
        at = int(np.searchsorted(np.cumsum(self.counts), max(position, 1)))
        return float(min(max(self.values[at], self.low), self.high))

    def count_below(self, limit: float) -> int:
        """Return how many values are below ``limit``."""
        return int(self.counts[self.values < limit].sum())


class WholeCounts:
    """Counts whole numbers from 0 up to and without ``limit``, each by itself."""

    def __init__(self, limit: int) -> None:
        self._counts = np.zeros(limit, np.int64)

    def add(self, values: NDArray[np.integer]) -> None:
        """Count ``values`` (n,)."""
        found = np.bincount(values)
        self._counts[: len(found)] += found

    def distribution(self) -> Distribution:
        """Return what was counted; ValueError if that is nothing."""
        values = np.flatnonzero(self._counts)
        return Distribution(
            values=values.astype(np.float64),
            counts=self._counts[values],
            low=float(values.min()),
            high=float(values.max()),
        )


class OctaveCounts:
    """Counts positive numbers by their logarithm."""

    def __init__(self) -> None:
        self._counts = np.zeros((_OCTAVE_MAX - _OCTAVE_MIN) * BINS_PER_OCTAVE, np.int64)
        self._low, self._high = np.inf, 0.0

    def add(self, values: NDArray[np.float64]) -> None:
        """Count ``values`` (n,), n at least 1."""
        octaves = np.log2(values) - _OCTAVE_MIN
        bins = np.floor(octaves * BINS_PER_OCTAVE + _ROUNDING).astype(np.int64)
        found = np.bincount(np.clip(bins, 0, len(self._counts) - 1))
        self._counts[: len(found)] += found
        self._low = min(self._low, float(values.min()))
        self._high = max(self._high, float(values.max()))

    def distribution(self) -> Distribution:
        """Return what was counted; its values are the middles of the bins."""
        bins = np.flatnonzero(self._counts)
        return Distribution(
            values=np.exp2((bins + 0.5) / BINS_PER_OCTAVE + _OCTAVE_MIN),
            counts=self._counts[bins],
            low=self._low,
            high=self._high,
        )


class EvenCounts:
    """Counts numbers from ``low`` to ``high`` in ``bins`` bins of the same width."""

    def __init__(self, low: float, high: float, bins: int) -> None:
        self._low, self._width = low, (high - low) / bins or 1.0
        self.counts = np.zeros(bins, np.int64)

    def add(self, values: NDArray[np.float64]) -> None:
        """Count ``values`` (n,); those out of the range go to the bin at its end."""
        bins = np.floor((values - self._low) / self._width).astype(np.int64)
        last = len(self.counts) - 1
        self.counts += np.bincount(np.clip(bins, 0, last), minlength=last + 1)
