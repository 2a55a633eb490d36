"""The sample paths that the decode bench compares, on the same images and crops.

Without partial decoding (``decode_full``, ``sample_full``) a loader has the ordinary JPEG: the
stored image's own coefficients and Huffman tables, as ``feeder unpack`` restores them. It decodes
the whole of it with PyTurboJPEG into reused scratch, then resizes, mirrors and packs the crop with
Pillow-SIMD and numpy, to the same bytes; ``…_same_code`` does that with TurboJPEG and the product's
own functions. Both read their JPEG with one pread from a file in the page cache, as the product
reads its blob.

With partial decoding (``decode_tiled``) the crop's tiles are decoded from the blob in memory by our
own decoder, or joined and decoded by TurboJPEG (``…_turbojpeg``).
"""

import os
import tempfile
from collections.abc import Callable
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from turbojpeg import TJPF_RGBX

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import (
    DECODER_SLACK_BYTES,
    TileGrids,
    TileWindows,
    join_segments,
    joined_room_bytes,
    layout_of,
    whole_jpeg,
)
from feeder.jpeg.decode import READ_SLACK_BYTES, decode_rgbx, decode_window, turbojpeg
from feeder.jpeg.recode import SegmentLayout, Subsampling
from feeder.jpeg.resize import resize_pack, resize_pack_reference
from feeder.jpeg.scratch import Scratch
from feeder.plan.crop import CropPlan, plan_crops
from feeder.plan.recipe import Recipe
from feeder.sample.reader import DecodePlan, plan_decode

_Layout = tuple[int, int, int, int, int, int]
_Window = tuple[int, int, int, int, int, int]
_Box = tuple[float, float, float, float]


class _Resize(Protocol):
    """``feeder.jpeg.resize.resize_pack`` or its reference."""

    def __call__(
        self,
        picture: NDArray[np.uint8],
        stride_bytes: int,
        width: int,
        height: int,
        box: tuple[float, float, float, float],
        *,
        mirrored: bool,
        out: NDArray[np.int8],
    ) -> None: ...


_Decode = Callable[[NDArray[np.uint8], int, int], tuple[NDArray[np.uint8], int]]
"""Decodes a JPEG of a width and height; returns RGBX, with room after it, and its stride."""


