"""Turns counts into the bars, ticks and words of a histogram; draws nothing.

Positions across are shares of the width, 0 to 1.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.survey.axes import Tick, logarithmic_values, round_values, whole_step
from feeder.survey.counts import BINS_PER_OCTAVE, Distribution
from feeder.survey.numbers import format_amount, format_bytes

BARS_MAX: Final = 32
_BARS_MIN: Final = 12
_GROUPINGS: Final = (8, 16, 32, 64, 128, 256, 512)  # bins of 1/256 octave in a bar
_ASPECTS: Final = (
    # narrow, wide and very wide ranges
    ((2, 3), (3, 4), (1, 1), (4, 3), (3, 2)),
    ((1, 3), (1, 2), (1, 1), (2, 1), (3, 1)),
    *(
        tuple((1, 1 << k) for k in range(16, 0, -step))
        + tuple((1 << k, 1) for k in range(0, 17, step))
        for step in (2, 4)
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar from ``start`` to ``end``."""

    start: float
    end: float
    count: float
    label: str
    """What it counts, e.g. "256–304 px"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """All that is drawn of a histogram."""

    title: str
    summary: str
    """Least, middle and most."""
    bars: tuple[Bar, ...]
    ticks: tuple[Tick, ...]
    x_title: str
    y_title: str
    counted: str = "images"
    """What the bars count."""
    is_logarithmic: bool = False
    """Whether the heights are."""
    is_constant: bool = False
    """Whether all values are the same, so that the summary is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a number on an axis is of."""

    name: str
    size: float = 1.0
    is_whole: bool = False
    is_bytes: bool = False

    def format(self, value: float) -> str:
        """Return a value with its unit; of bytes the unit that suits it."""
        if self.is_bytes:
            return format_bytes(value)
        return f"{format_amount(value / self.size)} {self.name}"


PIXELS: Final = Unit(name="px", is_whole=True)
MEGAPIXELS: Final = Unit(name="MP", size=1e6)


def bytes_unit(value: float) -> Unit:
    """Return the unit in which ``value`` bytes are written."""
    for name, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= size:
            return Unit(name=name, size=size, is_bytes=True)
    return Unit(name="B", is_bytes=True)


def logarithmic_histogram(title: str, found: Distribution, unit: Unit) -> Histogram:
    """Return a histogram with a logarithmic axis."""
    numbers, counts, grouping = _group_octaves(found, centred=False)

    def label(number: int) -> str:
        low = 2.0 ** (number * grouping / BINS_PER_OCTAVE)
        high = 2.0 ** ((number + 1) * grouping / BINS_PER_OCTAVE)
        return _format_range(low, high, unit)

    first, last = _widen(int(numbers[0]), int(numbers[-1]))
    low, high = (2.0 ** (each * grouping / BINS_PER_OCTAVE) for each in (first, last + 1))
    values = logarithmic_values(low / unit.size, high / unit.size)
    octaves = math.log2(high / low)
    return Histogram(
        title=title,
        summary=_summarise(found, unit.format),
        is_constant=found.low == found.high,
        bars=_make_bars(numbers, counts, first, last, label),
        ticks=tuple(
            (math.log2(value * unit.size / low) / octaves, format_amount(value)) for value in values
        ),
        x_title=f"{unit.name}, logarithmic",
        y_title="images",
    )


def aspect_histogram(title: str, found: Distribution) -> Histogram:
    """Return a histogram of width by height, logarithmic, with a bar around 1."""
    numbers, counts, grouping = _group_octaves(found, centred=True)

    def label(number: int) -> str:
        low = 2.0 ** ((number - 0.5) * grouping / BINS_PER_OCTAVE)
        high = 2.0 ** ((number + 0.5) * grouping / BINS_PER_OCTAVE)
        return f"{format_aspect(low)} to {format_aspect(high)}"

    reach = max(
        -int(numbers[0]) + 1, int(numbers[-1]) + 1, _BARS_MIN // 2
    )  # symmetric, so 1:1 is central
    octaves = (2 * reach + 1) * grouping / BINS_PER_OCTAVE
    choice = 0 if octaves < 2 else 1 if octaves < 5 else 2 if octaves < 16 else 3
    ticks = (
        (0.5 + math.log2(width / height) / octaves, f"{width:,}:{height:,}")
        for width, height in _ASPECTS[choice]
    )
    return Histogram(
        title=title,
        summary=_summarise(found, format_aspect),
        is_constant=found.low == found.high,
        bars=_make_bars(numbers, counts, -reach, reach, label),
        ticks=tuple(tick for tick in ticks if 0 <= tick[0] <= 1),
        x_title="width : height, logarithmic",
        y_title="images",
    )


def whole_histogram(title: str, found: Distribution, what: str) -> Histogram:
    """Return a histogram of whole numbers on an even axis, e.g. of labels a sample."""
    first, last = int(found.low), int(found.high)
    width = whole_step((last - first + 1) / BARS_MAX)
    numbers, counts = _sum_groups(np.floor(found.values / width).astype(np.int64), found.counts)

    def label(number: int) -> str:
        return _format_range(number * width, (number + 1) * width, Unit(name=what, is_whole=True))

    begin, end = _widen(int(numbers[0]), int(numbers[-1]), low=0)
    span = (end + 1 - begin) * width
    values = [value for value in round_values(begin * width, (end + 1) * width) if value % 1 == 0]
    middle = 0.5 if width == 1 else 0.0  # a bar of one number has its tick in the middle
    ticks = (((value - begin * width + middle) / span, format_amount(value)) for value in values)
    return Histogram(
        title=title,
        summary=_summarise(found, format_amount),
        is_constant=found.low == found.high,
        bars=_make_bars(numbers, counts, begin, end, label),
        ticks=tuple(tick for tick in ticks if tick[0] <= 1),
        x_title=what,
        y_title="samples",
        counted="samples",
    )


def even_histogram(
    title: str, low: float, mean: float, high: float, counts: NDArray[np.int64]
) -> Histogram:
    """Return a histogram of ``counts`` in bins of the same width from ``low`` to ``high``."""
    bins, span = len(counts), high - low

    def label(number: int) -> str:
        first, last = low + span * number / bins, low + span * (number + 1) / bins
        return f"{format_amount(first)} to {format_amount(last)}"

    numbers = np.flatnonzero(counts)
    ticks = round_values(low, high) if span else []
    return Histogram(
        title=title,
        summary=f"{format_amount(low)} · mean {format_amount(mean)} · {format_amount(high)}"
        if span
        else f"all {format_amount(low)}",
        is_constant=not span,
        bars=_make_bars(numbers, counts[numbers], 0, bins - 1, label),
        ticks=tuple(((value - low) / span, format_amount(value)) for value in ticks),
        x_title="value",
        y_title="samples",
        counted="samples",
    )


def format_aspect(ratio: float) -> str:
    """Return e.g. "1.33:1" or "1:1.5"."""
    return f"{format_amount(ratio)}:1" if ratio >= 1 else f"1:{format_amount(1 / ratio)}"


def _group_octaves(
    found: Distribution, *, centred: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return the numbers of the bars, their counts, and how many bins of 1/256 octave each has.

    Bar i begins at 2 ** (i × grouping / 256), half a bar before that if ``centred``.
    """
    octaves = np.log2(found.values)
    for grouping in _GROUPINGS:
        shift = 0.5 if centred else 0.0
        numbers = np.floor(octaves * BINS_PER_OCTAVE / grouping + shift + 1e-9).astype(np.int64)
        reach = 2 * np.abs(numbers).max() if centred else numbers[-1] - numbers[0]
        if reach < BARS_MAX:
            break
    return *_sum_groups(numbers, found.counts), grouping


