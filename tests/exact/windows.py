"""A window of a tiled JPEG, decoded by TurboJPEG and by Feeder's decoder."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg.crop_decode import rebuild_jpeg
from feeder.jpeg.decode import READ_SLACK_BYTES, decode_rgbx, decode_window
from feeder.jpeg.recode import MCU_PX, Subsampling, TiledJpeg
from tests.support.jpegs import mcus_of

_GUARD = 0xA7
_GUARD_BYTES = 128


class Window(NamedTuple):
    """A rectangle of MCUs and its size in pixels, as ``decode_window`` takes it."""

    first_mcu: int
    end_mcu: int
    first_row: int
    end_row: int
    width: int
    height: int

    def size_px(self, scale: int) -> tuple[int, int]:
        return -(-self.width // scale), -(-self.height // scale)


def window_of(
    tiled: TiledJpeg, first_mcu: int, end_mcu: int, first_row: int, end_row: int
) -> Window:
    """Return the window of a range of MCUs in a range of rows of them."""
    mcu_w, mcu_h = MCU_PX[tiled.subsampling]
    width = min(end_mcu * mcu_w, tiled.width) - first_mcu * mcu_w
    height = min(end_row * mcu_h, tiled.height) - first_row * mcu_h
    return Window(first_mcu, end_mcu, first_row, end_row, width, height)


def whole_window(tiled: TiledJpeg) -> Window:
    mcus, rows = mcus_of(tiled)
    return window_of(tiled, 0, mcus, 0, rows)


def is_left_to_turbojpeg(tiled: TiledJpeg, window: Window, scale: int, *, is_ycc: bool) -> bool:
    """Return whether ``decode_window`` should decline: a kind of image, or chroma of few samples.

    4:2:0 is upsampled at full size only: libjpeg decodes its chroma at twice the scale.
    """
    kind = tiled.subsampling
    if not is_ycc or kind in (Subsampling.S440, Subsampling.S411):
        return True
    is_upsampled = kind is Subsampling.S422 or (kind is Subsampling.S420 and scale == 1)
    return is_upsampled and (scale == 8 or window.size_px(scale)[0] <= 4)


def scales_of(window: Window) -> list[int]:
    """Return the scales at which TurboJPEG can be asked for the window.

    It is asked for a size in pixels, and chooses the largest factor that gives it: 3/8 and not 1/4
    for 5 × 5 pixels. The product asks for such small pictures at full size only.
    """
    return [scale for scale in (1, 2, 4, 8) if not _is_of_larger_factor(window, scale)]


def _is_of_larger_factor(window: Window, scale: int) -> bool:
    sides = tuple(zip((window.width, window.height), window.size_px(scale), strict=True))
    eighths = range(8 // scale + 1, 17)
    return any(all(-(-side * k // 8) <= shown for side, shown in sides) for k in eighths)


def expected_pixels(blob: bytes, window: Window, scale: int) -> NDArray[np.uint8]:
    """Return (height, 4 * width) RGBX of TurboJPEG, of the window as a JPEG.

    Raises ValueError for damage.
    """
    jpeg = np.frombuffer(rebuild_jpeg(blob, *window), np.uint8)
    width, height = window.size_px(scale)
    out = np.empty((height, 4 * width), np.uint8)
    decode_rgbx(jpeg, window.width, window.height, scale, 4 * width, out.reshape(-1))
    return out


def own_pixels(
    blob: bytes,
    window: Window,
    scale: int,
    version: str,
    *,
    spare_bytes: int = 0,
    slack: int = 0xA5,
) -> NDArray[np.uint8] | None:
    """Return (height, 4 * width) RGBX of a version of ``decode_window``; None if it declined.

    The buffer's rows have ``spare_bytes`` between them; ``slack`` is the content of the bytes after
    the blob. Checks that nothing else is written. Raises ValueError for damage.
    """
    padded = np.frombuffer(blob + bytes([slack]) * READ_SLACK_BYTES, np.uint8)
    width, height = window.size_px(scale)
    stride = 4 * width + spare_bytes
    room = stride * (height - 1) + 4 * width
    guarded = np.full(room + 2 * _GUARD_BYTES + spare_bytes, _GUARD, np.uint8)
    out = guarded[_GUARD_BYTES : _GUARD_BYTES + room]
    is_decoded = None
    try:
        is_decoded = decode_window(padded, len(blob), window, scale, stride, out, version=version)
    finally:
        rows = guarded[_GUARD_BYTES : _GUARD_BYTES + stride * height].reshape(height, stride)
        assert (guarded[:_GUARD_BYTES] == _GUARD).all(), "written before the pixels"
        assert (guarded[_GUARD_BYTES + room :] == _GUARD).all(), "written after the pixels"
        assert (rows[:, 4 * width :] == _GUARD).all(), "written between the rows"
        assert is_decoded is not False or (rows == _GUARD).all(), "written, and declined"
    return rows[:, : 4 * width] if is_decoded else None
