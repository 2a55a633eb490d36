"""To RGBX pixels in a given buffer: a window of a sample's blob, or a JPEG.

``decode_window`` is Feeder's own decoder. It reads the tiles of one row of MCUs at a time, and
transforms their coefficients with vectors as wide as the CPU has: see ``native/tile.h`` and
``native/pixels.h``. Its reference, and the fallback for images of other kinds, is TurboJPEG on the
window's rebuilt JPEG, which gives the same pixels to the bit.

``decode_rgbx`` has one TurboJPEG decoder for the life of the process. PyTurboJPEG creates and
destroys a decoder for every image, reads the header twice and makes a dozen calls into C.
``decode_rgbx`` makes one, which halves the time of a small image (32 × 16 pixels: 19 µs against
40). ``decode_rgbx_reference`` is PyTurboJPEG.
"""

import warnings
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from turbojpeg import TJPF_RGBX, TurboJPEG

from feeder.jpeg import _native
from feeder.jpeg.decoders import Decoder

READ_SLACK_BYTES: Final = 256
"""Bytes, with any content, that must be readable after a blob that is decoded."""

VERSIONS: Final = _native.decode_versions()
"""The versions of ``decode_window`` that this CPU runs, the fastest last."""


def describe_decoder(decoder: Decoder) -> str:
    """Return the decoder with the version that this CPU runs, such as "own (avx512)"."""
    return f"own ({VERSIONS[-1]})" if decoder == "own" else decoder


def decode_window(
    blob: NDArray[np.uint8],
    blob_bytes: int,
    window: tuple[int, int, int, int, int, int],
    scale: int,
    stride_bytes: int,
    out: NDArray[np.uint8],
    *,
    version: str | None = None,
) -> bool:
    """Decode a window of a sample at 1/``scale`` size into ``out``; return whether it could.

    ``blob`` has the sample's blob and READ_SLACK_BYTES after it. ``window`` has first_mcu, end_mcu,
    first_row, end_row, width and height of its TileWindows. ``out`` is as for ``decode_rgbx``.
    ``version`` is one of VERSIONS, by default the last.

    Images that are neither grey nor YCbCr in 4:4:4, 4:2:2 or 4:2:0, and a few pixels of subsampled
    ones, are left to TurboJPEG: nothing is written. Raises ValueError where the blob is damaged.
    Holds no lock meanwhile.
    """
    return _native.decode_window(blob, blob_bytes, *window, scale, stride_bytes, out, version)


def decode_rgbx(
    jpeg: NDArray[np.uint8],
    width: int,
    height: int,
    scale: int,
    stride_bytes: int,
    out: NDArray[np.uint8],
) -> None:
    """Decode a JPEG of ``width`` × ``height`` pixels at 1/``scale`` size into ``out``.

    ``scale`` is 1, 2, 4 or 8 (the scaled IDCT); ``out`` then has ceil(height/scale) rows, one every
    ``stride_bytes``, of 4 * ceil(width/scale) bytes. The IDCT is the accurate one; chroma is
    interpolated as libjpeg does by default. Raises ValueError with TurboJPEG's message for any
    error or warning about the JPEG, and where ``out`` is too small.

    Decoding into ``feeder.jpeg.scratch.Scratch.take_picture`` is fastest.
    """
    _native.decode_rgbx(jpeg, -(-width // scale), -(-height // scale), stride_bytes, out)


@cache
def turbojpeg() -> TurboJPEG:
    """Return the process's PyTurboJPEG."""
    return TurboJPEG()


def decode_rgbx_reference(
    jpeg: NDArray[np.uint8],
    width: int,
    height: int,
    scale: int,
    stride_bytes: int,
    out: NDArray[np.uint8],
) -> None:
    """Do what ``decode_rgbx`` does, through PyTurboJPEG."""
    width, height = -(-width // scale), -(-height // scale)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            picture = turbojpeg().decode(
                jpeg,
                pixel_format=TJPF_RGBX,
                scaling_factor=(1, scale) if scale > 1 else None,
            )
    except (OSError, UserWarning) as error:
        raise ValueError(str(error)) from error
    if picture.shape[:2] != (height, width):
        raise ValueError(f"the JPEG is not of {width} × {height} pixels")
    rows = np.lib.stride_tricks.as_strided(out, (height, 4 * width), (stride_bytes, 1))
    rows[:] = picture.reshape(height, 4 * width)
