"""The picture of the stream bench: images a second, processor time an image, and bare transport."""

import re
from collections.abc import Sequence

import altair as alt

from bench.plots.style import BLUE, FAINT_INK, GREY, INK, ORANGE, Chart
from bench.report import Report, Result

_WAY = re.compile(r"stream/(ipc|tcp)(?:-(\d+)-clients)?(-\w+-cpu)?(?:-(\d+)-workers)?")
_LOCAL = re.compile(r"sample/whole(?:-beside-(\d+)-workers)?")
_TRANSPORTS = alt.Scale(domain=["ipc", "tcp"], range=[BLUE, ORANGE])
_LEGEND = alt.Legend(orient="top", symbolType="square")
_BAND = alt.Scale(paddingInner=0.35)
_HEIGHT = 230


def draw_stream(report: Report) -> Chart:
    """Three panels: delivered images, their cost on both sides, GB/s without decoding."""
    panels = [_draw_rates(report.results), _draw_cost(report.results)]
    bare = [row for row in report.results if re.match("memcpy|zmq/|transport/", row.name)]
    if bare:
        panels.append(_draw_bare(bare))
    return alt.hconcat(*panels, spacing=34).resolve_scale(color="independent")


def _ways(results: Sequence[Result], kind: str) -> list[dict[str, object]]:
    """Return the rows of one kind ("" for rates, "-daemon-cpu" …) as an altair table."""
    table: list[dict[str, object]] = []
    for row in results:
        way = _WAY.fullmatch(row.name)
        if way is not None and (way[3] or "") == kind:
            clients, workers = int(way[2] or 1), int(way[4] or 1)
            table.append(
                {
                    "transport": way[1],
                    "way": f"{way[1]}, {clients} client{'s' * (clients > 1)}",
                    "clients": clients,
                    "workers": f"{workers} worker{'s' * (workers > 1)}",
                    "value": row.value,
                    "min": row.min,
                    "max": row.max,
                }
            )
    return table


def _draw_rates(results: Sequence[Result]) -> Chart:
    """Bars with their spread, grouped by clients, and the rate without a daemon."""
    local = [
        {"workers": f"{int(name[1] or 1)} worker{'s' * (name[1] is not None)}", "value": row.value}
        for row in results
        if (name := _LOCAL.fullmatch(row.name)) is not None
    ]
    table = _ways(results, "") + [each | {"is_local": True} for each in local]
    base = alt.Chart(alt.Data(values=table))
    delivered = base.transform_filter("!datum.is_local")
    x = alt.X("clients:O", title="clients", axis=alt.Axis(labelAngle=0))
    bars = delivered.mark_bar().encode(
        x=x,
        xOffset="transport:N",
        y=alt.Y("value:Q", title="images/s, and the spread (dashed: sample/whole)"),
        color=alt.Color("transport:N", title=None, scale=_TRANSPORTS, legend=_LEGEND),
    )
    spread = delivered.mark_rule(color=INK).encode(
        x=x, xOffset="transport:N", y="min:Q", y2="max:Q"
    )
    bare = base.transform_filter("datum.is_local").mark_rule(
        color=FAINT_INK, strokeDash=[5, 3], strokeWidth=1.5
    )
    layers = bars + spread + bare.encode(y="value:Q")
    return layers.properties(width=150, height=_HEIGHT).facet(
        column=alt.Column("workers:N", title=None, header=alt.Header(labelColor=INK))
    )


def _draw_cost(results: Sequence[Result]) -> Chart:
    """Stacked bars: processor time an image, of the daemon and of the clients."""
    table = [
        row | {"side": side}
        for side in ("daemon", "client")
        for row in _ways(results, f"-{side}-cpu")
        if row["workers"] == "1 worker"
    ]
    table.sort(key=lambda row: str(row["transport"]))  # and as before among these, by clients
    sides = alt.Scale(domain=["daemon", "client"], range=[GREY, BLUE])
    return (
        alt.Chart(alt.Data(values=table))
        .mark_bar()
        .encode(
            x=alt.X("value:Q", title="processor time, µs/image (1 worker)"),
            y=alt.Y("way:N", title=None, sort=None, scale=_BAND),
            color=alt.Color("side:N", title=None, scale=sides, legend=_LEGEND),
            order=alt.Order("side:N", sort="descending"),
        )
        .properties(width=200, height=_HEIGHT)
    )


def _draw_bare(rows: Sequence[Result]) -> Chart:
    """Bars with their spread: transport without decoding."""
    table = [
        {
            "name": row.name,
            "kind": row.name.partition("/")[0],
            "value": row.value,
            "min": row.min,
            "max": row.max,
        }
        for row in rows
    ]
    base = alt.Chart(alt.Data(values=table)).encode(
        y=alt.Y("name:N", title=None, sort=None, scale=_BAND)
    )
    kinds = alt.Scale(domain=["memcpy", "zmq", "transport"], range=["#c9ced4", GREY, BLUE])
    bars = base.mark_bar().encode(
        x=alt.X("value:Q", title="GB/s without decoding, and the spread"),
        color=alt.Color("kind:N", legend=None, scale=kinds),
    )
    spread = base.mark_rule(color=INK).encode(x="min:Q", x2="max:Q")
    return (bars + spread).properties(width=220, height=_HEIGHT)
