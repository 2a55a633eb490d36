"""The interface of everything that a run reports to, and the trackers that its options choose.

Packages of the trackers are imported only where they are chosen. Only rank 0 uses its trackers.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from feeder.errors import ConfigError
from feeder.installation import install_command
from trainer_client.reference.results import EpochResult, Outcome, RunInfo, StepReport


class Tracker:
    """Follows a run; each method does nothing here.

    Called in the order begin, then for each epoch begin_epoch, log_step for some of its steps,
    begin_evaluation where there is one, end_epoch; then end. ``close`` comes last, also after an
    error or Ctrl-C, without ``end`` before it then. After a resume ``begin`` has the earlier
    epochs. Methods raise ResourceError, one line with the remedy, where they cannot write.
    """

    def begin(self, run: RunInfo) -> None:
        """The model and the loaders are made; the first step comes next."""

    def begin_epoch(self, epoch: int) -> None:
        """An epoch begins, or is resumed in its middle."""

    def log_step(self, report: StepReport) -> None:
        """The latest step."""

    def begin_evaluation(self, epoch: int) -> None:
        """The evaluation after an epoch begins."""

    def end_epoch(self, result: EpochResult) -> None:
        """An epoch is complete, with its evaluation if it has one."""

    def end(self, outcome: Outcome) -> None:
        """The run has ended, with its checkpoint saved."""

    def close(self) -> None:
        """Free what is held. Idempotent."""


def make_trackers(
    folder: Path | None,
    *,
    report: Callable[[str], None],
    tensorboard: bool = False,
    wandb: str | None = None,
    mllog: bool = False,
) -> list[Tracker]:
    """Return the trackers of a run with the files in ``folder``; none without a folder.

    ``tensorboard`` and ``mllog`` choose those, ``wandb`` names a project; ``report`` gets lines
    for the user. Nothing is written before ``begin``. ConfigError where an option cannot be met.
    """
    if wandb is not None and not wandb.strip():
        raise ConfigError("--wandb names a project of Weights & Biases, got an empty name")
    chosen = {
        "tensorboard": "tensorboardX" if tensorboard else None,
        "wandb": "wandb" if wandb is not None else None,
        "mllog": "mlperf-logging" if mllog else None,
    }
    for option, package in chosen.items():
        if package is None:
            continue
        if folder is None:
            raise ConfigError(f"--{option} needs --output DIR, the folder for its files")
        spec = importlib.util.find_spec(package.replace("-", "_"))
        # Without an origin it is no package but a folder ``wandb`` of earlier runs.
        if spec is None or spec.origin is None:
            raise ConfigError(f"--{option} needs {package}: {install_command('train')}")
    if folder is None:
        return []
    from trainer_client.reference.tracking.curve_services import TensorBoard, WeightsAndBiases
    from trainer_client.reference.tracking.curves import Curves
    from trainer_client.reference.tracking.files import RunFiles

    # The curves are drawn from the files, so these come first.
    trackers: list[Tracker] = [RunFiles(folder), Curves(folder, report)]
    if tensorboard:
        trackers.append(TensorBoard(folder))
    if wandb is not None:
        trackers.append(WeightsAndBiases(folder, wandb))
    if mllog:
        from trainer_client.reference.tracking.mlperf_log import MlperfLog

        trackers.append(MlperfLog(folder))
    return trackers
