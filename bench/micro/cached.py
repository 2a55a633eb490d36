"""The decoded cache in the decode bench: one that holds everything, and one that is being filled.

The full one serves ``sample/decoded-cache``. The other begins each round empty and admits every
image: the time that it adds to the same samples without a cache is ``decoded-cache/fill``, in per
cent.
"""

from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.jpeg.decoders import Decoder
from feeder.plan.recipe import Recipe
from feeder.sample.cache import DecodedPictures
from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import (
    CachePlan,
    DecodedSize,
    FillAllowance,
    aligned_bytes,
    plan_cache,
)
from feeder.sample.reader import SampleReader

_NAME = "bench"
_SPARE = 1.2
"""Decoded pictures may be padded to whole tiles; the directory and its page are extra."""


class _AtOnce(FillAllowance):
    """Admits every image to the cache."""

    def spend(self, whole_px: int, needed_px: int) -> bool:
        return True


class CachedReaders:
    """Readers of ``samples`` (n,) with a full cache and with one that ``begin_round`` empties."""

    def __init__(
        self,
        dataset: Dataset,
        recipe: Recipe,
        samples: NDArray[np.int64],
        *,
        decoder: Decoder = "own",
    ) -> None:
        self._dataset, self._recipe, self._decoder = dataset, recipe, decoder
        records = dataset.read_records(samples)
        pictures_bytes = [
            aligned_bytes(4 * width * height)
            for width, height in records[["width", "height"]].tolist()
        ]
        self._size = DecodedSize(samples=len(samples), picture_bytes=float(np.mean(pictures_bytes)))
        self._full_cache, self._cold_cache = self._create(), self._create()
        self.full = self._reader(self._full_cache)
        unscaled = msgspec.structs.replace(recipe, dct_scaling=False)
        pictures = DecodedPictures(self._full_cache, dataset.fingerprint, 1.0)
        self.full_unscaled = SampleReader(dataset, unscaled, pictures, decoder=decoder)
        self.cold = self._reader(self._cold_cache)
        self._fill(samples)

    def begin_round(self) -> None:
        """Replace the cold reader's cache by an empty one."""
        self._cold_cache.close()
        self._cold_cache = self._create()
        self.cold = self._reader(self._cold_cache)

    @property
    def full_entries(self) -> int:
        """The number of pictures in the full cache."""
        return self._full_cache.entries

    @property
    def cold_entries(self) -> int:
        """The number of pictures in the other one now."""
        return self._cold_cache.entries

    @property
    def bytes_per_picture(self) -> float:
        """The bytes of a picture in the full cache."""
        return (self._full_cache.used_bytes - self._full_cache.plan.pixels_at) / self.full_entries

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._full_cache.close()
        self._cold_cache.close()

    def _create(self) -> DecodedCache:
        return DecodedCache.create(self._plan())

    def _plan(self) -> CachePlan:
        budget_bytes = int(_SPARE * self._size.total_bytes) + (1 << 20)
        plan = plan_cache(budget_bytes, {_NAME: self._size})
        assert plan is not None, "a budget for all of it has room for something"
        return plan

    def _reader(self, cache: DecodedCache) -> SampleReader:
        share = cache.plan.picture_share
        pictures = DecodedPictures(cache, self._dataset.fingerprint, share)
        return SampleReader(self._dataset, self._recipe, pictures, decoder=self._decoder)

    def _fill(self, samples: NDArray[np.int64]) -> None:
        """Fill the full cache: one pass, because without DCT scaling all crops have one scale."""
        recipe = Recipe.for_split("train", batch_size=1, image_size=8, dct_scaling=False)
        pictures = DecodedPictures(self._full_cache, self._dataset.fingerprint, 1.0, _AtOnce(1.0))
        reader = SampleReader(self._dataset, recipe, pictures, decoder=self._decoder)
        pixels, labels = np.empty((1, 8, 8, 3), np.int8), np.empty(1, np.int64)
        for row in range(len(samples)):
            reader.fill(samples[row : row + 1], seed=0, epoch=0, pixels=pixels, labels=labels)
