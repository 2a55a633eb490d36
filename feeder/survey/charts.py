"""Histograms as inline SVG: counts become bars, ticks and words, and these a figure.

Positions across are shares of the width: a chart is as wide as its column, and its text keeps its
size. Heights are in pixels. Colours come from the page's style sheet.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from feeder.survey.counts import Counts
from feeder.survey.markup import escape, make_details, make_table
from feeder.survey.numbers import format_amount, format_bytes, format_compact, plural

BARS_MAX: Final = 32
_BARS_MIN: Final = 13  # odd, so that a ratio of 1:1 is in the middle
_BAR_OCTAVES: Final = tuple(2.0**k for k in range(-5, 2))  # widths of a bar, multiples of a bin
_PLOT_PX, _BASE_PX = 124, 146
_TICK_PX, _TITLE_PX, _BOTTOM_PX = 17, 35, 40  # below the base
_LEAST_PX: Final = 1.5  # of a bar that is not 0
_GAP: Final = 0.14  # of a bar's width
_DENSE_BARS: Final = 60
_OVERLAP: Final = -0.0005  # of the chart's width: no seams between more bars than that


class Bar(NamedTuple):
    """A bar from ``start`` to ``end``, shares of the width."""

    start: float
    end: float
    height: int
    label: str
    """What it counts, e.g. "256–304 px"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """All that is drawn of a histogram."""

    title: str
    summary: str
    """Least, middle and most; enough, without bars, where all values are the same."""
    x_title: str
    bars: Sequence[Bar] = ()
    ticks: Sequence[tuple[float, str]] = ()
    """Positions, as shares of the width, and their texts."""
    counted: str = "images"
    """What the bars count, in the plural."""
    is_logarithmic: bool = False
    """Whether the heights are."""


class Unit(NamedTuple):
    """What a number on an axis is of."""

    name: str
    size: float = 1.0
    is_whole: bool = False
    is_even: bool = False
    """Whether the axis is; others are logarithmic, and of positive numbers."""
    form: Callable[[float], str] | None = None
    """How to write a value, where that is not its number and the name."""

    def format(self, value: float) -> str:
        return self.form(value) if self.form else f"{format_amount(value / self.size)} {self.name}"

    def format_range(self, low: float, high: float) -> str:
        """The values from ``low`` up to and without ``high``."""
        if self in (ASPECT, VALUE):
            return f"{self.format(low)} to {self.format(high)}"
        first, last = format_amount(low / self.size), format_amount(high / self.size)
        if self.is_whole:
            first, last = f"{math.ceil(low - 1e-9):,}", f"{math.ceil(high - 1e-9) - 1:,}"
        return f"{first} {self.name}" if first == last else f"{first}–{last} {self.name}"

    def choose_ticks(self, low: float, high: float) -> list[tuple[float, str]]:
        """Round values from ``low`` to ``high`` with their texts."""
        if self != ASPECT:
            choose = round_values if self.is_even else _logarithmic_values
            values = choose(low / self.size, high / self.size)
            return [(value * self.size, format_amount(value)) for value in values]
        octaves = math.log2(high / low)
        aspects = [(2, 3), (3, 4), (1, 1), (4, 3), (3, 2)]
        if octaves > 2:
            powers = range(-16, 17, 1 if octaves < 6 else 2 if octaves < 16 else 4)
            aspects = [(1 << max(k, 0), 1 << max(-k, 0)) for k in powers]
        return [(width / height, f"{width:,}:{height:,}") for width, height in aspects]


def _format_aspect(ratio: float) -> str:
    """E.g. "1.33:1" or "1:1.5"."""
    return f"{format_amount(ratio)}:1" if ratio >= 1 else f"1:{format_amount(1 / ratio)}"


PIXELS: Final = Unit("px", is_whole=True)
MEGAPIXELS: Final = Unit("MP", 1e6)
ASPECT: Final = Unit("width : height", form=_format_aspect)
VALUE: Final = Unit("value", is_even=True, form=format_amount)
CLASSES: Final = Unit("classes", is_even=True, is_whole=True, form=format_amount)


