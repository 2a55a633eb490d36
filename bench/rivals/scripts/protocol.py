"""The protocol between a contender's script and ``bench.rivals.process``, and the script's work.

The bench writes to standard input, the script to the pipe whose number is in FEEDER_BENCH_FD, so
that output of libraries cannot disturb it. Each message is a line:

    script ─► ready {"versions": {…}, "mean": …}   started, and made a first batch
    bench  ─► go N                               deliver at least N images
    script ─► done N                             N images have been delivered

The script ends at the end of its input. A script ``*_writer.py``, of ``feeder-bench pack``, writes
the images in another format and sends one message; both times are of writing alone, without the
imports, which take seconds:

    script ─► done {"versions": {…}, "seconds": …, "cpu_seconds": …}

Only the standard library and numpy are imported here,
because this runs in every rival's environment.
"""

import ctypes
import json
import math
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np
from numpy.typing import NDArray

SIZE_PX = 224
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_ATTEMPTS = 10
_PR_SET_PDEATHSIG = 1

Pixels = NDArray[np.uint8] | NDArray[np.int8]
Crop = tuple[int, int, int, int]  # (x, y, w, h) in pixels of the image


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of every script: the same images, batches and cores."""

    paths: list[str]
    labels: list[int]
    sizes: list[tuple[int, int]]  # (width, height) of each image, for loaders
    folder: Path
    """Where a loader may write the images in its own format; the file or folder to write."""
    variant: str
    batch: int = 0
    cores: int = 1
    dataset: str = ""  # the same images as a packed dataset

    @classmethod
    def from_command_line(cls) -> "Work":
        """Read SCRIPT LIST JSON: LIST has a line for each image, JSON the fields from folder on."""
        rows = [line.split("\t") for line in Path(sys.argv[1]).read_text("utf-8").splitlines()]
        fields = json.loads(sys.argv[2])
        return cls(
            paths=[row[0] for row in rows],
            labels=[int(row[1]) for row in rows],
            sizes=[(int(row[2]), int(row[3])) for row in rows if row[2:]],
            **fields | {"folder": Path(fields["folder"])},
        )

    @property
    def processes(self) -> int:
        """Loading processes beside the main one; on one core they would only add transport."""
        return self.cores if self.cores > 1 else 0


def draw_crop(width: int, height: int) -> Crop:
    """Draw a random-resized crop by torchvision's rules."""
    area = width * height
    for _ in range(_ATTEMPTS):
        target = area * random.uniform(*_AREA)
        aspect = math.exp(random.uniform(math.log(_ASPECT[0]), math.log(_ASPECT[1])))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    w = min(width, round(height * _ASPECT[1]))
    h = min(height, round(width / _ASPECT[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def die_with_parent() -> None:
    """Have the kernel SIGKILL this process when its parent ends, however that happens."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def serve(batches: Iterator[Pixels], *, versions: dict[str, str]) -> None:
    """Deliver endless ``batches``, (n, 224, 224, 3) or (n, 3, 224, 224), until input ends."""
    serve_turns(lambda _images: batches, versions=versions)


def serve_turns(begin_turn: Callable[[int], Iterator[Pixels]], *, versions: dict[str, str]) -> None:
    """The same for a contender that needs the number of images before a turn begins."""
    die_with_parent()
    replies = _open_replies()
    first = next(begin_turn(1))
    _check(first)
    levels = first.astype(np.float32) + (128 if first.dtype == np.int8 else 0)
    ready = {"versions": versions, "mean": round(float(levels.mean()), 2)}
    replies.write(f"ready {json.dumps(ready)}\n")
    for line in sys.stdin:
        wanted = int(line.removeprefix("go "))
        batches = begin_turn(wanted)
        delivered = 0
        while delivered < wanted:
            batch = next(batches)
            _check(batch)
            delivered += len(batch)
        replies.write(f"done {delivered}\n")


def serve_writing(write: Callable[[Work], dict[str, str]]) -> None:
    """Call ``write``, which returns versions, with the work on the command line, and reply."""
    die_with_parent()
    work = Work.from_command_line()
    began_s, busy_before_s = time.perf_counter(), _busy_s()
    versions = write(work)
    for child in multiprocessing.active_children():
        child.join()  # its CPU time is counted then
    seconds, cpu_seconds = time.perf_counter() - began_s, _busy_s() - busy_before_s
    reply = {"versions": versions, "seconds": seconds, "cpu_seconds": cpu_seconds}
    _open_replies().write(f"done {json.dumps(reply)}\n")
    os._exit(0)  # the exit handlers of some libraries hang


def _open_replies() -> TextIO:
    return os.fdopen(int(os.environ["FEEDER_BENCH_FD"]), "w", buffering=1)


def _busy_s() -> float:
    """Return the CPU time so far of this process and of its children that have ended."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _check(batch: Pixels) -> None:
    """Check a batch as briefly as possible: its shape, its type, and a pixel of each image."""
    shapes = (SIZE_PX, SIZE_PX, 3), (3, SIZE_PX, SIZE_PX)
    if batch.shape[1:] not in shapes or batch.dtype.itemsize != 1:
        raise SystemExit(f"not a batch of bytes: {batch.dtype} {batch.shape}")
    int(batch[:, 1, 1, 1].max())
