"""The picture of a soak: throughput, machine and resources over time, and when clients ended."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import altair as alt

from ..soak.run import SoakReport
from ..soak.windows import (
    SAMPLES_MIN,
    START_UP,
    WARM_UP_SHARE,
    Window,
    find_thirds,
    find_windows,
)
from .style import BLUE, COLOURS, GREY, INK, RED, Chart, wrap

_WIDTH: Final = 680
_HEIGHT: Final = 96
_LEGEND: Final = alt.Legend(labelLimit=140)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Time:
    """The horizontal axis."""

    unit: str
    unit_s: float
    end: float
    """In units."""

    def axis(self, *, labelled: bool) -> Chart:
        return alt.X(
            "at:Q",
            title=f"{self.unit} since the clients began" if labelled else None,
            axis=alt.Axis(labels=labelled, ticks=labelled, grid=False, tickCount=10),
            scale=alt.Scale(domain=[0, self.end], nice=False),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """What of a series was compared."""

    left_out: int
    """Samples at the start."""
    windows: Sequence[Window]
    """None where there are too few samples to compare."""


def conclude_soak(report: SoakReport) -> tuple[str, list[str]]:
    """Return the title of the picture, and what it concludes: a line a sentence."""
    verdict = "failed" if report.failures else "passed"
    minutes = report.measured.get("minutes")
    length = ""
    if isinstance(minutes, int | float):
        length = f" of {minutes:g} minutes" if minutes >= 3 else f" of {60 * minutes:g} s"
    sentences = [
        *report.conclusions,
        "Dashed: the medians that are compared, of throughput at its best and at the end, of the "
        "rest in the first and the last third. Shaded: left out.",
    ]
    lines = [line for each in sentences for line in wrap(each)]
    return f"Soak{length} {verdict}: {report.headline}", lines


def draw_soak(report: SoakReport) -> Chart:
    """Panels over one time axis: what is left out is shaded, the medians compared are lines."""
    is_long = max(report.at_s) >= 180
    unit_s = 60 if is_long else 1
    when = _Time(
        unit="minutes" if is_long else "seconds", unit_s=unit_s, end=max(report.at_s) / unit_s
    )
    named = {
        kind: {
            name.partition("/")[2]: values
            for name, values in report.series.items()
            if name.partition("/")[0] == kind
        }
        for kind in ("throughput", "reference", "memory", "shared-memory", "fds")
    }
    (throughput,) = named["throughput"].values()
    warm_up = int(len(throughput) * WARM_UP_SHARE)
    is_judged = len(throughput) - warm_up >= SAMPLES_MIN
    windows = _Compared(left_out=START_UP, windows=find_windows(throughput) if is_judged else ())
    thirds = _Compared(left_out=warm_up, windows=find_thirds(len(throughput)) if is_judged else ())
    machine = {
        {"daemon-core": "the daemon's core", "client-core": "the clients' core"}.get(
            part, part
        ): _relative(values, windows.windows)
        for part, values in named["reference"].items()
    }
    speed = "% of its speed when throughput was best"
    titles = (
        (named["throughput"], windows, "Throughput: images/s to all clients", "images/s"),
        (machine, windows, f"The machine: a fixed load on the same cores, {speed}", "%"),
        (named["memory"], thirds, "Own memory of each process of the daemon", "MiB"),
        (named["shared-memory"], thirds, "Shared memory, by purpose", "MiB"),
        (named["fds"], thirds, "Open files and sockets of each process", "descriptors"),
    )
    panels = [
        _draw_panel(report.at_s, series, compared, when, title, unit)
        for series, compared, title, unit in titles
        if series
    ]
    panels.append(_draw_restarts(report, when))
    return alt.vconcat(*panels, spacing=10).resolve_scale(color="independent")


def _relative(values: Sequence[float], windows: Sequence[Window]) -> list[float]:
    """Return the values as percent of the median of the first window, or of all without one."""
    usual = windows[0].median(values) if windows else statistics.median(values)
    return [100 * value / (usual or 1.0) for value in values]


def _draw_panel(
    at_s: Sequence[float],
    series: Mapping[str, Sequence[float]],
    compared: _Compared,
    when: _Time,
    title: str,
    unit: str,
) -> Chart:
    x = when.axis(labelled=False)
    y = alt.Y("value:Q", title=unit, axis=alt.Axis(tickCount=3, minExtent=44))
    colour = alt.value(BLUE)
    if len(series) > 1:
        colour = alt.Color(
            "part:N", title=None, sort=None, scale=alt.Scale(range=list(COLOURS)), legend=_LEGEND
        )
    rows = [
        {"at": moment / when.unit_s, "value": value, "part": part}
        for part, values in series.items()
        for moment, value in zip(at_s, values, strict=True)
    ]
    lines = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=1.4)
    panel = lines.encode(x=x, y=y, color=colour)
    if compared.left_out:
        panel = _shade(x, at_s[compared.left_out - 1] / when.unit_s) + panel
    medians = [
        {
            "at": begin_s / when.unit_s,
            "until": end_s / when.unit_s,
            "value": window.median(values),
        }
        for window in compared.windows
        for begin_s, end_s in [window.span_s(at_s)]
        for values in series.values()
    ]
    if medians:
        rules = alt.Chart(alt.Data(values=medians)).mark_rule(
            color=INK, strokeWidth=1.6, strokeDash=[4, 2]
        )
        panel += rules.encode(x=x, x2="until:Q", y=y)
    return panel.properties(width=_WIDTH, height=_HEIGHT, title=_panel_title(title))


def _shade(x: Chart, until: float) -> Chart:
    data = alt.Data(values=[{"at": 0, "until": until}])
    return alt.Chart(data).mark_rect(color="#f1f3f5").encode(x=x, x2="until:Q")


def _draw_restarts(report: SoakReport, when: _Time) -> Chart:
    rows = [{"at": at_s / when.unit_s, "how": how} for at_s, how in report.restarts]
    colours = alt.Scale(domain=["clean", "killed"], range=[GREY, RED])
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_tick(thickness=2, size=10)
        .encode(
            x=when.axis(labelled=True),
            y=alt.Y("how:N", title=None, axis=alt.Axis(minExtent=44, domain=False, ticks=False)),
            color=alt.Color("how:N", scale=colours, legend=None),
        )
        .properties(
            width=_WIDTH, height=30, title=_panel_title("Clients that ended, each replaced at once")
        )
    )


def _panel_title(text: str) -> Chart:
    return alt.TitleParams(
        text, anchor="start", frame="group", fontSize=12, fontWeight="normal", color=INK
    )
