"""One line of progress: rewritten in place on a terminal, now and then a new one in a log file.

    step 120/391 of epoch 3/90 · loss 2.318 · 1,204 images/s · waits 2 % · 3 h 12 min left

Epochs count from 0, as in all other lines of the job: in epoch 3, three are complete.

Invariant: the line is never wider than the terminal, and no other text that is written with
``print_line`` is on it. It needs no control codes but a carriage return.
"""

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO

from trainer_client.reference.results import EpochResult, RunInfo, StepReport
from trainer_client.reference.tracking.tracker import Tracker

REDRAW_S: Final = 0.1  # more often cannot be read
LOG_S: Final = 30.0  # a day of training makes 2,880 lines
_COLUMNS: Final = 80  # where the terminal reports no size


class LiveLine(Tracker):
    """Writes the line, and all other lines of the job, to one stream."""

    def __init__(self, stream: TextIO, *, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock`` returns seconds."""
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
        is_last = report.step == report.steps_per_epoch
        if self._is_terminal and (is_last or now_s - self._last_s >= REDRAW_S):
            lines = [self._dot.join(parts) for parts in _forms(report, self._epochs)]
            width = self._width()
            self._show(next((line for line in lines if len(line) <= width), lines[-1][:width]))
        elif not self._is_terminal and now_s - self._last_s >= LOG_S:
            self.print_line("  " + self._dot.join(next(_forms(report, self._epochs))))
        else:
            return
        self._last_s = now_s

    def begin_evaluation(self, epoch: int) -> None:
        if self._is_terminal:
            self._show(f"evaluating after epoch {epoch}/{self._epochs}"[: self._width()])

    def end_epoch(self, result: EpochResult) -> None:
        self.close()  # the epoch's result replaces it

    def close(self) -> None:
        """Remove the line, so that what follows is printed on a line of its own."""
        self._show("")

    def _show(self, text: str) -> None:
        if text or self._shown:
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


def _forms(report: StepReport, epochs: int) -> Iterator[tuple[str, ...]]:
    """Yield the parts of the line, the longest form first."""
    step = f"{report.step}/{report.steps_per_epoch}"
    epoch = f"epoch {report.epoch}/{epochs}"
    loss = f"loss {report.loss:.3f}" if report.loss < 1000 else f"loss {report.loss:.3g}"
    speed = f"{report.images_per_s:,.0f}"
    waits = f"waits {100 * report.wait_share:.0f} %"
    left = format_duration(report.remaining_s)
    yield f"step {step} of {epoch}", loss, f"{speed} images/s", waits, f"{left} left"
    yield f"{epoch} {step}", loss, f"{speed} images/s", waits, f"{left} left"
    yield f"{epoch} {step}", loss, f"{speed} img/s", waits, f"{left} left"
    yield f"{epoch} {step}", loss, f"{speed} img/s", f"{left} left"
    yield f"{epoch} {step}", loss, f"{left} left"
    yield f"{epoch} {step}", loss


def format_duration(seconds: float) -> str:
    """Return a time in its two largest units: 42 s, 3 min 20 s, 3 h 12 min, 12 d 4 h."""
    whole = max(0, round(seconds))
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    for (large, large_s), (small, small_s) in itertools.pairwise(units):
        if whole >= large_s:
            rest = whole % large_s // small_s
            return f"{whole // large_s} {large}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"
