"""The sample paths that the decode bench compares, on the same images and crops.

Without partial decoding (``decode_full``, ``sample_full``) a loader has the ordinary JPEG: the
stored image's coefficients with the best Huffman tables, as ``feeder unpack`` writes it. It decodes
the whole of it, then resizes, mirrors and packs the crop: with TurboJPEG and the product's own
functions; ``…_libraries`` to the same bytes with PyTurboJPEG into reused scratch, Pillow-SIMD and
numpy; ``…_pillow`` with Pillow alone, as torchvision's ImageFolder and transforms use it (the
report's header says which Pillow that is). All read their JPEG with one pread from a file in the
page cache, as the product reads its blob.

With partial decoding (``decode_tiled``) the crop's tiles are decoded from the blob in memory by our
own decoder. TurboJPEG (``…_tiled_turbojpeg``) has a JPEG of the same tiles, made beforehand: what
it would gain if a dataset could hold every crop's tiles as a JPEG. The ratio of the two is what
blobs without Huffman codes, and the decoder for them, gain.
"""

import io
import itertools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from turbojpeg import TJPF_RGBX

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import McuGrids, rebuild_jpeg, whole_jpeg
from feeder.jpeg.decode import READ_SLACK_BYTES, decode_rgbx, decode_window, turbojpeg
from feeder.jpeg.recode import Subsampling
from feeder.jpeg.resize import resize_pack, resize_pack_reference
from feeder.jpeg.scratch import Scratch
from feeder.plan.crop import CropPlan, plan_crops
from feeder.plan.recipe import Recipe
from feeder.sample.decode_plan import plan_decode
from feeder.sample.reader import SampleReader

from ..fetcher import CHUNK_IMAGES
from ..report import Result, compare
from ..rounds import Contender

_Window = tuple[int, int, int, int, int, int]  # of ``decode_window``; width and height last
_Picture = tuple[NDArray[np.uint8], int]  # RGBX with room after it, and its stride in bytes

_Decode = Callable[[NDArray[np.uint8], int, int], _Picture]  # decodes a JPEG of a width and height


class Filling:
    """Samples that are made in ``pixels`` (images, S, S, 3), which each call reuses."""

    def __init__(
        self,
        recipe: Recipe,
        sample_ids: NDArray[np.int64],
        *,
        images: int = CHUNK_IMAGES,
        epoch: int = 0,
    ) -> None:
        self.sample_ids = sample_ids
        self.epoch = epoch
        self.pixels = np.zeros((images, recipe.image_size, recipe.image_size, 3), np.int8)
        self._labels = np.empty(images, np.int64)

    def of(self, reader: SampleReader) -> Contender:
        """Return the contender that makes samples first .. end - 1 with ``reader``."""
        return partial(self._fill, reader)

    def _fill(self, reader: SampleReader, first: int, end: int) -> None:
        ids, count = self.sample_ids[first:end], end - first
        pixels, labels = self.pixels[:count], self._labels[:count]
        reader.fill(ids, seed=0, epoch=self.epoch, pixels=pixels, labels=labels)


class _JpegFile:
    """JPEGs in a file that stays in the page cache, one for each sample."""

    def __init__(self, jpegs: Sequence[bytes]) -> None:
        self._file = tempfile.TemporaryFile(prefix="feeder-bench-", buffering=0)  # noqa: SIM115
        self._offsets = [0, *itertools.accumulate(map(len, jpegs))]
        self._file.write(b"".join(jpegs))
        self.close = self._file.close

    def place(self, row: int) -> tuple[int, int, int]:
        """Return the arguments of pread."""
        first, end = self._offsets[row : row + 2]
        return self._file.fileno(), end - first, first

    def read(self, row: int, scratch: Scratch) -> NDArray[np.uint8]:
        fd, size_bytes, first = self.place(row)
        jpeg = scratch.take(size_bytes)
        os.preadv(fd, [jpeg.data], first)
        return jpeg


