"""``feeder-bench stream``: a real daemon and one client, by slot, over ipc and over tcp.

The daemon's one worker has one core, the client another where there is one. In each round the same
batches are made by ``SampleReader`` alone on the worker's core (``sample/whole``), and by the
daemon for a client that reads them in the slots (``ipc``), or copies them into batch buffers of its
own from an ipc socket (``ipc-copy``: ``share_memory`` is off) or a tcp socket.
What the daemon costs beside the bare work is thus the ratio's distance from 1. A second daemon with
two workers follows where there are two cores; its client shares their cores.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from bench.daemon import DATASET_NAME, Daemon, running_daemon
from bench.handover import BATCHES, TimedFetcher, measure_handover
from bench.machine import choose_core, choose_other_core, describe_machine, pinned_to
from bench.material import dataset_or_synthetic
from bench.report import RATE, Report, Result, single, summarise
from bench.rounds import run_rounds, warm_up
from feeder.dataset import Dataset
from feeder.errors import DatasetError
from feeder.fetch import BatchFetcher
from feeder.plan import EpochPlan
from feeder.progress import ProgressLine
from feeder.recipe import Recipe
from feeder.runtime import check_libraries, tune_allocator
from feeder.sample import SampleReader
from feeder.wire import BatchKey

BATCH_SIZE: Final = 256
CHUNK_IMAGES: Final = 32
WINDOW: Final = 4
_TRANSPORTS: Final = ("ipc", "ipc-copy", "tcp")
_TIMEOUT_S: Final = 60.0
_SETTLE_S: Final = 0.5
"""For the daemon to give the sessions' memory back, which is work but not idling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How long to measure, and where."""

    rounds: int
    batches: int
    """In a round."""
    idle_s: float
    worker_core: int
    client_core: int


def measure_stream(path: Path, options: StreamOptions) -> Report:
    """Measure the dataset at ``path``; DatasetError when served pixels differ from local ones."""
    machine = describe_machine(
        {"worker and sample/whole": options.worker_core, "client": options.client_core}
    )
    check_libraries()
    tune_allocator()
    cores = {options.worker_core, options.client_core}
    results: list[Result] = []
    with Dataset.open(path) as dataset:
        for workers in range(1, len(cores) + 1):
            bench = _StreamBench(dataset, options, workers)
            with (
                pinned_to(frozenset({options.client_core})),
                running_daemon(
                    path,
                    workers=workers,
                    cores=frozenset({options.worker_core}) if workers == 1 else frozenset(cores),
                ) as daemon,
            ):
                results += bench.measure(daemon)
    return Report(bench="stream", machine=machine, results=results)


