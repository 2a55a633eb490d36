"""Packings: how the pixels of an image lie in memory, in slots and on the wire.

    int8-hwc-rgb                 the default
    int8 | uint8                 level - 128 | level
    float32                      level - 128 as a float, four times the bytes: as loaders that
                                 convert on the host send it, to measure what int8 saves
    hwc  | chw                   rows, columns, channels | channels, rows, columns
    rgb  | rgbx                  three channels | and a fourth one whose bytes are 0

Invariant: every packing holds the same levels 0 .. 255, so ``unpack_levels`` of each is the same.
"""

from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

Packing = Literal[
    "int8-hwc-rgb",
    "int8-hwc-rgbx",
    "int8-chw-rgb",
    "int8-chw-rgbx",
    "uint8-hwc-rgb",
    "uint8-hwc-rgbx",
    "uint8-chw-rgb",
    "uint8-chw-rgbx",
    "float32-hwc-rgb",
]
Pixels = NDArray[np.int8 | np.uint8 | np.float32]

DEFAULT_PACKING: Final[Packing] = "int8-hwc-rgb"
_SIGN_BIT: Final = 0x80  # level - 128 as int8 is the level with its top bit flipped
_RGB_OF_WORD: Final = 0x00FFFFFF  # of four little-endian bytes red, green, blue, anything
_SIGN_BITS_OF_WORD: Final = 0x00808080


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelLayout:
    """The parts of a packing's name."""

    dtype: np.dtype[np.int8 | np.uint8 | np.float32]
    """The type of one value."""
    channels_first: bool
    channels: int

    @property
    def is_signed(self) -> bool:
        """Whether values are level - 128."""
        return self.dtype != np.uint8

    @property
    def is_float(self) -> bool:
        """Whether values are floats."""
        return self.dtype == np.float32

    @property
    def grey(self) -> int:
        """The value of level 128, which fills padding rows."""
        return 0 if self.is_signed else 128

    def image_shape(self, image_size: int) -> tuple[int, int, int]:
        """Return the shape of one image."""
        if self.channels_first:
            return self.channels, image_size, image_size
        return image_size, image_size, self.channels

    def image_bytes(self, image_size: int) -> int:
        """Return the bytes of one image."""
        return image_size * image_size * self.channels * self.dtype.itemsize


@cache
def pixel_layout_of(packing: Packing) -> PixelLayout:
    """Return the layout that a packing's name describes."""
    kind, axes, channels = packing.split("-")
    return PixelLayout(dtype=np.dtype(kind), channels_first=axes == "chw", channels=len(channels))


def pack_levels(rgb: NDArray[np.uint8], layout: PixelLayout, out: Pixels) -> None:
    """Write ``rgb``, uint8 (size, size, 3) and C-contiguous, into ``out`` as the layout has it.

    ``out`` is C-contiguous, of ``layout.image_shape(size)`` and ``layout.dtype``.
    """
    if layout.is_float:
        np.subtract(rgb, np.float32(128), out=out)
        return
    levels = out.view(np.uint8)
    if layout.channels_first:
        np.copyto(levels[:3], rgb.transpose(2, 0, 1))
        if layout.is_signed:
            levels[:3] ^= _SIGN_BIT
        levels[3:] = 0
    elif layout.channels == 4:
        _spread_pixels(rgb.reshape(-1), levels.reshape(-1), _SIGN_BITS_OF_WORD * layout.is_signed)
    elif layout.is_signed:
        np.bitwise_xor(rgb, _SIGN_BIT, out=levels)
    else:
        np.copyto(levels, rgb)


def unpack_levels(pixels: Pixels, layout: PixelLayout) -> NDArray[np.uint8]:
    """Return the levels of n packed images as uint8 (n, size, size, 3); it may be a view."""
    if layout.is_float:
        return (pixels + 128).astype(np.uint8)
    levels = pixels.view(np.uint8)
    rgb = levels[:, :3].transpose(0, 2, 3, 1) if layout.channels_first else levels[..., :3]
    rgb = np.ascontiguousarray(rgb)
    return rgb ^ np.uint8(_SIGN_BIT) if layout.is_signed else rgb


def _spread_pixels(rgb: NDArray[np.uint8], rgbx: NDArray[np.uint8], sign_bits: int) -> None:
    """Copy pixels of three bytes to four by overlapping words, five times faster than by bytes.

    The last pixel has no byte after it and is copied alone.
    """
    words = rgbx.view("<u4")
    overlapping: NDArray[np.uint32] = np.ndarray((len(words) - 1,), "<u4", rgb, 0, (3,))
    np.bitwise_and(overlapping, _RGB_OF_WORD, out=words[:-1])
    rgbx[-4:-1] = rgb[-3:]
    rgbx[-1] = 0
    if sign_bits:
        words ^= np.uint32(sign_bits)
