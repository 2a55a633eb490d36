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
from trainer_client.reference.tracking.files import STEPS_FILE
from trainer_client.reference.tracking.output_file import replace_file
from trainer_client.reference.tracking.step_rows import read_losses
from trainer_client.reference.tracking.tracker import Tracker

CURVES_FILE: Final = "curves.png"
_POINTS_MAX: Final = 1200  # of a line: more than the picture has columns
_DOTS_MAX: Final = 40  # epochs that are drawn with a dot each
_TICKS_MAX: Final = 12  # epochs that have a tick each
_WIDTH: Final = 640
_HEIGHT: Final = 110
_PIXELS_A_POINT: Final = 2
_BLUE: Final = "#3b6fb6"
_PALE_BLUE: Final = "#b4c8e4"
_ORANGE: Final = "#e08a2c"
_INK: Final = "#2b2f36"
_FAINT_INK: Final = "#6b7680"

Chart = Any
"""An altair chart; altair is optional, so its classes are not annotated."""
Points = Sequence[tuple[float, float | None]]
"""Epochs done, and a value."""


class Curves(Tracker):
    """Draws the picture when a run has ended."""

    def __init__(self, folder: Path, report: Callable[[str], None]) -> None:
        """Draw into ``folder``, from its steps.csv; ``report`` gets a line if that fails."""
        self._folder = folder
        self._report = report
        self._title = ""
        self._steps_per_epoch = 0
        self._results: dict[int, EpochResult] = {}

    def begin(self, run: RunInfo) -> None:
        """Note the epochs before."""
        self._title = (
            f"{run.model}, {run.optimiser}, {run.global_batch:,} images a step on "
            f"{run.ranks} x {run.device}"
        )
        self._steps_per_epoch = run.steps_per_epoch
        self._results = {result.epoch: result for result in run.history}

    def end_epoch(self, result: EpochResult) -> None:
        """Note the epoch."""
        self._results[result.epoch] = result

    def end(self, outcome: Outcome) -> None:
        """Draw the picture; ResourceError where it cannot be written."""
        history = [self._results[epoch] for epoch in sorted(self._results)]
        steps = read_losses(self._folder / STEPS_FILE)
        line = draw_curves(
            history,
            steps,
            self._folder / CURVES_FILE,
            self._title,
            steps_per_epoch=self._steps_per_epoch,
        )
        if line is not None:
            self._report(line)


