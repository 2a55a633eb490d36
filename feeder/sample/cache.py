"""What the decoded cache holds for a dataset and recipe: whole pictures, or finished rows.

    a random recipe           DecodedPictures: RGBX pixels of whole images at 1/1, 1/2, 1/4 or 1/8
                              size, from which any crop is resized as if it had just been decoded
    a deterministic one       PackedRows: the finished rows of a batch, copied as they are

The key is (source, sample id), where the source is the dataset's content fingerprint and, for rows,
the recipe; a picture's sample id is marked with its scale, because the scaled IDCT gives pixels of
its own. So sessions share entries, and a dataset served under two names, or packed twice, is cached
once. Invariant: a row from the cache has the bytes that making it again would give.

Pictures are kept as RGBX, as they are decoded and resized. RGB would save a quarter of the memory,
and need either another pass over each crop or a second version of each of the resizing passes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import McuGrids, TileWindows
from feeder.jpeg.resize import SLACK_BYTES
from feeder.jpeg.scratch import ROW_BYTES
from feeder.plan.epoch import LastBatch
from feeder.plan.packing import Pixels, pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.plan.rng import derive_keys
from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import FillAllowance

NON_RANDOM_FIELDS: Final = frozenset(
    {
        *("split", "batch_size", "order_batch_size", "lanes", "working_set", "shuffle"),
        *("last_batch", "image_size", "resize_size", "crop", "scale", "ratio"),
        *("flip_probability", "dct_scaling", "interpolation", "packing"),
    }
)
"""Fields of a recipe without random effect if the crop is central and the flip certain."""

COUNTS: Final = ("hits", "misses", "fills", "moved_bytes")
"""The last is of the pixels that were read from the cache or written to it."""

_SCALE_SHIFT: Final = 56  # of a picture's scale, 1 to 8, less 1; sample ids are far below


class _Part:
    """The entries of one source in the cache, and counts of their use."""

    def __init__(self, cache: DecodedCache, source: str, share: float) -> None:
        self._cache = cache
        digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
        self._source = int.from_bytes(digest, "little")
        self._last_hash = np.uint64(min(2**64 - 1, int(share * 2**64)))
        self.hits = self.misses = self.fills = 0
        self.moved_bytes = 0

    def _find(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return offsets (n,), -1 where there is nothing, and which samples are admitted (n,)."""
        hashes = self._hash(sample_ids)
        offsets = self._cache.find(self._source, hashes, np.ascontiguousarray(sample_ids))
        return offsets, hashes <= self._last_hash

    def _claim(self, sample_id: int, size_bytes: int) -> int | None:
        hash_word = int(self._hash(np.array([sample_id]))[0])
        return self._cache.claim(self._source, hash_word, sample_id, size_bytes)

    def _keep(self, entry: int, content: NDArray[np.uint8]) -> None:
        if self._cache.write(entry, content):
            self._cache.publish(entry)
            self.fills += 1
            self.moved_bytes += content.nbytes
        else:
            self._cache.abandon(entry)

    def _hash(self, sample_ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        return derive_keys(self._source, sample_ids)


class WholeImage(NamedTuple):
    """An image to be decoded whole: its size in pixels, its scale, and where its crop's window is.

    The scale is the DCT denominator; x and y are pixels of the decoded picture.
    """

    width: int
    height: int
    mcus: int
    """In a row."""
    mcu_rows: int
    scale: int
    x: int
    y: int
    size_bytes: int
    """Of its rows and the slack after them that resizing may read."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundPictures:
    """Which of n samples are in the cache, by position 0 .. n - 1."""

    hits: list[tuple[int, NDArray[np.uint8], int]]
    """Position, the crop's window in the cache, and the stride of its rows in bytes."""
    missing: NDArray[np.int64]
    """Positions of the others."""
    to_fill: list[WholeImage | None]
    """For each missing one, the whole image if it is to fill the cache; None: only its window."""


class DecodedPictures(_Part):
    """Whole images of a dataset as RGBX rows; ``share`` of them are admitted."""

    def __init__(
        self,
        cache: DecodedCache,
        content: str,
        share: float,
        allowance: FillAllowance | None = None,
    ) -> None:
        """``content`` is the dataset's; ``allowance`` bounds the time spent on filling."""
        super().__init__(cache, f"pictures of {content}", share)
        self._allowance = allowance or FillAllowance(share)

    def find(
        self,
        sample_ids: NDArray[np.int64],
        grids: McuGrids,
        windows: TileWindows,
        scales: NDArray[np.int64],
    ) -> FoundPictures:
        """Return which of n samples are cached, and which of the others to decode whole.

        A crop is found only in its image at the crop's scale: without that, with all images cached,
        decoding the 1 crop in 29 that is scaled took a fifth of the time.
        """
        offsets, is_admitted = self._find(_keys_of(sample_ids, scales))
        strides = -(-4 * -(-grids.width // scales) // ROW_BYTES) * ROW_BYTES
        starts = offsets + windows.y // scales * strides + 4 * (windows.x // scales)
        rows, columns = -(-windows.height // scales), -(-windows.width // scales)
        ends = starts + strides * (rows - 1) + 4 * columns + SLACK_BYTES
        hits, missing = np.flatnonzero(offsets >= 0), np.flatnonzero(offsets < 0)
        self.hits += len(hits)
        self.misses += len(missing)
        self.moved_bytes += int((4 * rows * columns)[hits].sum())
        needed_px = windows.width * windows.height
        saved_px = float(needed_px[hits].sum())
        self._allowance.earn(float(needed_px.sum()) - saved_px, saved_px)
        to_fill: list[WholeImage | None] = [None] * len(missing)
        for at in np.flatnonzero(is_admitted[missing]).tolist():
            row = missing[at]
            width, height = int(grids.width[row]), int(grids.height[row])
            if self._allowance.spend(width * height, int(needed_px[row])):
                scale = int(scales[row])
                size_bytes = int(strides[row]) * -(-height // scale) + SLACK_BYTES
                x, y = int(windows.x[row]) // scale, int(windows.y[row]) // scale
                mcus = -(-width // int(grids.mcu_width_px[row]))
                mcu_rows = -(-height // int(grids.mcu_height_px[row]))
                to_fill[at] = WholeImage(width, height, mcus, mcu_rows, scale, x, y, size_bytes)
        pixels = self._cache.pixels(int((ends - starts)[hits].sum()))
        return FoundPictures(
            hits=[
                (row, pixels[start:end], stride_bytes)
                for row, start, end, stride_bytes in zip(
                    hits.tolist(),
                    starts[hits].tolist(),
                    ends[hits].tolist(),
                    strides[hits].tolist(),
                    strict=True,
                )
            ],
            missing=missing,
            to_fill=to_fill,
        )

    def claim(self, sample_id: int, whole: WholeImage) -> int | None:
        """Claim the entry of a picture, for ``keep`` or ``abandon``; None if that is impossible."""
        key = _keys_of(np.array([sample_id]), np.array([whole.scale]))
        return self._claim(int(key[0]), whole.size_bytes)

    def keep(self, entry: int, picture: NDArray[np.uint8]) -> None:
        """Publish the picture of a claimed entry."""
        self._keep(entry, picture)

    def abandon(self, entry: int) -> None:
        """Give up a claim."""
        self._cache.abandon(entry)


def _keys_of(sample_ids: NDArray[np.int64], scales: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the sample ids (n,) marked with their scales (n,); unmarked at full size."""
    return sample_ids + ((scales - 1) << _SCALE_SHIFT)


class PackedRows(_Part):
    """Finished rows of a recipe that gives a sample the same row in every epoch."""

    def __init__(self, cache: DecodedCache, content: str, recipe: Recipe, share: float) -> None:
        # How rows are put into batches does not affect their bytes.
        rows = msgspec.structs.replace(
            recipe.without_order(), split="val", shuffle=False, last_batch=LastBatch.PAD
        )
        super().__init__(cache, f"rows of {content} by {rows.fingerprint()}", share)

    def copy_found(
        self, sample_ids: NDArray[np.int64], pixels: Pixels | Sequence[Pixels]
    ) -> NDArray[np.int64]:
        """Copy cached rows into ``pixels``, n rows; return the positions of the others."""
        offsets, _ = self._find(sample_ids)
        missing = np.flatnonzero(offsets < 0)
        row_bytes = pixels[0].nbytes
        found_bytes = (len(offsets) - len(missing)) * row_bytes
        cached = self._cache.pixels(found_bytes)
        self.moved_bytes += found_bytes
        for row, offset in zip(pixels, offsets.tolist(), strict=True):
            if offset >= 0:
                row.reshape(-1).view(np.uint8)[:] = cached[offset : offset + row_bytes]
        self.hits += len(offsets) - len(missing)
        self.misses += len(missing)
        return missing

    def keep(self, sample_ids: NDArray[np.int64], rows: Sequence[Pixels]) -> None:
        """Publish rows that were just made, if they are admitted."""
        is_admitted = self._hash(sample_ids) <= self._last_hash
        for at in np.flatnonzero(is_admitted).tolist():
            entry = self._claim(int(sample_ids[at]), rows[at].nbytes)
            if entry is not None:
                self._keep(entry, rows[at].reshape(-1).view(np.uint8))


def repeats_every_epoch(recipe: Recipe) -> bool:
    """Whether a recipe gives a sample the same row whatever the seed and epoch.

    Fields other than NON_RANDOM_FIELDS may be random, but not at their defaults.
    """
    return (
        recipe.crop == "centre"
        and recipe.flip_probability in (0.0, 1.0)
        and all(
            getattr(recipe, field.name) == field.default
            for field in msgspec.structs.fields(recipe)
            if field.name not in NON_RANDOM_FIELDS
        )
    )


def part_of(
    cache: DecodedCache, name: str, dataset: Dataset, recipe: Recipe
) -> DecodedPictures | PackedRows:
    """Return the part of the cache that serves a recipe of the dataset served as ``name``."""
    plan = cache.plan
    if repeats_every_epoch(recipe):
        row_bytes = pixel_layout_of(recipe.packing).image_bytes(recipe.image_size)
        share = plan.row_share(name, dataset.layout.samples, row_bytes)
        return PackedRows(cache, dataset.content, recipe, share)
    return DecodedPictures(cache, dataset.content, plan.picture_share)
