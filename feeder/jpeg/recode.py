"""Lossless re-coding of JPEGs into blobs: tiles of blocks that decode without Huffman codes.

A *tile* has the coefficients of a few MCUs of one MCU row, and can be decoded by itself. Only the
coding changes: coefficients and quantisation tables stay as they are, so the ordinary JPEG can be
made again (``crop_decode.rebuild_jpeg``). ``native/recode.c`` does the work with libjpeg-turbo's
transcoding calls; feeder/README.md, "Blob", has the layout.

Reference: ITU-T T.81 (JPEG), annexes A and F.
"""

import enum
from dataclasses import dataclass
from typing import Final

from feeder.errors import DatasetError
from feeder.jpeg import _native

TILE_WIDTHS_PX = (16, 32, 64, 128)
PIXELS_MAX: Final = 100_000_000  # of a sample, 300 MB as RGB: bounds decompression bombs


class Subsampling(enum.IntEnum):
    """How an image's chroma is sampled; OTHER never reaches a dataset."""

    S444 = 0
    S422 = 1
    S420 = 2
    S440 = 3
    S411 = 4
    GREY = 5
    OTHER = 6


MCU_PX: Final = {
    Subsampling.S444: (8, 8),
    Subsampling.S422: (16, 8),
    Subsampling.S420: (16, 16),
    Subsampling.S440: (8, 16),
    Subsampling.S411: (32, 8),
    Subsampling.GREY: (8, 8),
}
"""Width and height of an MCU by subsampling."""


class RecodeError(DatasetError):
    """Raised when a JPEG cannot be re-coded without loss.

    ``kind`` is one of "truncated", "corrupt", "unsupported" (by TurboJPEG or baseline JPEG, or not
    by all decoders alike), "cmyk" (four components), "incomplete" (whole scans are missing) and
    "too-large"; ``reason`` is libjpeg's or Feeder's message.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledJpeg:
    """A JPEG as stored in a shard, and what its record holds of it."""

    blob: bytes
    """Header, classes of blocks, tiles: see "Blob" in feeder/README.md."""
    content_checksum: int
    """Of header and coefficients: equal for equal images, whatever their blobs."""
    width: int
    height: int
    subsampling: Subsampling
    was_progressive: bool
    was_arithmetic: bool
    warnings: tuple[str, ...]
    """libjpeg's cosmetic warnings (stray bytes and the like), at most four."""


def tile_jpeg(source: bytes | memoryview, tile_width_px: int) -> TiledJpeg:
    """Re-code ``source`` with tiles of at most ``tile_width_px``, or of one MCU.

    Raises RecodeError; ValueError for a width that is not one of TILE_WIDTHS_PX.
    """
    if tile_width_px not in TILE_WIDTHS_PX:
        raise ValueError(f"tile width {tile_width_px} px is not one of {TILE_WIDTHS_PX}")
    try:
        parts = _native.tile_jpeg(source, tile_width_px)
    except _native.JpegError as error:
        raise RecodeError(*error.args) from None
    blob, content_checksum, width, height, subsampling, progressive, arithmetic, warnings = parts
    return TiledJpeg(
        blob=blob,
        content_checksum=content_checksum,
        width=width,
        height=height,
        subsampling=Subsampling(subsampling),
        was_progressive=progressive,
        was_arithmetic=arithmetic,
        warnings=warnings,
    )


def transform_jpeg(source: bytes, orientation: int) -> bytes | None:
    """Apply an EXIF orientation (1..8) to a JPEG's coefficients; None if that is impossible.

    It is where a side that moves is not a multiple of the MCU size, or the JPEG is damaged.
    """
    return _native.transform_jpeg(source, orientation)
