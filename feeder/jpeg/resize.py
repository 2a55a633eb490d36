"""Resize, mirror and pack a decoded picture in the recipe's layout.

The usual layout is int8, HWC, RGB, value − 128: a symmetric range is what the accelerators' first
layer takes, and a byte a value is a quarter of float32 on the wire. The client's normalisation adds
the 128 back.

``resize_pack`` is in C: one pass over rows instead of four over pictures. It follows Pillow-SIMD's
arithmetic to the bit in each of its VERSIONS, so its result depends neither on the CPU nor on which
Pillow is installed. ``resize_pack_reference`` is Pillow itself.
"""

from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.jpeg import _native
from feeder.plan.packing import Pixels

SLACK_BYTES = 12
"""Bytes that must be readable after a picture's last pixel: vector loads reach past it."""

VERSIONS: Final = _native.resize_versions()
"""The versions of ``resize_pack`` that this CPU runs, the fastest last."""

_BESIDE: Final = MappingProxyType(
    {"portable": "portable", "avx2-no-pdep": "avx2", "avx2": "avx2", "avx512": "avx2"}
)

Filter = Literal["bilinear", "bicubic", "box"]

FILTER_SUPPORT: Final = MappingProxyType({"bilinear": 1.0, "bicubic": 2.0, "box": 0.5})
"""How far a filter reaches around an output pixel's centre: in steps from output pixel to output
pixel, or in source pixels when enlarging."""

_RESAMPLING: Final = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
}


def version_beside(decode_version: str | None) -> str:
    """Return the version of a CPU whose fastest version of decoding is this one; None: this CPU's.

    Resizing with AVX-512 takes VBMI and VNNI.
    """
    return _BESIDE.get(decode_version or "", VERSIONS[-1])


def resize_pack(
    picture: NDArray[np.uint8],
    stride_bytes: int,
    width: int,
    height: int,
    box: tuple[float, float, float, float],
    *,
    mirrored: bool,
    out: Pixels,
    planar: bool = False,
    resampling: Filter = "bilinear",
    origin: tuple[int, int] = (0, 0),
    version: str | None = None,
) -> None:
    """Resize ``box`` of an RGBX picture into ``out``, antialiased.

    ``picture`` is flat: rows of ``stride_bytes``, of which ``width`` pixels count, and SLACK_BYTES
    after the last. ``box`` is (left, top, right, bottom) in pixels, kept as float32 as in Pillow;
    the filter also reads pixels around it, within the picture.

    Where the picture is a window of a larger one, its first pixel is ``origin`` (x, y) there, and
    ``box`` is in pixels of the larger one. The result is that of resizing the larger one, to the
    bit, provided that the window has every pixel that the filter reads.

    ``out`` is C-contiguous, (size, size, channels), or (channels, size, size) where ``planar``. It
    holds values − 128 as int8, or values as uint8; a fourth channel is all 0. ``version`` is one of
    VERSIONS, by default the last. Raises ValueError where the box, a size or an option is invalid.
    """
    _native.resize_pack(
        picture,
        stride_bytes,
        width,
        height,
        box,
        origin,
        _RESAMPLING[resampling],
        out.shape[1],
        mirrored,
        out,
        out.shape[0 if planar else 2],
        planar,
        out.dtype.kind == "i",
        version,
    )


def resize_pack_reference(
    picture: NDArray[np.uint8],
    stride_bytes: int,
    width: int,
    height: int,
    box: tuple[float, float, float, float],
    *,
    mirrored: bool,
    out: Pixels,
    planar: bool = False,
    resampling: Filter = "bilinear",
) -> None:
    """Do what ``resize_pack`` does with Pillow and numpy alone."""
    image = Image.frombuffer("RGBX", (width, height), picture, "raw", "RGBX", stride_bytes, 1)
    size = (out.shape[1], out.shape[1])
    image = image.resize(size, _RESAMPLING[resampling], box=box)
    if mirrored:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    rgb = np.frombuffer(image.tobytes("raw", "RGB"), np.uint8).reshape(*size, 3)
    pixels = out.transpose(1, 2, 0) if planar else out
    pixels[..., 3:] = 0
    np.bitwise_xor(rgb, 0x80 if out.dtype == np.int8 else 0, out=pixels[..., :3].view(np.uint8))
