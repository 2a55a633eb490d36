"""The picture of ``feeder-bench peers``: images per second of each contender, the fastest first."""

from typing import Any, Final

import altair as alt

from ..report import RATE, Result
from ..rivals.report import CORES, RivalsReport, describe, is_on, words_of
from .style import (
    BLUE,
    GREY,
    LIGHT_GREY,
    SQUARES,
    WIDTH,
    Chart,
    bars,
    bounds,
    has_spread,
    panel_title,
    wrap,
)

_COLOURS: Final = {
    "Feeder": BLUE,
    "resizes as Feeder does (bilinear, antialiased)": GREY,
    "resizes otherwise, or changes the images": LIGHT_GREY,
}


def conclude_rivals(report: RivalsReport) -> tuple[list[str], list[str]]:
    """Return the lines of the title and of the subtitle."""
    title = [
        f"On {cores}, Feeder is {describe(row, with_kind=False)}"
        for suffix, cores in CORES.items()
        for row in report.against_fastest(suffix)
        if row.unit == RATE and "antialias" not in row.name
    ]
    sentences = report.conclusion()
    if not title:
        title, sentences = sentences[:1], sentences[1:]
    return title, wrap(*sentences)


def draw_rivals(report: RivalsReport) -> Chart:
    """Return a panel of all contenders that have a rate on one core, and one of those on all."""
    scale = alt.Scale(domain=[*_COLOURS], range=[*_COLOURS.values()])
    panels = []
    for suffix, cores in CORES.items():
        rows = _rows(report, suffix)
        if not rows:
            continue
        words = ": bar the median, line the least and most of the rounds" * has_spread(rows)
        title = panel_title(f"{cores.capitalize()} (Feeder ×: how many times as fast Feeder is)")
        colour = alt.Color("kind:N", title=None, scale=scale, legend=SQUARES)
        panels.append(
            bars(rows, title=title, x_title=f"images/s{words}", colour=colour, width=WIDTH)
        )
    return alt.vconcat(*panels, spacing=18)


def _rows(report: RivalsReport, suffix: str) -> list[dict[str, Any]]:
    """Return the values behind each bar, the fastest first."""
    rates = report.rows
    ours, antialiased, other = _COLOURS
    rows = []
    for each in report.contenders:
        if each.missing is None and is_on(each.name, suffix):
            rate = rates[each.name]
            kind = ours if each.ours else antialiased if each.antialiased else other
            text = {"name": words_of(each.name), "kind": kind, "text": _numbers(rate)}
            rows.append({**text, **bounds(rate)})
    return sorted(rows, key=lambda row: -row["value"])


def _numbers(row: Result) -> str:
    if row.ratio is None:
        return f"{row.value:,.0f}"
    noise = ", within noise" if row.interval is not None and row.is_within_noise else ""
    return f"{row.value:,.0f}  (Feeder × {1 / row.ratio:.2f}{noise})"
