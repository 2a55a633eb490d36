"""``feeder-bench stream --cold``: epochs of a dataset on a disk, with memory for a part of it.

A daemon with a worker for each core runs in a memory cgroup of a quarter of the dataset, where the
page cache counts, too. In each round every order has its turn: pages of the dataset are dropped,
one epoch is streamed to find the cache as an epoch leaves it, and the next one is measured.
``read/ORDER`` is what the daemon's processes read from the disk in it (/proc/PID/io).
"""

import argparse
import contextlib
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import psutil

from feeder.dataset.manifest import load_manifest
from feeder.errors import ConfigError
from feeder.jpeg.libraries import check_libraries
from feeder.pack.progress import ProgressLine
from feeder.plan.recipe import Recipe

from ..daemon import Daemon, running_daemon
from ..data.material import large_dataset
from ..fetcher import BatchFetcher
from ..machine import describe_machine, memory_group, within
from ..report import RATE, Report, compare, format_number
from ..rounds import run_rounds
from .streams import UNCACHED

MEMORY_SHARE: Final = 1 / 4  # of the dataset, for the daemon and the page cache
BATCH_SIZE: Final = 32  # larger ones would leave a small working set less of its window
IMAGE_SIZE: Final = 112  # large crops are decoded at half size or less, so the disk counts for more

_DATASET_BYTES: Final = 4 << 30  # a quarter holds the daemon's processes and slots several times
_DISTINCT: Final = 512  # images, which are repeated: to draw and to pack them takes longer


def orders(limit_bytes: int) -> dict[str, Recipe]:
    """Return recipes by what rows call their order; the first is the baseline of the others."""
    recipe = partial(Recipe.for_split, "train", batch_size=BATCH_SIZE, image_size=IMAGE_SIZE)
    return {
        "lanes": recipe(working_set=round(limit_bytes / MEMORY_SHARE) + 1),  # all of the dataset
        "pieces": recipe(working_set=limit_bytes // 2),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdReport(Report):
    def conclude(self) -> list[str]:
        rows = self.rows
        return [
            f"{name.removeprefix('read/')}: an epoch reads {format_number(row.value)} of the "
            f"dataset from the disk, at {rows[name.replace('read', 'cold')].value:,.0f} images/s."
            for name, row in rows.items()
            if name.startswith("read/")
        ]


def run(arguments: argparse.Namespace) -> ColdReport:
    """Measure; ResourceError without a memory cgroup, ConfigError where no disk is read."""
    machine = describe_machine()
    check_libraries()
    with ExitStack() as stack:
        large = large_dataset(arguments.dataset, size_bytes=_DATASET_BYTES, distinct=_DISTINCT)
        path = stack.enter_context(large)
        size_bytes = sum(shard.bytes for shard in load_manifest(path).shards)
        limit_bytes = int(size_bytes * MEMORY_SHARE)
        group = stack.enter_context(memory_group(limit_bytes))
        cores = sorted(os.sched_getaffinity(0))
        with within(group):
            serving = running_daemon(path, workers=len(cores), cores=cores, options=UNCACHED)
            daemon = stack.enter_context(serving)
        recipes = orders(limit_bytes)
        rates: dict[str, list[float]] = {name: [] for name in recipes}
        shares: dict[str, list[float]] = {name: [] for name in recipes}

        def stream(name: str, _first: int, _end: int) -> None:
            drop_pages(path)
            with BatchFetcher(daemon.ipc, recipe=recipes[name], seed=len(rates[name])) as fetcher:
                batches = fetcher.welcome.batches
                fetcher.replay(0, batches)
                before_bytes, began_s = disk_bytes(daemon), time.monotonic()
                fetcher.replay(batches, 2 * batches)
            taken_s = time.monotonic() - began_s
            rates[name].append(batches * BATCH_SIZE / taken_s)
            shares[name].append((disk_bytes(daemon) - before_bytes) / size_bytes)

        contenders = {name: partial(stream, name) for name in recipes}
        progress = ProgressLine(sys.stderr)
        progress.begin("streaming", "rounds", arguments.rounds)
        for _ in run_rounds(contenders, items=1, piece=1, rounds=arguments.rounds):
            progress.add(1)
        progress.end()
    if not all(map(min, shares.values())):
        raise ConfigError(
            f"{path} is not on a disk of this machine: nothing was read from one; set TMPDIR to a "
            "folder that is, or name a dataset there"
        )
    named = [
        ({f"{kind}/{name}": each for name, each in values.items()}, unit)
        for kind, values, unit in (("cold", rates, RATE), ("read", shares, "datasets"))
    ]
    measured = {
        "rounds": arguments.rounds,
        "batch size": BATCH_SIZE,
        "image size": IMAGE_SIZE,
        "dataset": f"{size_bytes / 1e9:.2f} GB",
        "memory": f"{limit_bytes / 1e9:.2f} GB",
    }
    results = [row for values, unit in named for row in compare(values, unit)]
    return ColdReport(bench="stream --cold", machine=machine, measured=measured, results=results)


def drop_pages(dataset: Path) -> None:
    """Drop a dataset's shards from the page cache, which was charged to whoever read them first."""
    for entry in load_manifest(dataset).shards:
        descriptor = os.open(dataset / entry.name, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def disk_bytes(daemon: Daemon) -> int:
    """Return what the daemon's processes have read from disks so far."""
    total = 0
    for process in daemon.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.io_counters().read_bytes
    return total
