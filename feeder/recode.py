"""Lossless re-coding between ordinary JPEGs and tiled ones.

A tiled JPEG is a baseline JPEG in which every *tile* (a few MCUs of one MCU row) is its own
restart segment, so that a rectangle of tiles can be cut out and decoded without touching the rest
(see ``feeder.tiles``). Only the entropy coding changes: coefficients and quantisation tables stay
as they are, Huffman tables are made anew for the image. The work is done by libjpeg-turbo's
transcoding calls in ``feeder/native/recode.c``; ``jpegtran`` does the same and is what the tests compare
it to.

References: ITU-T T.81 (JPEG), sections B.2.4.4 (restart interval) and E.1.4 (restart markers).
"""

import enum
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feeder import _native
from feeder.errors import DatasetError

TILE_WIDTHS_PX = (16, 32, 64, 128)


class Subsampling(enum.IntEnum):
    """How an image's chroma is sampled; OTHER never reaches a dataset."""

    S444 = 0
    S422 = 1
    S420 = 2
    S440 = 3
    S411 = 4
    GREY = 5
    OTHER = 6


class RecodeError(DatasetError):
    """Raised when a JPEG cannot be re-coded without loss.

    ``kind`` is one of "truncated", "corrupt", "unsupported" (TurboJPEG or baseline JPEG has no such
    thing), "cmyk" (four components) and "too-large"; ``reason`` is libjpeg's or our own sentence.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(f"{kind}: {reason}")
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledJpeg:
    """A tiled JPEG and the geometry that finding its segments takes."""

    jpeg: bytes
    """A complete JPEG: optimised Huffman tables, a restart marker after every tile."""
    segment_bytes: NDArray[np.uint16]
    """(tile_rows * tile_columns,), row-major; each includes the 2-byte marker that ends it."""
    header_bytes: int
    """SOI up to and including the SOS header: where segment 0 begins."""
    sof_offset: int
    """Of the SOF marker's 0xFF; the height stands at +5, the width at +7, big-endian."""
    width: int
    """True width in pixels; the header's may be padded to whole tiles."""
    height: int
    mcu_width_px: int
    mcu_height_px: int
    tile_mcus: int
    """MCUs in a tile. With 2:1 chroma it divides the MCUs of a row and may be less than asked."""
    tile_columns: int
    tile_rows: int
    subsampling: Subsampling
    was_progressive: bool
    was_arithmetic: bool
    warnings: tuple[str, ...]
    """libjpeg's cosmetic warnings (stray bytes and the like), at most four."""


def tile_jpeg(source: bytes | memoryview, tile_width_px: int) -> TiledJpeg:
    """Re-code ``source`` with one restart segment for each tile of at most ``tile_width_px``.

    Raises RecodeError; ValueError for a width that is not one of TILE_WIDTHS_PX.
    """
    if tile_width_px not in TILE_WIDTHS_PX:
        raise ValueError(f"tile width {tile_width_px} px is not one of {TILE_WIDTHS_PX}")
    try:
        parts = _native.tile_jpeg(source, tile_width_px)
    except _native.JpegError as error:
        raise RecodeError(*error.args) from None
    (jpeg, table, header_bytes, sof_offset, width, height, mcu_width, mcu_height) = parts[:8]
    (tile_mcus, columns, rows, subsampling, progressive, arithmetic, warnings) = parts[8:]
    return TiledJpeg(
        jpeg=jpeg,
        segment_bytes=np.frombuffer(table, np.uint16),
        header_bytes=header_bytes,
        sof_offset=sof_offset,
        width=width,
        height=height,
        mcu_width_px=mcu_width,
        mcu_height_px=mcu_height,
        tile_mcus=tile_mcus,
        tile_columns=columns,
        tile_rows=rows,
        subsampling=Subsampling(subsampling),
        was_progressive=progressive,
        was_arithmetic=arithmetic,
        warnings=warnings,
    )


def untile_jpeg(jpeg: bytes | memoryview, width: int, height: int) -> bytes:
    """Re-code a tiled JPEG into an ordinary one of the true size, without restart markers.

    Its coefficients within the true size, and so its pixels, are those of the original. Raises
    RecodeError.
    """
    try:
        return _native.untile_jpeg(jpeg, width, height)
    except _native.JpegError as error:
        raise RecodeError(*error.args) from None


def transform_jpeg(source: bytes, orientation: int) -> bytes | None:
    """Apply an EXIF orientation (1..8) to a JPEG's coefficients; None where that would lose any.

    It loses something when a side that moves is no multiple of the MCU size.
    """
    return _native.transform_jpeg(source, orientation)
