"""The picture of a soak: throughput, machine and resources over time, and when clients ended."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import altair as alt

from ..stream.soak import SoakReport
from ..stream.soak_judgement import (
    SAMPLES_MIN,
    START_UP,
    WARM_UP_SHARE,
    Window,
    find_thirds,
    find_windows,
)
from .style import BLUE, COLOURS, GREY, INK, RED, Chart, chart_of, panel_title

NOTE: Final = (
    "Dashed: the medians that are compared, of throughput at its best and at the end, of the rest "
    "in the first and the last third. Shaded: left out."
)
_WIDTH: Final = 680
_CORES: Final = {"daemon-core": "the daemon's core", "client-core": "the clients' core"}
_PANELS: Final = (
    ("throughput", "Throughput: images/s to all clients", "images/s"),
    (
        "machine",
        "The machine: a fixed load on the same cores, % of its speed when throughput was best",
        "%",
    ),
    ("memory", "Own memory of each process of the daemon", "MiB"),
    ("shared-memory", "Shared memory, by purpose", "MiB"),
    ("fds", "Open files and sockets of each process", "descriptors"),
)
"""Kind of series, title and unit of each panel."""


def draw_soak(report: SoakReport) -> Chart:
    """Panels over one time axis: what is left out is shaded, the medians compared are lines."""
    unit, unit_s = ("minutes", 60) if max(report.at_s) >= 180 else ("seconds", 1)
    times = [at_s / unit_s for at_s in report.at_s]
    named: dict[str, dict[str, Sequence[float]]] = {}
    for name, values in report.series.items():
        kind, _, part = name.partition("/")
        named.setdefault(kind, {})[part] = values
    (throughput,) = named["throughput"].values()
    warm_up = int(len(throughput) * WARM_UP_SHARE)
    windows: Sequence[Window] = ()  # too few samples are not compared
    thirds: Sequence[Window] = ()
    if len(throughput) - warm_up >= SAMPLES_MIN:
        windows, thirds = find_windows(throughput), find_thirds(len(throughput))
    for part, values in named.pop("reference", {}).items():
        # As percent of the median of the first window, or of all without one.
        usual = windows[0].median(values) if windows else statistics.median(values)
        speed = [100 * value / (usual or 1.0) for value in values]
        named.setdefault("machine", {})[_CORES.get(part, part)] = speed
    panels = []
    for kind, title, y_title in _PANELS:
        if kind in named:
            is_speed = kind in ("throughput", "machine")
            compared, left_out = (windows, START_UP) if is_speed else (thirds, warm_up)
            panel = _draw_panel(times, named[kind], y_title, compared, left_out)
            panels.append(panel.properties(width=_WIDTH, height=96, title=_title(title)))
    rows = [{"at": at_s / unit_s, "how": how} for at_s, how in report.restarts]
    colours = alt.Scale(domain=["clean", "killed"], range=[GREY, RED])
    restarts = chart_of(rows).mark_tick(thickness=2, size=10)
    restarts = restarts.encode(
        x=_x(times, f"{unit} since the clients began"),
        y=alt.Y("how:N", title=None, axis=alt.Axis(minExtent=44, domain=False, ticks=False)),
        color=alt.Color("how:N", scale=colours, legend=None),
    )
    title = _title("Clients that ended, each replaced at once")
    panels.append(restarts.properties(width=_WIDTH, height=30, title=title))
    return alt.vconcat(*panels, spacing=10).resolve_scale(color="independent")


def _draw_panel(
    times: Sequence[float],
    series: Mapping[str, Sequence[float]],
    y_title: str,
    compared: Sequence[Window],
    left_out: int,
) -> Chart:
    """Draw the values of each part; ``left_out`` are samples at the start."""
    x = _x(times)
    y = alt.Y("value:Q", title=y_title, axis=alt.Axis(tickCount=3, minExtent=44))
    colour = alt.value(BLUE)
    if len(series) > 1:
        scale, legend = alt.Scale(range=list(COLOURS)), alt.Legend(labelLimit=140)
        colour = alt.Color("part:N", title=None, sort=None, scale=scale, legend=legend)
    rows = [
        {"at": moment, "value": value, "part": part}
        for part, values in series.items()
        for moment, value in zip(times, values, strict=True)
    ]
    panel = chart_of(rows).mark_line(strokeWidth=1.4).encode(x=x, y=y, color=colour)
    shade = chart_of([{"at": 0, "until": times[left_out - 1] if left_out else 0}])
    panel = shade.mark_rect(color="#f1f3f5").encode(x=x, x2="until:Q") + panel
    medians = []
    for window in compared:
        begin, end = window.span_s(times)
        for values in series.values():
            medians.append({"at": begin, "until": end, "value": window.median(values)})
    rules = chart_of(medians).mark_rule(color=INK, strokeWidth=1.6, strokeDash=[4, 2])
    return panel + rules.encode(x=x, x2="until:Q", y=y)


def _x(times: Sequence[float], title: str | None = None) -> Chart:
    """Return the axis of times, with labels if it has a title."""
    labelled = title is not None
    axis = alt.Axis(labels=labelled, ticks=labelled, grid=False, tickCount=10)
    scale = alt.Scale(domain=[0, max(times)], nice=False)
    return alt.X("at:Q", title=title, axis=axis, scale=scale)


def _title(text: str) -> Chart:
    return panel_title(text, fontSize=12, fontWeight="normal")
