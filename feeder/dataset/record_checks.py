"""Whether a record's fields agree with one another: what reading a sample relies on.

A record can carry the right checksum and still be nonsense, if not our packing wrote it.
Invariant: a sample whose record passes has a geometry that the tile grid, the crop and the decoder
can work with, and no more pixels than packing takes, so that what it makes a reader allocate is
bounded. ``feeder verify`` says in words what is wrong (``verify_shard.find_fault``).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg.recode import PIXELS_MAX, Subsampling

MCU_PX: Final = {
    Subsampling.S444: (8, 8),
    Subsampling.S422: (16, 8),
    Subsampling.S420: (16, 16),
    Subsampling.S440: (8, 16),
    Subsampling.S411: (32, 8),
    Subsampling.GREY: (8, 8),
}
"""Width and height of an MCU by subsampling."""

_MCU_PX_BY_CODE: Final = np.zeros((256, 2), np.int64)  # 0 where there is no such subsampling
_MCU_PX_BY_CODE[list(MCU_PX)] = list(MCU_PX.values())


def find_impossible(records: NDArray[np.void], classes: int) -> int | None:
    """Return the place of the first of ``records`` (n,) that contradicts itself; None if none does.

    Takes half a microsecond a record in a chunk of 32.
    """
    width, height, columns, rows, tile_mcus, mcu_width_px, mcu_height_px = (
        records[name].astype(np.int64) for name in _FIELDS
    )
    mcu_px = _MCU_PX_BY_CODE[records["subsampling"]]
    tile_px = tile_mcus * mcu_width_px
    possible = (
        (mcu_width_px == mcu_px[:, 0])
        & (mcu_height_px == mcu_px[:, 1])
        & (width > 0)
        & (height > 0)
        & (width * height <= PIXELS_MAX)
        & (columns * tile_px >= width)
        & ((columns - 1) * tile_px < width)
        & (rows * mcu_height_px >= height)
        & ((rows - 1) * mcu_height_px < height)
        & (records["label"] < classes)
    )
    return None if possible.all() else int(np.argmin(possible))


_FIELDS: Final = (
    "width",
    "height",
    "tile_columns",
    "tile_rows",
    "tile_mcus",
    "mcu_width_px",
    "mcu_height_px",
)
