"""``curves.png``: loss, accuracy, learning rate and throughput of a run, over its epochs.

altair draws it and vl-convert makes the PNG, without a browser and without Pillow, which would
overwrite the daemon's pillow-simd. Both are optional: without them a run ends well, with a line
that names what to install.

The time axis is the number of epochs done: an epoch's mean stands in the middle of the epoch, what
was measured after it at its end.
"""

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from feeder.installation import install_command
from trainer_client.reference.results import Outcome, RunInfo
from trainer_client.reference.tracking.files import read_epochs, read_losses, replace_file
from trainer_client.reference.tracking.tracker import Tracker

_POINTS_MAX: Final = 1200  # of a line: more than the picture has columns
_DOTS_MAX: Final = 40  # epochs that are drawn with a dot each
_INK: Final = "#2b2f36"
_STEPS: Final = "single steps"
_COLOURS: Final = {  # by line, the one in the background first
    _STEPS: "#b4c8e4",
    "mean of each epoch": "#3b6fb6",
    "weights as trained": "#3b6fb6",
    "averaged weights": "#e08a2c",
}

Points = Sequence[tuple[float, float]]
"""Epochs done, and a value."""


class Curves(Tracker):
    """Draws steps.csv and epochs.csv of a run's folder when the run has ended."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        """``report`` gets a line if there is no picture."""
        self._folder = folder
        self._report = report
        self._title = ""
        self._steps_per_epoch = 0

    def begin(self, run: RunInfo) -> None:
        self._title = (
            f"{run.model}, {run.optimiser}, {run.global_batch:,} images a step on "
            f"{run.ranks} x {run.device}"
        )
        self._steps_per_epoch = run.steps_per_epoch

    def end(self, outcome: Outcome) -> None:
        path, epochs = self._folder / "curves.png", read_epochs(self._folder)
        if not epochs:
            self._report(f"no epoch is complete yet, so there is no {path.name}")
            return
        steps = [(step / self._steps_per_epoch, loss) for step, loss in read_losses(self._folder)]
        try:
            picture = _draw(epochs, steps, self._title)
        except ImportError as error:
            self._report(
                f"{path.name} was not drawn, because {error.name} is not installed: "
                f"{install_command('train')}"
            )
        else:
            replace_file(path, picture)


def _draw(epochs: Sequence[Mapping[str, float]], steps: Points, title: str) -> bytes:
    """Return a PNG; ImportError where a package is missing."""
    import altair as alt
    import vl_convert  # noqa: F401 -- altair imports it where it saves

    heading = alt.TitleParams(title, anchor="start", fontSize=15, color=_INK, offset=12)
    chart = (
        alt.vconcat(*_panels(epochs, steps), spacing=14)
        .resolve_scale(color="independent")
        .properties(title=heading, padding=18, background="white")
        .configure(font="Liberation Sans, Arial, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(labelColor=_INK, titleColor=_INK, gridColor="#e8ebee")
        .configure_title(anchor="start", frame="group", fontSize=12, fontWeight="normal")
    )
    picture = io.BytesIO()
    chart.save(picture, format="png", scale_factor=2)
    return picture.getvalue()


def _panels(epochs: Sequence[Mapping[str, float]], steps: Points) -> Iterator[Any]:
    end = int(epochs[-1]["epoch"]) + 1

    def line(name: str, at: float, factor: float = 1.0) -> Points:
        return [(row["epoch"] + at, factor * row[name]) for row in epochs if name in row]

    fine = [(at, loss) for at, loss in steps if at <= end]
    losses = {_STEPS: fine, "mean of each epoch": line("loss", 0.5)}
    yield _panel(end, "Training loss", "loss", losses)
    raw, averaged = line("val_top1", 1, 100), line("ema_top1", 1, 100)
    if raw:
        when, best = max([*raw, *averaged], key=lambda point: point[1])
        title = f"Validation: top-1 accuracy, best {best:.1f} % after epoch {when - 1:.0f}"
        tops = {"weights as trained": raw, "averaged weights": averaged}
        yield _panel(end, title, "% correct", tops, legend="bottom-right")
    for title, unit, points in (
        ("Schedule: learning rate at the end of each epoch", "learning rate", line("lr", 1)),
        ("Throughput of all ranks", "images/s", line("images_per_s", 0.5)),
        ("Waiting for the feeder", "% of the time", line("wait_share", 0.5, 100)),
    ):
        yield _panel(end, title, unit, {"mean of each epoch": points}, zero=True)


def _panel(
    end: int,
    title: str,
    unit: str,
    lines: Mapping[str, Points],
    *,
    zero: bool = False,
    legend: str = "top-right",
) -> Any:
    """Return a panel of ``lines`` over epochs 0 .. ``end``; ``zero``: its axis begins at 0."""
    import altair as alt

    rows = [
        {"at": at, "value": value, "line": name}
        for name, points in lines.items()
        for at, value in _thin(points)
    ]
    axis = alt.Axis(grid=False, tickMinStep=1, format="d")
    x = alt.X("at:Q", title="epochs done", axis=axis, scale=alt.Scale(domain=[0, end], nice=False))
    axis = alt.Axis(tickCount=4, minExtent=44)
    y = alt.Y("value:Q", title=unit, axis=axis, scale=alt.Scale(zero=zero))
    names = [name for name in lines if lines[name]]
    colours = alt.Scale(domain=names, range=[_COLOURS[name] for name in names])
    key = alt.Legend(orient=legend, offset=4) if len(names) > 1 else None
    colour = alt.Color("line:N", title=None, scale=colours, legend=key)
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=colour)
    chart = base.mark_line(strokeWidth=1.5, strokeJoin="round")
    if end <= _DOTS_MAX:  # a single epoch has no line
        dots = base.transform_filter(alt.datum.line != _STEPS)
        chart += dots.mark_point(filled=True, size=26, opacity=1)
    return chart.properties(width=640, height=110, title=title)


def _thin(points: Points) -> Points:
    """Return at most _POINTS_MAX of the finite points: every so many where there are more."""
    finite = [(at, value) for at, value in points if math.isfinite(value)]
    return finite[:: math.ceil(len(finite) / _POINTS_MAX) or 1]