def draw_curves(
    history: Sequence[EpochResult],
    steps: Sequence[tuple[int, float]],
    path: Path,
    title: str,
    *,
    steps_per_epoch: int,
) -> str | None:
    """Draw the curves of ``history`` to the PNG ``path``; return why not, where that is so.

    ``steps`` are the global step and loss of the logged steps. Raises ResourceError where ``path``
    cannot be written.
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
    chart = alt.vconcat(*_panels(history, steps, steps_per_epoch), spacing=14).resolve_scale(
        color="independent"
    )
    chart = chart.properties(
        title=alt.TitleParams(title, anchor="start", fontSize=15, color=_INK, offset=12),
        padding=18,
        background="white",
    )
    chart = (
        chart.configure(font="Liberation Sans, Arial, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=_INK,
            titleColor=_INK,
            titleFontWeight="normal",
            gridColor="#e8ebee",
            domainColor="#b8bfc7",
            tickColor="#b8bfc7",
            labelFontSize=11,
            titleFontSize=11,
        )
        .configure_legend(labelFontSize=11, labelColor=_INK)
    )
    picture = io.BytesIO()
    chart.save(picture, format="png", scale_factor=_PIXELS_A_POINT)
    replace_file(path, picture.getvalue())
    return None


def _panels(
    history: Sequence[EpochResult], steps: Sequence[tuple[int, float]], steps_per_epoch: int
) -> Iterator[Chart]:
    end = history[-1].epoch + 1
    middles = [result.epoch + 0.5 for result in history]
    ends = [float(result.epoch + 1) for result in history]

    def by(times: Sequence[float], read: Callable[[EpochResult], float | None]) -> Points:
        return [(at, read(result)) for at, result in zip(times, history, strict=True)]

    axis = _Axis(end)
    fine = [(step / steps_per_epoch, loss) for step, loss in steps if step <= end * steps_per_epoch]
    loss = axis.panel(
        "Training loss: mean of each epoch" + ("; thin line: single steps" if fine else ""),
        "loss",
        {"": by(middles, lambda result: result.loss)},
        fine=fine,
    )
    yield loss
    if any(result.top1 is not None for result in history):
        lines = {"weights as trained": by(ends, lambda result: _percent(result.top1))}
        if any(result.ema_top1 is not None for result in history):
            lines["averaged weights"] = by(ends, lambda result: _percent(result.ema_top1))
        yield axis.panel(f"Validation: top-1 accuracy, {_best(history)}", "% correct", lines)
    yield axis.panel(
        "Schedule: learning rate at the end of each epoch",
        "learning rate",
        {"": by(ends, lambda result: result.lr)},
        zero=True,
    )
    yield axis.panel(
        "Throughput of all ranks",
        "images/s",
        {"": by(middles, lambda result: result.images_per_s)},
        zero=True,
    )
    yield axis.panel(
        "Waiting for the feeder",
        "% of the time",
        {"": by(middles, lambda result: _percent(result.wait_share))},
        top=5.0,
        zero=True,
        is_last=True,
    )


class _Axis:
    """Panels over one axis of epochs."""

    def __init__(self, end: int) -> None:
        self._end = end

    def panel(
        self,
        title: str,
        unit: str,
        lines: dict[str, Points],
        *,
        fine: Points = (),
        zero: bool = False,
        top: float = 0.0,
        is_last: bool = False,
    ) -> Chart:
        """Return a panel of ``lines`` by name, above a ``fine`` line.

        ``zero``: the axis begins at 0; ``top``: and reaches at least to there.
        """
        import altair as alt

        rows: list[dict[str, Any]] = [
            {"at": at, "value": value, "line": name}
            for name, points in lines.items()
            for at, value in _thin(_finite(points))
        ]
        below: list[dict[str, Any]] = [
            {"at": at, "value": value} for at, value in _thin(_finite(fine))
        ]
        shown = [row["value"] for row in (*rows, *below)]
        ticks = [*range(self._end + 1)] if self._end <= _TICKS_MAX else alt.Undefined
        x = alt.X(
            "at:Q",
            title="epochs done" if is_last else None,
            axis=alt.Axis(labels=is_last, ticks=is_last, grid=False, values=ticks, format="d"),
            scale=alt.Scale(domain=[0, self._end], nice=False),
        )
        y = alt.Y(
            "value:Q",
            title=unit,
            axis=alt.Axis(tickCount=4, minExtent=44),
            scale=_make_scale(shown, zero=zero, top=top),
        )
        colour = alt.value(_BLUE)
        if len(lines) > 1:
            colours = alt.Scale(domain=[*lines], range=[_BLUE, _ORANGE])
            legend = alt.Legend(orient="bottom-right", offset=4, symbolSize=40)
            colour = alt.Color("line:N", title=None, scale=colours, legend=legend)
        base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, color=colour)
        chart = base.mark_line(strokeWidth=1.8, strokeJoin="round")
        if self._end <= _DOTS_MAX:  # a single epoch has no line
            chart += base.mark_point(filled=True, size=26, opacity=1, clip=False)
        if below:
            thin = alt.Chart(alt.Data(values=below)).mark_line(strokeWidth=0.8, color=_PALE_BLUE)
            chart = thin.encode(x=x, y=y) + chart
        return chart.properties(
            width=_WIDTH,
            height=_HEIGHT,
            title=alt.TitleParams(
                title,
                anchor="start",
                frame="group",
                fontSize=12,
                fontWeight="normal",
                color=_INK,
            ),
        )


def _make_scale(values: Sequence[float], *, zero: bool, top: float) -> Chart:
    """Return a scale for ``values`` that has a height even if they are all equal."""
    import altair as alt

    low, high = min(values, default=0.0), max(values, default=0.0)
    if high < top or low == high:
        return alt.Scale(domain=[0, max(top, 1.25 * high) or 1.0], nice=True)
    return alt.Scale(zero=zero, nice=True)


def _finite(points: Points) -> list[tuple[float, float]]:
    return [(at, value) for at, value in points if value is not None and math.isfinite(value)]


def _thin(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most _POINTS_MAX points: means of neighbours where there are more."""
    size = math.ceil(len(points) / _POINTS_MAX)
    if size <= 1:
        return list(points)
    groups = (points[first : first + size] for first in range(0, len(points), size))
    return [
        (sum(at for at, _ in group) / len(group), sum(value for _, value in group) / len(group))
        for group in groups
    ]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _best(history: Sequence[EpochResult]) -> str:
    """Return the best accuracy, and when it was measured."""
    best = max(history, key=lambda result: result.best_top1 or 0.0)
    epochs = f"{best.epoch + 1} epoch" + "s" * (best.epoch > 0)
    return f"best {100 * (best.best_top1 or 0.0):.1f} % after {epochs}"
