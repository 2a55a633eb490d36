"""Shared by the pictures of the benches: colours, lines of text, titles, bars with their spread."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import altair as alt

from ..report import Result

BLUE: Final = "#3b6fb6"
ORANGE: Final = "#e08a2c"
GREEN: Final = "#4b9b6b"
GREY: Final = "#9aa3ad"
LIGHT_GREY: Final = "#d5dade"
RED: Final = "#c23b3b"
INK: Final = "#2b2f36"
FAINT_INK: Final = "#6b7680"
SPREAD: Final = ": bar the median, line the least and most of the rounds"
COLOURS: Final = (BLUE, ORANGE, GREEN, "#8a5fb0", RED, FAINT_INK)

Chart = Any  # an altair chart; altair is optional, so its classes are not annotated

WIDTH: Final = 540  # of bars, with the names on their left: 800 px
SQUARES: Final = alt.Legend(orient="top", symbolType="square", padding=0, offset=4, labelLimit=320)


def panel_title(text: str, below: str = "", **settings: Any) -> Chart:
    return alt.TitleParams(
        text,
        subtitle=below or alt.Undefined,
        anchor="start",
        frame="group",
        color=INK,
        subtitleColor=FAINT_INK,
        subtitleFontSize=11,
        **{"fontSize": 13, **settings},
    )


def chart_of(rows: Iterable[Mapping[str, Any]]) -> Chart:
    return alt.Chart(alt.Data(values=[*rows]))


def bounds(row: Result) -> dict[str, float]:
    """Return a bar's value, and its spread where it was measured more than once."""
    return {"value": row.value, **({"min": row.min, "max": row.max} if row.min < row.max else {})}


def spread_of(base: Chart, rows: Iterable[Mapping[str, Any]]) -> list[Chart]:
    """Return ``base`` with the bars that were measured more than once, if there are any."""
    return (
        [base.transform_filter("isValid(datum.max)")] if any("max" in row for row in rows) else []
    )


def bars(
    rows: Sequence[Mapping[str, Any]],
    *,
    title: Chart,
    x_title: str | None,
    colour: Chart,
    width: int,
    room: float = 1.5,
    row_px: int = 27,
    text_x: int | None = None,
    **axis: Any,
) -> Chart:
    """Draw a bar for each row, which has "name", ``bounds``, and "text" at its end or ``text_x``.

    The axis ends at ``room`` times the longest.
    """
    rows = [{**row, "end": row.get("max", row["value"])} for row in rows]
    names = alt.Axis(**{"labelLimit": 250, "ticks": False, "labelPadding": 5, **axis})
    base = chart_of(rows).encode(y=alt.Y("name:N", title=None, sort=None, axis=names))
    scale = alt.Scale(domain=[0, room * max(row["end"] for row in rows)], nice=False)
    x = alt.X("value:Q", title=x_title, scale=scale, axis=alt.Axis(tickCount=5))
    bar = base.mark_bar(height=row_px - 10, stroke=INK, strokeWidth=0.6)
    layers = bar.encode(x=x, color=colour)
    for spread in spread_of(base.encode(x="min:Q", x2="max:Q"), rows):
        # So that the line shows on a bar that is printed in grey.
        layers += spread.mark_rule(color="white", strokeWidth=4)
        layers += spread.mark_rule(color=INK, strokeWidth=1.5)
    text = base.mark_text(align="left", fontSize=12, color=INK, dx=7)
    end = "end:Q" if text_x is None else alt.value(text_x)
    layers += text.encode(x=end, text="text:N")
    return layers.properties(width=width, height=row_px * len(rows), title=title)
