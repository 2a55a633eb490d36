"""Charts as inline SVG: values become bars, ticks and words, and these a figure.

Positions across are shares of the width: a chart is as wide as its column, and its text keeps its
size. Heights are in pixels. Colours come from the page's style sheet.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.survey.markup import join_lines, make_table
from feeder.survey.numbers import format_amount, format_bytes, format_compact, plural

BARS_MAX: Final = 32
_BARS_MIN: Final = 13
_BAR_OCTAVES: Final = tuple(2.0**k for k in range(-5, 2))
_PLOT_PX, _BASE_PX = 124, 146
_TICK_PX, _TITLE_PX, _BOTTOM_PX = 17, 35, 40  # below the base
_LEAST_PX: Final = 1.5  # of a bar that is not 0
_GAP: Final = 0.14  # of a bar's width
_GAPS_BARS_MAX: Final = 60
_OVERLAP: Final = -0.1  # of more bars, which would have seams without

Values = NDArray[np.integer[Any]] | NDArray[np.floating[Any]]


class Chart(NamedTuple):
    """All that is drawn of a chart; where all values are the same, it has no bars."""

    title: str
    summary: str
    x_title: str = ""
    bars: Sequence[tuple[str, int]] = ()
    """What each counts, such as "256–304 px", and its height; all have the same width."""
    ticks: Sequence[tuple[float, str]] = ()
    """Positions, as shares of the width, and their texts."""
    counted: str = "images"
    """What the bars count, in the plural."""
    is_logarithmic: bool = False
    """Whether the heights are."""


class Unit(NamedTuple):
    """What the numbers on an axis are of."""

    name: str
    format: Callable[[float], str]
    size: float = 1.0
    """Of one, for the numbers beside ticks."""
    is_whole: bool = False
    is_even: bool = False
    """Whether the axis is; others are logarithmic, and of positive numbers."""


def _format_aspect(ratio: float) -> str:
    """E.g. "1.33:1" or "1:1.5"."""
    return f"{format_amount(ratio)}:1" if ratio >= 1 else f"1:{format_amount(1 / ratio)}"


PIXELS: Final = Unit("px", lambda value: f"{format_amount(value)} px", is_whole=True)
MEGAPIXELS: Final = Unit("MP", lambda value: f"{format_amount(value / 1e6)} MP", 1e6)
ASPECT: Final = Unit("width : height", _format_aspect)
VALUE: Final = Unit("value", format_amount, is_even=True)
CLASSES: Final = Unit("classes", format_amount, is_whole=True, is_even=True)


def bytes_unit(value: float) -> Unit:
    """The unit in which ``value`` bytes are written."""
    units = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3), ("B", 1.0))
    name, size = next((unit for unit in units if value >= unit[1]), units[-1])
    return Unit(name, format_bytes, size)


def make_histogram(title: str, values: Values, unit: Unit, *, counted: str = "images") -> Chart:
    """The histogram of ``values`` (n,), n at least 1."""
    ordered = np.sort(values)
    low, median, high = (float(ordered[at]) for at in (0, (len(ordered) - 1) // 2, -1))
    if low == high:
        return Chart(title, f"all {unit.format(low)}", counted=counted)
    middle = f"median {unit.format(median)}"
    if unit is VALUE:
        middle = f"mean {unit.format(float(values.mean(dtype=np.float64)))}"
    edges = _even_edges(low, high, unit) if unit.is_even else _octave_edges(low, high, unit)
    # bisect, as np.searchsorted would convert all values to float64.
    rows = [0, *(bisect_left(ordered, edge) for edge in edges[1:-1]), len(ordered)]
    heights = [end - start for start, end in pairwise(rows)]
    labels = [_name_bar(start, end, unit) for start, end in pairwise(edges)]
    scale: Callable[[float], float] = float if unit.is_even else math.log2
    left, right = scale(edges[0]), scale(edges[-1])
    ticks = [
        ((scale(value) - left) / (right - left), text)
        for value, text in _choose_ticks(edges[0], edges[-1], unit)
    ]
    return Chart(
        title=title,
        summary=f"{unit.format(low)} · {middle} · {unit.format(high)}",
        x_title=unit.name if unit.is_even else f"{unit.name}, logarithmic",
        bars=[*zip(labels, heights, strict=True)],
        ticks=[(place, text) for place, text in ticks if 0 <= place <= 1],
        counted=counted,
    )


def _octave_edges(low: float, high: float, unit: Unit) -> list[float]:
    """Edges of bars of the same width on a logarithmic axis; powers of two are in the middle."""
    if unit is ASPECT:  # as far below 1:1 as above
        low, high = min(low, 1 / high), max(high, 1 / low)
    for width in _BAR_OCTAVES:
        first, last = (math.floor(math.log2(value) / width + 0.5) for value in (low, high))
        if last - first < BARS_MAX:
            break
    missing = max(0, _BARS_MIN - (last - first + 1))
    first, last = first - missing // 2, last + missing - missing // 2
    return [2.0 ** (width * (bar - 0.5)) for bar in range(first, last + 2)]


def _even_edges(low: float, high: float, unit: Unit) -> list[float]:
    if not unit.is_whole:
        return [low + (high - low) * bar / BARS_MAX for bar in range(BARS_MAX + 1)]
    step = max(1, round(_nice_step((high - low + 1) / BARS_MAX)))
    first = low - low % step
    bars = max(_BARS_MIN, int(high - first) // step + 1)
    # The bar of one number is around its tick.
    return [first + step * bar - 0.5 for bar in range(bars + 1)]


def _name_bar(start: float, end: float, unit: Unit) -> str:
    """The values from ``start`` up to and without ``end``."""
    if not unit.is_whole:
        return f"{unit.format(start)} to {unit.format(end)}"
    first, last = math.ceil(start), math.ceil(end) - 1
    return f"{first:,} {unit.name}" if first == last else f"{first:,}–{last:,} {unit.name}"


def _choose_ticks(low: float, high: float, unit: Unit) -> list[tuple[float, str]]:
    """Round values from ``low`` to ``high`` with their texts."""
    if unit is not ASPECT:
        choose = round_values if unit.is_even else _logarithmic_values
        values = choose(low / unit.size, high / unit.size)
        return [(value * unit.size, format_amount(value)) for value in values]
    aspects = [(2, 3), (3, 4), (1, 1), (4, 3), (3, 2)]
    octaves = math.log2(high / low)
    if octaves > 2:
        powers = [k for k in range(-16, 17) if k % (1 + int(octaves) // 6) == 0]
        aspects = [(1 << max(k, 0), 1 << max(-k, 0)) for k in powers]
    return [(width / height, f"{width:,}:{height:,}") for width, height in aspects]


def _logarithmic_values(low: float, high: float) -> list[float]:
    """Three to seven round values from ``low`` to ``high``, for a logarithmic axis."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
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


