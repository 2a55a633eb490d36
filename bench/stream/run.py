"""``feeder-bench stream``: a real daemon and its clients, by slot, over ipc and over tcp.

The daemon's one worker has one core, the client another one if there is one. In each round the same
batches are made by ``SampleReader`` alone on the worker's core (``sample/whole``), and by the
daemon for a client that reads them in the slots (``ipc``), or copies them into its own batch
buffers from an ipc socket (``ipc-copy``: ``share_memory`` is off) or a tcp socket. The ratio's
distance from 1 is the overhead of the daemon. Several clients at once, each a separate process,
have their turns in the same rounds; they share the client's core. On two cores a second daemon with
two workers follows; its clients share their cores.

``transport`` adds rows for the messages without decoding, ``security`` rows for encryption and for
a client that sends garbage. With ``--calls`` nothing is timed: ``calls`` counts Python calls.
"""

import argparse
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from feeder.daemon.config import ServeConfig
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError
from feeder.jpeg.libraries import check_libraries, tune_allocator
from feeder.pack.progress import ProgressLine
from feeder.plan.epoch import EpochPlan
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from feeder.wire.messages import BatchKey

from ..daemon import Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..machine import choose_core, choose_other_core, describe_machine, pinned_to
from ..report import RATE, Result, single, summarise
from ..rounds import Contender, run_rounds, warm_up
from .calls import CallsReport, measure_calls
from .handover import measure_handover
from .loader_cost import measure_loader_cost
from .security import SecurityOptions, measure_security
from .stream_report import StreamReport
from .streams import ClientPool, Measured, Stream, StreamHere
from .transport import TransportOptions, measure_transport

BATCH_SIZE: Final = 256
CHUNK_IMAGES: Final = ServeConfig().chunk_images
LEASE_S: Final = 3600.0
"""Long, because clients send nothing while they wait for their turn."""

_TRANSPORTS: Final = ("ipc", "ipc-copy", "tcp")
_TRANSPORT_BATCHES: Final = 4
"""Batches of transport alone for each one that is decoded: they take a tenth of the time."""

