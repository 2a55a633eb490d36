"""This machine's rate: what the product's sample path makes on one core, and how much it varies.

Times are CPU times, so that a machine in use does not look slower than it is.
"""

import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from feeder.daemon.config import ServeConfig
from feeder.dataset.opened import Dataset
from feeder.jpeg.libraries import check_libraries, tune_allocator
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

from ..machine import pinned_to

ROUNDS: Final = 5
SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreRate:
    """What one core makes with the training recipe."""

    images_s: float
    spread: float
    """Standard deviation of a chunk's time over its mean."""
    image_bytes: int
    """Mean size of a packed image."""


def measure_core(path: Path, *, images: int, core: int, rounds: int = ROUNDS) -> CoreRate:
    """Fill chunks of a dataset on a core in whole rounds; return the median round's rate."""
    check_libraries()
    tune_allocator()
    with pinned_to(frozenset({core})), Dataset.open(path) as dataset:
        images = min(images, dataset.layout.samples)
        chunk = min(images, ServeConfig().chunk_images)
        count = images // chunk * chunk
        recipe = Recipe.for_split("train", batch_size=chunk)
        order = np.random.default_rng(SEED).permutation(dataset.layout.samples)[:count]
        reader = SampleReader(dataset, recipe)
        side = recipe.image_size
        pixels = np.empty((chunk, side, side, 3), np.int8)
        labels = np.empty((chunk, *dataset.labels.row_shape), dataset.labels.dtype)
        rates, spreads = [], []
        for epoch in range(rounds + 1):
            chunks_s = []
            for first in range(0, count, chunk):
                ids = order[first : first + chunk].astype(np.int64)
                began_s = time.thread_time()
                reader.fill(ids, seed=SEED, epoch=epoch, pixels=pixels, labels=labels)
                chunks_s.append(time.thread_time() - began_s)
            if epoch:  # the first round warms caches up
                rates.append(count / sum(chunks_s))
                spreads.append(statistics.pstdev(chunks_s) / statistics.fmean(chunks_s))
    size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
    return CoreRate(
        images_s=statistics.median(rates),
        spread=statistics.median(spreads),
        image_bytes=round(size / dataset.layout.samples),
    )
