"""The trackers of a run, from its options.

Packages of the trackers are imported only where they are chosen.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path

from feeder.errors import ConfigError
from feeder.installation import install_command
from trainer_client.reference.tracking.curves import Curves
from trainer_client.reference.tracking.files import RunFiles
from trainer_client.reference.tracking.tracker import Tracker


def check_trackers(
    folder: Path | None, *, tensorboard: bool = False, wandb: str | None = None, mllog: bool = False
) -> None:
    """Raise ConfigError where an option cannot be met, before anything has started."""
    if wandb is not None and not wandb.strip():
        raise ConfigError("--wandb names a project of Weights & Biases, got an empty name")
    options = (
        ("--tensorboard", tensorboard, "tensorboardX", "tensorboardX"),
        ("--wandb", wandb is not None, "wandb", "wandb"),
        ("--mllog", mllog, "mlperf_logging", "mlperf-logging"),
    )
    for option, is_chosen, module, package in options:
        if is_chosen and folder is None:
            raise ConfigError(f"{option} needs --output DIR, the folder for its files")
        if is_chosen and not _is_installed(module):
            raise ConfigError(f"{option} needs {package}: {install_command('train')}")


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
    for the user. Nothing is written before ``begin``. Raises ConfigError as ``check_trackers``.
    """
    check_trackers(folder, tensorboard=tensorboard, wandb=wandb, mllog=mllog)
    if folder is None:
        return []
    # The curves are drawn from the files, so these come first.
    trackers: list[Tracker] = [RunFiles(folder), Curves(folder, report)]
    if tensorboard:
        from trainer_client.reference.tracking.tensorboard_events import TensorBoardEvents

        trackers.append(TensorBoardEvents(folder))
    if wandb is not None:
        from trainer_client.reference.tracking.wandb_run import WandbRun

        trackers.append(WandbRun(folder, wandb))
    if mllog:
        from trainer_client.reference.tracking.mlperf_log import MlperfLog

        trackers.append(MlperfLog(folder))
    return trackers


def _is_installed(module: str) -> bool:
    """Return whether a package can be imported; a folder ``wandb`` of earlier runs is none."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None
