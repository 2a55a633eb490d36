"""The picture of a soak: resources and throughput over time, and when clients ended."""

import altair as alt

from bench.plots.style import BLUE, COLOURS, GREY, INK, RED, Chart
from bench.soak.growth import WARM_UP_SHARE
from bench.soak.run import SoakReport


def draw_soak(report: SoakReport) -> Chart:
    """Four panels over one time axis, with the warm-up shaded and the ends of clients marked."""
    unit_s, unit = (60, "minutes") if max(report.at_s) >= 180 else (1, "seconds")
    end = max(report.at_s) / unit_s
    panels = []
    for kind, title in (
        ("memory", "own memory, MiB"),
        ("shared-memory", "shared memory, MiB"),
        ("fds", "descriptors"),
        ("throughput", "images/s"),
    ):
        last = kind == "throughput"
        x = alt.X(
            "at:Q",
            title=f"{unit}; shaded: warm-up, which is not judged" if last else None,
            axis=alt.Axis(labels=last, grid=False, tickCount=10),
            scale=alt.Scale(domain=[0, end], nice=False),
        )
        names = [name for name in report.series if name.partition("/")[0] == kind]
        rows = [
            {"at": at_s / unit_s, "value": value, "part": name.partition("/")[2]}
            for name in names
            for at_s, value in zip(report.at_s, report.series[name], strict=True)
        ]
        lines = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=1.6)
        y = alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=4, minExtent=36))
        colour = alt.value(BLUE)
        if len(names) > 1:
            colour = alt.Color("part:N", title=None, scale=alt.Scale(range=list(COLOURS)))
        panel = _shade(x, WARM_UP_SHARE * end) + lines.encode(x=x, y=y, color=colour)
        panels.append(panel.properties(width=680, height=110))
    panels.append(_draw_restarts(report, unit_s, end))
    panels[-1], panels[-2] = panels[-2], panels[-1]
    return alt.vconcat(*panels, spacing=12).resolve_scale(color="independent")


def _shade(x: Chart, until: float) -> Chart:
    data = alt.Data(values=[{"at": 0, "until": until}])
    return alt.Chart(data).mark_rect(color="#f1f3f5").encode(x=x, x2="until:Q")


def _draw_restarts(report: SoakReport, unit_s: float, end: float) -> Chart:
    rows = [{"at": at_s / unit_s, "how": how} for at_s, how in report.restarts]
    x = alt.X(
        "at:Q",
        title=None,
        axis=alt.Axis(labels=False, grid=False, ticks=False, domain=False),
        scale=alt.Scale(domain=[0, end], nice=False),
    )
    colours = alt.Scale(domain=["clean", "killed"], range=[GREY, RED])
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_tick(thickness=2, size=10)
        .encode(
            x=x,
            y=alt.Y("how:N", title=None, axis=alt.Axis(minExtent=36, domain=False, ticks=False)),
            color=alt.Color("how:N", scale=colours, legend=None),
        )
        .properties(
            width=680,
            height=30,
            title=alt.TitleParams(
                "clients that ended",
                anchor="start",
                fontSize=12,
                fontWeight="normal",
                color=INK,
            ),
        )
    )
