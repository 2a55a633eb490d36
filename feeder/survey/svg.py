"""Draws histograms as inline SVG.

Heights are in pixels, positions across in percent: a chart is as wide as its column, and its text
keeps its size. Colours come from the page's style sheet.
"""

from typing import Final

from feeder.survey.axes import height_of, height_ticks
from feeder.survey.histogram import Bar, Histogram
from feeder.survey.markup import escape, make_details, make_table
from feeder.survey.numbers import format_amount

_TOP_PX: Final = 22
_PLOT_PX: Final = 124
_TICK_PX: Final = 17
_TITLE_PX: Final = 35
_BOTTOM_PX: Final = 40
_LEAST_PX: Final = 1.5  # of a bar that is not 0
_GAP: Final = 0.14  # of a bar's width
_DENSE_BARS: Final = 60
_OVERLAP: Final = -0.0005  # of the chart's width: no seams between more bars than that


def draw_histogram(shown: Histogram, identity: str, *, with_table: bool = True) -> str:
    """Return a figure: title, summary, chart, and with ``with_table`` its numbers, folded.

    Values that are all the same need no chart. ``identity`` is unique on the page.
    """
    caption = (
        f"<figcaption><b>{escape(shown.title)}</b>\n"
        f'<span class="range">{escape(shown.summary)}</span></figcaption>'
    )
    if shown.is_constant:
        return f'<figure class="chart">\n{caption}\n</figure>'
    plot = _draw_plot(shown, identity)
    table = make_details("Numbers", _make_table(shown)) if with_table else ""
    return f'<figure class="chart">\n{caption}\n{plot}\n{table}</figure>'


def _make_table(shown: Histogram) -> str:
    return make_table(
        f"{shown.title}: {shown.counted}",
        (shown.x_title.partition(",")[0], f"{shown.counted.capitalize()}#"),
        ((escape(bar.label), format_amount(bar.count)) for bar in shown.bars),
    )


def _draw_plot(shown: Histogram, identity: str) -> str:
    most = max(bar.count for bar in shown.bars)
    base = _TOP_PX + _PLOT_PX
    lines = []
    for share, text in height_ticks(most, is_logarithmic=shown.is_logarithmic):
        y = f"{base - share * _PLOT_PX:.1f}"
        style = "axis" if share == 0 else "grid"
        lines.append(f'<line class="{style}" x1="0" x2="100%" y1="{y}" y2="{y}"/>')
        lines.append(f'<text class="y" x="-8" y="{y}" dy="4">{text}</text>')
    lines += [_draw_bar(bar, most, shown) for bar in shown.bars]
    if shown.is_logarithmic:
        lines.append(f'<line class="axis" x1="0" x2="100%" y1="{base}" y2="{base}"/>')
    for position, text in shown.ticks:
        lines.append(
            f'<text class="x" x="{100 * position:.2f}%" y="{base + _TICK_PX}">{escape(text)}</text>'
        )
    y_title = shown.y_title + (", logarithmic" if shown.is_logarithmic else "")
    lines.append(f'<text class="title" x="-44" y="10">{escape(y_title)}</text>')
    lines.append(
        f'<text class="title end" x="100%" y="{base + _TITLE_PX}">{escape(shown.x_title)}</text>'
    )
    tallest = max(shown.bars, key=lambda bar: bar.count)
    described = (
        f"{shown.summary}. The tallest bar: {format_amount(tallest.count)} {shown.counted}, "
        f"{tallest.label}."
    )
    height = base + _BOTTOM_PX
    style = "plot dense" if len(shown.bars) > _DENSE_BARS else "plot"
    return "\n".join(
        (
            f'<svg class="{style}" width="100%" height="{height}" role="img" '
            f'aria-labelledby="{identity}-t" aria-describedby="{identity}-d">',
            f'<title id="{identity}-t">{escape(shown.title)}</title>',
            f'<desc id="{identity}-d">{escape(described)}</desc>',
            *lines,
            "</svg>",
        )
    )


def _draw_bar(bar: Bar, most: float, shown: Histogram) -> str:
    height = height_of(bar.count, most, is_logarithmic=shown.is_logarithmic) * _PLOT_PX
    height = max(height, _LEAST_PX) if bar.count else 0.0
    gap = _GAP * (bar.end - bar.start) if len(shown.bars) <= _DENSE_BARS else _OVERLAP
    text = f"{bar.label}: {format_amount(bar.count)} {shown.counted}"
    return (
        f'<rect x="{100 * (bar.start + gap / 2):.3f}%" y="{_TOP_PX + _PLOT_PX - height:.1f}" '
        f'width="{100 * (bar.end - bar.start - gap):.3f}%" height="{height:.1f}">'
        f"<title>{escape(text)}</title></rect>"
    )


def draw_share(share: float) -> str:
    """Return a bar for a table's cell; the number is in another."""
    return (
        '<svg class="share" width="100%" height="10" aria-hidden="true">'
        f'<rect width="{100 * share:.2f}%" height="10"/></svg>'
    )
