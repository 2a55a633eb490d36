"""Small jobs of the reference job for the tests of this folder: in this process, or in ranks.

Ranks are processes with torchrun's environment, forked from one that has imported torch and DDP,
which takes three seconds of CPU time: about a hundred for all the ranks that the tests start.
"""

import csv
import multiprocessing
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from bench.daemon import free_port
from feeder.wire.messages import Request
from tests.support.daemon import DEADLINE_S
from tests.support.fake_node import FakeNode
from tests.support.sources import REPOSITORY
from trainer_client import Batch, FeederLoader
from trainer_client.reference.checkpoints import load_checkpoint
from trainer_client.reference.recipes.recipe import KEYS
from trainer_client.train import TrainingOptions, TrainingRecipe, TrainingResult, train

torch.set_num_threads(1)  # more threads only slow down models this small
SAMPLES = 97
BATCH = 16
STEPS = SAMPLES // BATCH

Results = dict[str, torch.Tensor]
_FORK_SERVER = multiprocessing.get_context("forkserver")
_FORK_SERVER.set_forkserver_preload(["torch._dynamo", "trainer_client.train"])


class Run(NamedTuple):
    """A run that has ended, whose feeder still serves; tests copy its folder."""

    node: FakeNode
    folder: Path
    result: TrainingResult


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


def start(*arguments: object) -> "subprocess.Popen[str]":
    """Start python in a process of its own, where its exit status or signals matter."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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


# --- Ranks ----------------------------------------------------------------------------------------


@contextmanager
def running_ranks(
    function: Callable[..., object],
    arguments: Sequence[tuple[object, ...]],
    folder: Path,
    *,
    ranks_per_host: int | None = None,
) -> Iterator[list[ForkServerProcess]]:
    """Call ``function`` in a process for each rank, with its arguments; at the end they are killed.

    What rank 1 writes to its standard output and standard error is in ``folder`` / "output-1". One
    rank alone gets no environment.
    """
    ranks = len(arguments)
    local = ranks if ranks_per_host is None else ranks_per_host
    shared = {"TORCHELASTIC_RUN_ID": "test", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    shared |= {"LOCAL_WORLD_SIZE": str(local)}
    processes = []
    try:
        for rank, own_arguments in enumerate(arguments):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank % local)}
            environment = shared | own if ranks > 1 else {}
            output = folder / f"output-{rank}"
            process = _FORK_SERVER.Process(
                target=_call, args=(function, own_arguments, environment, output)
            )
            process.start()
            processes.append(process)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def join_ranks(
    processes: Sequence[ForkServerProcess], folder: Path, statuses: Sequence[int] | None = None
) -> list[str]:
    """Wait until all ranks have ended, with status 0 if none are given; return what they wrote."""
    for process in processes:
        process.join(2 * DEADLINE_S)
    outputs = [(folder / f"output-{rank}").read_text() for rank in range(len(processes))]
    expected = [0] * len(processes) if statuses is None else [*statuses]
    assert [process.exitcode for process in processes] == expected, "\n".join(outputs)
    return outputs


def exit_with(main: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> None:
    """Be a rank that runs a program."""
    sys.exit(main(arguments))


def run_ranks(
    function: Callable[[], Results], ranks: int, folder: Path, *, ranks_per_host: int
) -> list[Results]:
    """Return what each rank's call of ``function`` in a gloo process group has returned."""
    files = [folder / f"results-{rank}.pt" for rank in range(ranks)]
    arguments = [(function, file) for file in files]
    with running_ranks(_save_results, arguments, folder, ranks_per_host=ranks_per_host) as started:
        join_ranks(started, folder)
    return [torch.load(file, weights_only=True) for file in files]


def _call(
    function: Callable[..., object],
    arguments: tuple[object, ...],
    environment: dict[str, str],
    output: Path,
) -> None:
    os.environ.update(environment)
    with output.open("w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    torch.set_num_threads(1)
    function(*arguments)


def _save_results(function: Callable[[], Results], file: Path) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=DEADLINE_S))
    warnings.simplefilter("error")
    torch.save(function(), file)
    dist.destroy_process_group()
