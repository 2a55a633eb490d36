"""``feeder-bench resume``: the cost of a loader's state, and the time to a resumed loader's start.

In each round loaders are timed to their first batch in three variants, in turns: at the start of an
epoch; in the middle of one, from a state of the same number of ranks; and there from a state of
half as many, which needs a new session. All are rank 0 of 2 with the same batch size, in an epoch
that was not requested before. Then ``state_dict()`` is timed in the middle of an epoch.
"""

import argparse
import functools
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feeder.dataset.opened import Dataset
from feeder.pack.progress import ProgressLine
from trainer_client import FeederLoader

from ..daemon import DATASET_NAME, running_daemon
from ..data.material import dataset_or_synthetic
from ..machine import choose_core, choose_other_core, describe_machine, pinned_to
from ..report import Report, Result, single, summarise
from ..rounds import Contender, run_rounds, warm_up

BATCH_SIZE: Final = 32
RANKS: Final = 2
_STATES: Final = 1000  # calls for one value of the state's time
_FRESH: Final = "resume/first-batch-fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeOptions:
    """How long to measure, and where."""

    rounds: int
    worker_core: int
    client_core: int


def measure_resume(path: Path, options: ResumeOptions) -> Report:
    """Measure with the dataset at ``path``; PeerError when the daemon does not reply."""
    machine = describe_machine({"worker": options.worker_core, "client": options.client_core})
    with Dataset.open(path) as dataset:
        batch_size = max(1, min(BATCH_SIZE, dataset.layout.samples // (2 * RANKS)))
    with (
        pinned_to(frozenset({options.client_core})),
        running_daemon(
            path,
            workers=1,
            cores=frozenset({options.worker_core}),
            options=["--decoded-bytes", "0"],  # so that every first batch is decoded
        ) as daemon,
    ):
        bench = _ResumeBench(daemon.ipc, batch_size)
        results = [*bench.measure_first_batches(options.rounds), *bench.measure_state()]
    return Report(bench="resume", machine=machine, results=results)


class _ResumeBench:
    """The variants, over one daemon."""

    def __init__(self, endpoint: str, batch_size: int) -> None:
        self._endpoint = endpoint
        self._batch_size = batch_size
        self._epoch = 0  # the last one that was requested
        with self._open() as loader:
            state = loader.state_dict() | {"step": len(loader) // 2}
        rows = batch_size * RANKS
        other: dict[str, int | str] = {
            "world_size": 1,
            "batch_size": rows,
            "order_batch_size": rows,
        }
        self._states: Mapping[str, dict[str, int | str]] = {
            "resume/first-batch": state,
            "resume/first-batch-other-ranks": state | other,
        }

    def measure_first_batches(self, rounds: int) -> list[Result]:
        """Return the seconds from making a loader to its first batch."""
        contenders: dict[str, Contender] = {_FRESH: self._begin_fresh}
        contenders |= {name: functools.partial(self._resume, name) for name in self._states}
        warm_up(contenders, items=1, piece=1)
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        progress = ProgressLine(sys.stderr)
        progress.begin("resuming", "rounds", rounds)
        for seconds in run_rounds(contenders, items=1, piece=1, rounds=rounds):
            for name, value in seconds.items():
                taken[name].append(value)
            progress.add(1)
        progress.end()
        fresh = summarise(_FRESH, "s", taken[_FRESH])
        resumed = [
            summarise(name, "s", taken[name], baseline=fresh, baseline_values=taken[_FRESH])
            for name in self._states
        ]
        return [fresh, *resumed]

    def measure_state(self) -> list[Result]:
        """Return the time and the JSON size of the state."""
        with self._open() as loader:
            next(iter(loader))
            values = []
            for _ in range(20):
                began_s = time.perf_counter()
                for _ in range(_STATES):
                    state = loader.state_dict()
                values.append(1e6 * (time.perf_counter() - began_s) / _STATES)
        return [
            summarise("resume/state-us", "µs", values),
            single("resume/state-bytes", "bytes", len(json.dumps(state))),
        ]

    def _open(self) -> FeederLoader:
        return FeederLoader(
            self._endpoint,
            dataset=DATASET_NAME,
            batch_size=self._batch_size,
            rank=0,
            world_size=RANKS,
            device="cpu",
            window=1,  # batches fetched ahead would be made in another contender's turn
        )

    def _begin_fresh(self, first: int, end: int) -> None:
        self._epoch += 1
        with self._open() as loader:
            loader.set_epoch(self._epoch)
            next(iter(loader))

    def _resume(self, name: str, first: int, end: int) -> None:
        self._epoch += 1
        with self._open() as loader:
            loader.load_state_dict(self._states[name] | {"epoch": self._epoch})
            next(iter(loader))


def run(arguments: argparse.Namespace) -> Report:
    """Do what the command line asks."""
    worker_core = choose_core(arguments.core)
    options = ResumeOptions(
        rounds=arguments.rounds,
        worker_core=worker_core,
        client_core=choose_other_core(worker_core),
    )
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        return measure_resume(path, options)