class _StreamBench:
    """The three contenders over one daemon."""

    def __init__(self, dataset: Dataset, options: StreamOptions, workers: int) -> None:
        self._dataset = dataset
        self._options = options
        self._suffix = "" if workers == 1 else f"-{workers}-workers"
        self._recipe = Recipe.for_split("train", batch_size=min(BATCH_SIZE, dataset.layout.samples))
        self._epoch_batches = self._plan_epoch(0).batches
        self._reader = SampleReader(dataset, self._recipe)
        size = self._recipe.image_size
        self._pixels = np.empty((self._recipe.batch_size, size, size, 3), np.int8)
        self._labels = np.empty(self._recipe.batch_size, np.int64)
        self._gaps_s: dict[str, list[float]] = {name: [] for name in _TRANSPORTS}
        self._rounds_begun = 0  # the warm-up counts as one

    def measure(self, daemon: Daemon) -> list[Result]:
        """Return the rows of this daemon."""
        began_s = time.monotonic()
        with ExitStack() as sessions:
            over_ipc = sessions.enter_context(self._open_session(daemon.ipc))
            equal = self._compare_first_batch(over_ipc, began_s)
            over_tcp = sessions.enter_context(self._open_session(daemon.tcp))
            copied = sessions.enter_context(self._open_session(daemon.ipc, share_memory=False))
            results = self._run_rounds({"ipc": over_ipc, "ipc-copy": copied, "tcp": over_tcp})
            results += measure_handover(over_ipc, copied, self._keys(BATCHES), self._suffix)
            own_mib = max(memory.own_bytes for memory in daemon.worker_memory()) / 2**20
        results += equal
        results.append(single(f"worker/own-memory{self._suffix}", "MiB", own_mib))
        results.append(self._watch_idle(daemon))
        return results

    def _compare_first_batch(self, fetcher: BatchFetcher, began_s: float) -> list[Result]:
        """Fetch the daemon's first batch, timed, and compare it with our own of the same key."""
        batch = next(fetcher.fetch([(0, 0)]))
        first_batch_s = time.monotonic() - began_s
        served = batch.pixels.copy()
        self._make_batches([(0, 0)])
        if not np.array_equal(served, self._pixels):
            raise DatasetError(
                f"the daemon's batch 0 of {self._dataset.path} is not the one made here: report "
                "this with both versions"
            )
        return [
            single(f"stream/first-batch{self._suffix}", "s", first_batch_s),
            single(f"check/equal-to-local{self._suffix}", "samples", len(served)),
        ]

    def _run_rounds(self, fetchers: dict[str, BatchFetcher]) -> list[Result]:
        options = self._options

        def make(first: int, end: int) -> None:
            _ping(fetchers)
            self._make_batches(self._keys(end - first))

        def fetch_over(name: str) -> None:
            _ping(fetchers)
            arrived_s = [
                time.monotonic() for _ in fetchers[name].fetch(self._keys(options.batches))
            ]
            self._gaps_s[name] += np.diff(arrived_s).tolist()

        contenders = {
            "sample/whole": make,
            "ipc": lambda first, end: fetch_over("ipc"),
            "ipc-copy": lambda first, end: fetch_over("ipc-copy"),
            "tcp": lambda first, end: fetch_over("tcp"),
        }
        warm_up(contenders, items=options.batches, piece=options.batches)
        self._rounds_begun += 1
        for gaps_s in self._gaps_s.values():
            gaps_s.clear()
        images = options.batches * self._recipe.batch_size
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        progress = ProgressLine(sys.stderr)
        progress.begin("streaming", "rounds", options.rounds)
        for seconds in run_rounds(
            contenders, items=options.batches, piece=options.batches, rounds=options.rounds
        ):
            self._rounds_begun += 1
            for name, taken_s in seconds.items():
                rates[name].append(images / taken_s)
            progress.add(1)
        progress.end()
        return self._rows(rates)

    def _rows(self, rates: dict[str, list[float]]) -> list[Result]:
        suffix = self._suffix
        # Beside two workers it is measured anew, so that the ratio is one of the same rounds.
        local_name = f"sample/whole{suffix and '-beside' + suffix}"
        local = summarise(local_name, RATE, rates["sample/whole"])
        rows = [local]
        for name in _TRANSPORTS:
            rows.append(
                summarise(
                    f"stream/{name}{suffix}",
                    RATE,
                    rates[name],
                    baseline=local,
                    baseline_values=rates["sample/whole"],
                )
            )
        for name, gaps_s in self._gaps_s.items():
            if gaps_s:
                for percent in (50, 99):
                    gap_ms = 1e3 * float(np.percentile(gaps_s, percent))
                    rows.append(single(f"stream/{name}-gap-p{percent}{suffix}", "ms", gap_ms))
        return rows

    def _watch_idle(self, daemon: Daemon) -> Result:
        """Return what share of a core the daemon uses while nobody asks for anything."""
        time.sleep(_SETTLE_S)
        began_s, busy_before_s = time.monotonic(), daemon.busy_s()
        time.sleep(self._options.idle_s)
        share = (daemon.busy_s() - busy_before_s) / (time.monotonic() - began_s)
        return single(f"daemon/idle{self._suffix}", "% of a core", 100 * share)

    def _keys(self, batches: int) -> list[BatchKey]:
        """Return the round's batches: the same for each contender, others in each round."""
        first = self._rounds_begun * batches
        return [divmod(number, self._epoch_batches) for number in range(first, first + batches)]

    def _make_batches(self, keys: Sequence[BatchKey]) -> None:
        """Make batches in this process, as a worker would and on its core."""
        with pinned_to(frozenset({self._options.worker_core})):
            for epoch, index in keys:
                plan = self._plan_epoch(epoch)
                for first in range(0, self._recipe.batch_size, CHUNK_IMAGES):
                    sample_ids = plan.samples(index, first, CHUNK_IMAGES)
                    rows = slice(first, first + len(sample_ids))
                    self._reader.fill(
                        sample_ids,
                        seed=0,
                        epoch=epoch,
                        pixels=self._pixels[rows],
                        labels=self._labels[rows],
                    )

    def _plan_epoch(self, epoch: int) -> EpochPlan:
        return EpochPlan(
            self._dataset.layout,
            batch_size=self._recipe.batch_size,
            seed=0,
            epoch=epoch,
            shuffle=self._recipe.shuffle,
            last_batch=self._recipe.last_batch,
        )

    def _open_session(self, endpoint: str, *, share_memory: bool = True) -> TimedFetcher:
        return TimedFetcher(
            endpoint,
            dataset=DATASET_NAME,
            recipe=self._recipe,
            window=WINDOW,
            timeout_s=_TIMEOUT_S,
            client="feeder-bench stream",
            share_memory=share_memory,
        )


def _ping(fetchers: dict[str, BatchFetcher]) -> None:
    for fetcher in fetchers.values():
        fetcher.ping()


def run(arguments: argparse.Namespace) -> Report:
    """Do what the command line asks."""
    worker_core = choose_core(arguments.core)
    options = StreamOptions(
        rounds=arguments.rounds,
        batches=arguments.batches,
        idle_s=arguments.idle,
        worker_core=worker_core,
        client_core=choose_other_core(worker_core),
    )
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        return measure_stream(path, options)
