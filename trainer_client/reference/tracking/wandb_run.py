"""A run of Weights & Biases, in the folder ``wandb`` of a run's folder.

Online or offline as W&B itself decides (WANDB_MODE, ``wandb offline``); an offline run is uploaded
later by ``wandb sync``. A resumed job continues the run with the same id, which a file in the run's
folder keeps. Values are logged by ``global_step``, not by W&B's own counter of calls: that one must
not go back, as a resume from a checkpoint does.
"""

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import wandb

from feeder.errors import ResourceError
from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport
from trainer_client.reference.tracking.output_file import (
    explain_errors,
    make_folder,
    replace_file,
)
from trainer_client.reference.tracking.scalars import epoch_scalars, step_scalars
from trainer_client.reference.tracking.tracker import Tracker

ID_FILE: Final = "wandb-id"
_STEP: Final = "global_step"


class WandbRun(Tracker):
    """Logs to a W&B project; methods raise ResourceError where W&B fails."""

    def __init__(self, folder: Path, project: str) -> None:
        """Log to ``project``, with files below ``folder``, the run's."""
        self._folder = folder
        self._project = project
        self._run: Any = None
        self._steps_per_epoch = 0

    def begin(self, run: RunInfo) -> None:
        """Start or continue the run; its configuration is that of the job."""
        make_folder(self._folder)
        self._steps_per_epoch = run.steps_per_epoch
        config = {
            "model": run.model,
            "device": run.device,
            "ranks": run.ranks,
            "global_batch": run.global_batch,
            "steps_per_epoch": run.steps_per_epoch,
            "train_samples": run.train_samples,
            "val_samples": run.val_samples,
            "classes": run.classes,
            **run.recipe,
        }
        with _explain_failure():
            self._run = wandb.init(
                project=self._project,
                dir=str(self._folder),
                id=self._find_id(is_resumed=run.first_step > 0),
                resume="allow",
                config=config,
                # The live line rewrites itself: as W&B's copy of the console it is useless.
                settings=wandb.Settings(console="off"),
            )
            for names in ("train/*", "epoch/*", "val/*"):
                self._run.define_metric(names, step_metric=_STEP)

    def log_step(self, report: StepReport) -> None:
        """Log the values of a step."""
        self._log(report.global_step, step_scalars(report))

    def end_epoch(self, result: EpochResult) -> None:
        """Log the values of an epoch, at its last step."""
        self._log((result.epoch + 1) * self._steps_per_epoch, epoch_scalars(result))

    def end(self, outcome: Outcome) -> None:
        """Write the summary and finish the run."""
        if self._run is not None:
            with _explain_failure():
                self._run.summary.update(
                    {
                        "ending": outcome.ending,
                        "best_top1": outcome.best_top1,
                        "best_epoch": outcome.best_epoch,
                        "seconds": outcome.seconds,
                        "target_s": outcome.target_s,
                    }
                )
        self._finish(exit_status=0)

    def close(self) -> None:
        """Finish the run as failed, if it has not ended. Idempotent."""
        self._finish(exit_status=1)

    def _log(self, step: int, values: Mapping[str, float]) -> None:
        if self._run is not None:
            with _explain_failure():
                self._run.log({_STEP: step, **values})

    def _finish(self, *, exit_status: int) -> None:
        run, self._run = self._run, None
        if run is not None:
            with _explain_failure():
                run.finish(exit_code=exit_status)

    def _find_id(self, *, is_resumed: bool) -> str:
        """Return the id of the run: that of the job before, if it is resumed, or a new one."""
        path = self._folder / ID_FILE
        with explain_errors(path):
            if is_resumed and path.exists():
                return path.read_text("utf-8").strip()
        name = secrets.token_hex(4)
        replace_file(path, f"{name}\n".encode())
        return name


@contextlib.contextmanager
def _explain_failure() -> Iterator[None]:
    """Raise an error of W&B as ResourceError, one line with the remedy."""
    try:
        yield
    except (wandb.Error, OSError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise ResourceError(
            f"Weights & Biases failed ({reason}): run `wandb login`, check the network, or set "
            "WANDB_MODE=offline to upload later"
        ) from error
