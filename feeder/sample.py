"""The way of a sample, from its shard to its place in a batch's slot: the hot path.

    read      one pread of the sample's blob into a reused buffer
    join      the tiles that the crop touches, as one small JPEG, into a second one
    decode    that JPEG to RGBX, at 1/1, 1/2, 1/4 or 1/8 size, into a third
    resize    the crop's box in that picture, antialiased, mirrored, packed into the slot
    augment   only where the recipe says so; ``feeder.finish`` then resizes and packs too

The crop is drawn before any pixel is touched. The result equals decoding the whole image with
libjpeg-turbo and calling ``Image.resize(size, BILINEAR, box=box)`` on it, bit for bit, at scale 1.
Nothing is allocated per image; errors are caught once, around a sample.
"""

from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from feeder.augment import Augmentation
from feeder.crop import plan_crops
from feeder.dataset import BlobPlace, Dataset
from feeder.decode import decode_rgbx
from feeder.errors import DatasetError
from feeder.finish import Finisher
from feeder.packing import Pixels, pixel_layout_of
from feeder.recipe import Recipe
from feeder.recode import SegmentLayout
from feeder.resize import FILTER_SUPPORT, Filter, resize_pack
from feeder.scratch import Scratch
from feeder.tiles import (
    DECODER_SLACK_BYTES,
    TileGrids,
    TileWindows,
    cover_boxes,
    join_segments,
    joined_room_bytes,
)

STAGES = ("read", "join", "decode", "resize", "augment")

_LAYOUT_FIELDS = list(SegmentLayout._fields)
_Layout = tuple[int, int, int, int, int]
_Window = tuple[int, int, int, int, int, int]