class PreparedSamples:
    """n samples in serving order, with the input of each decoding method.

    The methods with ``first`` and ``end`` do the work for the samples first .. end - 1; the crops
    are those of seed 0 and the epoch begun last.
    """

    def __init__(
        self,
        dataset: Dataset,
        recipe: Recipe,
        sample_ids: NDArray[np.int64],
        *,
        epoch: int = 0,
    ) -> None:
        self.sample_ids = sample_ids
        self._recipe = recipe
        self._rgbx, self._joined, self._read = Scratch(), Scratch(), Scratch()
        records = dataset.read_records(sample_ids)
        self._layouts: list[_Layout] = records[list(SegmentLayout._fields)].tolist()
        self._grids = TileGrids.of_records(records)
        self.widths, self.heights = self._grids.width, self._grids.height
        self.subsamplings = records["subsampling"]
        self.begin_epoch(epoch)
        self._blobs: list[NDArray[np.uint8]] = []
        self.jpegs: list[bytes] = []
        self._offsets = [0]
        self._file = tempfile.TemporaryFile(prefix="feeder-bench-")  # noqa: SIM115 -- see __exit__
        places = dataset.find_blobs(sample_ids, records)
        for place, record in zip(places, records, strict=True):
            blob = np.zeros(place.blob_bytes + READ_SLACK_BYTES, np.uint8)
            dataset.read_blob(place, blob)
            size = int(record["width"]), int(record["height"])
            jpeg = whole_jpeg(blob[: place.blob_bytes], layout_of(record), *size)
            self._blobs.append(blob)
            self.jpegs.append(jpeg)
            self._offsets.append(self._offsets[-1] + len(jpeg))
            self._file.write(jpeg)
        self._file.flush()

    def begin_epoch(self, epoch: int) -> None:
        """Draw the crops of another epoch."""
        self.epoch = epoch
        self.crops = self.plan(0, len(self.sample_ids))
        plan = self._plan_decode(self.crops.scales)
        self._scales: list[int] = self.crops.scales.tolist()
        self._windows = _window_fields(plan.windows)
        self._joined_windows = _window_fields(
            self._plan_decode(self.crops.scales, for_joining=True).windows
        )
        self._unscaled_windows = _window_fields(
            self._plan_decode(np.ones(len(self.sample_ids), np.int64)).windows
        )
        # Counted from the window's edge: good enough for time, and one argument less.
        self._boxes: list[_Box] = [
            (left, top, right, bottom)
            for left, top, right, bottom in (plan.boxes - np.tile(plan.origins, 2)).tolist()
        ]

    def decode_full(self, first: int, end: int) -> None:
        """Decode whole ordinary JPEGs, from memory, with PyTurboJPEG."""
        self._decode_whole(first, end, self._decode_with_pyturbojpeg)

    def decode_full_same_code(self, first: int, end: int) -> None:
        """The same with the product's own call of the decoder."""
        self._decode_whole(first, end, self._decode)

    def decode_tiled(self, first: int, end: int, version: str | None = None) -> None:
        """Decode the tiles of the crops as the recipe asks, from memory, with our own decoder."""
        for row in range(first, end):
            self._decode_own(row, self._blobs[row], self._windows[row], self._scales[row], version)

    def decode_tiled_unscaled(self, first: int, end: int) -> None:
        """The same at full size, also for crops of at least twice the output size."""
        for row in range(first, end):
            self._decode_own(row, self._blobs[row], self._unscaled_windows[row], 1)

    def decode_tiled_turbojpeg(self, first: int, end: int) -> None:
        """The same as the recipe asks, joined and decoded with TurboJPEG."""
        for row in range(first, end):
            window = self._joined_windows[row]
            self._join_and_decode(row, self._blobs[row], window, self._scales[row])

    def decode_codes(self, first: int, end: int) -> None:
        """Decode the same tiles at 1/8: all their codes are read, hardly anything is transformed.

        4:2:2 is decoded at 1/4, the least that our decoder does not leave to TurboJPEG.
        """
        for row in range(first, end):
            scale = 4 if self.subsamplings[row] == Subsampling.S422 else 8
            self._decode_own(row, self._blobs[row], self._windows[row], scale)

    def decode_blob(self, row: int, blob: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
        """Decode as ``decode_tiled`` does from ``blob``, a copy of ``blob(row)``.

        Returns the picture, in the scratch, and its stride.
        """
        return self._decode_own(row, blob, self._windows[row], self._scales[row])

    def sample_full(self, first: int, end: int, pixels: NDArray[np.int8]) -> None:
        """Do all that a loader with these libraries does; ``pixels`` is (end - first, S, S, 3)."""
        self._make_whole(first, end, pixels, self._decode_with_pyturbojpeg, resize_pack_reference)

    def sample_full_same_code(self, first: int, end: int, pixels: NDArray[np.int8]) -> None:
        """The same with the product's own decoding, resizing and packing."""
        self._make_whole(first, end, pixels, self._decode, resize_pack)

    def plan(self, first: int, end: int) -> CropPlan:
        """Draw the crops of samples first .. end - 1, as a loader does for a batch."""
        return plan_crops(
            self._recipe,
            seed=0,
            epoch=self.epoch,
            sample_ids=self.sample_ids[first:end],
            widths=self.widths[first:end],
            heights=self.heights[first:end],
        )

    def read_jpeg(self, row: int) -> bytes:
        """Read a sample's ordinary JPEG from its file, in the page cache."""
        size_bytes = self._offsets[row + 1] - self._offsets[row]
        return os.pread(self._file.fileno(), size_bytes, self._offsets[row])

    def blob(self, row: int) -> NDArray[np.uint8]:
        """Return the sample's blob, with READ_SLACK_BYTES after it."""
        return self._blobs[row]

    def box(self, row: int) -> tuple[int, int, _Box, bool]:
        """Return what resizing takes: the decoded picture's size, box in it, and mirrored."""
        *_, width, height = self._windows[row]
        scale = self._scales[row]
        size = -(-width // scale), -(-height // scale)
        return *size, self._boxes[row], bool(self.crops.flips[row])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _plan_decode(self, scales: NDArray[np.int64], *, for_joining: bool = False) -> DecodePlan:
        size = self._recipe.image_size
        return plan_decode(self._grids, self.crops.boxes, scales, size, for_joining=for_joining)

    def _decode_whole(self, first: int, end: int, decode: _Decode) -> None:
        for row in range(first, end):
            jpeg = np.frombuffer(self.jpegs[row], np.uint8)
            decode(jpeg, int(self.widths[row]), int(self.heights[row]))

    def _make_whole(
        self, first: int, end: int, pixels: NDArray[np.int8], decode: _Decode, resize: _Resize
    ) -> None:
        crops = self.plan(first, end)
        for row, (x, y, w, h), flip, out in zip(
            range(first, end), crops.boxes.tolist(), crops.flips.tolist(), pixels, strict=True
        ):
            jpeg = self._read.take(self._offsets[row + 1] - self._offsets[row])
            os.preadv(self._file.fileno(), [jpeg.data], self._offsets[row])
            width, height = int(self.widths[row]), int(self.heights[row])
            picture, stride_bytes = decode(jpeg, width, height)
            box = (x, y, x + w, y + h)
            resize(picture, stride_bytes, width, height, box, mirrored=flip, out=out)

    def _decode_own(
        self,
        row: int,
        blob: NDArray[np.uint8],
        window: _Window,
        scale: int,
        version: str | None = None,
    ) -> tuple[NDArray[np.uint8], int]:
        """Decode as the product does, falling back to TurboJPEG where it does."""
        *_, width, height = window
        picture, stride_bytes = self._rgbx.take_picture(-(-width // scale), -(-height // scale))
        if decode_window(
            blob,
            len(blob) - READ_SLACK_BYTES,
            self._layouts[row],
            window,
            scale,
            stride_bytes,
            picture,
            version=version,
        ):
            return picture, stride_bytes
        return self._join_and_decode(row, blob, window, scale)

    def _join_and_decode(
        self, row: int, blob: NDArray[np.uint8], window: _Window, scale: int
    ) -> tuple[NDArray[np.uint8], int]:
        layout, blob_bytes = self._layouts[row], len(blob) - READ_SLACK_BYTES
        joined = self._joined.take(joined_room_bytes(blob_bytes, layout[1]))
        size_bytes = join_segments(blob[:blob_bytes], *layout, *window, joined)
        size_bytes += DECODER_SLACK_BYTES
        return self._decode(joined[:size_bytes], window[-2], window[-1], scale)

    def _decode(
        self, jpeg: NDArray[np.uint8], width: int, height: int, scale: int = 1
    ) -> tuple[NDArray[np.uint8], int]:
        """Decode to RGBX in the scratch as the product does; return it and its stride."""
        picture, stride_bytes = self._rgbx.take_picture(-(-width // scale), -(-height // scale))
        decode_rgbx(jpeg, width, height, scale, stride_bytes, picture)
        return picture, stride_bytes

    def _decode_with_pyturbojpeg(
        self, jpeg: NDArray[np.uint8], width: int, height: int
    ) -> tuple[NDArray[np.uint8], int]:
        """Call PyTurboJPEG as its users do, with a buffer that is reused."""
        size_bytes = 4 * width * height
        scratch = self._rgbx.take_picture(width, height)[0]
        picture = scratch[:size_bytes].reshape(height, width, 4)
        turbojpeg().decode(jpeg, pixel_format=TJPF_RGBX, dst=picture)
        return scratch, 4 * width


def _window_fields(windows: TileWindows) -> list[_Window]:
    """Return each sample's window in the order of ``join_segments``'s arguments."""
    fields = ("first_mcu", "end_mcu", "first_row", "end_row", "width", "height")
    return list(zip(*(getattr(windows, field).tolist() for field in fields), strict=True))
