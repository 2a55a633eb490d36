"""Chi-square and Kolmogorov-Smirnov statistics; scipy would be a dependency for these two only."""

import math

import numpy as np
from numpy.typing import NDArray


def chi_square_z(counts: NDArray[np.int64], expected: float) -> float:
    """Return the chi-square statistic of ``counts`` as standard deviations from its mean."""
    freedom = counts.size - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - freedom) / math.sqrt(2 * freedom)


def ks_statistic(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """Return the two-sample Kolmogorov-Smirnov distance * sqrt(nm / (n + m)); 1.95 is p = 0.001."""
    values = np.concatenate([first, second])
    below_first = np.searchsorted(np.sort(first), values, side="right") / first.size
    below_second = np.searchsorted(np.sort(second), values, side="right") / second.size
    distance = float(np.abs(below_first - below_second).max())
    return distance * math.sqrt(first.size * second.size / (first.size + second.size))