_BOX_ROUNDING_PX = 1 / 64
"""Pillow keeps boxes as float32: coordinates below 65536 are off by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DecodePlan:
    """What to decode of n samples, and the box within it that becomes the picture."""

    windows: TileWindows
    boxes: NDArray[np.float64]
    """(n, 4): left, top, right, bottom in pixels of the decoded window."""


def plan_decode(
    grids: TileGrids,
    boxes: NDArray[np.float64],
    scales: NDArray[np.int64],
    image_size: int,
    support_steps: float = 1.0,
    *,
    whole: bool = False,
) -> DecodePlan:
    """Return the tiles that resizing ``boxes`` (n, 4: x, y, w, h in source pixels) will look at.

    Pillow's bilinear filter has a support of one step, or of one pixel when enlarging, around the
    centre of each output pixel, so it reads a little past the box, rounding to whole pixels as in
    ``precompute_coeffs`` of its Resample.c. ``scales`` (n,) are the DCT denominators,
    ``support_steps`` is another filter's support. All of each image's tiles where ``whole``: the
    same pixels, for more work.
    """
    start = boxes[:, :2] / scales[:, None]
    side = boxes[:, 2:] / scales[:, None]
    step = side / image_size
    reach = support_steps * np.maximum(step, 1.0) - 0.5 * step + 0.5 + _BOX_ROUNDING_PX
    first = np.floor(start - reach + 1.0).astype(np.int64) * scales[:, None]
    end = np.floor(start + side + reach).astype(np.int64) * scales[:, None]
    if whole:
        first, end = np.zeros_like(first), np.stack([grids.width, grids.height], axis=1)
    windows = cover_boxes(grids, first[:, 0], first[:, 1], end[:, 0], end[:, 1], scales)
    # Rounded as Pillow would round the box in the whole picture, so that the weights are the same.
    corners = np.concatenate([start, start + side], axis=1).astype(np.float32).astype(np.float64)
    origin = np.stack([windows.x, windows.y], axis=1) // scales[:, None]
    return DecodePlan(
        windows=windows,
        boxes=corners - np.tile(origin, 2),
    )


class SampleReader:
    """Turns samples of one dataset into rows of a batch of one recipe; not thread-safe.

    One lives in each worker process for each dataset and recipe; it owns the scratch buffers.
    ``seconds`` adds up the time spent in each of STAGES.
    """

    def __init__(self, dataset: Dataset, recipe: Recipe) -> None:
        self._dataset = dataset
        self._recipe = recipe
        self._finisher = Finisher.for_recipe(recipe)
        self._planar = pixel_layout_of(recipe.packing).channels_first
        self._filter: Filter = "bilinear"
        if recipe.interpolation != "bilinear-no-antialias":  # which the finisher does
            self._filter = recipe.interpolation
        # At least 1: all of the box must be in the decoded picture, also what box leaves unread.
        self._support_steps = max(1.0, FILTER_SUPPORT[self._filter])
        self._blob, self._joined, self._rgbx = Scratch(), Scratch(), Scratch()
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.images = 0

    def fill(
        self,
        sample_ids: NDArray[np.int64],
        *,
        seed: int,
        epoch: int,
        pixels: Pixels,
        labels: NDArray[np.int64],
    ) -> None:
        """Write the samples into ``pixels`` (n, size, size, 3) and ``labels`` (n,), both in place.

        Pixels are int8, or of the type and shape of the recipe's packing, and C-contiguous. Raises
        DatasetError naming the first sample that is damaged.
        """
        records = self._dataset.read_records(sample_ids)
        grids = TileGrids.of_records(records)
        crops = plan_crops(
            self._recipe,
            seed=seed,
            epoch=epoch,
            sample_ids=sample_ids,
            widths=grids.width,
            heights=grids.height,
        )
        plan = plan_decode(
            grids,
            crops.boxes,
            crops.scales,
            self._recipe.image_size,
            self._support_steps,
            whole=not self._recipe.partial_decode,
        )
        augmentations: list[Augmentation] | list[None] = [None] * len(sample_ids)
        if self._finisher is not None:
            augmentations = self._finisher.plan(seed=seed, epoch=epoch, sample_ids=sample_ids)
        labels[:] = records["label"]
        rows = zip(
            self._dataset.find_blobs(sample_ids, records),
            records[_LAYOUT_FIELDS].tolist(),
            _window_fields(plan.windows),
            plan.boxes.tolist(),
            crops.scales.tolist(),
            crops.flips.tolist(),
            augmentations,
            pixels,
            strict=True,
        )
        for place, *row in rows:
            try:
                self._fill_one(place, *row)
            except ValueError as error:
                name = self._dataset.describe(place.sample_id)
                raise DatasetError(
                    f"{name} does not decode ({error}): check the dataset with "
                    f"`feeder verify {self._dataset.path}` and pack it again"
                ) from error

    def _fill_one(
        self,
        place: BlobPlace,
        layout: _Layout,
        window: _Window,
        box: tuple[float, float, float, float],
        scale: int,
        flip: bool,
        augmentation: Augmentation | None,
        out: Pixels,
    ) -> None:
        started = perf_counter()
        *_, source_width, source_height = window
        blob = self._dataset.read_blob(place, self._blob.take(place.blob_bytes))
        read = perf_counter()

        joined = self._joined.take(joined_room_bytes(place.blob_bytes, layout[1]))
        joined_bytes = join_segments(blob, *layout, *window, joined) + DECODER_SLACK_BYTES
        joined_at = perf_counter()

        width, height = -(-source_width // scale), -(-source_height // scale)
        picture, stride_bytes = self._rgbx.take_picture(width, height)
        decode_rgbx(
            joined[:joined_bytes], source_width, source_height, scale, stride_bytes, picture
        )
        decoded = perf_counter()

        augment_s = 0.0
        shown = (picture, stride_bytes, width, height, box)
        if self._finisher is None or augmentation is None:
            resize_pack(
                *shown, mirrored=flip, out=out, planar=self._planar, resampling=self._filter
            )
        else:
            augment_s = self._finisher.finish(
                *shown, mirrored=flip, augmentation=augmentation, out=out
            )
        seconds = self.seconds
        seconds["read"] += read - started
        seconds["join"] += joined_at - read
        seconds["decode"] += decoded - joined_at
        seconds["resize"] += perf_counter() - decoded - augment_s
        seconds["augment"] += augment_s
        self.images += 1


def _window_fields(windows: TileWindows) -> list[_Window]:
    """Return for each sample what ``join_segments`` takes of its window, as plain integers."""
    fields = ("first_column", "end_column", "first_row", "end_row", "width", "height")
    return list(zip(*(getattr(windows, field).tolist() for field in fields), strict=True))
