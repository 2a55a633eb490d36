"""The picture of the decode bench: ways to the same pixels, the fastest first, in two panels."""

from typing import Final

import altair as alt

from ..micro.decode_report import DecodeReport
from ..report import format_number
from .style import BLUE, LIGHT_GREY, WIDTH, Chart, bars, bounds, panel_title

_TITLES: Final = {
    "decode": "Decoding alone (× TurboJPEG, whole image)",
    "sample": "Samples, from file to packed int8 (× TurboJPEG, whole images)",
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
