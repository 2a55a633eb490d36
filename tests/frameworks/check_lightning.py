"""Lightning: order of epochs, shares of two devices, exact validation, resuming in mid-epoch.

Also with options of its Trainer that call a loader in other orders, or leave epochs early.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.running import (
    BATCH,
    SAMPLES,
    SCRIPTS,
    Run,
    Served,
    check_evaluated,
    check_resumed,
    check_trained,
    environment,
    example_options,
    run_example,
)

PYTHON = environment("torch", "lightning")
SCRIPT = "lightning_module.py"
SANITY_STEPS = 2  # Lightning's default


def check_counted(run: Run) -> None:
    """The printed accuracy is a number of samples out of all; with padding counted, it is not."""
    (printed,) = re.findall(r"^accuracy (\S+)$", run.output, re.MULTILINE)
    correct = float(printed) * SAMPLES["val"]
    assert correct == pytest.approx(round(correct), abs=1e-3)
    assert 0 < round(correct) < SAMPLES["val"], "proves nothing"


@pytest.mark.parametrize(
    ("loaders", "devices", "launched"),  # by torchrun
    [("module", 1, 0), ("plain", 1, 0), ("module", 2, 0), ("plain", 2, 0), ("module", 2, 2)],
)
def test_lightning_trains_from_epoch_0_and_validates_exactly(
    served: Served, tmp_path: Path, loaders: str, devices: int, launched: int
) -> None:
    options = [*example_options(served), "--epochs", 2, "--devices", devices]
    options += ["--plain-loaders"] if loaders == "plain" else []
    run = run_example(PYTHON, SCRIPT, *options, folder=tmp_path, ranks=launched)
    check_trained(served, run, epochs=2, ranks=devices)
    check_evaluated(served, run, times=2, sanity_steps=SANITY_STEPS)
    if not launched:
        check_counted(run)


@pytest.mark.parametrize("devices", [1, 2])
def test_the_validation_loss_leaves_out_padding(
    served: Served, tmp_path: Path, devices: int
) -> None:
    options = [*example_options(served), "--devices", devices]
    run = run_example(PYTHON, str(SCRIPTS / "lightning_validation.py"), *options, folder=tmp_path)
    rows = {batch["valid"] for batch in run.batches if batch["world_size"] == 2}
    assert rows == ({0, 3, BATCH} if devices == 2 else set()), "proves nothing"
    ((printed, expected),) = re.findall(r"^losses (\S+) (\S+)$", run.output, re.MULTILINE)
    assert float(printed) == pytest.approx(float(expected), rel=1e-6)  # which refuses NaN


@pytest.mark.parametrize(
    ("devices", "loaders"),
    [pytest.param(1, "module", id="quick"), (1, "plain"), (2, "module"), (2, "plain")],
)
def test_killed_lightning_resumes_in_mid_epoch(
    served: Served, tmp_path: Path, devices: int, loaders: str
) -> None:
    options = [*example_options(served), "--epochs", 3, "--checkpoint-steps", 5]
    options += ["--devices", devices, *(["--plain-loaders"] if loaders == "plain" else [])]
    steps = 12 // devices
    kill = divmod(steps + 5, steps)  # in epoch 1
    killed = run_example(PYTHON, SCRIPT, *options, folder=tmp_path, kill=kill)
    resumed = run_example(PYTHON, SCRIPT, *options, folder=tmp_path)
    assert resumed.order()[0] == divmod((steps + 5) // 5 * 5, steps)
    check_resumed(served, killed, resumed, epochs=3, ranks=devices)
    check_evaluated(served, resumed, times=2)
    check_counted(resumed)


# --- Options of the Trainer -----------------------------------------------------------------------


def train(
    served: Served,
    folder: Path,
    *arguments: object,
    trainer: dict[str, Any] | None = None,
    saver: dict[str, Any] | None = None,
    epochs: int = 2,
    **options: Any,
) -> Run:
    chosen = ["--trainer", json.dumps(trainer or {}), "--saver", json.dumps(saver or {})]
    command = [*example_options(served), "--epochs", epochs, *chosen, *arguments]
    return run_example(
        PYTHON, str(SCRIPTS / "lightning_trainer.py"), *command, folder=folder, **options
    )


@pytest.mark.parametrize(
    ("trainer", "evaluations", "sanity_steps"),
    [
        ({"num_sanity_val_steps": 0}, 2, 0),
        ({"val_check_interval": 0.5}, 4, 2),
        ({"val_check_interval": 10, "check_val_every_n_epoch": None}, 2, 2),
        ({"check_val_every_n_epoch": 2}, 1, 2),
        ({"accumulate_grad_batches": 5}, 2, 2),
        ({"reload_dataloaders_every_n_epochs": 1}, 2, 2),  # of a data module that makes new ones
    ],
    ids=str,
)
def test_every_epoch_is_whole_and_every_validation_exact(
    served: Served, tmp_path: Path, trainer: dict[str, Any], evaluations: int, sanity_steps: int
) -> None:
    fresh = ["--fresh-loaders"] if "reload_dataloaders_every_n_epochs" in trainer else []
    run = train(served, tmp_path, *fresh, trainer=trainer)
    check_trained(served, run, epochs=2)
    check_evaluated(served, run, times=evaluations, sanity_steps=sanity_steps)


def test_limited_epochs_begin_at_their_first_batch(served: Served, tmp_path: Path) -> None:
    run = train(served, tmp_path, trainer={"limit_train_batches": 5, "limit_val_batches": 3})
    check_trained(served, run, epochs=2, limit=5)
    steps = [batch["step"] for batch in run.batches if batch["split"] == "val"]
    assert steps == [0, 1, 0, 1, 2, 0, 1, 2]  # sanity check, then two validations


@pytest.mark.parametrize(
    ("trainer", "saver", "kill", "first"),
    [
        # The default: after each validation.
        ({"val_check_interval": 0.5}, {}, (1, 8), (1, 6)),
        # At an epoch's end, before its validation and after it.
        ({}, {"every_n_train_steps": 12}, (1, 8), (1, 0)),
        # Jobs of so many steps always count as restarting.
        ({"max_steps": 36, "max_epochs": -1}, {"every_n_train_steps": 7}, (2, 6), (2, 4)),
        # At a limited epoch's last batch, and in the middle of such an epoch.
        ({"limit_train_batches": 5}, {"every_n_train_steps": 7}, (1, 4), (1, 2)),
        ({"accumulate_grad_batches": 3}, {"every_n_train_steps": 3}, (1, 11), (1, 6)),
        ({"reload_dataloaders_every_n_epochs": 1}, {"every_n_train_steps": 5}, (1, 5), (1, 3)),
    ],
    ids=str,
)
def test_resuming_repeats_and_skips_nothing(
    served: Served,
    tmp_path: Path,
    trainer: dict[str, Any],
    saver: dict[str, Any],
    kill: tuple[int, int],
    first: tuple[int, int],
) -> None:
    killed = train(served, tmp_path, trainer=trainer, saver=saver, epochs=3, kill=kill)
    resumed = train(served, tmp_path, trainer=trainer, saver=saver, epochs=3)
    assert resumed.order()[0] == first
    check_resumed(served, killed, resumed, epochs=3, limit=trainer.get("limit_train_batches"))


def test_overfitting_batches_is_an_error(served: Served, tmp_path: Path) -> None:
    run = train(served, tmp_path, trainer={"overfit_batches": 2}, check=False)
    assert run.status != 0