_SETTLE_S: Final = 0.5
"""For the daemon to free the sessions' memory, which must not count as idling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """How long to measure, with how many clients, and where."""

    rounds: int
    batches: int
    """In a round."""
    idle_s: float
    clients: int
    """The most at a time."""
    worker_core: int
    client_core: int


def measure_stream(path: Path, options: StreamOptions) -> StreamReport:
    """Measure the dataset at ``path``; DatasetError when served pixels differ from local ones."""
    machine = describe_machine({"worker": options.worker_core, "client": options.client_core})
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
                    # Without a cache: the daemon's overhead shows only where it decodes.
                    options=["--lease-s", str(LEASE_S), "--decoded-bytes", "0"],
                ) as daemon,
            ):
                results += bench.measure(daemon)
        results += measure_transport(
            TransportOptions(
                rounds=options.rounds,
                batches=_TRANSPORT_BATCHES * options.batches,
                batch_size=bench.batch_size,
                chunk_images=CHUNK_IMAGES,
                server_core=options.worker_core,
                client_core=options.client_core,
            )
        )
        results += measure_security(
            path,
            bench.recipe,
            SecurityOptions(
                rounds=options.rounds,
                batches=options.batches,
                worker_core=options.worker_core,
                client_core=options.client_core,
            ),
        )
    return StreamReport(
        bench="stream",
        machine=machine,
        measured={
            "rounds": options.rounds,
            "batches": options.batches,
            "batch size": bench.batch_size,
            "clients": options.clients,
        },
        results=results,
    )


def client_counts(most: int) -> list[int]:
    """Return the numbers of clients to measure beside one: 2, 4, 8 … and the most."""
    return sorted({2**power for power in range(1, most.bit_length()) if 2**power < most} | {most})


class _StreamBench:
    """The contenders over one daemon."""

    def __init__(self, dataset: Dataset, options: StreamOptions, workers: int) -> None:
        self._dataset = dataset
        self._options = options
        self._suffix = "" if workers == 1 else f"-{workers}-workers"
        self.recipe = Recipe.for_split("train", batch_size=min(BATCH_SIZE, dataset.layout.samples))
        self.batch_size = self.recipe.batch_size
        self._epoch_batches = self._plan_epoch(0).batches
        self._reader = SampleReader(dataset, self.recipe)
        size = self.recipe.image_size
        self._pixels = np.empty((self.recipe.batch_size, size, size, 3), np.int8)
        self._labels = np.empty(self.recipe.batch_size, np.int64)
        self._rounds_begun = 0  # the warm-up counts as one

    def measure(self, daemon: Daemon) -> list[Result]:
        """Return the rows of this daemon."""
        began_s = time.monotonic()
        with ExitStack() as sessions:
            over_ipc = sessions.enter_context(StreamHere(daemon.ipc, self.recipe))
            equal = self._compare_first_batch(over_ipc, began_s)
            copied = sessions.enter_context(StreamHere(daemon.ipc, self.recipe, share_memory=False))
            streams: dict[str, Stream] = {
                "ipc": over_ipc,
                "ipc-copy": copied,
                "tcp": sessions.enter_context(StreamHere(daemon.tcp, self.recipe)),
            }
            streams |= self._open_more(daemon, sessions)
            results = self._run_rounds(daemon, streams)
            results += measure_handover(over_ipc.fetcher, copied.fetcher, daemon.ipc, self._suffix)
            results.append(measure_loader_cost(daemon.ipc, self.batch_size, self._suffix))
            own_mib = max(memory.own_bytes for memory in daemon.worker_memory()) / 2**20
        results += equal
        results.append(single(f"worker/own-memory{self._suffix}", "MiB", own_mib))
        time.sleep(_SETTLE_S)
        idle = daemon.idle_percent(self._options.idle_s)
        results.append(single(f"daemon/idle{self._suffix}", "% of a core", idle))
        return results

    def _open_more(self, daemon: Daemon, sessions: ExitStack) -> dict[str, Stream]:
        """Return the streams to several clients, by name."""
        options, more = self._options, dict[str, Stream]()
        if options.clients > 1:
            for transport, endpoint in (("ipc", daemon.ipc), ("tcp", daemon.tcp)):
                pool = ClientPool(
                    endpoint,
                    clients=options.clients,
                    batch_size=self.batch_size,
                    core=options.client_core,
                )
                sessions.enter_context(pool)
                for count in client_counts(options.clients):
                    more[f"{transport}-{count}-clients"] = pool.some(count)
        return more

    def _compare_first_batch(self, stream: StreamHere, began_s: float) -> list[Result]:
        """Fetch the daemon's first batch, timed, and compare it with the same batch made here."""
        batch = next(stream.fetcher.fetch([(0, 0)]))
        first_batch_s = time.monotonic() - began_s
        served = batch.pixels.copy()
        self._make_batches([(0, 0)])
        if not np.array_equal(served, self._pixels):
            raise DatasetError(
                f"the daemon's batch 0 of {self._dataset.path} differs from the one made here: "
                "report this with both versions"
            )
        return [
            single(f"stream/first-batch{self._suffix}", "s", first_batch_s),
            single(f"check/equal-to-local{self._suffix}", "samples", len(served)),
        ]

    def _run_rounds(self, daemon: Daemon, streams: Mapping[str, Stream]) -> list[Result]:
        batches, rounds = self._options.batches, self._options.rounds
        measured = {name: Measured() for name in streams}
        local_rates: list[float] = []

        def make(first: int, end: int) -> None:
            self._make_batches(self._keys(batches))

        def stream(name: str, first: int, end: int) -> None:
            busy_s, began_s = daemon.busy_s(), time.monotonic()
            delivered = streams[name].fetch(self._rounds_begun * batches, batches)
            taken_s = time.monotonic() - began_s
            measured[name].add(delivered, taken_s, daemon.busy_s() - busy_s)

        contenders: dict[str, Contender] = {"sample/whole": make}
        contenders |= {name: functools.partial(stream, name) for name in streams}
        warm_up(contenders, items=batches, piece=batches)
        self._rounds_begun += 1
        measured.update((name, Measured()) for name in streams)
        progress = ProgressLine(sys.stderr)
        progress.begin("streaming", "rounds", rounds)
        for seconds in run_rounds(contenders, items=batches, piece=batches, rounds=rounds):
            self._rounds_begun += 1
            local_rates.append(batches * self.batch_size / seconds["sample/whole"])
            progress.add(1)
        progress.end()
        return self._rows(local_rates, measured)

    def _rows(self, local_rates: Sequence[float], measured: Mapping[str, Measured]) -> list[Result]:
        suffix = self._suffix
        # Beside two workers it is measured again, so that the ratio compares the same rounds.
        local_name = f"sample/whole{suffix and '-beside' + suffix}"
        local = summarise(local_name, RATE, local_rates)
        ways = [(f"stream/{way}", each) for way, each in measured.items()]
        image_bytes = self.recipe.image_size**2 * 3
        rows = [local]
        rows += [each.rate(name + suffix, local, local_rates) for name, each in ways]
        for name, each in ways:
            rows += each.details(name, suffix, image_bytes)
        return rows

    def _keys(self, batches: int) -> list[BatchKey]:
        """Return the round's batches: the same for each contender, different in each round."""
        first = self._rounds_begun * batches
        return [divmod(number, self._epoch_batches) for number in range(first, first + batches)]

    def _make_batches(self, keys: Sequence[BatchKey]) -> None:
        """Make batches in this process as a worker would, on its core."""
        with pinned_to(frozenset({self._options.worker_core})):
            for epoch, index in keys:
                plan = self._plan_epoch(epoch)
                for first in range(0, self.recipe.batch_size, CHUNK_IMAGES):
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
        return self.recipe.plan_epoch(self._dataset.layout, seed=0, epoch=epoch)


def run(arguments: argparse.Namespace) -> StreamReport | CallsReport:
    """Do what the command line asks."""
    worker_core = choose_core(arguments.core)
    if arguments.calls:
        if arguments.plot is not None:
            raise ConfigError("--plot draws rates: leave --calls out, or --plot")
        with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
            return measure_calls(path, core=worker_core)
    options = StreamOptions(
        rounds=arguments.rounds,
        batches=arguments.batches,
        idle_s=arguments.idle,
        clients=arguments.clients,
        worker_core=worker_core,
        client_core=choose_other_core(worker_core),
    )
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        return measure_stream(path, options)
