"""``feeder-bench stream``: a real daemon and its clients, by slot, over ipc and over tcp.

The daemon's one worker has one core, the client another one if there is one. In each round the same
batches are made by ``SampleReader`` alone on the worker's core (``sample/whole``), and by the
daemon for a client that reads them in the slots (``ipc``), or copies them into its own batch
buffers from an ipc socket (``ipc-copy``: ``share_memory`` is off) or a tcp socket. The ratio's
distance from 1 is the overhead of the daemon. Several clients at once, each a separate process,
have their turns in the same rounds; they share the client's core. On two cores a second daemon with
two workers follows; its clients share their cores.

``transport`` adds rows for the messages without decoding, ``security`` rows for encryption and for
a client that sends garbage. With ``--calls`` nothing is timed: ``calls`` counts Python calls. With
``--soak`` clients come and go for hours, and ``soak`` judges whether anything has changed.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError
from feeder.jpeg.libraries import check_libraries, tune_allocator
from feeder.plan.epoch import EpochPlan
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from feeder.wire.messages import BatchKey

from ..client_process import ClientProcess, await_open
from ..daemon import Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..fetcher import BatchFetcher
from ..machine import choose_cores, describe_machine, pinned_to
from ..report import Report, Result, single
from ..rounds import Contender, measure, rates
from . import soak
from .calls import count_calls
from .handover import measure_handover
from .security import measure_security
from .stream_report import StreamReport
from .streams import UNCACHED, Delivered, doublings, fetch_by, fetch_here, stream_rows
from .transport import CHUNK_IMAGES, measure_transport

BATCH_SIZE: Final = 256
_TRANSPORT_BATCHES: Final = 4
"""Batches of transport alone for each one that is decoded: they take a tenth of the time."""

_Stream = Callable[[int, int], Delivered]
"""Fetches a number of batches from a first one on."""

_SETTLE_S: Final = 0.5
"""For the daemon to free the sessions' memory, which must not count as idling."""


def run(arguments: argparse.Namespace) -> Report:
    """Measure the dataset; DatasetError when served pixels differ from local ones."""
    if arguments.soak is not None:
        return soak.run(arguments)
    if arguments.calls:
        if arguments.plot is not None:
            raise ConfigError("--plot draws rates: leave --calls out, or --plot")
        return count_calls(arguments)
    worker_core, client_core = choose_cores(arguments.core)
    cores = sorted({worker_core, client_core})
    results: list[Result] = []
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        machine = describe_machine({"worker": worker_core, "client": client_core})
        check_libraries()
        tune_allocator()
        with Dataset.open(path) as dataset:
            for workers in range(1, len(cores) + 1):
                bench = _StreamBench(dataset, arguments, worker_core, client_core)
                with (
                    pinned_to(client_core),
                    running_daemon(
                        path,
                        workers=workers,
                        cores=[worker_core] if workers == 1 else cores,
                        options=UNCACHED,
                    ) as daemon,
                ):
                    results += [row_beside(workers, row) for row in bench.measure(daemon)]
        rounds, batches, batch_size = arguments.rounds, arguments.batches, bench.recipe.batch_size
        of_cores = {"worker_core": worker_core, "client_core": client_core}
        results += measure_transport(
            rounds=rounds, batches=_TRANSPORT_BATCHES * batches, batch_size=batch_size, **of_cores
        )
        results += measure_security(path, bench.recipe, rounds=rounds, batches=batches, **of_cores)
    measured = {
        "rounds": rounds,
        "batches": batches,
        "batch size": batch_size,
        "clients": arguments.clients,
    }
    return StreamReport(bench="stream", machine=machine, measured=measured, results=results)


def row_beside(workers: int, row: Result) -> Result:
    """Return a row with the names that it has with so many workers.

    ``sample/whole`` is measured again beside them, so that the ratio compares the same rounds.
    """
    if workers == 1:
        return row
    local, suffix = "sample/whole", f"-{workers}-workers"
    beside = f"{local}-beside{suffix}"
    return replace(
        row,
        name=beside if row.name == local else row.name + suffix,
        baseline=beside if row.baseline == local else row.baseline and row.baseline + suffix,
    )