class _Tiles(NamedTuple):
    """What is decoded of an image for a crop, and how the sample is made of it."""

    window: _Window
    scale: int
    box: tuple[float, float, float, float]
    origin: tuple[int, int]
    mirrored: bool

    def resize(self, picture: _Picture, out: NDArray[np.int8], version: str | None = None) -> None:
        """Resize, mirror and pack the decoded tiles."""
        *_, width, height = self.window
        resize_pack(
            *picture,
            -(-width // self.scale),
            -(-height // self.scale),
            self.box,
            origin=self.origin,
            mirrored=self.mirrored,
            out=out,
            version=version,
        )


class PreparedSamples(Filling):
    """n samples in serving order, with the input of each decoding method.

    The methods with ``first`` and ``end`` are contenders; those called ``sample_…`` write to
    ``pixels``. The crops are those of seed 0 and the epoch begun last.
    """

    def __init__(
        self, dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64], *, epoch: int = 0
    ) -> None:
        super().__init__(recipe, sample_ids)
        self._recipe = recipe
        self._rgbx, self._read = Scratch(), Scratch()
        self._records = records = dataset.read_records(sample_ids)
        grids = McuGrids.of_records(records)
        self.widths, self.heights = grids.width, grids.height
        self.subsamplings, self.blob_bytes = records["subsampling"], records["blob_bytes"]
        self.blobs: list[NDArray[np.uint8]] = []  # with READ_SLACK_BYTES after each
        self.jpegs: list[bytes] = []  # the ordinary ones
        places = dataset.find_blobs(sample_ids, records)
        for place, record in zip(places, records, strict=True):
            blob = np.zeros(place.blob_bytes + READ_SLACK_BYTES, np.uint8)
            dataset.read_blob(place, blob)
            self.blobs.append(blob)
            self.jpegs.append(whole_jpeg(blob[: place.blob_bytes], record))
        self._whole_file, self._tiled_file = _JpegFile(self.jpegs), _JpegFile([])
        self.begin_epoch(epoch)

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.crops = self._plan_crops(0, len(self.sample_ids))
        self._tiles = self._plan_tiles(0, self.crops)
        unscaled = np.ones_like(self.crops.scales)
        self._unscaled = self._plan_tiles(0, replace(self.crops, scales=unscaled))
        self._tiled_jpegs = [
            rebuild_jpeg(blob[:-READ_SLACK_BYTES], *tiles.window)
            for blob, tiles in zip(self.blobs, self._tiles, strict=True)
        ]
        self._tiled_file.close()
        self._tiled_file = _JpegFile(self._tiled_jpegs)

    def begin_next_epoch(self, _: object = None) -> None:
        self.begin_epoch(self.epoch + 1)

    def decode_full(self, first: int, end: int) -> None:
        """Decode whole ordinary JPEGs, from memory, with the product's own call of TurboJPEG."""
        self._decode_whole(first, end, self._decode)

    def decode_full_libraries(self, first: int, end: int) -> None:
        """The same with PyTurboJPEG."""
        self._decode_whole(first, end, self._decode_with_pyturbojpeg)

    def decode_pillow(self, first: int, end: int) -> None:
        """The same with Pillow, to RGB."""
        for jpeg in self.jpegs[first:end]:
            _open_with_pillow(jpeg)

    def decode_tiled(self, first: int, end: int, version: str | None = None) -> None:
        """Decode the tiles of the crops as the recipe asks, from memory, with our own decoder."""
        for row in range(first, end):
            self.decode_blob(row, self.blobs[row], version=version)

    def decode_tiled_unscaled(self, first: int, end: int) -> None:
        """The same at full size, also for crops of at least twice the output size."""
        for row in range(first, end):
            self._decode_own(self.blobs[row], self._unscaled[row].window, 1)

    def decode_tiled_turbojpeg(self, first: int, end: int) -> None:
        """Decode JPEGs of the same tiles as the recipe asks, from memory, with TurboJPEG."""
        for tiles, jpeg in zip(self._tiles[first:end], self._tiled_jpegs[first:end], strict=True):
            self._decode(np.frombuffer(jpeg, np.uint8), *tiles.window[-2:], tiles.scale)

    def decode_coefficients(self, first: int, end: int) -> None:
        """Decode the same tiles at 1/8, 4:2:2 at 1/4: coefficients are read, hardly transformed."""
        for row in range(first, end):
            scale = 4 if self.subsamplings[row] == Subsampling.S422 else 8
            self._decode_own(self.blobs[row], self._tiles[row].window, scale)

    def decode_blob(
        self, row: int, blob: NDArray[np.uint8], version: str | None = None
    ) -> _Picture:
        """Decode as ``decode_tiled`` does from ``blob``, which may be a copy of ``blobs[row]``."""
        return self._decode_own(blob, self._tiles[row].window, self._tiles[row].scale, version)

    def sample_full(self, first: int, end: int) -> None:
        """Do all that a loader does, with the product's own decoding, resizing and packing."""
        self._make_whole(first, end, self._decode, resize_pack)

    def sample_full_libraries(self, first: int, end: int) -> None:
        """The same with PyTurboJPEG, Pillow-SIMD and numpy."""
        self._make_whole(first, end, self._decode_with_pyturbojpeg, resize_pack_reference)

    def sample_pillow(self, first: int, end: int) -> None:
        """The same with Pillow; numpy packs."""
        for row, box, mirrored, out in self._plan_whole(first, end):
            image = _open_with_pillow(os.pread(*self._whole_file.place(row)))
            image = image.resize(out.shape[1::-1], Image.Resampling.BILINEAR, box=box)
            if mirrored:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            np.bitwise_xor(np.asarray(image), 0x80, out=out.view(np.uint8))

    def sample_tiled_turbojpeg(self, first: int, end: int, version: str | None = None) -> None:
        """Do the same from JPEGs of the crops' tiles; ``version`` is that of resizing."""
        planned = self._plan_tiles(first, self._plan_crops(first, end))
        for row, (tiles, out) in enumerate(zip(planned, self.pixels, strict=False), first):
            jpeg = self._tiled_file.read(row, self._read)
            picture = self._decode(jpeg, *tiles.window[-2:], tiles.scale)
            tiles.resize(picture, out, version)

    def resize(self, row: int, picture: _Picture, out: NDArray[np.int8]) -> None:
        """Resize, mirror and pack a picture as ``decode_blob`` returns it."""
        self._tiles[row].resize(picture, out)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._whole_file.close()
        self._tiled_file.close()

    def _plan_crops(self, first: int, end: int) -> CropPlan:
        """Draw the crops of samples first .. end - 1, as a loader does for a batch."""
        return plan_crops(
            self._recipe,
            seed=0,
            epoch=self.epoch,
            sample_ids=self.sample_ids[first:end],
            widths=self.widths[first:end],
            heights=self.heights[first:end],
        )

    def _plan_tiles(self, first: int, crops: CropPlan) -> list[_Tiles]:
        """Return the tiles of ``crops``, which are those of the samples from ``first`` on."""
        grids = McuGrids.of_records(self._records[first : first + len(crops.flips)])
        plan = plan_decode(grids, crops.boxes, crops.scales, self._recipe.image_size)
        fields = ("first_mcu", "end_mcu", "first_row", "end_row", "width", "height")
        windows = zip(*(getattr(plan.windows, field).tolist() for field in fields), strict=True)
        origins = np.stack([plan.windows.x, plan.windows.y], axis=1) // crops.scales[:, None]
        columns = (crops.scales, plan.boxes, origins, crops.flips)
        return [*map(_Tiles, windows, *(column.tolist() for column in columns))]

    def _plan_whole(self, first: int, end: int) -> Iterator[tuple[Any, ...]]:
        """Yield row, crop (left, top, right, bottom), flip and output of each sample."""
        crops = self._plan_crops(first, end)
        boxes = [(x, y, x + w, y + h) for x, y, w, h in crops.boxes.tolist()]
        return zip(range(first, end), boxes, crops.flips.tolist(), self.pixels, strict=False)

    def _decode_whole(self, first: int, end: int, decode: _Decode) -> None:
        for row in range(first, end):
            jpeg = np.frombuffer(self.jpegs[row], np.uint8)
            decode(jpeg, int(self.widths[row]), int(self.heights[row]))

    def _make_whole(
        self, first: int, end: int, decode: _Decode, resize: Callable[..., Any]
    ) -> None:
        for row, box, mirrored, out in self._plan_whole(first, end):
            jpeg = self._whole_file.read(row, self._read)
            width, height = int(self.widths[row]), int(self.heights[row])
            resize(*decode(jpeg, width, height), width, height, box, mirrored=mirrored, out=out)

    def _decode_own(
        self, blob: NDArray[np.uint8], window: _Window, scale: int, version: str | None = None
    ) -> _Picture:
        """Decode as the product does, falling back to TurboJPEG where it does."""
        *_, width, height = window
        blob_bytes = len(blob) - READ_SLACK_BYTES
        picture, stride_bytes = self._rgbx.take_picture(-(-width // scale), -(-height // scale))
        if decode_window(blob, blob_bytes, window, scale, stride_bytes, picture, version=version):
            return picture, stride_bytes
        jpeg = np.frombuffer(rebuild_jpeg(blob[:blob_bytes], *window), np.uint8)
        return self._decode(jpeg, width, height, scale)

    def _decode(self, jpeg: NDArray[np.uint8], width: int, height: int, scale: int = 1) -> _Picture:
        picture, stride_bytes = self._rgbx.take_picture(-(-width // scale), -(-height // scale))
        decode_rgbx(jpeg, width, height, scale, stride_bytes, picture)
        return picture, stride_bytes

    def _decode_with_pyturbojpeg(
        self, jpeg: NDArray[np.uint8], width: int, height: int
    ) -> _Picture:
        """Call PyTurboJPEG as its users do, with a buffer that is reused."""
        scratch = self._rgbx.take_picture(width, height)[0]
        picture = scratch[: 4 * width * height].reshape(height, width, 4)
        turbojpeg().decode(jpeg, pixel_format=TJPF_RGBX, dst=picture)
        return scratch, 4 * width


def compare_sizes(samples: PreparedSamples, suffix: str = "") -> list[Result]:
    """Return the rows of the mean bytes of the ordinary JPEGs, and of the blobs against them."""
    sizes = {
        f"dataset/jpeg{suffix}": [float(np.mean([len(jpeg) for jpeg in samples.jpegs]))],
        f"dataset/blob{suffix}": [float(np.mean(samples.blob_bytes))],
    }
    return compare(sizes, "bytes/image")


def _open_with_pillow(jpeg: bytes) -> Image.Image:
    with Image.open(io.BytesIO(jpeg)) as image:
        return image.convert("RGB")
