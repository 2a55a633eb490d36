"""The sample paths that the decode bench compares, on the same images and crops.

Without partial decoding (``decode_full``, ``sample_full``) a loader has the ordinary JPEG: the
stored image's coefficients with the best Huffman tables, as ``feeder unpack`` writes it. It decodes
the whole of it with PyTurboJPEG into reused scratch, then resizes, mirrors and packs the crop with
Pillow-SIMD and numpy, to the same bytes; ``…_same_code`` does that with TurboJPEG and the product's
own functions. Both read their JPEG with one pread from a file in the page cache, as the product
reads its blob.

With partial decoding (``decode_tiled``) the crop's tiles are decoded from the blob in memory by our
own decoder. TurboJPEG (``…_tiled_turbojpeg``) has a JPEG of the same tiles, made beforehand: what
it would gain if a dataset could hold every crop's tiles as a JPEG. The ratio of the two is what
blobs without Huffman codes, and the decoder for them, gain.
"""

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray
from turbojpeg import TJPF_RGBX

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import McuGrids, TileWindows, rebuild_jpeg, whole_jpeg
from feeder.jpeg.decode import READ_SLACK_BYTES, decode_rgbx, decode_window, turbojpeg
from feeder.jpeg.recode import Subsampling
from feeder.jpeg.resize import resize_pack, resize_pack_reference
from feeder.jpeg.scratch import Scratch
from feeder.plan.crop import CropPlan, plan_crops
from feeder.plan.recipe import Recipe
from feeder.sample.reader import DecodePlan, plan_decode

from ..report import Result, single, summarise

_Window = tuple[int, int, int, int, int, int]
_Box = tuple[float, float, float, float]
_Origin = tuple[int, int]


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


