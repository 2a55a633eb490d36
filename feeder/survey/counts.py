"""Counts of values, added piece by piece in constant memory.

Positive numbers of any size are counted in bins of 1/256 octave, so that quantiles are right within
0.14 %. The least and the largest value are exact for all.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BINS_PER_OCTAVE: Final = 256
_OCTAVE_MIN: Final = -16  # an aspect ratio of 1 : 65,535
_OCTAVE_MAX: Final = 33  # a blob of 4 GiB
_ROUNDING: Final = 1e-9  # log2 may be a little less than a whole number

_Numbers = np.ndarray[Any, np.dtype[np.integer[Any] | np.floating[Any]]]


class WholeCounts:
    """Counts whole numbers from 0 up to and without ``bins``, each by itself."""

    def __init__(self, bins: int) -> None:
        self._counts = np.zeros(bins, np.int64)
        self._sum = 0.0
        self.low, self.high = np.inf, -np.inf

    def add(self, values: _Numbers) -> None:
        """Count ``values`` (n,), n at least 1; those out of the range go to the bin at its end."""
        counts = np.bincount(np.clip(self._find_bins(values), 0, len(self._counts) - 1))
        self._counts[: len(counts)] += counts
        self._sum += float(values.sum())
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    def _find_bins(self, values: _Numbers) -> _Numbers:
        return values

    def _find_middles(self, bins: NDArray[np.int64]) -> NDArray[np.floating]:
        return bins.astype(np.float64)

    @property
    def bins(self) -> NDArray[np.int64]:
        """The bins (k,) that are not empty, ascending; ``values`` and ``counts`` are theirs."""
        return np.flatnonzero(self._counts)

    @property
    def values(self) -> NDArray[np.floating]:
        return self._find_middles(self.bins)

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counts[self.bins]

    @property
    def total(self) -> int:
        return int(self._counts.sum())

    @property
    def mean(self) -> float:
        return self._sum / self.total

    def quantile(self, share: float) -> float:
        """The value that ``share`` of all values do not exceed."""
        position = min(int(np.ceil(share * self.total)), self.total)
        at = int(np.searchsorted(np.cumsum(self.counts), max(position, 1)))
        return float(min(max(self.values[at], self.low), self.high))

    def count_below(self, limit: float) -> int:
        return int(self.counts[self.values < limit].sum())


class OctaveCounts(WholeCounts):
    """Counts positive numbers by their logarithm."""

    def __init__(self) -> None:
        super().__init__((_OCTAVE_MAX - _OCTAVE_MIN) * _BINS_PER_OCTAVE)

    def _find_bins(self, values: _Numbers) -> _Numbers:
        octaves = np.log2(values) - _OCTAVE_MIN
        bins: _Numbers = np.floor(octaves * _BINS_PER_OCTAVE + _ROUNDING).astype(np.int64)
        return bins

    def _find_middles(self, bins: NDArray[np.int64]) -> NDArray[np.floating]:
        return np.exp2((bins + 0.5) / _BINS_PER_OCTAVE + _OCTAVE_MIN)


class EvenCounts(WholeCounts):
    """Counts numbers from ``start`` to ``end`` in ``bins`` bins of the same width."""

    def __init__(self, start: float, end: float, bins: int) -> None:
        super().__init__(bins)
        self._start, self._width = start, (end - start) / bins or 1.0

    def _find_bins(self, values: _Numbers) -> _Numbers:
        bins: _Numbers = np.floor((values - self._start) / self._width).astype(np.int64)
        return bins

    def _find_middles(self, bins: NDArray[np.int64]) -> NDArray[np.floating]:
        return self._start + (bins + 0.5) * self._width
