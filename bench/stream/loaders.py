"""What the loaders cost a training loop: beside the same tensors in memory, and beside each other.

    training/in-memory   a step of ResNet-50 on tensors that are in memory already
    training/loader      the same step on the batches of a ``FeederLoader``; the distance of the
                         ratio from 1 is what taking, normalising and handing over cost
    training/take        of that, the call for the next batch, normalising included
    training/wait        share of the loader's time in which it waited for the feeder

    loaders/torch        batches taken as fast as they come, float32 tensors of a ``FeederLoader``
    loaders/numpy        the same values as arrays of a ``NumpyLoader``
    loaders/numpy-int8   its int8 views of the feeder's memory

Steps are timed in CPU time of the whole process, all its threads: on a shared machine that repeats
to a fraction of the 2 % that are to be seen. The daemon has a core of its own. For the steps it is
faster than they are; for the loaders it serves finished rows from its decoded cache, so that the
clients set the pace.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from feeder.dataset.opened import Dataset
from feeder.pack.progress import ProgressLine
from trainer_client import Batch, FeederLoader, NumpyLoader
from trainer_client.reference.resnet import resnet50

from ..daemon import DATASET_NAME, running_daemon
from ..data.material import dataset_or_synthetic
from ..machine import choose_core, choose_other_core, describe_machine, pinned_to
from ..report import RATE, Report, Result, single, summarise
from ..rounds import run_rounds, warm_up

STEP_IMAGES: Final = 16
STEP_SIDE_PX: Final = 112  # a quarter of the usual pixels: a step takes about a second on a core
RATE_IMAGES: Final = 64
RATE_EPOCHS: Final = 2
"""Of each contender in a round."""

_CACHE_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadersOptions:
    """How long to measure, and where."""

    rounds: int
    worker_core: int
    client_core: int
    steps: int
    """Training steps of each contender in a round."""


def measure_loaders(path: Path, options: LoadersOptions) -> Report:
    """Measure with the dataset at ``path``; PeerError when the daemon does not reply."""
    machine = describe_machine({"worker": options.worker_core, "client": options.client_core})
    with Dataset.open(path) as dataset:
        samples = dataset.layout.samples
    torch.set_num_threads(1)
    with (
        pinned_to(frozenset({options.client_core})),
        running_daemon(
            path,
            workers=1,
            cores=frozenset({options.worker_core}),
            options=["--decoded-bytes", str(_CACHE_BYTES)],
        ) as daemon,
    ):
        results = [
            *_measure_steps(daemon.ipc, min(STEP_IMAGES, samples), options),
            *_measure_rates(daemon.ipc, min(RATE_IMAGES, samples), samples, options.rounds),
        ]
    return Report(bench="loaders", machine=machine, results=results)


def _measure_steps(endpoint: str, batch_size: int, options: LoadersOptions) -> list[Result]:
    """Return the rows of a training step, in ms of CPU time."""
    with FeederLoader(
        endpoint,
        dataset=DATASET_NAME,
        batch_size=batch_size,
        image_size=STEP_SIDE_PX,
        device="cpu",
    ) as loader:
        batches = _without_end(loader)
        kept = [next(batches) for _ in range(2)]
        train = _make_step(len(loader.classes))
        took_s = [0.0]

        def train_in_memory(first: int, end: int) -> None:
            for number in range(first, end):
                train(*kept[number % len(kept)])

        def train_from_loader(first: int, end: int) -> None:
            for _ in range(first, end):
                began_s = time.process_time()
                images, labels = next(batches)
                took_s[-1] += time.process_time() - began_s
                train(images, labels)

        contenders = {"in-memory": train_in_memory, "loader": train_from_loader}
        warm_up(contenders, items=1, piece=1)
        waited_s, began_s = loader.statistics().wait_s, time.monotonic()
        took_s[:] = [0.0]
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        progress = _begin_progress("steps", options.rounds)
        for seconds in run_rounds(
            contenders,
            items=options.steps,
            piece=1,
            rounds=options.rounds,
            clock=time.process_time,
        ):
            for name, value in seconds.items():
                taken[name].append(1e3 * value / options.steps)
            took_s.append(0.0)
            progress.add(1)
        progress.end()
        wait_share = (loader.statistics().wait_s - waited_s) / (time.monotonic() - began_s)
    memory = summarise("training/in-memory", "ms", taken["in-memory"])
    takes = [1e3 * value / options.steps for value in took_s[:-1]]
    return [
        memory,
        *(
            summarise(name, "ms", values, baseline=memory, baseline_values=taken["in-memory"])
            for name, values in (("training/loader", taken["loader"]), ("training/take", takes))
        ),
        single("training/wait", "% of the time", 100 * wait_share),
    ]


def _make_step(classes: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    """Return one step of SGD on ResNet-50."""
    model = resnet50(classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _measure_rates(endpoint: str, batch_size: int, samples: int, rounds: int) -> list[Result]:
    """Return the rows of whole epochs taken as fast as they come."""
    shared: dict[str, Any] = {"dataset": DATASET_NAME, "split": "val", "batch_size": batch_size}
    with ExitStack() as stack:
        loaders: dict[str, FeederLoader | NumpyLoader] = {
            "torch": FeederLoader(endpoint, device="cpu", **shared),
            "numpy": NumpyLoader(endpoint, dtype="float32", **shared),
            "numpy-int8": NumpyLoader(endpoint, **shared),
        }
        for loader in loaders.values():
            stack.enter_context(loader)
        contenders = {name: partial(_take_epochs, loader) for name, loader in loaders.items()}
        warm_up(contenders, items=1, piece=1)  # all rows are in the cache then
        rates: dict[str, list[float]] = {name: [] for name in loaders}
        progress = _begin_progress("taking batches", rounds)
        for seconds in run_rounds(contenders, items=RATE_EPOCHS, piece=1, rounds=rounds):
            for name, value in seconds.items():
                rates[name].append(RATE_EPOCHS * samples / value)
            progress.add(1)
        progress.end()
    base = summarise("loaders/torch", RATE, rates["torch"])
    others = {f"loaders/{name}": values for name, values in rates.items() if name != "torch"}
    return [
        base,
        *(
            summarise(name, RATE, values, baseline=base, baseline_values=rates["torch"])
            for name, values in others.items()
        ),
    ]


def _take_epochs(loader: FeederLoader | NumpyLoader, first: int, end: int) -> None:
    for _ in range(first, end):
        for _batch in loader:
            pass


def _without_end(loader: FeederLoader) -> Iterator[Batch[torch.Tensor]]:
    while True:
        yield from loader


def _begin_progress(text: str, rounds: int) -> ProgressLine:
    progress = ProgressLine(sys.stderr)
    progress.begin(text, "rounds", rounds)
    return progress


def run(arguments: argparse.Namespace) -> Report:
    """Do what the command line asks."""
    worker_core = choose_core(arguments.core)
    options = LoadersOptions(
        rounds=arguments.rounds,
        worker_core=worker_core,
        client_core=choose_other_core(worker_core),
        steps=arguments.steps,
    )
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        return measure_loaders(path, options)