def _sum_groups(
    numbers: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the different ``numbers`` (ascending) and the sum of the counts of each."""
    different, firsts = np.unique(numbers, return_index=True)
    return different, np.add.reduceat(counts, firsts)


def _widen(first: int, last: int, low: int | None = None) -> tuple[int, int]:
    """Return a range of at least _BARS_MIN bars around this one, not below ``low``."""
    missing = max(0, _BARS_MIN - (last - first + 1))
    first -= missing // 2
    last += missing - missing // 2
    if low is not None and first < low:
        first, last = low, last + low - first
    return first, last


def _make_bars(
    numbers: NDArray[np.int64],
    counts: NDArray[np.int64],
    first: int,
    last: int,
    label: Callable[[int], str],
) -> tuple[Bar, ...]:
    bars = last - first + 1
    return tuple(
        Bar(
            start=(number - first) / bars,
            end=(number - first + 1) / bars,
            count=count,
            label=label(number),
        )
        for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
    )


def _format_range(low: float, high: float, unit: Unit) -> str:
    """Return the values from ``low`` up to and without ``high``."""
    if not unit.is_whole:
        return f"{format_amount(low / unit.size)}–{format_amount(high / unit.size)} {unit.name}"
    first, last = math.ceil(low - 1e-9), math.ceil(high - 1e-9) - 1
    numbers = f"{first:,}" if last <= first else f"{first:,}–{last:,}"
    return f"{numbers} {unit.name}"


def _summarise(found: Distribution, form: Callable[[float], str]) -> str:
    if found.low == found.high:
        return f"all {form(found.low)}"
    return f"{form(found.low)} · median {form(found.quantile(0.5))} · {form(found.high)}"
