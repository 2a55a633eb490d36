"""What the decoded cache is to one dataset and recipe: whole pictures, or rows that never change.

    a recipe that draws       DecodedPictures: RGBX pixels of whole images, any crop of which is
                              resized as if it had just been decoded
    one that does not         PackedRows: the finished rows of a batch, copied as they are

Both are found by (what they are made from, sample id) alone, so sessions that agree on that share
them, and a dataset under two names has them once. Invariant: a row that comes out of the cache has
the bytes that making it anew would give.

Pictures are kept as RGBX, as they are decoded and resized. RGB would take a quarter less, and cost
either a pass over all of the crop for each row or a second version of each of the resizing passes.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import TileGrids, TileWindows
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
        *("split", "batch_size", "order_batch_size", "shuffle", "last_batch"),
        *("image_size", "resize_size", "crop", "scale", "ratio", "flip_probability"),
        *("dct_scaling", "interpolation", "packing"),
    }
)
"""Fields of a recipe that draw nothing once the crop is central and the flip certain."""

COUNTS: Final = ("hits", "misses", "fills")


class _Part:
    """The entries of one source in the cache, and what was done with them."""

    def __init__(self, cache: DecodedCache, source: str, share: float) -> None:
        self._cache = cache
        digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
        self._source = int.from_bytes(digest, "little")
        self._last_hash = np.uint64(min(2**64 - 1, int(share * 2**64)))
        self.hits = self.misses = self.fills = 0

    def _find(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return places (n,), -1 where there is nothing, and which samples are let in (n,)."""
        hashes = self._hash(sample_ids)
        places = self._cache.find(self._source, hashes, np.ascontiguousarray(sample_ids))
        return places, hashes <= self._last_hash

    def _claim(self, sample_id: int, size_bytes: int) -> int | None:
        hash_word = int(self._hash(np.array([sample_id]))[0])
        return self._cache.claim(self._source, hash_word, sample_id, size_bytes)

    def _keep(self, entry: int, content: NDArray[np.uint8]) -> None:
        if self._cache.write(entry, content):
            self._cache.publish(entry)
            self.fills += 1
        else:
            self._cache.abandon(entry)

    def _hash(self, sample_ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        return derive_keys(self._source, sample_ids)


class WholeImage(NamedTuple):
    """An image that is to be decoded whole: its size in pixels, and where its crop's window is."""

    width: int
    height: int
    x: int
    y: int
    size_bytes: int
    """Of its rows, with what resizing may read after them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FoundPictures:
    """What there is of n samples, by their positions 0 .. n - 1."""

    hits: list[tuple[int, NDArray[np.uint8], int]]
    """Position, the crop's window in the cache, and the stride of its rows in bytes."""
    left: NDArray[np.int64]
    """Positions of the others."""
    wholes: list[WholeImage | None]
    """For each of these, what to decode for the cache too; None where that is its window alone."""


class DecodedPictures(_Part):
    """Whole images of a dataset as RGBX rows; ``share`` of them are let in."""

    def __init__(
        self,
        cache: DecodedCache,
        dataset_fingerprint: str,
        share: float,
        allowance: FillAllowance | None = None,
    ) -> None:
        """``allowance`` bounds what filling takes; by default as ``FillAllowance`` has it."""
        super().__init__(cache, f"pictures of {dataset_fingerprint}", share)
        self._allowance = allowance or FillAllowance(share)

    def find(
        self,
        sample_ids: NDArray[np.int64],
        grids: TileGrids,
        windows: TileWindows,
        scales: NDArray[np.int64],
    ) -> FoundPictures:
        """Return what is here of n samples, and which of the others are to be decoded whole.

        A crop at another scale than 1 comes from its tiles whether its image is here or not: the
        scaled IDCT has other pixels.
        """
        places, let_in = self._find(sample_ids)
        is_hit = (places >= 0) & (scales == 1)
        strides = -(-4 * grids.width // ROW_BYTES) * ROW_BYTES
        starts = places + windows.y * strides + 4 * windows.x
        ends = starts + strides * (windows.height - 1) + 4 * windows.width + SLACK_BYTES
        hits, left = np.flatnonzero(is_hit), np.flatnonzero(~is_hit)
        self.hits += len(hits)
        self.misses += len(left)
        needed_px = windows.width * windows.height
        saved_px = float(needed_px[hits].sum())
        self._allowance.earn(float(needed_px.sum()) - saved_px, saved_px)
        wholes: list[WholeImage | None] = [None] * len(left)
        may_fill = (let_in & (places < 0) & (scales == 1))[left]
        for at in np.flatnonzero(may_fill).tolist():
            row = left[at]
            width, height = int(grids.width[row]), int(grids.height[row])
            if self._allowance.spend(width * height, int(needed_px[row])):
                size_bytes = int(strides[row]) * height + SLACK_BYTES
                x, y = int(windows.x[row]), int(windows.y[row])
                wholes[at] = WholeImage(width, height, x, y, size_bytes)
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
            left=left,
            wholes=wholes,
        )

    def claim(self, sample_id: int, whole: WholeImage) -> int | None:
        """Claim the entry of a picture, to be given to ``keep`` or ``abandon``; None: leave it."""
        return self._claim(sample_id, whole.size_bytes)

    def keep(self, entry: int, picture: NDArray[np.uint8]) -> None:
        """Put the picture of a claimed entry there for everybody."""
        self._keep(entry, picture)

    def abandon(self, entry: int) -> None:
        """Give up a claim."""
        self._cache.abandon(entry)


class PackedRows(_Part):
    """Finished rows of a recipe that makes the same of a sample in every epoch."""

    def __init__(
        self, cache: DecodedCache, dataset_fingerprint: str, recipe: Recipe, share: float
    ) -> None:
        # How rows make batches does not shape a row.
        rows = msgspec.structs.replace(
            recipe,
            split="val",
            batch_size=1,
            order_batch_size=1,
            shuffle=False,
            last_batch=LastBatch.PAD,
        )
        super().__init__(cache, f"rows of {dataset_fingerprint} by {rows.fingerprint()}", share)

    def copy_found(self, sample_ids: NDArray[np.int64], pixels: Pixels) -> NDArray[np.int64]:
        """Copy what is here into ``pixels``, n rows; return the positions of the others."""
        places, _ = self._find(sample_ids)
        left = np.flatnonzero(places < 0)
        row_bytes = pixels[0].nbytes
        kept = self._cache.pixels((len(places) - len(left)) * row_bytes)
        for row, place in zip(pixels, places.tolist(), strict=True):
            if place >= 0:
                row.reshape(-1).view(np.uint8)[:] = kept[place : place + row_bytes]
        self.hits += len(places) - len(left)
        self.misses += len(left)
        return left

    def keep(self, sample_ids: NDArray[np.int64], rows: Sequence[Pixels]) -> None:
        """Put rows that were just made there for everybody, as far as they are let in."""
        let_in = self._hash(sample_ids) <= self._last_hash
        for at in np.flatnonzero(let_in).tolist():
            entry = self._claim(int(sample_ids[at]), rows[at].nbytes)
            if entry is not None:
                self._keep(entry, rows[at].reshape(-1).view(np.uint8))


def repeats_every_epoch(recipe: Recipe) -> bool:
    """Whether a recipe makes the same of a sample whatever seed and epoch.

    What a recipe can do beyond those fields may draw, and its default is not to do it.
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
        return PackedRows(cache, dataset.fingerprint, recipe, share)
    return DecodedPictures(cache, dataset.fingerprint, plan.picture_share)