class _StreamBench:
    """The contenders over one daemon."""

    def __init__(
        self, dataset: Dataset, arguments: argparse.Namespace, worker_core: int, client_core: int
    ) -> None:
        self._dataset = dataset
        self._arguments = arguments
        self._worker_core, self._client_core = worker_core, client_core
        self.recipe = Recipe.for_split("train", batch_size=min(BATCH_SIZE, dataset.layout.samples))
        self._epoch_batches = self._plan_epoch(0).batches
        self._reader = SampleReader(dataset, self.recipe)
        size, rows = self.recipe.image_size, self.recipe.batch_size
        self._pixels = np.empty((rows, size, size, 3), np.int8)
        self._labels = np.empty(rows, np.int64)

    def measure(self, daemon: Daemon) -> list[Result]:
        """Return the rows of this daemon."""
        began_s = time.monotonic()
        with ExitStack() as sessions:

            def open_session(endpoint: str, *, share_memory: bool = True) -> BatchFetcher:
                fetcher = BatchFetcher(endpoint, recipe=self.recipe, share_memory=share_memory)
                return sessions.enter_context(fetcher)

            lent = open_session(daemon.ipc)
            checks = self._compare_first_batch(lent, began_s)
            copied = open_session(daemon.ipc, share_memory=False)
            streams: dict[str, _Stream] = {
                "ipc": partial(fetch_here, lent),
                "ipc-copy": partial(fetch_here, copied),
                "tcp": partial(fetch_here, open_session(daemon.tcp)),
                **self._open_more(daemon, sessions),
            }
            results = self._run_rounds(daemon, streams)
            results += measure_handover(lent, copied, daemon.ipc)
            own_mib = daemon.worker_bytes() / 2**20
        results += [*checks, single("worker/own-memory", "MiB", own_mib)]
        time.sleep(_SETTLE_S)
        idle = daemon.idle_percent(self._arguments.idle)
        return [*results, single("daemon/idle", "% of a core", idle)]

    def _open_more(self, daemon: Daemon, sessions: ExitStack) -> dict[str, _Stream]:
        """Return the streams to several clients, by name."""
        most = self._arguments.clients
        streams: dict[str, _Stream] = {}
        for transport, endpoint in (("ipc", daemon.ipc), ("tcp", daemon.tcp)) if most > 1 else ():
            clients = [
                sessions.enter_context(
                    ClientProcess(
                        endpoint, batch_size=self.recipe.batch_size, core=self._client_core
                    )
                )
                for _ in range(most)
            ]
            await_open(clients)
            for count in doublings(most)[1:]:
                streams[f"{transport}-{count}-clients"] = partial(fetch_by, clients[:count])
        return streams

    def _compare_first_batch(self, fetcher: BatchFetcher, began_s: float) -> list[Result]:
        """Fetch the daemon's first batch, timed, and compare it with the same batch made here."""
        served = next(fetcher.fetch([(0, 0)])).pixels.copy()
        first_batch_s = time.monotonic() - began_s
        self._make_batches([(0, 0)])
        if not np.array_equal(served, self._pixels):
            raise DatasetError(
                f"the daemon's batch 0 of {self._dataset.path} differs from the one made here: "
                "report this with both versions"
            )
        return [
            single("stream/first-batch", "s", first_batch_s),
            single("check/equal-to-local", "samples", len(served)),
        ]

    def _run_rounds(self, daemon: Daemon, streams: dict[str, _Stream]) -> list[Result]:
        batches = self._arguments.batches
        delivered: dict[str, list[Delivered]] = {name: [] for name in streams}
        first = 0  # of the round's batches: the same for each contender, different in each round

        def make(_first: int, _end: int) -> None:
            numbers = range(first, first + batches)
            self._make_batches([divmod(number, self._epoch_batches) for number in numbers])

        def stream(name: str, _first: int, _end: int) -> None:
            busy_s, began_s = daemon.busy_s(), time.monotonic()
            arrived = streams[name](first, batches)
            arrived.taken_s = time.monotonic() - began_s
            arrived.daemon_cpu_s = daemon.busy_s() - busy_s
            delivered[name].append(arrived)

        def next_round(_: object = None) -> None:
            nonlocal first
            first += batches

        contenders: dict[str, Contender] = {"sample/whole": make}
        contenders |= {name: partial(stream, name) for name in streams}
        taken = measure(
            contenders,
            rounds=self._arguments.rounds,
            items=batches,
            verb="streaming",
            after_warm_up=next_round,
            after_round=next_round,
        )
        local_rates = rates(taken, batches * self.recipe.batch_size)["sample/whole"]
        after_warm_up = {name: rounds[1:] for name, rounds in delivered.items()}
        return stream_rows(local_rates, after_warm_up, self.recipe.image_size**2 * 3)

    def _make_batches(self, keys: Sequence[BatchKey]) -> None:
        """Make batches in this process as a worker would, on its core."""
        with pinned_to(self._worker_core):
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
