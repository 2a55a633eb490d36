"""``feeder-bench links``: what a long list of feeders costs a client.

Stand-ins greet and send batches of zeros; the client of all of them takes ``--rate`` batches a
second, and with each batch its next owners change.

    links/waiting       CPU of a client that has its batches and takes none
    links/taking        the same while it takes batches, and beside it
    links/short-list    the same with a list of one feeder
    links/descriptors   the most that the client had open
    links/owners        share of the batches that came from their lane's owner
"""

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from feeder.process.child import python_command
from trainer_client import NumpyLoader

from ..line_process import LineProcess
from ..machine import describe_machine
from ..report import Report, single

BATCH_SIZE: Final = 16
IMAGE_SIZE: Final = 32
_WAIT_S: Final = 120.0
_POINTS: Final = "% of a core"


@contextmanager
def stand_ins(count: int) -> Iterator[list[str]]:
    """Run ``count`` stand-ins; yield the lines of their list."""
    command = python_command(f"{__package__}.stand_ins", os.getpid(), str(count))
    with LineProcess(command) as process:
        yield list(iter(lambda: process.next_line(_WAIT_S), ""))


@contextmanager
def client_of(lines: list[str], folder: Path) -> Iterator[NumpyLoader]:
    """Yield a client of the feeders in a list, rank 3 of 8."""
    listed = folder / f"{len(lines)}-feeders"
    listed.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with NumpyLoader(
        f"file://{listed}",
        dataset="zeros",
        batch_size=BATCH_SIZE,
        image_size=IMAGE_SIZE,
        rank=3,
        world_size=8,
        timeout_s=_WAIT_S,
    ) as loader:
        yield loader


def count_descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(os.listdir("/proc/self/fd")) - 1  # one is the listing's own


def run(arguments: argparse.Namespace) -> Report:
    """Measure three rows of ``seconds`` each."""
    seconds, rate = arguments.seconds, arguments.rate
    with (
        tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder,
        stand_ins(arguments.feeders) as lines,
    ):
        own = count_descriptors()
        with client_of(lines[:1], Path(folder)) as loader:
            short, _ = _watch(_without_end(loader), seconds, rate)
        with client_of(lines, Path(folder)) as loader:
            batches = _without_end(loader)
            waiting, _ = _watch(batches, seconds, 0.0)
            taking, descriptors = _watch(batches, seconds, rate)
            statistics = loader.statistics()
    owned = statistics.batches_of_owners / max(1, statistics.batches_requested)
    return Report(
        bench="links",
        machine=describe_machine(),
        results=[
            single("links/waiting", _POINTS, waiting),
            single("links/taking", _POINTS, taking),
            single("links/short-list", _POINTS, short),
            single("links/descriptors", "open", descriptors - own),
            single("links/owners", "% of batches", 100 * owned),
        ],
        measured={"feeders": arguments.feeders, "seconds a row": seconds, "batches a second": rate},
    )


def _without_end(loader: NumpyLoader) -> Iterator[object]:
    return itertools.chain.from_iterable(itertools.repeat(loader))


def _watch(batches: Iterator[object], seconds: float, rate: float) -> tuple[float, int]:
    """Take batches at ``rate``; return this process's share of a core in per cent, and most fds."""
    next(batches)
    descriptors = count_descriptors()
    began_s, began_cpu_s, taken = time.monotonic(), time.process_time(), 0
    while (passed_s := time.monotonic() - began_s) < seconds:
        taken += 1
        descriptors = max(descriptors, count_descriptors())
        due_s = taken / rate if rate else seconds
        time.sleep(max(0.0, min(due_s, seconds) - passed_s))  # the pace of the batches
        if rate:
            next(batches)
    busy = 100 * (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)
    return busy, descriptors