def bytes_unit(value: float) -> Unit:
    """The unit in which ``value`` bytes are written."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
    name, size = next((unit for unit in units if value >= unit[1]), units[-1])
    return Unit(name, size, form=format_bytes)


def make_histogram(title: str, counts: Counts, unit: Unit, *, counted: str = "images") -> Histogram:
    """The histogram of what was counted; its bars have the same width on the axis."""
    low, high = unit.format(counts.low), unit.format(counts.high)
    x_title = unit.name if unit.is_even else f"{unit.name}, logarithmic"
    if counts.low == counts.high:
        return Histogram(title=title, summary=f"all {low}", x_title=x_title, counted=counted)
    name, middle = ("mean", counts.mean) if unit == VALUE else ("median", counts.quantile(0.5))
    # Along the axis, bar i is from start + i · width to the next one.
    scale, start, widths = math.log2, 0.0, _BAR_OCTAVES
    if unit.is_even:
        scale, start, widths = float, counts.low, ((counts.high - counts.low) / BARS_MAX,)
        if unit.is_whole:  # the bar of one number is around its tick
            least = (counts.high - counts.low + 1) / BARS_MAX
            start, widths = -0.5, (max(1, round(_nice_step(least))),)
    scaled = counts.values if unit.is_even else np.log2(counts.values)
    for width in widths:
        if unit == ASPECT:  # as far below 1:1, the middle of a bar, as above
            start = -width / 2
        numbers = np.floor((scaled - start) / width + 1e-9).astype(np.int64)
        first, last = int(numbers[0]), int(numbers[-1])
        if unit == ASPECT:
            first, last = min(first, -last), max(last, -first)
        if last - first < BARS_MAX:
            break
    missing = max(0, _BARS_MIN - (last - first + 1))
    first, end = first - missing // 2, last + 1 + missing - missing // 2
    if unit.is_even:
        first, end = max(first, 0), end + max(-first, 0)

    def edge(bar: int) -> float:
        at = start + bar * width
        return at if unit.is_even else 2.0**at

    different, rows = np.unique(numbers, return_index=True)
    sums = np.add.reduceat(counts.counts, rows)
    ticks = [
        ((scale(value) - (start + first * width)) / ((end - first) * width), text)
        for value, text in unit.choose_ticks(edge(first), edge(end))
    ]
    return Histogram(
        title=title,
        summary=f"{low} · {name} {unit.format(middle)} · {high}",
        x_title=x_title,
        bars=[
            Bar(
                (number - first) / (end - first),
                (number - first + 1) / (end - first),
                count,
                unit.format_range(edge(number), edge(number + 1)),
            )
            for number, count in zip(different.tolist(), sums.tolist(), strict=True)
        ],
        ticks=[(place, text) for place, text in ticks if 0 <= place <= 1],
        counted=counted,
    )


def _logarithmic_values(low: float, high: float) -> list[float]:
    """Three to seven round values from ``low`` to ``high``, for a logarithmic axis."""
    powers = range(math.floor(math.log10(max(low, 1e-12))), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**power for power in powers for digit in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 7:
            return ticks if len(ticks) >= 3 else round_values(low, high)
    return ticks[:: -(-len(ticks) // 6)]


def round_values(low: float, high: float) -> list[float]:
    """Three to six multiples of a round step from ``low`` to ``high``."""
    step = _nice_step((high - low) / 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _nice_step(least: float) -> float:
    """The smallest of 1, 2, 5 × 10^k that is at least ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(step for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9)) * power


def draw_histogram(chart: Histogram, identity: str, *, with_table: bool = True) -> str:
    """A figure: title, summary, chart, and with ``with_table`` its numbers, folded.

    ``identity`` is unique on the page.
    """
    caption = (
        f"<figcaption><b>{escape(chart.title)}</b>\n"
        f'<span class="range">{escape(chart.summary)}</span></figcaption>'
    )
    if not chart.bars:
        return f'<figure class="chart">\n{caption}\n</figure>'
    table = make_table(
        f"{chart.title}: {chart.counted}",
        (chart.x_title.partition(",")[0], f"{chart.counted.capitalize()}#"),
        ((escape(bar.label), format_amount(bar.height)) for bar in chart.bars),
    )
    details = make_details("Numbers", table) if with_table else ""
    return f'<figure class="chart">\n{caption}\n{_draw_plot(chart, identity)}\n{details}</figure>'


def _draw_plot(chart: Histogram, identity: str) -> str:
    tallest = max(chart.bars, key=lambda bar: bar.height)
    most, one = tallest.height, chart.counted.removesuffix("s")

    def height_px(count: float) -> float:
        """A logarithmic axis begins at 1/2."""
        if not chart.is_logarithmic:
            return count / most * _PLOT_PX
        return math.log2(2 * count) / math.log2(2 * most) * _PLOT_PX if count > 0.5 else 0.0

    lines = []
    values = _logarithmic_values(1, most) if chart.is_logarithmic else round_values(0, most)
    for value in (each for each in values if each % 1 == 0):  # there are no halves of images
        y = f"{_BASE_PX - height_px(value):.1f}"
        lines.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        lines.append(f'<text class="y" x="-8" y="{y}" dy="4">{format_compact(value)}</text>')
    for bar in chart.bars:
        height = max(height_px(bar.height), _LEAST_PX) if bar.height else 0.0
        gap = _GAP * (bar.end - bar.start) if len(chart.bars) <= _DENSE_BARS else _OVERLAP
        lines.append(
            f'<rect x="{100 * (bar.start + gap / 2):.3f}%" y="{_BASE_PX - height:.1f}" '
            f'width="{100 * (bar.end - bar.start - gap):.3f}%" height="{height:.1f}">'
            f"<title>{escape(f'{bar.label}: {plural(bar.height, one)}')}</title></rect>"
        )
    lines.append(f'<line class="axis" x1="0" x2="100%" y1="{_BASE_PX}" y2="{_BASE_PX}"/>')
    lines += [
        f'<text class="x" x="{100 * position:.2f}%" y="{_BASE_PX + _TICK_PX}">{escape(text)}</text>'
        for position, text in chart.ticks
    ]
    y_title = chart.counted + (", logarithmic" if chart.is_logarithmic else "")
    described = f"{chart.summary}. The tallest bar: {plural(most, one)}, {tallest.label}."
    style = "plot dense" if len(chart.bars) > _DENSE_BARS else "plot"
    return "\n".join(
        (
            f'<svg class="{style}" width="100%" height="{_BASE_PX + _BOTTOM_PX}" role="img" '
            f'aria-labelledby="{identity}-t" aria-describedby="{identity}-d">',
            f'<title id="{identity}-t">{escape(chart.title)}</title>',
            f'<desc id="{identity}-d">{escape(described)}</desc>',
            *lines,
            f'<text class="title" x="-44" y="10">{escape(y_title)}</text>',
            f'<text class="title end" x="100%" y="{_BASE_PX + _TITLE_PX}">'
            f"{escape(chart.x_title)}</text>",
            "</svg>",
        )
    )


def draw_share(share: float) -> str:
    """A bar for a table's cell; the number is in another."""
    return (
        '<svg class="share" width="100%" height="10" aria-hidden="true">'
        f'<rect width="{100 * share:.2f}%" height="10"/></svg>'
    )
