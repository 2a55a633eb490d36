"""Small jobs of the reference job against a fake node, for the tests of this folder."""

import csv
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from feeder.wire.messages import Request
from tests.support.fake_node import FakeNode
from trainer_client import Batch, FeederLoader
from trainer_client.reference.checkpoints import load_checkpoint
from trainer_client.reference.recipes.recipe import KEYS
from trainer_client.train import TrainingOptions, TrainingRecipe, TrainingResult, train

torch.set_num_threads(1)  # more threads only slow down models this small
ROOT = Path(__file__).resolve().parents[3]
SAMPLES = 97
BATCH = 16
STEPS = SAMPLES // BATCH


def make_options(node: FakeNode, **changes: object) -> TrainingOptions:
    settings: dict[str, object] = {
        **{"endpoint": node.endpoint, "dataset": "train", "model": "small", "epochs": 2},
        **{"batch_size": BATCH, "image_size": 32, "warmup_epochs": 1.0, "timeout_s": 20.0},
        **{"device": "cpu", **changes},
    }
    keys = {name: settings.pop(name) for name in [*settings] if name in KEYS}
    return TrainingOptions(recipe=TrainingRecipe().changed(keys), **settings)


def run(
    node: FakeNode,
    lines: list[str] | None = None,
    on_batch: Callable[[Batch, FeederLoader], None] | None = None,
    **changes: Any,
) -> TrainingResult:
    """Train in this process."""
    report = (lambda line: None) if lines is None else lines.append
    return train(make_options(node, **changes), report=report, on_batch=on_batch)


def command_line(node: FakeNode, *more: str) -> list[str]:
    return [
        *(node.endpoint, "--dataset", "train", "--model", "small", "--batch-size", str(BATCH)),
        *("--image-size", "32", "--epochs", "1", "--warmup-epochs", "0", "--device", "cpu"),
        *("--timeout-s", "20", *more),
    ]


def start(module: str, *arguments: str) -> "subprocess.Popen[str]":
    """Start a program in a process of its own, where its exit status or signals matter."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def exit_with(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> None:
    """Be a rank that runs a program."""
    sys.exit(main(arguments))


class Stopped(Exception):  # noqa: N818 -- no error of the job's
    """Stands for a kill."""


def stop_at(epoch: int, index: int) -> Callable[[Batch, FeederLoader], None]:
    def stop(batch: Batch, loader: FeederLoader) -> None:
        if (batch.epoch, batch.index) == (epoch, index):
            raise Stopped

    return stop


def is_wanted(node: FakeNode, key: tuple[int, int]) -> bool:
    return any(isinstance(m, Request) and key in m.want for m in node.received)


def position(path: Path) -> tuple[int, int] | None:
    """Return epoch and step of a checkpoint, None where there is none."""
    if not path.exists():
        return None
    state = load_checkpoint(path)["progress"]
    return state["epoch"], state["step"]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
