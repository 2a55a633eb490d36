"""Chooses the round values at which an axis has ticks, and how high a bar is."""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from feeder.survey.numbers import format_compact

_STEPS: Final = (1.0, 2.0, 5.0, 10.0)

Tick = tuple[float, str]
"""A position, as a share of the axis, and its text."""


def height_ticks(most: float, *, is_logarithmic: bool) -> list[Tick]:
    """Return the ticks of a vertical axis from 0 to ``most``: share of the height, and text."""
    if is_logarithmic:
        decades = range(math.floor(math.log10(most)) + 1)
        powers = [10.0**each for each in decades[:: max(1, len(decades) // 3)]]
        return [
            (height_of(each, most, is_logarithmic=True), format_compact(each)) for each in powers
        ]
    size = max(1.0, _nice_step(most / 5))
    count = math.floor(most / size + 1e-9)
    return [(number * size / most, format_compact(number * size)) for number in range(count + 1)]


def height_of(count: float, most: float, *, is_logarithmic: bool) -> float:
    """Return the share of the height of a bar; a logarithmic axis begins at 1/2."""
    if not is_logarithmic:
        return count / most
    return math.log2(2 * count) / math.log2(2 * most) if count > 0.5 else 0.0


def logarithmic_values(low: float, high: float) -> list[float]:
    """Return three to seven round values from ``low`` to ``high``, for a logarithmic axis."""
    exponents = range(math.floor(math.log10(max(low, 1e-12))), math.ceil(math.log10(high)) + 1)
    choices: Iterable[Sequence[int]] = ((1, 2, 5), (1, 3), (1,))
    for digits in choices:
        ticks = [digit * 10.0**power for power in exponents for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if 3 <= len(ticks) <= 7:
            return ticks
        if len(ticks) < 3:
            return round_values(low, high)
    return ticks[:: -(-len(ticks) // 6)]


def round_values(low: float, high: float) -> list[float]:
    """Return three to six multiples of a round step from ``low`` to ``high``."""
    step = _nice_step((high - low) / 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _nice_step(least: float) -> float:
    """Return the smallest of 1, 2, 5 × 10^k that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step for step in _STEPS if step * power >= least * (1 - 1e-9)) * power


def whole_step(least: float) -> int:
    """Return the smallest of 1, 2, 5, 10, 20 … that is at least ``least``."""
    return max(1, round(_nice_step(least)))
