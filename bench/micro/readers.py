"""The product's readers in the decode bench: from a decoded cache, stage by stage, and scaled.

Of two decoded caches one holds everything and serves ``sample/decoded-cache``. The other begins
each round empty and admits every image: the time that it adds to the same samples without a cache
is ``decoded-cache/fill``, in per cent.

The best possible time of a stage is that of the code that does it:

    read      copying the blob's bytes from memory to memory
    decode    one call of our decoder right after that, with the blob in the caches
    resize    one call, for the second time, so that all of the picture is in the caches

The rest of a stage's time is due to its surroundings: cold caches, system calls, the checksum,
Python. The kernels alone, decode and resize, are the limit of a sample: the time that remains if
everything else costs nothing. No image is decoded twice in a row: the branch predictor remembers
the few branches that depend on its bits.

The quality loss of DCT scaling is the PSNR of scaled crops against the same crops unscaled. Without
scaling a sample equals Pillow's resize of the full decode bit for bit, which the bench checks.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import McuGrids
from feeder.jpeg.decoders import Decoder
from feeder.jpeg.scratch import Scratch
from feeder.plan.crop import plan_crops
from feeder.plan.recipe import Recipe
from feeder.sample.cache import DecodedPictures
from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import DecodedSize, FillAllowance, aligned_bytes, plan_cache
from feeder.sample.reader import STAGES, SampleReader

from ..report import Result, single, summarise
from .contenders import Filling, PreparedSamples

EPOCHS: Final = 20  # of crops: one in 25 of ImageNet's is large enough to be scaled
LIMITS: Final = ("read", "decode", "resize")
_IDENTICAL_DB: Final = 100.0
_SCALED_EPOCHS: Final = 12  # whose crops decide which scaled pictures are filled: nearly all
_SPARE: Final = 1.5
"""Pictures at 1/2, 1/4 and 1/8 size take at most a third more; the directory and its page are
extra."""
_STAGES: Final = [stage for stage in STAGES if stage != "augment"]  # the recipes augment nothing


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


class StageTimes:
    """The stages of readers, and their limits; ``note`` is called before and after each round."""

    def __init__(
        self,
        samples: PreparedSamples,
        image_size: int,
        readers: Mapping[str, SampleReader],
        *,
        joins: Collection[str],
    ) -> None:
        """``readers`` by the suffix of their rows; ``joins``: those that decode by TurboJPEG.

        What the others leave to TurboJPEG is a part of their decoding, and no stage ``join``.
        """
        self._samples, self._readers, self._joins = samples, readers, joins
        self._copied = Scratch()
        self._out = np.empty((image_size, image_size, 3), np.int8)
        self._limits_s = dict.fromkeys(LIMITS, 0.0)
        self._totals: list[dict[str, float]] = []

    def measure_limits(self, first: int, end: int) -> None:
        """Measure the limits of samples ``first`` .. ``end`` - 1 with the current epoch's crops."""
        for row in range(first, end):
            source = self._samples.blobs[row]
            began = perf_counter()
            blob = self._copied.take(source.size)
            np.copyto(blob, source)
            copied_at = perf_counter()
            picture = self._samples.decode_blob(row, blob)
            decoded_at = perf_counter()
            self._limits_s["read"] += copied_at - began
            self._limits_s["decode"] += decoded_at - copied_at
            for _ in range(2):
                began = perf_counter()
                self._samples.resize(row, picture, self._out)
                taken_s = perf_counter() - began
            self._limits_s["resize"] += taken_s

    def note(self) -> None:
        totals = {f"limit/{name}": value for name, value in self._limits_s.items()}
        for suffix, reader in self._readers.items():
            stages = {name: reader.seconds[name] for name in _STAGES}
            if suffix not in self._joins:
                stages["decode"] += stages.pop("join")
            totals |= {f"stage/{name}{suffix}": value for name, value in stages.items()}
            totals[f"stage/rest{suffix}"] = sum(stages.values())
        totals["sample/limit"] = totals["limit/decode"] + totals["limit/resize"]
        self._totals.append(totals)

    def seconds(self, taken: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        """Return the seconds of each row, one value a round; the rest is of ``sample/whole…``."""
        rows = {
            name: [after[name] - before[name] for before, after in pairwise(self._totals)]
            for name in self._totals[0]
        }
        for suffix in self._readers:
            rest, whole = f"stage/rest{suffix}", taken[f"sample/whole{suffix}"]
            pairs = zip(whole, rows[rest], strict=True)
            rows[rest] = [max(whole_s - stages_s, 1e-9) for whole_s, stages_s in pairs]
        return rows


def measure_scaling(
    dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64]
) -> list[Result]:
    """Return the distribution of PSNR, in dB over all bytes of an image; [] if none is scaled."""
    grids = McuGrids.of_records(dataset.read_records(sample_ids))
    plain = msgspec.structs.replace(recipe, dct_scaling=False)
    readers = SampleReader(dataset, recipe), SampleReader(dataset, plain)
    values_db: list[float] = []
    for epoch in range(EPOCHS):
        sizes = {"widths": grids.width, "heights": grids.height}
        crops = plan_crops(recipe, seed=0, epoch=epoch, sample_ids=sample_ids, **sizes)
        chosen = sample_ids[crops.scales > 1]
        if chosen.size:
            scaled, exact = (
                Filling(recipe, chosen, images=len(chosen), epoch=epoch) for _ in readers
            )
            for filling, reader in zip((scaled, exact), readers, strict=True):
                filling.of(reader)(0, len(chosen))
            values_db += map(psnr_db, scaled.pixels, exact.pixels)
    if not values_db:
        return []
    name = "quality/scaled-psnr"
    shares = (5, 25, 50, 75, 95)
    mean = replace(summarise(name, "dB", values_db), value=float(np.mean(values_db)))
    percentiles = np.percentile(values_db, shares).tolist()
    rows = [single(f"{name}-p{s}", "dB", v) for s, v in zip(shares, percentiles, strict=True)]
    return [mean, *rows, single("quality/scaled-crops", "crops", len(values_db))]


def psnr_db(levels: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the PSNR of 8-bit levels in dB, at most that of identical ones."""
    error = float(np.mean(np.square(levels.astype(np.float64) - expected)))
    return _IDENTICAL_DB if error == 0 else 10 * math.log10(255**2 / error)
