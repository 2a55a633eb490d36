"""Bilinear resizing without antialiasing, for models that were trained with it.

Each output pixel interpolates between the two nearest pixels in each direction around
``(output + 0.5) * step - 0.5``, however large the step: torch's ``interpolate(mode="bilinear",
align_corners=False, antialias=False)`` and TensorFlow's ``resize_bilinear``. As with the other
interpolations, pixels of the picture outside of the box are used, and a window of a picture gives
the same bytes as the whole picture.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_BLOCK_ROWS: Final = 16  # of the output, so that intermediate rows fit the CPU's cache


def resize_plainly(
    picture: NDArray[np.uint8],
    stride_bytes: int,
    width: int,
    height: int,
    box: tuple[float, float, float, float],
    *,
    mirrored: bool,
    out: NDArray[np.uint8],
    origin: tuple[int, int] = (0, 0),
) -> None:
    """Resize ``box`` of an RGBX picture into ``out``, uint8 (size, size, 3).

    Picture, box and origin are as ``feeder.jpeg.resize.resize_pack`` takes them.
    """
    # The last row may end with its last pixel: a window of a larger picture has no whole rows.
    shape, strides = (height, width), (stride_bytes, 4)
    pixels: NDArray[np.uint32] = np.ndarray(shape, np.uint32, picture, strides=strides)
    levels = out[:, ::-1] if mirrored else out
    size = len(out)
    left, top, right, bottom = box
    x, next_x, x_weight = _neighbours(left, right, origin[0], width, size)
    y, next_y, y_weight = _neighbours(top, bottom, origin[1], height, size)
    for first in range(0, size, _BLOCK_ROWS):
        rows = slice(first, first + _BLOCK_ROWS)
        mixed = _mix_columns(pixels[y[rows]], x, next_x, x_weight)
        lower = _mix_columns(pixels[next_y[rows]], x, next_x, x_weight)
        lower -= mixed
        lower *= y_weight[rows, np.newaxis, np.newaxis]
        mixed += lower
        np.rint(mixed, out=mixed)
        np.copyto(levels[rows], mixed[..., :3], casting="unsafe")


def _mix_columns(
    rows: NDArray[np.uint32],
    x: NDArray[np.int64],
    next_x: NDArray[np.int64],
    weight: NDArray[np.float32],
) -> NDArray[np.float32]:
    """Interpolate between the columns ``x`` and ``next_x``; return float32 (rows, size, 4)."""
    shape = (len(rows), len(x), 4)
    mixed = rows.take(x, axis=1).view(np.uint8).reshape(shape).astype(np.float32)
    other = rows.take(next_x, axis=1).view(np.uint8).reshape(shape).astype(np.float32)
    other -= mixed
    other *= weight[:, np.newaxis]
    mixed += other
    return mixed


def _neighbours(
    start: float, end: float, origin: int, pixels: int, size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Return the two pixels that each output lies between, and the weight of the second.

    The box is in pixels of the whole picture, where weights are rounded; the returned pixels count
    from ``origin``.
    """
    positions = start + (np.arange(size) + 0.5) * ((end - start) / size) - 0.5
    positions = np.clip(positions, origin, origin + pixels - 1.0)
    first = np.floor(positions).astype(np.int64)
    weight = (positions - first).astype(np.float32)
    first -= origin
    return first, np.minimum(first + 1, pixels - 1), weight
