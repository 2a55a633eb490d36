"""Which tiles a crop needs, and how their segments become one small valid JPEG.

The invariant: decoding the joined JPEG gives, inside the box that was asked for, exactly the pixels
that decoding the whole image gives. What it takes:

* every tile that the box touches and, where chroma is subsampled and upsampling therefore looks at
  neighbours, those that one more decoded pixel on each side touches;
* at the image's right and bottom edge, the true size in the header, because the decoder replicates
  the last true chroma sample there;
* a joined width of more than four decoded pixels wherever the image itself is wider, because
  libjpeg upsamples chroma of one or two samples across in another way.

The geometry of a whole chunk is computed at once, in numpy; what is left for each sample is the
copying, in ``feeder/native/join.c``.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder._native import join_segments
from feeder.recode import Subsampling

__all__ = ["TileGrids", "TileWindows", "cover_boxes", "join_segments", "join_segments_reference"]

_MIN_DECODED_PX: Final = 5
_CHROMA_REACH_PX: Final = np.zeros(len(Subsampling), np.int64)
_CHROMA_REACH_PX[[Subsampling.S422, Subsampling.S420, Subsampling.S440]] = 1
"""How far libjpeg's upsampling looks, by subsampling; that of 4:1:1 only replicates."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TileGrids:
    """The tile geometry of n samples; every field is int64 (n,), sizes are in source pixels."""

    width: NDArray[np.int64]
    height: NDArray[np.int64]
    tile_width_px: NDArray[np.int64]
    tile_height_px: NDArray[np.int64]
    mcu_width_px: NDArray[np.int64]
    columns: NDArray[np.int64]
    rows: NDArray[np.int64]
    chroma_reach_px: NDArray[np.int64]

    @classmethod
    def of_records(cls, records: NDArray[np.void]) -> "TileGrids":
        """Take the geometry from records (n,) of dtype ``feeder.shard_format.RECORD``."""
        field = {name: records[name].astype(np.int64) for name in _RECORD_FIELDS}
        return cls(
            width=field["width"],
            height=field["height"],
            tile_width_px=field["tile_mcus"] * field["mcu_width_px"],
            tile_height_px=field["mcu_height_px"],
            mcu_width_px=field["mcu_width_px"],
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
    """Rectangles of tiles of n samples, and the pixels that decoding them gives; int64 (n,) all."""

    first_column: NDArray[np.int64]
    end_column: NDArray[np.int64]
    first_row: NDArray[np.int64]
    end_row: NDArray[np.int64]
    x: NDArray[np.int64]
    """Left edge in source pixels; a multiple of the tile's width."""
    y: NDArray[np.int64]
    width: NDArray[np.int64]
    """Of the joined JPEG, in source pixels; cut to the image's true edge where the header can say
    so, else padded to a whole tile."""
    height: NDArray[np.int64]


def cover_boxes(
    grids: TileGrids,
    first_x: NDArray[np.int64],
    first_y: NDArray[np.int64],
    end_x: NDArray[np.int64],
    end_y: NDArray[np.int64],
    scales: NDArray[np.int64],
) -> TileWindows:
    """Return the tiles that decode to the exact pixels of [first_x, end_x) × [first_y, end_y).

    All are (n,) and in source pixels; a box may reach past its image and is cut to it. ``scales``
    are the DCT denominators, 1, 2, 4 or 8.
    """
    reach = grids.chroma_reach_px * scales
    tile_w, tile_h = grids.tile_width_px, grids.tile_height_px
    first_column = np.maximum(first_x - reach, 0) // tile_w
    first_row = np.maximum(first_y - reach, 0) // tile_h
    end_column = np.minimum(-(-(end_x + reach) // tile_w), grids.columns)
    end_row = np.minimum(-(-(end_y + reach) // tile_h), grids.rows)

    missing = _MIN_DECODED_PX * scales - (_right_edge(grids, end_column) - first_column * tile_w)
    more_left = np.minimum(np.maximum(-(-missing // tile_w), 0), first_column)
    more_right = np.maximum(-(-(missing - more_left * tile_w) // tile_w), 0)
    first_column -= more_left
    end_column = np.minimum(end_column + more_right, grids.columns)

    x, y = first_column * tile_w, first_row * tile_h
    return TileWindows(
        first_column=first_column,
        end_column=end_column,
        first_row=first_row,
        end_row=end_row,
        x=x,
        y=y,
        width=_right_edge(grids, end_column) - x,
        height=np.minimum(end_row * tile_h, grids.height) - y,
    )


def _right_edge(grids: TileGrids, end_column: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the width that a joined header may claim, counted from the image's left edge.

    It can carry the true edge only where that needs as many MCUs as the tiles have; otherwise the
    decoder would take each row's surplus MCUs for the start of the next.
    """
    right = end_column * grids.tile_width_px
    surplus = right - grids.width
    return np.where((surplus > 0) & (surplus < grids.mcu_width_px), grids.width, right)


def join_segments_reference(
    blob: memoryview | NDArray[np.uint8],
    columns: int,
    rows: int,
    header_bytes: int,
    sof_offset: int,
    first_column: int,
    end_column: int,
    first_row: int,
    end_row: int,
    width: int,
    height: int,
    out: NDArray[np.uint8],
    /,
) -> int:
    """Write a window's tiles as one valid JPEG into ``out`` and return its length in bytes.

    ``blob`` is the sample as its shard holds it: the segment table (little-endian uint16,
    ``rows * columns``, row-major) followed by the tiled JPEG. The window's tiles are
    [first_column, end_column) × [first_row, end_row); width and height are those of the joined
    JPEG in pixels. ``out`` needs at most the tiled JPEG's own length.

    The tiles of one row that a window touches are one contiguous run of the file, so one copy a row
    and one vectorised assignment of all the markers' numbers do the whole join. ``join_segments``
    does the same in C, checks what it reads and raises ValueError where the blob does not hold what
    the table says; this one is the tests' and the bench's second opinion.
    """
    data = np.frombuffer(blob, np.uint8)
    table = data[: 2 * columns * rows].view("<u2").astype(np.int64)
    jpeg = data[2 * columns * rows :]
    ends = header_bytes + np.cumsum(table).reshape(rows, columns)
    starts = ends - table.reshape(rows, columns)
    window = slice(first_row, end_row), slice(first_column, end_column)
    starts, ends = starts[window], ends[window]

    out[:header_bytes] = jpeg[:header_bytes]
    out[sof_offset + 5 : sof_offset + 9] = np.array([height, width], ">u2").view(np.uint8)
    to = header_bytes
    for start, end in zip(starts[:, 0].tolist(), ends[:, -1].tolist(), strict=True):
        out[to : to + end - start] = jpeg[start:end]
        to += end - start
    markers = header_bytes + np.cumsum(ends - starts) - 1
    out[markers] = 0xD0 + np.arange(markers.size) % 8
    out[to - 1] = 0xD9
    return to
