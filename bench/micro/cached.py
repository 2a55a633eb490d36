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
from feeder.sample.cache_plan import DecodedSize, FillAllowance, aligned_bytes, plan_cache
from feeder.sample.reader import SampleReader

from .contenders import Filling

_SPARE = 1.5
"""Pictures at 1/2, 1/4 and 1/8 size take at most a third more; the directory and its page are
extra."""
_SCALED_EPOCHS = 12
"""Crops that decide which scaled pictures are filled: of 12 epochs, hardly any is missing."""


class _AtOnce(FillAllowance):
    """Admits every image to the cache."""

    def spend(self, whole_px: int, needed_px: int) -> bool:
        return True


class CachedReaders:
    """Readers of ``samples`` (n,) with a full cache and with one that ``begin_round`` empties."""

    def __init__(
        self, dataset: Dataset, recipe: Recipe, samples: NDArray[np.int64], *, decoder: Decoder
    ) -> None:
        self._dataset, self._recipe, self._decoder = dataset, recipe, decoder
        records = dataset.read_records(samples)
        pictures_bytes = [
            aligned_bytes(4 * width * height)
            for width, height in records[["width", "height"]].tolist()
        ]
        self._size = DecodedSize(samples=len(samples), picture_bytes=float(np.mean(pictures_bytes)))
        self._full_cache, self._cold_cache = self._create(), self._create()
        unscaled = msgspec.structs.replace(recipe, dct_scaling=False)
        self.full = self._reader(self._full_cache, recipe)
        self.full_unscaled = self._reader(self._full_cache, unscaled)
        self.cold = self._reader(self._cold_cache, recipe)
        # Once at full size, then at the scales that crops have.
        whole = Recipe.for_split("train", batch_size=1, image_size=8, dct_scaling=False)
        for filled, epochs in ((whole, 1), (recipe, _SCALED_EPOCHS)):
            reader = self._reader(self._full_cache, filled, _AtOnce(1.0))
            filling = Filling(filled, samples, images=1)
            for epoch in range(epochs):
                filling.epoch = epoch
                for row in range(len(samples)):
                    filling.of(reader)(row, row + 1)

    def begin_round(self) -> None:
        """Replace the cold reader's cache by an empty one."""
        self._cold_cache.close()
        self._cold_cache = self._create()
        self.cold = self._reader(self._cold_cache, self._recipe)

    @property
    def cold_entries(self) -> int:
        return self._cold_cache.entries

    @property
    def bytes_per_picture(self) -> float:
        """The bytes of an image in the full cache, with its scaled pictures."""
        return (self._full_cache.used_bytes - self._full_cache.plan.pixels_at) / self._size.samples

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._full_cache.close()
        self._cold_cache.close()

    def _create(self) -> DecodedCache:
        budget_bytes = int(_SPARE * self._size.total_bytes) + (1 << 20)
        plan = plan_cache(budget_bytes, {"bench": self._size})
        assert plan is not None, "a budget for all of it has room for something"
        return DecodedCache.create(plan)

    def _reader(
        self, cache: DecodedCache, recipe: Recipe, *allowance: FillAllowance
    ) -> SampleReader:
        pictures = DecodedPictures(
            cache, self._dataset.content, cache.plan.picture_share, *allowance
        )
        return SampleReader(self._dataset, recipe, pictures, decoder=self._decoder)
