"""What the loaders cost a training loop: beside the same tensors in memory, and beside each other.

The distance of ``training/loader`` from ``training/in-memory`` is what taking, normalising and
handing over cost.

Steps are timed in CPU time of the whole process, all its threads: on a shared machine that repeats
to a fraction of the 2 % that are to be seen. The daemon has a core of its own. For the steps it is
faster than they are; for the loaders it serves finished rows from its decoded cache, so that the
clients set the pace.

``feeder-bench resume`` measures the cost of a loader's state, and the time to a resumed loader's
start: in each round loaders are timed to their first batch in three variants, in turns: at the
start of an epoch; in the middle of one, from a state of the same number of ranks; and there from a
state of half as many, which needs a new session. All are rank 0 of 2 with the same batch size, in
an epoch that was not requested before. Then ``state_dict()`` is timed in the middle of an epoch.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from trainer_client import FeederLoader, NumpyLoader
from trainer_client.reference.resnet import resnet50

from ..daemon import DATASET_NAME, Daemon
from ..report import RATE, Report, Result, compare, single, summarise
from ..rounds import Contender, measure, rates
from .streams import serving_one_core

STEP_IMAGES: Final = 16
STEP_SIDE_PX: Final = 112  # a quarter of the usual pixels: a step takes about a second on a core
RATE_IMAGES: Final = 64
RATE_EPOCHS: Final = 2  # of each contender in a round

_CACHE_BYTES: Final = 2 << 30

_RESUME_IMAGES: Final = 32
_RESUME_RANKS: Final = 2
_STATES: Final = 1000  # calls for one value of the state's time


def run(arguments: argparse.Namespace) -> Report:
    torch.set_num_threads(1)
    with serving_one_core(arguments, "--decoded-bytes", str(_CACHE_BYTES)) as (daemon, machine):
        results = _measure_steps(daemon, arguments.rounds, arguments.steps)
        results += _measure_rates(daemon, arguments.rounds)
    return Report(bench="loaders", machine=machine, results=results)


def _measure_steps(daemon: Daemon, rounds: int, steps: int) -> list[Result]:
    with FeederLoader(
        daemon.ipc,
        dataset=DATASET_NAME,
        batch_size=min(STEP_IMAGES, daemon.samples),
        image_size=STEP_SIDE_PX,
        device="cpu",
    ) as loader:
        batches = itertools.chain.from_iterable(itertools.repeat(loader))
        kept = [next(batches) for _ in range(2)]
        train = _make_step(len(loader.classes))
        took_s = [0.0]  # by the calls for batches, in each round; first in the warm-up

        def train_in_memory(first: int, end: int) -> None:
            for number in range(first, end):
                train(*kept[number % len(kept)])

        def train_from_loader(first: int, end: int) -> None:
            for _ in range(first, end):
                began_s = time.process_time()
                images, labels = next(batches)
                took_s[-1] += time.process_time() - began_s
                train(images, labels)

        def begin() -> None:
            took_s[:] = [0.0]
            waits.append((loader.statistics().wait_s, time.monotonic()))

        waits: list[tuple[float, float]] = []
        contenders: dict[str, Contender] = {
            "training/in-memory": train_in_memory,
            "training/loader": train_from_loader,
        }
        taken = measure(
            contenders,
            rounds=rounds,
            items=steps,
            piece=1,
            clock=time.process_time,
            verb="taking steps,",
            after_warm_up=begin,
            after_round=lambda _: took_s.append(0.0),
        )
        ((waited_s, began_s),) = waits
        wait_share = (loader.statistics().wait_s - waited_s) / (time.monotonic() - began_s)
    taken["training/take"] = took_s[:-1]
    times_ms = {name: [1e3 * value / steps for value in row] for name, row in taken.items()}
    return [
        *compare(times_ms, "ms"),
        single("training/wait", "% of the time", 100 * wait_share),
    ]


def _make_step(classes: int) -> Callable[[torch.Tensor, torch.Tensor], None]:
    model = resnet50(classes).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _measure_rates(daemon: Daemon, rounds: int) -> list[Result]:
    shared: dict[str, Any] = {
        "dataset": DATASET_NAME,
        "split": "val",
        "batch_size": min(RATE_IMAGES, daemon.samples),
    }
    with ExitStack() as stack:
        loaders: dict[str, FeederLoader | NumpyLoader] = {
            "loaders/torch": FeederLoader(daemon.ipc, device="cpu", **shared),
            "loaders/numpy": NumpyLoader(daemon.ipc, dtype="float32", **shared),
            "loaders/numpy-int8": NumpyLoader(daemon.ipc, **shared),
        }
        for loader in loaders.values():
            stack.enter_context(loader)
        contenders: dict[str, Contender] = {
            name: partial(_take_epochs, loader) for name, loader in loaders.items()
        }
        # All rows are in the cache after the warm-up.
        taken = measure(
            contenders, rounds=rounds, items=RATE_EPOCHS, piece=1, verb="taking batches,"
        )
    return compare(rates(taken, RATE_EPOCHS * daemon.samples), RATE)


def _take_epochs(loader: FeederLoader | NumpyLoader, first: int, end: int) -> None:
    for _ in range(first, end):
        for _batch in loader:
            pass


def run_resume(arguments: argparse.Namespace) -> Report:
    # Without a decoded cache, so that every first batch is decoded.
    with serving_one_core(arguments, "--decoded-bytes", "0") as (daemon, machine):
        open_loader = partial(
            FeederLoader,
            daemon.ipc,
            dataset=DATASET_NAME,
            batch_size=max(1, min(_RESUME_IMAGES, daemon.samples // (2 * _RESUME_RANKS))),
            rank=0,
            world_size=_RESUME_RANKS,
            device="cpu",
            window=1,  # batches fetched ahead would be made in another contender's turn
        )
        with open_loader() as loader:
            rows = loader.batch_size * _RESUME_RANKS
            state = loader.state_dict() | {"step": len(loader) // 2}
        other = {"world_size": 1, "batch_size": rows, "order_batch_size": rows}
        epochs = itertools.count(1)

        def begin(state: Mapping[str, int | str] | None, first: int, end: int) -> None:
            with open_loader() as loader:
                if state is None:
                    loader.set_epoch(next(epochs))
                else:
                    loader.load_state_dict({**state, "epoch": next(epochs)})
                next(iter(loader))

        contenders: dict[str, Contender] = {
            "resume/first-batch-fresh": partial(begin, None),
            "resume/first-batch": partial(begin, state),
            "resume/first-batch-other-ranks": partial(begin, state | other),
        }
        taken = measure(contenders, rounds=arguments.rounds, verb="resuming")
        with open_loader() as loader:
            next(iter(loader))
            states_us = []
            for _ in range(20):
                began_s = time.perf_counter()
                for _ in range(_STATES):
                    state = loader.state_dict()
                states_us.append(1e6 * (time.perf_counter() - began_s) / _STATES)
    results = [
        *compare(taken, "s"),
        summarise("resume/state-us", "µs", states_us),
        single("resume/state-bytes", "bytes", len(json.dumps(state))),
    ]
    return Report(bench="resume", machine=machine, results=results)
