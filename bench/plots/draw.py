"""Pictures of a bench's results, PNG or SVG, from the report alone.

The conclusion is the title, and the rest of it the subtitle, with the machine. Altair and
vl-convert are an optional extra; measuring does not need them. Neither needs Pillow, which in the
daemon's environment would overwrite pillow-simd.
"""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from feeder.errors import ResourceError
from feeder.process.output_file import explain_write_errors, write_output

from ..report import Report, wrap

_PIXELS_A_POINT: Final = 2
_TITLE_CHARACTERS: Final = 88  # of a line, in a picture 800 px wide
_SUBTITLE_CHARACTERS: Final = 125


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
    """Draw ``report`` to ``path``, an SVG if its name ends so and otherwise a PNG."""
    import altair as alt

    from . import ablate, soak
    from .cluster import draw_cluster
    from .contenders import draw_decode, draw_rivals
    from .stream import draw_stream
    from .style import FAINT_INK, INK

    pictures: dict[str, tuple[Callable[[Any], Any], str]] = {
        "ablate": (ablate.draw_ablation, ablate.NOTE),
        "cluster": (draw_cluster, ""),
        "decode": (draw_decode, ""),
        "peers": (draw_rivals, ""),
        "soak": (soak.draw_soak, soak.NOTE),
        "stream": (draw_stream, ""),
    }
    draw, note = pictures[report.bench]
    title, *more = report.conclude()
    more += [report.describe_rounds(), note, *describe(report)]
    chart = draw(report).properties(
        title=alt.TitleParams(
            wrap([title], _TITLE_CHARACTERS),
            subtitle=wrap(more, _SUBTITLE_CHARACTERS),
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


def describe(report: Report) -> list[str]:
    """Return sentences on how much was measured, and on machine and libraries."""
    machine, measured = report.machine, (f"{what} {n}" for what, n in report.measured.items())
    cores, libraries = machine.get("cores_used"), machine.get("libraries")
    where = f"{machine.get('cpu')}, {machine.get('cores')} cores"
    if isinstance(cores, Mapping):
        where += "; " + ", ".join(f"{part} on core {core}" for part, core in cores.items())
    if "load_before" in machine:
        where += f"; load before: {machine['load_before']}"
    if isinstance(libraries, Mapping):
        shown = ("feeder", "libjpeg-turbo", "pillow", "libzmq")
        named = [f"{name} {libraries[name]}" for name in shown if name in libraries]
        where += f"; {', '.join(named)}"
    return [f"Measured: {', '.join(measured)}.", where]
