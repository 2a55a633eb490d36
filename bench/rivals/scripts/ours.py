"""Feeder: its sample path in this process, or its daemon and a client.

reader: ``SampleReader`` over the packed dataset, as a daemon's worker has it.
daemon: ``feeder serve`` with a worker for each core, and a client on the same cores. Each turn
requests only its own batches, so the daemon is idle between turns; the lease outlasts the others'.
"""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from protocol import Pixels, Work, serve, serve_turns

from feeder.bench.daemon import DATASET_NAME, running_daemon
from feeder.bench.fetcher import BatchFetcher, LocalBatches
from feeder.dataset.opened import Dataset
from feeder.jpeg.libraries import check_libraries, library_versions, tune_allocator
from feeder.plan.recipe import Recipe

_LONG_LEASE = ("--lease-s", "3600")


def _read(work: Work, recipe: Recipe) -> Iterator[Pixels]:
    check_libraries()
    tune_allocator()
    with Dataset.open(Path(work.dataset)) as dataset:
        local = LocalBatches(dataset, recipe)
        for number in itertools.count():
            local.make(number)
            yield local.pixels


def _serve_daemon(work: Work, recipe: Recipe, versions: dict[str, str]) -> None:
    cores = frozenset(os.sched_getaffinity(0))
    with (
        running_daemon(
            Path(work.dataset), workers=work.cores, cores=cores, options=_LONG_LEASE
        ) as daemon,
        BatchFetcher(
            daemon.ipc, dataset=DATASET_NAME, recipe=recipe, client="feeder-bench peers"
        ) as fetcher,
    ):
        first = 0

        def begin_turn(images: int) -> Iterator[Pixels]:
            nonlocal first
            count = -(-images // work.batch)
            first += count
            return (batch.pixels for batch in fetcher.fetch(first - count, count))

        serve_turns(begin_turn, versions=versions)


if __name__ == "__main__":
    work = Work.from_command_line()
    recipe = Recipe.for_split("train", batch_size=work.batch)
    # Those that determine the speed, as in the bench's header.
    versions = {name: library_versions()[name] for name in ("feeder", "libjpeg-turbo")}
    if work.variant == "daemon":
        _serve_daemon(work, recipe, versions)
    else:
        serve(_read(work, recipe), versions=versions)
