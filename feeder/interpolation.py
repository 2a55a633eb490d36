"""Resizing by another rule than the default's: bicubic, box, and bilinear without antialiasing.

The first two are Pillow's. The last takes, for each output pixel, the two nearest pixels each way
around ``(output + 0.5) * step - 0.5``, however large the step: torch's
``interpolate(mode="bilinear", align_corners=False, antialias=False)`` and TensorFlow's
``resize_bilinear``. Models trained on such pictures are to be evaluated on such pictures.

As with the default, the pixels around a box count where the picture has them. Results are those of
the whole image to the bit, except that box may count a pixel at the very edge of its half step or
not: there a last bit decides, which depends on where the decoded picture begins.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.recipe import Interpolation

SUPPORT_STEPS: Final[dict[Interpolation, float]] = {
    "bilinear": 1.0,
    "bicubic": 2.0,
    "box": 1.0,  # it looks half a step, but Pillow wants all of the box within the picture
    "bilinear-no-antialias": 1.0,
}
"""How far from an output pixel's centre each may look, in steps, or in pixels when enlarging."""

_PILLOW: Final[dict[Interpolation, Image.Resampling]] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
}

_BLOCK_ROWS: Final = 16

_Box = tuple[float, float, float, float]


def resize_levels(
    picture: NDArray[np.uint8],
    stride_bytes: int,
    width: int,
    height: int,
    box: _Box,
    *,
    mirrored: bool,
    interpolation: Interpolation,
    out: NDArray[np.uint8],
) -> None:
    """Resize ``box`` of an RGBX picture into the levels ``out``, uint8 (size, size, 3).

    Picture and box are as ``feeder.resize.resize_pack`` takes them.
    """
    if interpolation == "bilinear-no-antialias":
        words = picture[: stride_bytes * height].view(np.uint32)
        pixels = words.reshape(height, stride_bytes // 4)[:, :width]
        _take_nearest_two(pixels, box, out[:, ::-1] if mirrored else out)
    else:
        image = Image.frombuffer("RGBX", (width, height), picture, "raw", "RGBX", stride_bytes, 1)
        size = (len(out), len(out))
        resized = image.resize(size, _PILLOW[interpolation], box=box)
        levels = np.frombuffer(resized.tobytes("raw", "RGB"), np.uint8).reshape(out.shape)
        np.copyto(out, levels[:, ::-1] if mirrored else levels)


def _take_nearest_two(pixels: NDArray[np.uint32], box: _Box, out: NDArray[np.uint8]) -> None:
    """Write the levels ``out`` from RGBX pixels of a word each."""
    left, top, right, bottom = box
    size = len(out)
    x, next_x, x_share = _neighbours(left, right, pixels.shape[1], size)
    y, next_y, y_share = _neighbours(top, bottom, pixels.shape[0], size)
    for first in range(0, size, _BLOCK_ROWS):  # what is in between stays in the cache
        rows = slice(first, first + _BLOCK_ROWS)
        mixed = _mix_columns(pixels[y[rows]], x, next_x, x_share)
        lower = _mix_columns(pixels[next_y[rows]], x, next_x, x_share)
        lower -= mixed
        lower *= y_share[rows, np.newaxis, np.newaxis]
        mixed += lower
        np.rint(mixed, out=mixed)
        np.copyto(out[rows], mixed[..., :3], casting="unsafe")


def _mix_columns(
    rows: NDArray[np.uint32],
    x: NDArray[np.int64],
    next_x: NDArray[np.int64],
    share: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Return float32 (rows, size, 4): between the levels of the columns ``x`` and ``next_x``."""
    shape = (len(rows), len(x), 4)
    mixed = rows.take(x, axis=1).view(np.uint8).reshape(shape).astype(np.float32)
    other = rows.take(next_x, axis=1).view(np.uint8).reshape(shape).astype(np.float32)
    other -= mixed
    other *= share[:, np.newaxis]
    mixed += other
    return mixed


def _neighbours(
    start: float, end: float, pixels: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return for each output the two pixels it lies between and the share of the second."""
    places = start + (np.arange(size) + 0.5) * ((end - start) / size) - 0.5
    places = np.clip(places, 0.0, pixels - 1.0)
    first = np.floor(places).astype(np.int64)
    share = (places - first).astype(np.float32)
    return first, np.minimum(first + 1, pixels - 1), share
