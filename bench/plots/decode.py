"""The picture of the decode bench: ways to the same pixels, the fastest first, in two panels."""

from typing import Final

import altair as alt

from ..micro.decode_report import DecodeReport, is_behind
from ..report import format_number
from .style import BLUE, LIGHT_GREY, WIDTH, Chart, bars, bounds, panel_title, wrap

_TITLES: Final = {
    "decode": "Decoding alone (× TurboJPEG, whole image)",
    "sample": "Samples, from file to packed int8 (× TurboJPEG, whole images)",
}


def draw_decode(report: DecodeReport) -> Chart:
    """Return the panels of decoding and of whole samples, one above the other."""
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


def conclude_decode(report: DecodeReport) -> tuple[list[str], list[str]]:
    """Return the lines of the title and of the subtitle."""
    ours, rival, against = report.standing()
    pillow = report.rows["sample/whole-against-pillow"]
    of_full, of_pillow = f"{ours.row.ratio or 0:.1f}", f"{pillow.ratio or 0:.1f}"
    way = "Feeder" if report.has_own_decoder else "Feeder and TurboJPEG's decoder"
    title = [
        f"One core makes {format_number(ours.row.value)} training samples/s with {way},",
        f"{of_full} times TurboJPEG's full decode, {of_pillow} times {report.pillow}",
    ]
    if is_behind(against):
        title.append(f"but {rival.name} makes {format_number(rival.row.value)}")
    sentences = [report.conclude().partition(". ")[2], *report.find_losses()]
    return title, wrap(*sentences, report.describe_measured())
