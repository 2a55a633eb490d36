"""Pictures of a bench's results, PNG or SVG: from the report alone, its machine as subtitle.

Altair and vl-convert are an optional extra; measuring does not need them. Neither needs Pillow,
which in the daemon's environment would overwrite pillow-simd.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from feeder.errors import ConfigError, ResourceError
from feeder.process.output_file import explain_write_errors, write_output

from ..report import Report

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
    from .style import FAINT_INK, INK

    pictures: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
        "ablate": (conclude_ablation, draw_ablation),
        "cluster": (conclude_cluster, draw_cluster),
        "decode": (conclude_decode, draw_decode),
        "peers": (conclude_rivals, draw_rivals),
        "soak": (conclude_soak, draw_soak),
        "stream": (conclude_stream, draw_stream),
    }
    if report.bench not in pictures:
        raise ConfigError(f"there is no picture of `feeder-bench {report.bench}`: omit --plot")
    conclude, draw = pictures[report.bench]
    title, subtitle = conclude(report)
    if report.bench not in ("ablate", "decode"):  # these conclude with the machine
        subtitle = subtitle + describe(report.machine)
    chart = draw(report).properties(
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
    lines = {"gridColor": "#e8ebee", "domainColor": "#b8bfc7", "tickColor": "#b8bfc7"}
    chart = (
        chart.configure(font="Liberation Sans, Arial, sans-serif")  # an SVG is shown elsewhere
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=INK,
            titleColor=INK,
            titleFontWeight="normal",
            labelFontSize=11,
            titleFontSize=12,
            **lines,
        )
        .configure_legend(labelFontSize=11, titleFontSize=11, labelColor=INK, titleColor=INK)
    )
    if path.suffix == ".svg":
        text = io.StringIO()
        chart.save(text, format="svg")
        data = text.getvalue().encode()
    else:
        picture = io.BytesIO()
        chart.save(picture, format="png", scale_factor=_PIXELS_A_POINT)
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
