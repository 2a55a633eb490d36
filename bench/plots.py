"""Pictures of what a bench found, as PNG: drawn from the report alone, its machine as subtitle.

Altair and vl-convert are an optional extra; whoever only measures does not need them. Neither needs
Pillow, which in the daemon's environment would overwrite pillow-simd.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from bench.growth import WARM_UP_SHARE
from bench.report import Report
from bench.soak import SoakReport
from feeder.errors import ConfigError, ResourceError

_PIXELS_A_POINT: Final = 2
_BLUE, _ORANGE, _GREY, _RED = "#3b6fb6", "#e08a2c", "#9aa3ad", "#c23b3b"
_COLOURS: Final = (_BLUE, _ORANGE, "#4b9b6b", "#8a5fb0", _RED, "#6b7680")
_INK: Final = "#2b2f36"

_Chart = Any  # altair's classes are not there when types are checked


def check_installed() -> None:
    """Raise ResourceError with the way out when the extra is missing."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise ResourceError(
            f"--plot draws with {error.name}, which is not installed: "
            "run `.venv/bin/python -m pip install -e '.[plots]'`"
        ) from None


def write_plot(report: Report, path: Path) -> None:
    """Draw ``report`` to the PNG ``path``; ConfigError when there is no picture of that bench."""
    import altair as alt

    subtitle = describe(report.machine)
    if isinstance(report, SoakReport):
        chart = _draw_soak(report)
        subtitle += list(report.failures) or ["nothing has grown"]
    else:
        raise ConfigError(f"there is no picture of `feeder-bench {report.bench}`: omit --plot")
    chart = chart.properties(
        title=alt.TitleParams(
            f"feeder-bench {report.bench}",
            subtitle=subtitle,
            anchor="start",
            fontSize=17,
            subtitleFontSize=11,
            subtitleColor="#6b7680",
            color=_INK,
            offset=14,
        ),
        padding=18,
        background="white",
    )
    chart = (
        chart.configure(font="Liberation Sans")
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=_INK,
            titleColor=_INK,
            titleFontWeight="normal",
            gridColor="#e8ebee",
            domainColor="#b8bfc7",
            tickColor="#b8bfc7",
            labelFontSize=11,
            titleFontSize=12,
        )
        .configure_legend(labelFontSize=11, titleFontSize=11, labelColor=_INK, titleColor=_INK)
    )
    try:
        chart.save(str(path), format="png", scale_factor=_PIXELS_A_POINT)
    except OSError as error:
        raise ResourceError(
            f"cannot write the picture to {path} ({error.strerror}): name another --plot file"
        ) from error


def describe(machine: Mapping[str, object]) -> list[str]:
    """Return machine, cores and libraries as the lines under a title."""
    cores = machine.get("cores_used")
    libraries = machine.get("libraries")
    lines = [f"{machine.get('cpu')}, {machine.get('cores')} cores"]
    if isinstance(cores, Mapping):
        lines[0] += "; " + ", ".join(f"{part} on core {core}" for part, core in cores.items())
    if isinstance(libraries, Mapping):
        shown = ("feeder", "libjpeg-turbo", "pillow", "libzmq")
        lines.append(", ".join(f"{name} {libraries[name]}" for name in shown if name in libraries))
    return lines


def _draw_soak(report: SoakReport) -> _Chart:
    """Four panels over one time axis, with the warm-up shaded and the ends of clients marked."""
    import altair as alt

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
            {"at": at_s / unit_s, "value": value, "who": name.partition("/")[2]}
            for name in names
            for at_s, value in zip(report.at_s, report.series[name], strict=True)
        ]
        lines = alt.Chart(alt.Data(values=rows)).mark_line(strokeWidth=1.6)
        y = alt.Y("value:Q", title=title, axis=alt.Axis(tickCount=4, minExtent=36))
        colour = alt.value(_BLUE)
        if len(names) > 1:
            colour = alt.Color("who:N", title=None, scale=alt.Scale(range=list(_COLOURS)))
        panel = _shade(x, WARM_UP_SHARE * end) + lines.encode(x=x, y=y, color=colour)
        panels.append(panel.properties(width=680, height=110))
    panels.append(_draw_restarts(report, unit_s, end))
    panels[-1], panels[-2] = panels[-2], panels[-1]
    return alt.vconcat(*panels, spacing=12).resolve_scale(color="independent")


def _shade(x: _Chart, until: float) -> _Chart:
    import altair as alt

    data = alt.Data(values=[{"at": 0, "until": until}])
    return alt.Chart(data).mark_rect(color="#f1f3f5").encode(x=x, x2="until:Q")


def _draw_restarts(report: SoakReport, unit_s: float, end: float) -> _Chart:
    import altair as alt

    rows = [{"at": at_s / unit_s, "how": how} for at_s, how in report.restarts]
    x = alt.X(
        "at:Q",
        title=None,
        axis=alt.Axis(labels=False, grid=False, ticks=False, domain=False),
        scale=alt.Scale(domain=[0, end], nice=False),
    )
    colours = alt.Scale(domain=["clean", "killed"], range=[_GREY, _RED])
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
                color=_INK,
            ),
        )
    )
