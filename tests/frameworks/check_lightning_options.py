"""Options of Lightning's Trainer that call a loader in other orders, or leave epochs early."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.running import (
    Run,
    Served,
    check_evaluated,
    check_resumed,
    check_trained,
    environment,
    example_options,
    run_example,
)
from tests.support.sources import REPOSITORY

PYTHON = environment("torch", "lightning")
SCRIPT = REPOSITORY / "tests" / "frameworks" / "scripts" / "lightning_trainer.py"


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
    return run_example(PYTHON, str(SCRIPT), *command, folder=folder, **options)


@pytest.mark.parametrize(
    ("trainer", "evaluations", "sanity_steps"),
    [
        ({"num_sanity_val_steps": 0}, 2, 0),
        ({"val_check_interval": 0.5}, 4, 2),
        ({"val_check_interval": 10, "check_val_every_n_epoch": None}, 2, 2),
        ({"check_val_every_n_epoch": 2}, 1, 2),
        ({"accumulate_grad_batches": 5}, 2, 2),
    ],
    ids=str,
)
def test_every_epoch_is_whole_and_every_validation_exact(
    served: Served, tmp_path: Path, trainer: dict[str, Any], evaluations: int, sanity_steps: int
) -> None:
    run = train(served, tmp_path, trainer=trainer)
    check_trained(served, run, epochs=2)
    check_evaluated(served, run, times=evaluations, sanity_steps=sanity_steps)


def test_a_data_module_may_make_new_loaders_for_every_epoch(served: Served, tmp_path: Path) -> None:
    run = train(
        served, tmp_path, "--fresh-loaders", trainer={"reload_dataloaders_every_n_epochs": 1}
    )
    check_trained(served, run, epochs=2)
    check_evaluated(served, run, times=2, sanity_steps=2)


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
        (
            {"reload_dataloaders_every_n_epochs": 1},
            {"every_n_train_steps": 5},
            (1, 5),
            (1, 3),
        ),
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
