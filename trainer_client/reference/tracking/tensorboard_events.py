"""Event files for TensorBoard, in the folder ``tensorboard`` of a run's folder.

tensorboardX writes them, because it needs no Pillow: the package ``tensorboard``, which torch's own
writer needs, would install Pillow over the daemon's pillow-simd.

Events are written by the thread that trains. tensorboardX's SummaryWriter has a thread for that:
when the disk is full it ends, its queue fills up, and the training hangs.

Invariant: after a resume, TensorBoard shows each step once. The new file begins with a mark that
makes its readers drop the events of later steps from the files before.
"""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar

from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport
from trainer_client.reference.tracking.output_file import explain_errors, make_folder
from trainer_client.reference.tracking.scalars import epoch_scalars, step_scalars
from trainer_client.reference.tracking.tracker import Tracker

FLUSH_S: Final = 10.0  # how far the curves in the browser are behind


class TensorBoardEvents(Tracker):
    """Writes scalars by global step; each method raises ResourceError where it cannot write."""

    def __init__(self, folder: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Write below ``folder``, the run's; ``clock`` returns seconds."""
        self._folder = folder / "tensorboard"
        self._clock = clock
        self._writer: EventsWriter | None = None
        self._steps_per_epoch = 0
        self._flushed_s = 0.0

    def begin(self, run: RunInfo) -> None:
        """Open a new file; of those before, hide what came after the checkpoint."""
        make_folder(self._folder)
        self._steps_per_epoch = run.steps_per_epoch
        self._flushed_s = self._clock()
        with explain_errors(self._folder):
            # The name has only seconds: the suffix distinguishes files of quick resumes.
            suffix = f".{run.first_step:010d}"
            self._writer = EventsWriter(str(self._folder / "events"), suffix)
            # 1 more, as the events of the last step before stay.
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(
                Event(wall_time=time.time(), step=run.first_step + 1, session_log=start)
            )

    def log_step(self, report: StepReport) -> None:
        """Write the scalars of a step."""
        self._write(report.global_step, step_scalars(report))

    def end_epoch(self, result: EpochResult) -> None:
        """Write the scalars of an epoch, at its last step."""
        self._write((result.epoch + 1) * self._steps_per_epoch, epoch_scalars(result))
        self._flush()  # a checkpoint comes next, and a resume from it does not repeat the epoch

    def end(self, outcome: Outcome) -> None:
        """Close the file."""
        self.close()

    def close(self) -> None:
        """Close the file. Idempotent."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with explain_errors(self._folder):
                writer.close()

    def _write(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            return
        with explain_errors(self._folder):
            for name, value in values.items():
                self._writer.write_event(
                    Event(wall_time=time.time(), step=step, summary=scalar(name, value))
                )
        if self._clock() - self._flushed_s >= FLUSH_S:
            self._flush()

    def _flush(self) -> None:
        if self._writer is not None:
            with explain_errors(self._folder):
                self._writer.flush()
        self._flushed_s = self._clock()
