"""Pictures of a bench's results, PNG or SVG: from the report alone, its machine as subtitle.

Altair and vl-convert are an optional extra; measuring does not need them. Neither needs Pillow,
which in the daemon's environment would overwrite pillow-simd.
"""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError, ResourceError
from feeder.process.output_file import explain_write_errors, write_output

from ..cluster.report import ClusterReport
from ..report import Report
from ..rivals.report import RivalsReport
from ..soak.run import SoakReport
from .style import FAINT_INK, INK

_PIXELS_A_POINT: Final = 2


def check_installed() -> None:
    """Raise ResourceError with the command to run when the extra is missing."""
    try:
        import altair  # noqa: F401
        import vl_convert  # noqa: F401
    except ImportError as error:
        raise ResourceError(
            f"--plot draws with {error.name}, which is not installed: "
            "run `.venv/bin/python -m pip install -e '.[plots]'`"
        ) from None


def write_plot(report: Report, path: Path) -> None:
    """Draw ``report`` to ``path``, an SVG if its name ends so and otherwise a PNG.

    ConfigError when that bench has no picture.
    """
    import altair as alt

    from .ablate import conclude_ablation, draw_ablation
    from .cluster import conclude_cluster, draw_cluster
    from .decode import conclude_decode, draw_decode
    from .rivals import conclude_rivals, draw_rivals
    from .soak import conclude_soak, draw_soak
    from .stream import conclude_stream, draw_stream

    title: str | list[str] = f"feeder-bench {report.bench}"
    subtitle = describe(report.machine)
    if isinstance(report, SoakReport):
        chart = draw_soak(report)
        title, conclusions = conclude_soak(report)
        subtitle = conclusions + subtitle
    elif isinstance(report, RivalsReport):
        chart = draw_rivals(report)
        title, conclusions = conclude_rivals(report)
        subtitle = conclusions + subtitle
    elif isinstance(report, ClusterReport):
        chart = draw_cluster(report)
        title, conclusions = conclude_cluster(report)
        subtitle = conclusions + subtitle
    elif report.bench == "ablate":
        chart = draw_ablation(report)
        title, subtitle = conclude_ablation(report)
    elif report.bench == "decode":
        chart = draw_decode(report)
        title, subtitle = conclude_decode(report)
    elif report.bench == "stream":
        chart = draw_stream(report)
        title, conclusions = conclude_stream(report)
        subtitle = conclusions + subtitle
    else:
        raise ConfigError(f"there is no picture of `feeder-bench {report.bench}`: omit --plot")
    chart = chart.properties(
        title=alt.TitleParams(
            title,
            subtitle=subtitle,
            anchor="start",
            fontSize=17,
            subtitleFontSize=11,
            subtitleColor=FAINT_INK,
            color=INK,
            offset=14,
        ),
        padding=18,
        background="white",
    )
    chart = (
        chart.configure(font="Liberation Sans, Arial, sans-serif")  # an SVG is shown elsewhere
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=INK,
            titleColor=INK,
            titleFontWeight="normal",
            gridColor="#e8ebee",
            domainColor="#b8bfc7",
            tickColor="#b8bfc7",
            labelFontSize=11,
            titleFontSize=12,
        )
        .configure_legend(labelFontSize=11, titleFontSize=11, labelColor=INK, titleColor=INK)
    )
    picture: io.StringIO | io.BytesIO
    if path.suffix == ".svg":
        chart.save(picture := io.StringIO(), format="svg")
        data = picture.getvalue().encode()
    else:
        chart.save(picture := io.BytesIO(), format="png", scale_factor=_PIXELS_A_POINT)
        data = picture.getvalue()
    with explain_write_errors(f"the picture to {path}", "name another --plot file"):
        write_output(path, data)


def describe(machine: Mapping[str, object]) -> list[str]:
    """Return machine, cores and libraries as the lines under a title."""
    cores = machine.get("cores_used")
    libraries = machine.get("libraries")
    lines = [f"{machine.get('cpu')}, {machine.get('cores')} cores"]
    if isinstance(cores, Mapping):
        lines[0] += "; " + ", ".join(f"{part} on core {core}" for part, core in cores.items())
    if "load_before" in machine:
        lines[0] += f"; load before: {machine['load_before']}"
    if isinstance(libraries, Mapping):
        shown = ("feeder", "libjpeg-turbo", "pillow", "libzmq")
        lines.append(", ".join(f"{name} {libraries[name]}" for name in shown if name in libraries))
    return lines
