"""Lossless re-coding of JPEGs into tiled ones.

A *segment* has the codes of a few MCUs of one MCU row. A tiled JPEG is a baseline JPEG with a table
of its segments: the length of each, and the DC coefficients that prediction has reached after it.
So a rectangle of tiles can be cut out without decoding (``crop_decode``). Only the entropy coding
changes: coefficients and quantisation tables stay as they are, Huffman tables are optimised for the
image. ``native/recode.c`` does the work with libjpeg-turbo's transcoding calls; tests compare it
with ``jpegtran``.

Reference: ITU-T T.81 (JPEG), annex F.
"""

import enum
from dataclasses import dataclass
from typing import Final, NamedTuple

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


class SegmentLayout(NamedTuple):
    """Where a sample's segments are; the first arguments of ``join_segments``."""

    tile_columns: int
    tile_rows: int
    tile_mcus: int
    """MCUs in a tile; the last of a row may have fewer."""
    header_bytes: int
    """Of the JPEG: SOI up to and including the SOS header."""
    sof_offset: int
    """Of the SOF marker's 0xFF in the JPEG; height at +5, width at +7, big-endian."""
    table_bits: int
    """Bits of a segment's length and of each component's DC prediction, a byte each from the low
    end."""

    @property
    def tables_bytes(self) -> int:
        """Offset of the JPEG's header in the blob."""
        length, *predictions = self.table_bits.to_bytes(4, "little")
        segments = self.tile_columns * self.tile_rows
        return -(-segments * length // 8) - (-segments * sum(predictions) // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledJpeg:
    """A tiled JPEG as stored in a shard, and its geometry."""

    blob: bytes
    """Segment lengths, DC predictions, header, scan: see "Blob" in feeder/README.md."""
    layout: SegmentLayout
    width: int
    height: int
    mcu_width_px: int
    mcu_height_px: int
    subsampling: Subsampling
    was_progressive: bool
    was_arithmetic: bool
    warnings: tuple[str, ...]
    """libjpeg's cosmetic warnings (stray bytes and the like), at most four."""


def tile_jpeg(source: bytes | memoryview, tile_width_px: int) -> TiledJpeg:
    """Re-code ``source`` with one segment for each tile of at most ``tile_width_px``.

    Raises RecodeError; ValueError for a width that is not one of TILE_WIDTHS_PX.
    """
    if tile_width_px not in TILE_WIDTHS_PX:
        raise ValueError(f"tile width {tile_width_px} px is not one of {TILE_WIDTHS_PX}")
    try:
        parts = _native.tile_jpeg(source, tile_width_px)
    except _native.JpegError as error:
        raise RecodeError(*error.args) from None
    (blob, header_bytes, sof_offset, table_bits, width, height, mcu_width, mcu_height) = parts[:8]
    (tile_mcus, columns, rows, subsampling, progressive, arithmetic, warnings) = parts[8:]
    return TiledJpeg(
        blob=blob,
        layout=SegmentLayout(columns, rows, tile_mcus, header_bytes, sof_offset, table_bits),
        width=width,
        height=height,
        mcu_width_px=mcu_width,
        mcu_height_px=mcu_height,
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
