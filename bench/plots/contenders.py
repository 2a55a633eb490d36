"""The pictures of ``decode`` and of ``peers``: a bar for each contender, the fastest first."""

from typing import Any, Final

import altair as alt

from ..micro.decode_report import DecodeReport
from ..report import Result, format_number
from ..rivals.report import CORES, RivalsReport, is_on, words_of
from .style import BLUE, GREY, LIGHT_GREY, SPREAD, SQUARES, WIDTH, Chart, bars, bounds, panel_title

_TITLES: Final = {
    "decode": "Decoding alone (× TurboJPEG, whole image)",
    "sample": "Samples, from file to packed int8 (× TurboJPEG, whole images)",
}


_COLOURS: Final = {
    "Feeder": BLUE,
    "resizes as Feeder does (bilinear, antialiased)": GREY,
    "resizes otherwise, or changes the images": LIGHT_GREY,
}


def draw_decode(report: DecodeReport) -> Chart:
    rounds = report.measured.get("rounds")
    title = f"images/s: bar the median, line the least and most of {rounds} rounds"
    colour = alt.condition("datum.ours", alt.value(BLUE), alt.value(LIGHT_GREY))
    panels = []
    for kind, words in _TITLES.items():
        rows = []
        for way in report.ways(kind):
            ratio = "= 1" if way.row.ratio is None else f"× {way.row.ratio:.2f}"
            text = f"{format_number(way.row.value)}  ({ratio})"
            rows.append({"name": way.name, "ours": way.is_ours, "text": text, **bounds(way.row)})
        below = title if kind == "sample" else None
        panels.append(
            bars(rows, title=panel_title(words), x_title=below, colour=colour, width=WIDTH)
        )
    return alt.vconcat(*panels, spacing=18)


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
