"""The tiles and MCUs that a crop needs, joined into one small valid JPEG.

Invariant: inside the requested box, decoding the joined JPEG gives exactly the pixels that decoding
the whole image gives. This takes:

* every MCU that the box touches, and with subsampled chroma also those that one more decoded pixel
  on each side touches, because upsampling reads neighbours;
* at the image's right and bottom edge, the true size in the header, because the decoder replicates
  the last chroma sample there;
* a joined width of more than four decoded pixels wherever the image itself is wider, because
  libjpeg upsamples chroma that is one or two samples wide differently.

The geometry of a whole chunk is computed at once, in numpy. Each sample is then joined in
``native/join.c``: one run of bits for each row, whose first DC differences are coded again.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg import _native
from feeder.jpeg.recode import SegmentLayout, Subsampling

DECODER_SLACK_BYTES: Final = 5120
"""Zero bytes after a joined JPEG, to be passed to the decoder with it: libjpeg-turbo uses its fast
Huffman decoder only while 512 bytes for each block of an MCU remain (jdhuff.c)."""

_ROW_ROOM_BYTES: Final = 64

_MIN_DECODED_PX: Final = 5
_CHROMA_REACH_PX: Final = np.zeros(len(Subsampling), np.int64)
_CHROMA_REACH_PX[[Subsampling.S422, Subsampling.S420, Subsampling.S440]] = 1
"""How far libjpeg's chroma upsampling reads, by subsampling; for 4:1:1 it only replicates."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileGrids:
    """The tile geometry of n samples; all int64 (n,), widths and heights in source pixels."""

    width: NDArray[np.int64]
    height: NDArray[np.int64]
    mcu_width_px: NDArray[np.int64]
    mcu_height_px: NDArray[np.int64]
    tile_mcus: NDArray[np.int64]
    columns: NDArray[np.int64]
    rows: NDArray[np.int64]
    chroma_reach_px: NDArray[np.int64]

    @classmethod
    def of_records(cls, records: NDArray[np.void]) -> "TileGrids":
        """Take the geometry from records (n,) of dtype ``feeder.dataset.format.RECORD``."""
        field = {name: records[name].astype(np.int64) for name in _RECORD_FIELDS}
        return cls(
            width=field["width"],
            height=field["height"],
            mcu_width_px=field["mcu_width_px"],
            mcu_height_px=field["mcu_height_px"],
            tile_mcus=field["tile_mcus"],
            columns=field["tile_columns"],
            rows=field["tile_rows"],
            chroma_reach_px=_CHROMA_REACH_PX[records["subsampling"]],
        )


_RECORD_FIELDS: Final = (
    "width",
    "height",
    "tile_mcus",
    "mcu_width_px",
    "mcu_height_px",
    "tile_columns",
    "tile_rows",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileWindows:
    """A rectangle of MCUs for each of n samples, and the pixels that it covers; all int64 (n,)."""

    first_mcu: NDArray[np.int64]
    end_mcu: NDArray[np.int64]
    first_row: NDArray[np.int64]
    end_row: NDArray[np.int64]
    x: NDArray[np.int64]
    """Left edge in source pixels; a multiple of an MCU's width."""
    y: NDArray[np.int64]
    width: NDArray[np.int64]
    """Of the joined JPEG, in source pixels, clipped to the image; likewise the height."""
    height: NDArray[np.int64]


def cover_boxes(
    grids: TileGrids,
    first_x: NDArray[np.int64],
    first_y: NDArray[np.int64],
    end_x: NDArray[np.int64],
    end_y: NDArray[np.int64],
    scales: NDArray[np.int64],
    *,
    for_joining: bool = False,
) -> TileWindows:
    """Return the MCUs that decode to the exact pixels of [first_x, end_x) × [first_y, end_y).

    All are (n,) and in source pixels; a box may reach past its image and is clipped to it.
    ``scales`` are the DCT denominators, 1, 2, 4 or 8. With ``for_joining``, ``end_mcu`` is at a
    tile's edge wherever joining is faster so.
    """
    reach = grids.chroma_reach_px * scales
    mcu_w, mcu_h, tile_mcus = grids.mcu_width_px, grids.mcu_height_px, grids.tile_mcus
    mcus = -(-grids.width // mcu_w)
    first_mcu = np.maximum(first_x - reach, 0) // mcu_w
    first_row = np.maximum(first_y - reach, 0) // mcu_h
    end_mcu = np.minimum(-(-(end_x + reach) // mcu_w), mcus)
    end_row = np.minimum(-(-(end_y + reach) // mcu_h), grids.rows)

    right = np.minimum(end_mcu * mcu_w, grids.width)
    missing = _MIN_DECODED_PX * scales - (right - first_mcu * mcu_w)
    more_left = np.minimum(np.maximum(-(-missing // mcu_w), 0), first_mcu)
    more_right = np.maximum(-(-(missing - more_left * mcu_w) // mcu_w), 0)
    first_mcu -= more_left
    end_mcu = np.minimum(end_mcu + more_right, mcus)
    if for_joining:  # a tile that is cut has its codes read twice up to the cut
        is_whole = (2 * (end_mcu % tile_mcus) > tile_mcus) | (end_mcu == mcus)
        end_mcu = np.where(is_whole, -(-end_mcu // tile_mcus) * tile_mcus, end_mcu)

    x, y = first_mcu * mcu_w, first_row * mcu_h
    return TileWindows(
        first_mcu=first_mcu,
        end_mcu=end_mcu,
        first_row=first_row,
        end_row=end_row,
        x=x,
        y=y,
        width=np.minimum(end_mcu * mcu_w, grids.width) - x,
        height=np.minimum(end_row * mcu_h, grids.height) - y,
    )


def joined_room_bytes(blob_bytes: int, tile_rows: int) -> int:
    """Return an upper bound for the size of ``join_segments``'s output."""
    return 2 * blob_bytes + _ROW_ROOM_BYTES * tile_rows + DECODER_SLACK_BYTES


join_segments = _native.join_segments
"""Write a window's tiles as one valid baseline JPEG into ``out``; return its length in bytes.

Takes the sample's blob, the fields of its SegmentLayout, the window (first_mcu, end_mcu, first_row,
end_row, and the width and height of the JPEG in pixels) and ``out`` of ``joined_room_bytes``.
DECODER_SLACK_BYTES zero bytes follow the JPEG. Raises ValueError where the blob does not match its
layout; never reads or writes outside of either buffer.
"""


def whole_jpeg(
    blob: bytes | memoryview | NDArray[np.uint8], layout: SegmentLayout, width: int, height: int
) -> bytes:
    """Return all tiles as an ordinary JPEG: the source's coefficients, no restart markers.

    Raises ValueError where the blob does not match its layout.
    """
    mcus, rows = layout.tile_columns * layout.tile_mcus, layout.tile_rows
    out = np.empty(joined_room_bytes(len(blob), rows), np.uint8)
    size_bytes = join_segments(blob, *layout, 0, mcus, 0, rows, width, height, out)
    return out[:size_bytes].tobytes()


check_segments = _native.check_segments
"""Read every code of a blob's scan and compare each segment with the tables.

Takes the blob, the fields of its SegmentLayout and the number of MCUs in a row. Raises ValueError
naming the first segment that differs from its tables.
"""


def layout_of(record: np.void) -> SegmentLayout:
    """Return the layout in a record of dtype ``feeder.dataset.format.RECORD``."""
    return SegmentLayout(*(int(record[name]) for name in SegmentLayout._fields))