class _JpegFile:
    """JPEGs in a file that stays in the page cache, one for each sample."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="feeder-bench-")  # noqa: SIM115 -- see close
        self._offsets = [0]

    def write(self, jpegs: Sequence[bytes]) -> None:
        """Replace what is in the file."""
        self._file.seek(0)
        self._file.truncate()
        self._offsets = [0]
        for jpeg in jpegs:
            self._offsets.append(self._offsets[-1] + self._file.write(jpeg))
        self._file.flush()

    def read(self, row: int) -> bytes:
        """Read a sample's JPEG."""
        size_bytes = self._offsets[row + 1] - self._offsets[row]
        return os.pread(self._file.fileno(), size_bytes, self._offsets[row])

    def read_into(self, row: int, scratch: Scratch) -> NDArray[np.uint8]:
        """Read a sample's JPEG into the scratch and return it."""
        jpeg = scratch.take(self._offsets[row + 1] - self._offsets[row])
        os.preadv(self._file.fileno(), [jpeg.data], self._offsets[row])
        return jpeg

    def close(self) -> None:
        self._file.close()


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
        self._rgbx, self._read = Scratch(), Scratch()
        self._records = records = dataset.read_records(sample_ids)
        self._grids = McuGrids.of_records(records)
        self.widths, self.heights = self._grids.width, self._grids.height
        self.subsamplings, self.blob_bytes = records["subsampling"], records["blob_bytes"]
        self._blobs: list[NDArray[np.uint8]] = []
        self.jpegs: list[bytes] = []
        self._whole_file, self._tiled_file = _JpegFile(), _JpegFile()
        places = dataset.find_blobs(sample_ids, records)
        for place, record in zip(places, records, strict=True):
            blob = np.zeros(place.blob_bytes + READ_SLACK_BYTES, np.uint8)
            dataset.read_blob(place, blob)
            self._blobs.append(blob)
            self.jpegs.append(whole_jpeg(blob[: place.blob_bytes], record))
        self._whole_file.write(self.jpegs)
        self.begin_epoch(epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the crops of another epoch."""
        self.epoch = epoch
        self.crops = self.plan(0, len(self.sample_ids))
        plan = self._plan_decode(self.crops.scales)
        self._scales: list[int] = self.crops.scales.tolist()
        self._windows = _window_fields(plan.windows)
        self._tiled_jpegs = [
            rebuild_jpeg(blob[:-READ_SLACK_BYTES], *window)
            for blob, window in zip(self._blobs, self._windows, strict=True)
        ]
        self._tiled_file.write(self._tiled_jpegs)
        self._unscaled_windows = _window_fields(
            self._plan_decode(np.ones(len(self.sample_ids), np.int64)).windows
        )
        self._boxes: list[_Box] = plan.boxes.tolist()
        self._origins: list[_Origin] = plan.origins.tolist()

    def decode_full(self, first: int, end: int) -> None:
        """Decode whole ordinary JPEGs, from memory, with PyTurboJPEG."""
        self._decode_whole(first, end, self._decode_with_pyturbojpeg)

    def decode_full_same_code(self, first: int, end: int) -> None:
        """The same with the product's own call of the decoder."""
        self._decode_whole(first, end, self._decode)

    def decode_tiled(self, first: int, end: int, version: str | None = None) -> None:
        """Decode the tiles of the crops as the recipe asks, from memory, with our own decoder."""
        for row in range(first, end):
            self._decode_own(self._blobs[row], self._windows[row], self._scales[row], version)

    def decode_tiled_unscaled(self, first: int, end: int) -> None:
        """The same at full size, also for crops of at least twice the output size."""
        for row in range(first, end):
            self._decode_own(self._blobs[row], self._unscaled_windows[row], 1)

    def decode_tiled_turbojpeg(self, first: int, end: int) -> None:
        """Decode JPEGs of the same tiles as the recipe asks, from memory, with TurboJPEG."""
        for row in range(first, end):
            *_, width, height = self._windows[row]
            jpeg = np.frombuffer(self._tiled_jpegs[row], np.uint8)
            self._decode(jpeg, width, height, self._scales[row])

    def decode_coefficients(self, first: int, end: int) -> None:
        """Decode the same tiles at 1/8: all coefficients are read, hardly anything is transformed.

        4:2:2 is decoded at 1/4, the least that our decoder does not leave to TurboJPEG.
        """
        for row in range(first, end):
            scale = 4 if self.subsamplings[row] == Subsampling.S422 else 8
            self._decode_own(self._blobs[row], self._windows[row], scale)

    def decode_blob(self, row: int, blob: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
        """Decode as ``decode_tiled`` does from ``blob``, a copy of ``blob(row)``.

        Returns the picture, in the scratch, and its stride.
        """
        return self._decode_own(blob, self._windows[row], self._scales[row])

    def sample_full(self, first: int, end: int, pixels: NDArray[np.int8]) -> None:
        """Do all that a loader with these libraries does; ``pixels`` is (end - first, S, S, 3)."""
        self._make_whole(first, end, pixels, self._decode_with_pyturbojpeg, resize_pack_reference)

    def sample_full_same_code(self, first: int, end: int, pixels: NDArray[np.int8]) -> None:
        """The same with the product's own decoding, resizing and packing."""
        self._make_whole(first, end, pixels, self._decode, resize_pack)

    def sample_tiled_turbojpeg(
        self, first: int, end: int, pixels: NDArray[np.int8], version: str | None = None
    ) -> None:
        """Do the same from JPEGs of the crops' tiles; ``version`` is that of resizing."""
        grids = McuGrids.of_records(self._records[first:end])
        crops = self.plan(first, end)
        plan = plan_decode(grids, crops.boxes, crops.scales, self._recipe.image_size)
        for row, window, scale, box, origin, flip, out in zip(
            range(first, end),
            _window_fields(plan.windows),
            crops.scales.tolist(),
            plan.boxes.tolist(),
            plan.origins.tolist(),
            crops.flips.tolist(),
            pixels,
            strict=True,
        ):
            *_, width, height = window
            jpeg = self._tiled_file.read_into(row, self._read)
            picture, stride_bytes = self._decode(jpeg, width, height, scale)
            resize_pack(
                picture,
                stride_bytes,
                -(-width // scale),
                -(-height // scale),
                box,
                origin=origin,
                mirrored=flip,
                out=out,
                version=version,
            )

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
        return self._whole_file.read(row)

    def blob(self, row: int) -> NDArray[np.uint8]:
        """Return the sample's blob, with READ_SLACK_BYTES after it."""
        return self._blobs[row]

    def box(self, row: int) -> tuple[int, int, _Box, _Origin, bool]:
        """Return what resizing takes: the picture's size, the crop's box, origin, and mirrored."""
        *_, width, height = self._windows[row]
        scale = self._scales[row]
        size = -(-width // scale), -(-height // scale)
        return *size, self._boxes[row], self._origins[row], bool(self.crops.flips[row])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._whole_file.close()
        self._tiled_file.close()

    def _plan_decode(self, scales: NDArray[np.int64]) -> DecodePlan:
        return plan_decode(self._grids, self.crops.boxes, scales, self._recipe.image_size)

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
            jpeg = self._whole_file.read_into(row, self._read)
            width, height = int(self.widths[row]), int(self.heights[row])
            picture, stride_bytes = decode(jpeg, width, height)
            box = (x, y, x + w, y + h)
            resize(picture, stride_bytes, width, height, box, mirrored=flip, out=out)

    def _decode_own(
        self,
        blob: NDArray[np.uint8],
        window: _Window,
        scale: int,
        version: str | None = None,
    ) -> tuple[NDArray[np.uint8], int]:
        """Decode as the product does, falling back to TurboJPEG where it does."""
        *_, width, height = window
        blob_bytes = len(blob) - READ_SLACK_BYTES
        picture, stride_bytes = self._rgbx.take_picture(-(-width // scale), -(-height // scale))
        if decode_window(
            blob,
            blob_bytes,
            window,
            scale,
            stride_bytes,
            picture,
            version=version,
        ):
            return picture, stride_bytes
        jpeg = np.frombuffer(rebuild_jpeg(blob[:blob_bytes], *window), np.uint8)
        return self._decode(jpeg, width, height, scale)

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


def compare_sizes(samples: PreparedSamples, suffix: str = "") -> list[Result]:
    """Return the rows of the mean bytes of the ordinary JPEGs, and of the blobs against them."""
    jpeg_bytes = float(np.mean([len(jpeg) for jpeg in samples.jpegs]))
    blob_bytes = float(np.mean(samples.blob_bytes))
    jpeg = single(f"dataset/jpeg{suffix}", "bytes/image", jpeg_bytes)
    return [
        jpeg,
        summarise(
            f"dataset/blob{suffix}",
            "bytes/image",
            [blob_bytes],
            baseline=jpeg,
            baseline_values=[jpeg_bytes],
        ),
    ]


def _window_fields(windows: TileWindows) -> list[_Window]:
    """Return each sample's window in the order of ``decode_window``'s arguments."""
    fields = ("first_mcu", "end_mcu", "first_row", "end_row", "width", "height")
    return list(zip(*(getattr(windows, field).tolist() for field in fields), strict=True))
