"""The protocol between a contender's script and ``bench.rivals.process``, and the script's work.

The bench writes to standard input, the script to the pipe whose number is in FEEDER_BENCH_FD, so
that output of libraries cannot disturb it. Each message is a line:

    script ─► ready {"versions": {…}, "mean": …}   started, and made a first batch
    bench  ─► go N                               deliver at least N images
    script ─► done N                             N images have been delivered

The script ends at the end of its input. Only the standard library and numpy are imported here,
because this runs in every rival's environment.
"""

import ctypes
import json
import math
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SIZE_PX = 224
_AREA = (0.08, 1.0)
_ASPECT = (3 / 4, 4 / 3)
_ATTEMPTS = 10
_PR_SET_PDEATHSIG = 1

Pixels = NDArray[np.uint8] | NDArray[np.int8]
Crop = tuple[int, int, int, int]
"""(x, y, w, h) in pixels of the image."""


@dataclass(frozen=True)
class Work:
    """The work of every script: the same images, batches and cores."""

    paths: list[str]
    labels: list[int]
    sizes: list[tuple[int, int]]
    """(width, height) of each image."""
    folder: Path
    """Where the contender may write the images in its own format."""
    batch: int
    cores: int
    variant: str
    dataset: Path
    """The same images as a packed dataset."""

    @classmethod
    def from_command_line(cls) -> "Work":
        """Read SCRIPT LIST FOLDER BATCH CORES VARIANT DATASET; LIST has a line for each image."""
        listing, folder, batch, cores, variant, dataset = sys.argv[1:]
        lines = Path(listing).read_text(encoding="utf-8").splitlines()
        rows = [line.split("\t") for line in lines]
        return cls(
            paths=[row[0] for row in rows],
            labels=[int(row[1]) for row in rows],
            sizes=[(int(row[2]), int(row[3])) for row in rows],
            folder=Path(folder),
            batch=int(batch),
            cores=int(cores),
            variant=variant,
            dataset=Path(dataset),
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
    """Deliver ``batches``, an endless iterator, as the bench requests them, until input ends.

    A batch is (n, 224, 224, 3) or (n, 3, 224, 224).
    """
    serve_turns(lambda _images: batches, versions=versions)


def serve_turns(begin_turn: Callable[[int], Iterator[Pixels]], *, versions: dict[str, str]) -> None:
    """The same for a contender that needs the number of images before a turn begins."""
    die_with_parent()
    replies = os.fdopen(int(os.environ["FEEDER_BENCH_FD"]), "w", buffering=1)
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


def _check(batch: Pixels) -> None:
    """Check a batch as briefly as possible: its shape, its type, and a pixel of each image."""
    shapes = (SIZE_PX, SIZE_PX, 3), (3, SIZE_PX, SIZE_PX)
    if batch.shape[1:] not in shapes or batch.dtype.itemsize != 1:
        raise SystemExit(f"not a batch of bytes: {batch.dtype} {batch.shape}")
    int(batch[:, 1, 1, 1].max())
