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
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from feeder.pack.progress import ProgressLine
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
        lines = []
        while line := process.next_line(_WAIT_S):
            lines.append(line)
        yield lines


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


class _Watch:
    """CPU time and descriptors of this process while it takes batches."""

    def __init__(self, loader: NumpyLoader) -> None:
        self._batches = self._repeat(loader)
        self._before = 0
        self.descriptors = 0
        self._loader = loader

    @staticmethod
    def _repeat(loader: NumpyLoader) -> Iterator[object]:
        while True:
            yield from loader

    def measure(self, seconds: float, rate: float) -> float:
        """Return the share of a core, in per cent, while batches are taken at ``rate``."""
        next(self._batches)
        self.descriptors = self._before = count_descriptors()
        began_s, began_cpu_s, taken = time.monotonic(), time.process_time(), 0
        while (passed_s := time.monotonic() - began_s) < seconds:
            taken += 1
            self.descriptors = max(self.descriptors, count_descriptors())
            due_s = taken / rate if rate else seconds
            time.sleep(max(0.0, min(due_s, seconds) - passed_s))
            if rate:
                next(self._batches)
        return 100 * (time.process_time() - began_cpu_s) / (time.monotonic() - began_s)


def measure_links(feeders: int, seconds: float, rate: float) -> Report:
    """Return the rows."""
    progress = ProgressLine(sys.stderr)
    progress.begin("measured", "rows", 3)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-bench-")))
        lines = stack.enter_context(stand_ins(feeders))
        own = count_descriptors()
        with client_of(lines[:1], folder) as loader:
            short = _Watch(loader).measure(seconds, rate)
        progress.add(1)
        with client_of(lines, folder) as loader:
            watch = _Watch(loader)
            waiting = watch.measure(seconds, 0.0)
            progress.add(1)
            taking = watch.measure(seconds, rate)
            descriptors = watch.descriptors - own
            statistics = loader.statistics()
        progress.add(1)
    progress.end()
    owned = statistics.batches_of_owners / max(1, statistics.batches_requested)
    return Report(
        bench="links",
        machine=describe_machine(),
        results=[
            single("links/waiting", _POINTS, waiting),
            single("links/taking", _POINTS, taking),
            single("links/short-list", _POINTS, short),
            single("links/descriptors", "open", descriptors),
            single("links/owners", "% of batches", 100 * owned),
        ],
        measured={"feeders": feeders, "seconds a row": seconds, "batches a second": rate},
    )


def run(arguments: argparse.Namespace) -> Report:
    """Do what the command line asks."""
    return measure_links(arguments.feeders, arguments.seconds, arguments.rate)
