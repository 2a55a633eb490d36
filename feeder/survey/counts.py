"""Counts of values, added piece by piece in constant memory.

Positive numbers of any size are counted in bins of 1/256 octave, so that quantiles are right within
0.14 %. The least and the largest value are exact for all.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

_BINS_PER_OCTAVE: Final = 256
_OCTAVE_MIN: Final = -16  # an aspect ratio of 1 : 65,535
_OCTAVE_MAX: Final = 33  # a blob of 4 GiB
_ROUNDING: Final = 1e-9  # log2 may be a little less than a whole number

_Numbers = np.ndarray[Any, np.dtype[np.integer[Any] | np.floating[Any]]]
_Map = Callable[[_Numbers], _Numbers]


class Counts:
    """Counts numbers in ``bins`` bins: of one whole number each, or as the functions say.

    ``find_places`` gives values their places, of which bin i holds those from i up to i + 1;
    ``find_values`` gives bins the values that they stand for.
    """

    def __init__(
        self,
        bins: int,
        find_places: _Map = lambda values: values,
        find_values: _Map = lambda bins: bins.astype(np.float64),
    ) -> None:
        self._counts = np.zeros(bins, np.int64)
        self._find_places, self._find_values = find_places, find_values
        self._sum = 0.0
        self.low, self.high = np.inf, -np.inf

    def add(self, values: _Numbers) -> None:
        """Count ``values`` (n,), n at least 1; those out of the range go to the bin at its end."""
        bins = np.floor(self._find_places(values)).astype(np.int64)
        counts = np.bincount(np.clip(bins, 0, len(self._counts) - 1))
        self._counts[: len(counts)] += counts
        self._sum += float(values.sum())
        self.low = min(self.low, float(values.min()))
        self.high = max(self.high, float(values.max()))

    @property
    def values(self) -> _Numbers:
        """The values (k,) of the bins that are not empty, ascending; ``counts`` are theirs."""
        return self._find_values(np.flatnonzero(self._counts))

    @property
    def counts(self) -> NDArray[np.int64]:
        return self._counts[self._counts > 0]

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


def octave_counts() -> Counts:
    """Of positive numbers by their logarithm."""
    return Counts(
        (_OCTAVE_MAX - _OCTAVE_MIN) * _BINS_PER_OCTAVE,
        lambda values: (np.log2(values) - _OCTAVE_MIN) * _BINS_PER_OCTAVE + _ROUNDING,
        lambda bins: np.exp2((bins + 0.5) / _BINS_PER_OCTAVE + _OCTAVE_MIN),
    )


def even_counts(start: float, end: float, bins: int) -> Counts:
    """Of numbers from ``start`` to ``end`` in bins of the same width."""
    width = (end - start) / bins or 1.0
    return Counts(
        bins, lambda values: (values - start) / width, lambda at: start + (at + 0.5) * width
    )
