"""The picture of ``feeder-bench peers``: images per second of each contender, the fastest first."""

from typing import Any, Final

import altair as alt

from ..report import RATE, Result
from ..rivals.conclusion import ALL_CORES, comparisons, is_on, words_of
from ..rivals.report import RivalsReport
from .style import BLUE, GREY, INK, LIGHT_GREY, Chart, wrap

_COLOURS: Final = {
    "Feeder": BLUE,
    "resizes as Feeder does (bilinear, antialiased)": GREY,
    "resizes otherwise, or changes the images": LIGHT_GREY,
}
_WIDTH: Final = 540  # with the names on its left, 800 px
_ROW: Final = 27
_ROOM: Final = 1.5  # beside the longest bar, for its numbers


def conclude_rivals(report: RivalsReport) -> tuple[list[str], list[str]]:
    """Return the lines of the title and of the subtitle."""
    title = [
        f"On {each.cores}, Feeder is {each.describe(kind=False)}"
        for each in comparisons(report)
        if "other" in each.kind
    ]
    sentences = report.conclusion()
    if not title:
        title, sentences = sentences[:1], sentences[1:]
    return title, [line for each in sentences for line in wrap(each)]


def draw_rivals(report: RivalsReport) -> Chart:
    """Return a panel of all contenders that have a rate on one core, and one of those on all."""
    panels = []
    for suffix, title in (("", "One core"), (ALL_CORES, "All cores")):
        bars = _bars(report, suffix)
        if bars:
            panels.append(_panel(bars, f"{title} (Feeder ×: how many times as fast Feeder is)"))
    return alt.vconcat(*panels, spacing=18)


def _bars(report: RivalsReport, suffix: str) -> list[dict[str, Any]]:
    """Return the values behind each bar, the fastest first."""
    rates = {result.name: result for result in report.results if result.unit == RATE}
    ours, antialiased, other = _COLOURS
    bars = [
        {
            "contender": words_of(each.name),
            "value": rates[each.name].value,
            "numbers": _numbers(rates[each.name]),
            "kind": ours if each.ours else antialiased if each.antialiased else other,
            **_spread(rates[each.name]),
        }
        for each in report.contenders
        if each.missing is None and is_on(each.name, suffix)
    ]
    return sorted(bars, key=lambda bar: -bar["value"])


def _numbers(row: Result) -> str:
    if row.ratio is None:
        return f"{row.value:,.0f}"
    noise = ", within noise" if row.interval is not None and row.is_within_noise else ""
    return f"{row.value:,.0f}  (Feeder × {1 / row.ratio:.2f}{noise})"


def _spread(row: Result) -> dict[str, float]:
    return {"min": row.min, "max": row.max} if row.min < row.max else {}


def _panel(bars: list[dict[str, Any]], title: str) -> Chart:
    has_spread = any("max" in bar for bar in bars)
    for bar in bars:
        bar["end"] = bar.get("max", bar["value"])
    base = alt.Chart(alt.Data(values=bars)).encode(
        y=alt.Y(
            "contender:N",
            title=None,
            sort=None,
            axis=alt.Axis(labelLimit=250, ticks=False, labelPadding=5),
        )
    )
    x = alt.X(
        "value:Q",
        title="images/s: bar the median, line the least and most of the rounds"
        if has_spread
        else "images/s",
        scale=alt.Scale(domain=[0, _ROOM * max(bar["end"] for bar in bars)], nice=False),
        axis=alt.Axis(tickCount=6),
    )
    colours = alt.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    legend = alt.Legend(orient="top", symbolType="square", padding=0, offset=4, labelLimit=320)
    layers = base.mark_bar(height=17, stroke=INK, strokeWidth=0.6).encode(
        x=x, color=alt.Color("kind:N", title=None, scale=colours, legend=legend)
    )
    if has_spread:
        spread = base.transform_filter("isValid(datum.max)").encode(x="min:Q", x2="max:Q")
        # So that the line shows on a bar that is printed in grey.
        layers += spread.mark_rule(color="white", strokeWidth=4)
        layers += spread.mark_rule(color=INK, strokeWidth=1.5)
    layers += base.mark_text(align="left", dx=7, fontSize=12, color=INK).encode(
        x="end:Q", text="numbers:N"
    )
    return layers.properties(
        width=_WIDTH,
        height=_ROW * len(bars),
        title=alt.TitleParams(title, anchor="start", fontSize=13, color=INK, frame="group"),
    )
