"""The picture of the stream bench: images a second, CPU time an image, and transport alone."""

from collections.abc import Mapping, Sequence
from typing import Final

import altair as alt

from ..report import Report, Result, format_number
from ..stream.stream_report import (
    WITHOUT_DAEMON,
    Way,
    bare_rows,
    count,
    rates_without_daemon,
    ways_of,
)
from .style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LIGHT_GREY,
    ORANGE,
    SPREAD,
    SQUARES,
    Chart,
    bars,
    bounds,
    chart_of,
    panel_title,
    spread_of,
)

_TRANSPORTS: Final = alt.Scale(domain=["ipc, in place", "tcp"], range=[BLUE, ORANGE])
_BAR_PX: Final = 22


def draw_stream(report: Report) -> Chart:
    """Images that arrive; below, their cost on both sides, and GB/s without decoding."""
    ways = [way for way in ways_of(report) if way.how != "ipc, copied"]
    below = [_draw_cost([way for way in ways if way.workers == 1])]
    if bare := bare_rows(report):
        below.append(_draw_bare(bare))
    rates = _draw_rates(ways, rates_without_daemon(report))
    costs = alt.hconcat(*below, spacing=28).resolve_scale(color="independent")
    return alt.vconcat(rates, costs, spacing=24).resolve_scale(color="independent")


def _draw_rates(ways: Sequence[Way], without: Mapping[int, Result]) -> Chart:
    """A panel for each number of workers: bars by clients, and the rate without a daemon."""
    top = 1.12 * max(row.max for row in (*(way.rate for way in ways), *without.values()))
    panels = []
    for workers in sorted({way.workers for way in ways}):
        table = [
            {
                "transport": way.how,
                "clients": count(way.clients, "client"),
                "shown": format_number(round(way.rate.value)),
                **bounds(way.rate),
            }
            for way in ways
            if way.workers == workers
        ]
        base = chart_of(table).encode(
            x=alt.X("clients:N", title=None, sort=None, axis=alt.Axis(labelAngle=0, ticks=False)),
            xOffset="transport:N",
        )
        y = alt.Y(
            "value:Q",
            title="images/s" + SPREAD * any("max" in row for row in table),
            scale=alt.Scale(domain=[0, top], nice=False),
            axis=alt.Axis(tickCount=5),
        )
        colour = alt.Color("transport:N", title=None, scale=_TRANSPORTS, legend=SQUARES)
        chart = base.mark_bar().encode(y=y, color=colour)
        for spread in spread_of(base, table):
            chart += spread.mark_rule(color=INK).encode(y="min:Q", y2="max:Q")
        words = base.mark_text(fontSize=9.5, color="white", baseline="bottom", dy=-4)
        chart += words.encode(y=alt.Y(datum=0), text="shown:N")
        title, subtitle = f"End to end with {count(workers, 'worker')}: images/s at the clients", ""
        if (alone := without.get(workers)) is not None:
            line = chart_of([{"value": alone.value}])
            line = line.mark_rule(color=INK, strokeDash=[5, 3], strokeWidth=1.5)
            chart += line.encode(y="value:Q")
            subtitle = f"dashed: {format_number(round(alone.value))} by {WITHOUT_DAEMON}"
        panels.append(chart.properties(width=255, height=230, title=panel_title(title, subtitle)))
    return alt.hconcat(*panels, spacing=28).resolve_scale(color="shared", y="shared")


def _draw_cost(ways: Sequence[Way]) -> Chart:
    """Stacked bars: CPU time an image, of the daemon and of the clients."""
    table = [
        {"way": way.words, "side": side, "value": row.value}
        for way in sorted(ways, key=lambda way: (way.how, way.clients))
        for side, row in (("daemon", way.daemon_cpu), ("clients", way.client_cpu))
    ]
    sides = alt.Scale(domain=["daemon", "clients"], range=[GREY, GREEN])
    title = panel_title("Cost with 1 worker: CPU time per image")
    bars = chart_of(table).mark_bar()
    return bars.encode(
        x=alt.X("value:Q", title="µs/image, median", axis=alt.Axis(tickCount=4)),
        y=alt.Y("way:N", title=None, sort=None, axis=alt.Axis(ticks=False, labelLimit=200)),
        color=alt.Color("side:N", title=None, scale=sides, legend=SQUARES),
        order=alt.Order("side:N", sort="descending"),
    ).properties(width=170, height=_BAR_PX * 7, title=title)


def _draw_bare(rows: Mapping[str, Result]) -> Chart:
    table = [
        {
            "name": words,
            "kind": words.partition(" ")[0],
            "text": format_number(row.value),
            **bounds(row),
        }
        for words, row in rows.items()
    ]
    kinds = alt.Scale(domain=["copy", "raw", "Feeder,"], range=[LIGHT_GREY, GREY, BLUE])
    return bars(
        table,
        title=panel_title("Transport alone: messages without decoding"),
        x_title="GB/s" + SPREAD * any("max" in row for row in table),
        colour=alt.Color("kind:N", legend=None, scale=kinds),
        width=180,
        room=1.2,
        row_px=_BAR_PX,
    )
