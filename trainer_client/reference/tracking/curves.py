"""``curves.png``: loss, accuracy, learning rate and throughput of a run, over its epochs.

altair draws it and vl-convert makes the PNG, without a browser and without Pillow, which would
overwrite the daemon's pillow-simd. Both are optional: without them a run ends well, with a line
that names what to install.

The time axis is the number of epochs done: an epoch's mean stands in the middle of the epoch, what
was measured after it at its end.
"""

import io
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from feeder.installation import install_command
from trainer_client.reference.results import EpochResult, Outcome, RunInfo
from trainer_client.reference.tracking.files import STEPS_FILE, read_losses, replace_file
from trainer_client.reference.tracking.tracker import Tracker

_POINTS_MAX: Final = 1200  # of a line: more than the picture has columns
_DOTS_MAX: Final = 40  # epochs that are drawn with a dot each
_TICKS_MAX: Final = 12  # epochs that have a tick each
_BLUE: Final = "#3b6fb6"
_PALE_BLUE: Final = "#b4c8e4"
_ORANGE: Final = "#e08a2c"
_INK: Final = "#2b2f36"

Points = Sequence[tuple[float, float | None]]
"""Epochs done, and a value."""


class Curves(Tracker):
    """Draws the picture into ``folder`` when a run has ended, with the losses of its steps.csv."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        """``report`` gets a line if there is no picture."""
        self._folder = folder
        self._report = report
        self._title = ""
        self._steps_per_epoch = 0
        self._results: dict[int, EpochResult] = {}

    def begin(self, run: RunInfo) -> None:
        self._title = (
            f"{run.model}, {run.optimiser}, {run.global_batch:,} images a step on "
            f"{run.ranks} x {run.device}"
        )
        self._steps_per_epoch = run.steps_per_epoch
        self._results = {result.epoch: result for result in run.history}

    def end_epoch(self, result: EpochResult) -> None:
        self._results[result.epoch] = result

    def end(self, outcome: Outcome) -> None:
        history = [result for _, result in sorted(self._results.items())]
        losses = read_losses(self._folder / STEPS_FILE)
        steps = [(step / self._steps_per_epoch, loss) for step, loss in losses]
        line = draw_curves(history, steps, self._folder / "curves.png", self._title)
        if line is not None:
            self._report(line)


def draw_curves(
    history: Sequence[EpochResult], steps: Sequence[tuple[float, float]], path: Path, title: str
) -> str | None:
    """Draw the curves of ``history`` to the PNG ``path``; return why not, where that is so.

    ``steps`` are the losses of the logged steps, by epochs done. Raises ResourceError where
    ``path`` cannot be written.
    """
    if not history:
        return f"no epoch is complete yet, so there is no {path.name}"
    try:
        import altair as alt
        import vl_convert  # noqa: F401 -- altair imports it where it saves
    except ImportError as error:
        return (
            f"{path.name} was not drawn, because {error.name} is not installed: "
            f"{install_command('train')}"
        )
    axis = dict.fromkeys(("labelColor", "titleColor"), _INK)
    axis |= {"gridColor": "#e8ebee", "domainColor": "#b8bfc7", "tickColor": "#b8bfc7"}
    heading = alt.TitleParams(title, anchor="start", fontSize=15, color=_INK, offset=12)
    chart = (
        alt.vconcat(*_panels(history, steps), spacing=14)
        .resolve_scale(color="independent")
        .properties(title=heading, padding=18, background="white")
        .configure(font="Liberation Sans, Arial, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(**axis, titleFontWeight="normal", labelFontSize=11, titleFontSize=11)
        .configure_legend(labelFontSize=11, labelColor=_INK)
    )
    picture = io.BytesIO()
    chart.save(picture, format="png", scale_factor=2)
    replace_file(path, picture.getvalue())
    return None


def _panels(history: Sequence[EpochResult], steps: Sequence[tuple[float, float]]) -> Iterator[Any]:
    end = history[-1].epoch + 1

    def line(name: str, at: float, factor: float = 1.0) -> Points:
        values = [(each.epoch + at, getattr(each, name)) for each in history]
        return [(epochs, factor * value) for epochs, value in values if value is not None]

    fine = [(at, loss) for at, loss in steps if at <= end]
    title = "Training loss: mean of each epoch" + ("; thin line: single steps" if fine else "")
    yield _panel(end, title, "loss", {"": line("loss", 0.5)}, fine=fine)
    if any(result.top1 is not None for result in history):
        best = max(history, key=lambda result: result.best_top1 or 0.0)
        when = f"{best.epoch + 1} epoch" + "s" * (best.epoch > 0)
        title = f"Validation: top-1 accuracy, best {100 * (best.best_top1 or 0):.1f} % after {when}"
        lines = {"weights as trained": line("top1", 1, 100)}
        if averaged := line("ema_top1", 1, 100):
            lines["averaged weights"] = averaged
        yield _panel(end, title, "% correct", lines)
    title = "Schedule: learning rate at the end of each epoch"
    yield _panel(end, title, "learning rate", {"": line("lr", 1)}, zero=True)
    lines = {"": line("images_per_s", 0.5)}
    yield _panel(end, "Throughput of all ranks", "images/s", lines, zero=True)
    lines = {"": line("wait_share", 0.5, 100)}
    title, unit = "Waiting for the feeder", "% of the time"
    yield _panel(end, title, unit, lines, zero=True, top=5.0, is_last=True)


def _panel(
    end: int,
    title: str,
    unit: str,
    lines: dict[str, Points],
    *,
    fine: Points = (),
    zero: bool = False,
    top: float = 0.0,
    is_last: bool = False,
) -> Any:
    """Return a panel of ``lines`` by name over epochs 0 .. ``end``, above a ``fine`` line.

    ``zero``: the axis begins at 0; ``top``: and reaches at least to there.
    """
    import altair as alt

    rows: list[dict[str, Any]] = [
        {"at": at, "value": value, "line": name}
        for name, points in lines.items()
        for at, value in _thin(points)
    ]
    below: list[dict[str, Any]] = [{"at": at, "value": value} for at, value in _thin(fine)]
    values = [row["value"] for row in (*rows, *below)]
    low, high = min(values, default=0.0), max(values, default=0.0)
    scale = alt.Scale(zero=zero, nice=True)
    if high < top or low == high:  # it has a height even if all values are equal
        scale = alt.Scale(domain=[0, max(top, 1.25 * high) or 1.0], nice=True)
    ticks = [*range(end + 1)] if end <= _TICKS_MAX else alt.Undefined
    x = alt.X(
        "at:Q",
        title="epochs done" if is_last else None,
        axis=alt.Axis(labels=is_last, ticks=is_last, grid=False, values=ticks, format="d"),
        scale=alt.Scale(domain=[0, end], nice=False),
    )
    y = alt.Y("value:Q", title=unit, axis=alt.Axis(tickCount=4, minExtent=44), scale=scale)
    colour = alt.value(_BLUE)
    if len(lines) > 1:
        colours = alt.Scale(domain=[*lines], range=[_BLUE, _ORANGE])
        legend = alt.Legend(orient="bottom-right", offset=4, symbolSize=40)
        colour = alt.Color("line:N", title=None, scale=colours, legend=legend)
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=colour)
    chart = base.mark_line(strokeWidth=1.8, strokeJoin="round")
    if end <= _DOTS_MAX:  # a single epoch has no line
        chart += base.mark_point(filled=True, size=26, opacity=1, clip=False)
    if below:
        thin = alt.Chart(alt.Data(values=below)).mark_line(strokeWidth=0.8, color=_PALE_BLUE)
        chart = thin.encode(x=x, y=y) + chart
    heading = alt.TitleParams(
        title, anchor="start", frame="group", fontSize=12, fontWeight="normal", color=_INK
    )
    return chart.properties(width=640, height=110, title=heading)


def _thin(points: Points) -> list[tuple[float, float]]:
    """Return at most _POINTS_MAX of the finite points: every so many where there are more."""
    finite = [(at, value) for at, value in points if value is not None and math.isfinite(value)]
    return finite[:: math.ceil(len(finite) / _POINTS_MAX) or 1]