def draw_chart(chart: Chart, identity: str, *, with_table: bool = True) -> str:
    """A figure: title, summary, chart, and with ``with_table`` its numbers, folded.

    ``identity`` is unique on the page.
    """
    plot = details = ""
    if chart.bars:
        plot = _draw_plot(chart, identity)
    if chart.bars and with_table:
        table = make_table(
            f"{chart.title}: {chart.counted}",
            (chart.x_title.partition(",")[0], f"{chart.counted.capitalize()}#"),
            ((escape(label), format_amount(height)) for label, height in chart.bars if height),
        )
        details = f"<details><summary>Numbers</summary>\n{table}\n</details>"
    return f"""\
<figure class="chart">
<figcaption><b>{escape(chart.title)}</b>
<span class="range">{escape(chart.summary)}</span></figcaption>
{plot}
{details}
</figure>"""


def _draw_plot(chart: Chart, identity: str) -> str:
    tallest, most = max(chart.bars, key=lambda bar: bar[1])
    one = chart.counted.removesuffix("s")

    def height_px(count: float) -> float:
        """A logarithmic axis begins at 1/2."""
        if not chart.is_logarithmic:
            return count / most * _PLOT_PX
        return math.log2(2 * count) / math.log2(2 * most) * _PLOT_PX if count else 0.0

    lines = []
    values = _logarithmic_values(1, most) if chart.is_logarithmic else round_values(0, most)
    for value in values:
        if value % 1 == 0:  # there are no halves of images
            y = f"{_BASE_PX - height_px(value):.1f}"
            lines.append(f'<line class="grid" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
            lines.append(f'<text class="y" x="-8" y="{y}" dy="4">{format_compact(value)}</text>')
    width, gap = 100 / len(chart.bars), _GAP if len(chart.bars) <= _GAPS_BARS_MAX else _OVERLAP
    for number, (label, count) in enumerate(chart.bars):
        if count:
            height = max(height_px(count), _LEAST_PX)
            lines.append(
                f'<rect x="{width * (number + gap / 2):.3f}%" y="{_BASE_PX - height:.1f}" '
                f'width="{width * (1 - gap):.3f}%" height="{height:.1f}">'
                f"<title>{escape(f'{label}: {plural(count, one)}')}</title></rect>"
            )
    for place, text in chart.ticks:
        x, below = f"{100 * place:.2f}%", _BASE_PX + _TICK_PX
        lines.append(f'<text class="x" x="{x}" y="{below}">{escape(text)}</text>')
    y_title = chart.counted + (", logarithmic" if chart.is_logarithmic else "")
    described = f"{chart.summary}. The tallest bar: {plural(most, one)}, {tallest}."
    return f"""\
<svg class="plot" width="100%" height="{_BASE_PX + _BOTTOM_PX}" role="img" \
aria-labelledby="{identity}-t" aria-describedby="{identity}-d">
<title id="{identity}-t">{escape(chart.title)}</title>
<desc id="{identity}-d">{escape(described)}</desc>
{join_lines(lines)}
<line class="axis" x1="0" x2="100%" y1="{_BASE_PX}" y2="{_BASE_PX}"/>
<text class="title" x="-44" y="10">{escape(y_title)}</text>
<text class="title end" x="100%" y="{_BASE_PX + _TITLE_PX}">{escape(chart.x_title)}</text>
</svg>"""


def draw_share(share: float) -> str:
    """A bar for a table's cell; the number is in another."""
    return (
        '<svg class="share" width="100%" height="10" aria-hidden="true">'
        f'<rect width="{100 * share:.2f}%" height="10"/></svg>'
    )
