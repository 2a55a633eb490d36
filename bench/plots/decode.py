"""The picture of the decode bench: ways to the same pixels, the fastest first, in two panels."""

import altair as alt

from ..micro.decode_report import conclude, describe_measured, find_losses
from ..micro.ways import find_standing, has_own_decoder, pillow_name, ways_of
from ..report import Report, format_number
from .style import BLUE, INK, LIGHT_GREY, Chart, wrap

_TITLES = {
    "decode": "Decoding alone (× TurboJPEG, whole image)",
    "sample": "Samples, from file to packed int8 (× TurboJPEG, whole images)",
}
_WIDTH = 540  # with the names on its left, 800 px
_ROW = 27
_ROOM = 1.5  # beside the longest bar, for its numbers


def draw_decode(report: Report) -> Chart:
    """Return the panels of decoding and of whole samples, one above the other."""
    rounds = report.measured.get("rounds")
    return alt.vconcat(*(_panel(report, kind, rounds) for kind in _TITLES), spacing=18)


def conclude_decode(report: Report) -> tuple[list[str], list[str]]:
    """Return the lines of the title and of the subtitle."""
    rows = {row.name: row for row in report.results}
    standing = find_standing(report)
    ours, pillow = standing.ours, rows["sample/whole-against-pillow"]
    of_full, of_pillow = f"{ours.row.ratio or 0:.1f}", f"{pillow.ratio or 0:.1f}"
    way = "Feeder" if has_own_decoder(report) else "Feeder and TurboJPEG's decoder"
    title = [
        f"One core makes {format_number(ours.row.value)} training samples/s with {way},",
        f"{of_full} times TurboJPEG's full decode, {of_pillow} times {pillow_name(report)}",
    ]
    if standing.place == "behind":
        rival = standing.rival
        title.append(f"but {rival.name} makes {format_number(rival.row.value)}")
    sentences = [conclude(report).partition(". ")[2], *find_losses(report)]
    sentences.append(describe_measured(report))
    return title, [line for each in sentences for line in wrap(each)]


def _panel(report: Report, kind: str, rounds: object) -> Chart:
    ways = ways_of(report, kind)
    table = [
        {
            "name": way.name,
            "ours": way.is_ours,
            "value": way.row.value,
            "min": way.row.min,
            "max": way.row.max,
            "numbers": f"{format_number(way.row.value)}"
            + ("  (= 1)" if way.row.ratio is None else f"  (× {way.row.ratio:.2f})"),
        }
        for way in ways
    ]
    base = alt.Chart(alt.Data(values=table)).encode(
        y=alt.Y(
            "name:N",
            title=None,
            sort=None,
            axis=alt.Axis(labelLimit=250, ticks=False, labelPadding=5),
        )
    )
    top = _ROOM * max(way.row.max for way in ways)
    title = f"images/s: bar the median, line the least and most of {rounds} rounds"
    bars = base.mark_bar(height=17, stroke=INK, strokeWidth=0.6).encode(
        x=alt.X(
            "value:Q",
            title=title if kind == "sample" else None,
            scale=alt.Scale(domain=[0, top], nice=False),
            axis=alt.Axis(tickCount=6),
        ),
        color=alt.condition("datum.ours", alt.value(BLUE), alt.value(LIGHT_GREY)),
    )
    # So that the line shows on a bar that is printed in grey.
    halo = base.mark_rule(color="white", strokeWidth=4).encode(x="min:Q", x2="max:Q")
    spread = base.mark_rule(color=INK, strokeWidth=1.5).encode(x="min:Q", x2="max:Q")
    numbers = base.mark_text(align="left", dx=7, fontSize=12, color=INK).encode(
        x="max:Q", text="numbers:N"
    )
    panel_title = alt.TitleParams(
        _TITLES[kind], anchor="start", fontSize=13, color=INK, frame="group"
    )
    return (bars + halo + spread + numbers).properties(
        width=_WIDTH, height=_ROW * len(ways), title=panel_title
    )
