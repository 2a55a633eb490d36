"""Whether the fields of a record are consistent, as reading a sample assumes.

A record with the right checksum can still be inconsistent if another program wrote it. Invariant: a
sample whose record passes has a geometry that the tile grid, the crop and the decoder can handle,
and no more pixels than packing accepts, so that a reader's allocation is bounded. ``feeder verify``
describes what is wrong (``verify_shard.find_fault``).
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


def find_inconsistent(records: NDArray[np.void], labels: int) -> int | None:
    """Return the position of the first inconsistent one of ``records`` (n,); None if there is none.

    ``labels`` is the number that every label is below (LabelSpec.count_record_labels). Takes half a
    microsecond a record in a chunk of 32.
    """
    width, height, columns, rows, tile_mcus, mcu_width_px, mcu_height_px = (
        records[name].astype(np.int64) for name in _FIELDS
    )
    mcu_px = _MCU_PX_BY_CODE[records["subsampling"]]
    tile_px = tile_mcus * mcu_width_px
    consistent = (
        (mcu_width_px == mcu_px[:, 0])
        & (mcu_height_px == mcu_px[:, 1])
        & (width > 0)
        & (height > 0)
        & (width * height <= PIXELS_MAX)
        & (columns * tile_px >= width)
        & ((columns - 1) * tile_px < width)
        & (rows * mcu_height_px >= height)
        & ((rows - 1) * mcu_height_px < height)
        & (records["label"] < labels)
    )
    return None if consistent.all() else int(np.argmin(consistent))


_FIELDS: Final = (
    "width",
    "height",
    "tile_columns",
    "tile_rows",
    "tile_mcus",
    "mcu_width_px",
    "mcu_height_px",
)
