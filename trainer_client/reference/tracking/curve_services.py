"""Curves in TensorBoard and in Weights & Biases: the same names and values, by global step."""

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from feeder.errors import ResourceError
from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport
from trainer_client.reference.tracking.files import explain_errors, make_folder, replace_file
from trainer_client.reference.tracking.tracker import Tracker


class _CurveService(Tracker):
    """Turns reports into values by name; a subclass logs them in its ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._steps_per_epoch = 0

    def begin(self, run: RunInfo) -> None:
        self._steps_per_epoch = run.steps_per_epoch
        make_folder(self._folder)

    def log_step(self, report: StepReport) -> None:
        names = ("loss", "lr", "images_per_s", "wait_share")
        self._log(report.global_step, {f"train/{name}": getattr(report, name) for name in names})

    def end_epoch(self, result: EpochResult) -> None:
        names = [f"epoch/{name}" for name in ("loss", "images_per_s", "wait_share")]
        names += [f"val/{name}" for name in ("top1", "top5", "ema_top1", "ema_top5")]
        values = {name: getattr(result, name.partition("/")[2]) for name in names}
        step = (result.epoch + 1) * self._steps_per_epoch
        self._log(step, {name: value for name, value in values.items() if value is not None})

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        raise NotImplementedError


class TensorBoard(_CurveService):
    """Event files, in the folder ``tensorboard`` of a run's folder.

    tensorboardX writes them, because it needs no Pillow: the package ``tensorboard``, which torch's
    own writer needs, would install Pillow over the daemon's pillow-simd. Events are written by the
    thread that trains. tensorboardX's SummaryWriter has a thread for that: when the disk is full it
    ends, its queue fills up, and the training hangs.

    Invariant: after a resume, TensorBoard shows each step once. The new file begins with a mark
    that makes its readers drop the events of later steps from the files before.
    """

    def __init__(self, folder: Path) -> None:
        """Write below ``folder``, the run's."""
        super().__init__(folder / "tensorboard")
        self._writer: Any = None

    def begin(self, run: RunInfo) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import SessionLog

        super().begin(run)
        with explain_errors(self._folder):
            # The name has only seconds: the suffix distinguishes files of quick resumes.
            suffix = f".{run.first_step:010d}"
            self._writer = EventsWriter(str(self._folder / "events"), suffix)
        # 1 more, as the events of the last step before stay.
        self._write(run.first_step + 1, session_log=SessionLog(status=SessionLog.START))

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with explain_errors(self._folder):
                writer.close()

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        from tensorboardX.summary import scalar

        for name, value in values.items():
            self._write(step, summary=scalar(name, value))
        with explain_errors(self._folder):
            self._writer.flush()  # a checkpoint may come next, and a resume from it repeats nothing

    def _write(self, step: int, **content: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        with explain_errors(self._folder):
            self._writer.write_event(Event(wall_time=time.time(), step=step, **content))


class WeightsAndBiases(_CurveService):
    """A run of a W&B project, in the folder ``wandb`` of a run's folder.

    Online or offline as W&B itself decides (WANDB_MODE, ``wandb offline``); an offline run is
    uploaded later by ``wandb sync``. A resumed job continues the run with the same id, which a file
    in the run's folder keeps. Values are logged by ``global_step``, not by W&B's own counter of
    calls: that one must not go back, as a resume from a checkpoint does.
    """

    def __init__(self, folder: Path, project: str) -> None:
        """Log to ``project``, with files below ``folder``, the run's."""
        super().__init__(folder)
        self._project = project
        self._run: Any = None

    def begin(self, run: RunInfo) -> None:
        import wandb

        super().begin(run)
        names = ("model", "device", "ranks", "global_batch", "steps_per_epoch", "train_samples")
        config = {name: getattr(run, name) for name in (*names, "val_samples", "classes")}
        with _explain_failure():
            self._run = wandb.init(
                project=self._project,
                dir=str(self._folder),
                id=self._find_id(is_resumed=run.first_step > 0),
                resume="allow",
                config={**config, **run.recipe},
                # The live line rewrites itself: as W&B's copy of the console it is useless.
                settings=wandb.Settings(console="off"),
            )
            for pattern in ("train/*", "epoch/*", "val/*"):
                self._run.define_metric(pattern, step_metric="global_step")

    def end(self, outcome: Outcome) -> None:
        names = ("ending", "best_top1", "best_epoch", "seconds", "target_s")
        with _explain_failure():
            self._run.summary.update({name: getattr(outcome, name) for name in names})
        self._finish(exit_status=0)

    def close(self) -> None:
        """Finish the run as failed, if it has not ended."""
        self._finish(exit_status=1)

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        with _explain_failure():
            self._run.log({"global_step": step, **values})

    def _finish(self, *, exit_status: int) -> None:
        run, self._run = self._run, None
        if run is not None:
            with _explain_failure():
                run.finish(exit_code=exit_status)

    def _find_id(self, *, is_resumed: bool) -> str:
        """Return the id of the run: that of the job before, if it is resumed, or a new one."""
        path = self._folder / "wandb-id"
        with explain_errors(path):
            if is_resumed and path.exists():
                return path.read_text("utf-8").strip()
        name = secrets.token_hex(4)
        replace_file(path, f"{name}\n".encode())
        return name


@contextlib.contextmanager
def _explain_failure() -> Iterator[None]:
    """Raise an error of W&B as ResourceError, one line with the remedy."""
    import wandb

    try:
        yield
    except (wandb.Error, OSError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ResourceError(
            f"Weights & Biases failed ({reason}): run `wandb login`, check the network, or set "
            "WANDB_MODE=offline to upload later"
        ) from error
