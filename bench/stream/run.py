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
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError
from feeder.jpeg.libraries import check_libraries, tune_allocator
from feeder.plan.recipe import Recipe

from ..daemon import Daemon, running_daemon
from ..data.material import dataset_or_synthetic
from ..fetcher import BatchFetcher, ClientProcess, LocalBatches, await_open
from ..footprint import status_bytes
from ..machine import choose_cores, describe_machine, pinned_to
from ..report import Report, Result, single
from ..rounds import Contender, measure, rates
from . import cold, soak
from .calls import count_calls
from .handover import measure_handover
from .security import measure_security
from .stream_report import StreamReport
from .streams import UNCACHED, Delivered, doublings, fetch_by, fetch_here, stream_rows
from .transport import measure_transport

BATCH_SIZE: Final = 256

_TRANSPORT_BATCHES: Final = 4  # for each one decoded: they take a tenth of the time

_SETTLE_S: Final = 0.5  # to free the sessions' memory, which must not count as idling

_Stream = Callable[[int, int], Delivered]  # fetches a number of batches from a first one on


def run(arguments: argparse.Namespace) -> Report:
    """Measure the dataset; DatasetError when served pixels differ from local ones."""
    if arguments.soak is not None:
        return soak.run(arguments)
    if arguments.calls or arguments.cold:
        if arguments.plot is not None:
            raise ConfigError("--plot draws the ways to clients: leave --calls and --cold out")
        return count_calls(arguments) if arguments.calls else cold.run(arguments)
    worker_core, client_core = choose_cores(arguments.core)
    of_cores = {"worker_core": worker_core, "client_core": client_core}
    cores = sorted(set(of_cores.values()))
    results: list[Result] = []
    with dataset_or_synthetic(arguments.dataset, images=arguments.images) as path:
        machine = describe_machine({"worker": worker_core, "client": client_core})
        check_libraries()
        tune_allocator()
        with Dataset.open(path) as dataset:
            batch_size = min(BATCH_SIZE, dataset.layout.samples)
            recipe = Recipe.for_split("train", batch_size=batch_size)
            local = LocalBatches(dataset, recipe)
            for workers in range(1, len(cores) + 1):
                daemon_cores = [worker_core] if workers == 1 else cores
                with (
                    pinned_to(client_core),
                    running_daemon(
                        path, workers=workers, cores=daemon_cores, options=UNCACHED
                    ) as daemon,
                ):
                    rows = _measure(daemon, local, arguments, **of_cores)
                results += [row_beside(workers, row) for row in rows]
        rounds, batches = arguments.rounds, arguments.batches
        many = _TRANSPORT_BATCHES * batches
        results += measure_transport(path, recipe, rounds=rounds, batches=many, **of_cores)
        results += measure_security(path, recipe, rounds=rounds, batches=batches, **of_cores)
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


def _measure(
    daemon: Daemon,
    local: LocalBatches,
    arguments: argparse.Namespace,
    *,
    worker_core: int,
    client_core: int,
) -> list[Result]:
    began_s = time.monotonic()
    with ExitStack() as sessions:

        def open_session(endpoint: str, *, share_memory: bool = True) -> BatchFetcher:
            fetcher = BatchFetcher(endpoint, recipe=local.recipe, share_memory=share_memory)
            return sessions.enter_context(fetcher)

        lent = open_session(daemon.ipc)
        served = next(lent.fetch()).pixels.copy()
        first_batch_s = time.monotonic() - began_s
        local.make(0)
        if not np.array_equal(served, local.pixels):
            raise DatasetError(
                f"the daemon's batch 0 of {local.dataset.where} differs from the one made here: "
                "report this with both versions"
            )
        copied = open_session(daemon.ipc, share_memory=False)
        streams: dict[str, _Stream] = {
            "ipc": partial(fetch_here, lent),
            "ipc-copy": partial(fetch_here, copied),
            "tcp": partial(fetch_here, open_session(daemon.tcp)),
        }
        most, batch_size = arguments.clients, local.recipe.batch_size
        for transport, endpoint in (("ipc", daemon.ipc), ("tcp", daemon.tcp)) if most > 1 else ():
            clients = [
                sessions.enter_context(
                    ClientProcess(endpoint, batch_size=batch_size, core=client_core)
                )
                for _ in range(most)
            ]
            await_open(clients)
            for count in doublings(most)[1:]:
                streams[f"{transport}-{count}-clients"] = partial(fetch_by, clients[:count])
        results = _run_rounds(daemon, local, worker_core, streams, arguments)
        results += measure_handover(lent, copied, daemon.ipc)
        worker = daemon.find("feeder.worker").pid  # its slots, which exist once, do not count
        own_bytes = sum(status_bytes(worker, field) for field in ("RssAnon", "RssFile"))
    time.sleep(_SETTLE_S)
    return [
        *results,
        single("stream/first-batch", "s", first_batch_s),
        single("check/equal-to-local", "samples", len(served)),
        single("worker/own-memory", "MiB", own_bytes / 2**20),
        single("daemon/idle", "% of a core", daemon.idle_percent(arguments.idle)),
    ]


def _run_rounds(
    daemon: Daemon,
    local: LocalBatches,
    worker_core: int,
    streams: dict[str, _Stream],
    arguments: argparse.Namespace,
) -> list[Result]:
    batches, first = arguments.batches, 0
    delivered: dict[str, list[Delivered]] = {name: [] for name in streams}

    def stream(name: str, _first: int, _end: int) -> None:
        busy_s, began_s = daemon.busy_s(), time.monotonic()
        arrived = streams[name](first, batches)
        arrived.taken_s = time.monotonic() - began_s
        arrived.daemon_cpu_s = daemon.busy_s() - busy_s
        delivered[name].append(arrived)

    def next_round(_: object = None) -> None:
        nonlocal first  # the same batches for each contender, others in each round
        first += batches

    def make_here(_first: int, _end: int) -> None:
        with pinned_to(worker_core):
            for number in range(first, first + batches):
                local.make(number)

    contenders: dict[str, Contender] = {"sample/whole": make_here}
    contenders |= {name: partial(stream, name) for name in streams}
    taken = measure(
        contenders,
        rounds=arguments.rounds,
        items=batches,
        verb="streaming",
        after_warm_up=next_round,
        after_round=next_round,
    )
    local_rates = rates(taken, batches * local.recipe.batch_size)["sample/whole"]
    after_warm_up = {name: rounds[1:] for name, rounds in delivered.items()}
    return stream_rows(local_rates, after_warm_up, local.recipe.image_size**2 * 3)
