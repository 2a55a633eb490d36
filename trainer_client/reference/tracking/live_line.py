"""One line of progress: rewritten in place on a terminal, now and then a new one in a log file.

    epoch 3/90 120/391 · loss 2.318 · 1,204 images/s · waits 2 % · 3 h 12 min left

Epochs count from 0, as in all other lines of the job: in epoch 3, three are complete.

Invariant: the line is never wider than the terminal, and no other text that is written with
``print_line`` is on it. It needs no control codes but a carriage return.
"""

import math
import os
import time
from collections.abc import Callable
from typing import Final, TextIO

from feeder.metrics.figures import duration, percent
from trainer_client.reference.results import EpochResult, RunInfo, StepReport
from trainer_client.reference.tracking.tracker import Tracker

REDRAW_S: Final = 0.1  # more often cannot be read
LOG_S: Final = 30.0  # a day of training makes 2,880 lines
_COLUMNS: Final = 80  # where the terminal reports no size


class LiveLine(Tracker):
    """Writes the line, and all other lines of the job, to one stream."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._is_terminal = stream.isatty()
        self._dot = " · "
        try:
            self._dot.encode(stream.encoding or "ascii")
        except (UnicodeEncodeError, LookupError):
            self._dot = " - "
        self._epochs = 0
        self._shown = ""
        self._last_s = -math.inf

    def print_line(self, text: str) -> None:
        """Write a line of its own; on a terminal the live line moves below it."""
        self._stream.write(f"{self._blank()}{text}\n{self._shown}")
        self._stream.flush()

    def begin(self, run: RunInfo) -> None:
        self._epochs = run.epochs

    def log_step(self, report: StepReport) -> None:
        """Show the step, unless the line was written a moment ago."""
        now_s = self._clock()
        is_last = self._is_terminal and report.step == report.steps_per_epoch
        if not is_last and now_s - self._last_s < (REDRAW_S if self._is_terminal else LOG_S):
            return
        self._last_s = now_s
        loss = f"{report.loss:.3f}" if report.loss < 1000 else f"{report.loss:.3g}"
        line = self._dot.join(
            [
                f"epoch {report.epoch}/{self._epochs} {report.step}/{report.steps_per_epoch}",
                f"loss {loss}",
                f"{report.images_per_s:,.0f} images/s",
                f"waits {percent(report.wait_share)}",
                f"{duration(report.remaining_s)} left",
            ]
        )
        if self._is_terminal:
            self._show(line)
        else:
            self.print_line(f"  {line}")

    def begin_evaluation(self, epoch: int) -> None:
        if self._is_terminal:
            self._show(f"evaluating after epoch {epoch}/{self._epochs}")

    def end_epoch(self, result: EpochResult) -> None:
        self.close()  # the epoch's result replaces it

    def close(self) -> None:
        """Remove the line, so that what follows is printed on a line of its own."""
        self._show("")

    def _show(self, text: str) -> None:
        if text or self._shown:
            text = text[: self._width()]
            self._stream.write(self._blank() + text)
            self._stream.flush()
            self._shown = text

    def _blank(self) -> str:
        """Return what removes the line and moves to its beginning."""
        return f"\r{' ' * self._width()}\r" if self._shown else ""

    def _width(self) -> int:
        """Return the columns to use: in the last one, terminals differ on where the cursor goes."""
        try:
            return (os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS) - 1
        except (OSError, ValueError):
            return _COLUMNS - 1
