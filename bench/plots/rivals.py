"""The picture of ``feeder-bench peers``: images per second of each contender, the fastest first."""

from typing import Any, Final

import altair as alt

from ..report import Result
from ..rivals.report import CORES, RivalsReport, is_on, words_of
from .style import BLUE, GREY, LIGHT_GREY, SPREAD, SQUARES, WIDTH, Chart, bars, bounds, panel_title

_COLOURS: Final = {
    "Feeder": BLUE,
    "resizes as Feeder does (bilinear, antialiased)": GREY,
    "resizes otherwise, or changes the images": LIGHT_GREY,
}


def draw_rivals(report: RivalsReport) -> Chart:
    scale = alt.Scale(domain=[*_COLOURS], range=[*_COLOURS.values()])
    colour = alt.Color("kind:N", title=None, scale=scale, legend=SQUARES)
    panels = []
    for suffix, cores in CORES.items():
        rows = _rows(report, suffix)
        if rows:
            words = f"{cores.capitalize()} (Feeder ×: how many times as fast Feeder is)"
            title = f"images/s{SPREAD * any('max' in row for row in rows)}"
            panels.append(
                bars(rows, title=panel_title(words), x_title=title, colour=colour, width=WIDTH)
            )
    return alt.vconcat(*panels, spacing=18)


def _rows(report: RivalsReport, suffix: str) -> list[dict[str, Any]]:
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
