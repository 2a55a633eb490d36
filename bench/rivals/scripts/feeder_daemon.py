"""Feeder as users run it: ``feeder serve`` with a worker for each core, a client on the same cores.

Each turn requests only its own batches, so the daemon is idle between turns; the lease outlasts the
others' turns.
"""

import itertools
import os
from collections.abc import Iterator

from protocol import Pixels, Work, serve_turns

from feeder.bench.daemon import DATASET_NAME, running_daemon
from feeder.bench.fetcher import BatchFetcher
from feeder.dataset.opened import Dataset
from feeder.jpeg.libraries import library_versions
from feeder.plan.recipe import Recipe

_LONG_LEASE = ("--lease-s", "3600")


def _keys(work: Work, recipe: Recipe) -> Iterator[tuple[int, int]]:
    """Yield (epoch, index) of one batch after the other."""
    with Dataset.open(work.dataset) as dataset:
        batches = recipe.plan_epoch(dataset.layout, seed=0, epoch=0).batches
    for number in itertools.count():
        yield divmod(number, batches)


def _serve(work: Work) -> None:
    recipe = Recipe.for_split("train", batch_size=work.batch)
    cores = frozenset(os.sched_getaffinity(0))
    following = _keys(work, recipe)
    with (
        running_daemon(
            work.dataset, workers=work.cores, cores=cores, options=_LONG_LEASE
        ) as daemon,
        BatchFetcher(
            daemon.ipc, dataset=DATASET_NAME, recipe=recipe, client="feeder-bench peers"
        ) as fetcher,
    ):

        def begin_turn(images: int) -> Iterator[Pixels]:
            keys = list(itertools.islice(following, -(-images // work.batch)))
            return (batch.pixels for batch in fetcher.fetch(keys))

        serve_turns(begin_turn, versions=_versions())


def _versions() -> dict[str, str]:
    """Return the versions that determine the speed, as in the bench's header."""
    versions = library_versions()
    return {name: versions[name] for name in ("feeder", "libjpeg-turbo")}


if __name__ == "__main__":
    _serve(Work.from_command_line())
