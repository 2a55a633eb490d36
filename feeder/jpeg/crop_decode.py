"""The MCUs of a sample that a crop needs: a *window*.

Invariant: inside the requested box, decoding the window gives exactly the pixels that decoding the
whole image gives. This takes:

* every MCU that the box touches, and with subsampled chroma also those that one more decoded pixel
  on each side touches, because upsampling reads neighbours;
* at the image's right and bottom edge, the image's true size, because the decoder replicates the
  last chroma sample there;
* a width of more than four decoded pixels wherever the image itself is wider, because libjpeg
  upsamples chroma that is one or two samples wide differently.

The geometry of a whole chunk is computed at once, in numpy.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg import _native
from feeder.jpeg.recode import MCU_PX, Subsampling

_MIN_DECODED_PX: Final = 5
_CHROMA_REACH_PX: Final = np.zeros(len(Subsampling), np.int64)
_CHROMA_REACH_PX[[Subsampling.S422, Subsampling.S420, Subsampling.S440]] = 1
"""How far libjpeg's chroma upsampling reads, by subsampling; for 4:1:1 it only replicates."""


_MCU_PX: Final = np.zeros((len(Subsampling), 2), np.int64)
_MCU_PX[list(MCU_PX)] = list(MCU_PX.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class McuGrids:
    """The MCUs of n samples; all int64 (n,), widths and heights in source pixels."""

    width: NDArray[np.int64]
    height: NDArray[np.int64]
    mcu_width_px: NDArray[np.int64]
    mcu_height_px: NDArray[np.int64]
    chroma_reach_px: NDArray[np.int64]

    @classmethod
    def of_records(cls, records: NDArray[np.void]) -> "McuGrids":
        """Take the geometry from records (n,) of dtype ``feeder.dataset.format.RECORD``."""
        subsampling = records["subsampling"]
        return cls(
            width=records["width"].astype(np.int64),
            height=records["height"].astype(np.int64),
            mcu_width_px=_MCU_PX[subsampling, 0],
            mcu_height_px=_MCU_PX[subsampling, 1],
            chroma_reach_px=_CHROMA_REACH_PX[subsampling],
        )

    def take(self, rows: NDArray[np.int64]) -> "McuGrids":
        """Return the grids of some of the samples; one may come several times."""
        return McuGrids(
            width=self.width[rows],
            height=self.height[rows],
            mcu_width_px=self.mcu_width_px[rows],
            mcu_height_px=self.mcu_height_px[rows],
            chroma_reach_px=self.chroma_reach_px[rows],
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
    """Of the window, in source pixels, clipped to the image; likewise the height."""
    height: NDArray[np.int64]

    @classmethod
    def of_edges(
        cls,
        grids: McuGrids,
        first_mcu: NDArray[np.int64],
        end_mcu: NDArray[np.int64],
        first_row: NDArray[np.int64],
        end_row: NDArray[np.int64],
    ) -> "TileWindows":
        """Return the windows with these edges in images of the ``grids``."""
        x, y = first_mcu * grids.mcu_width_px, first_row * grids.mcu_height_px
        return cls(
            first_mcu=first_mcu,
            end_mcu=end_mcu,
            first_row=first_row,
            end_row=end_row,
            x=x,
            y=y,
            width=np.minimum(end_mcu * grids.mcu_width_px, grids.width) - x,
            height=np.minimum(end_row * grids.mcu_height_px, grids.height) - y,
        )

    @property
    def edges(self) -> tuple[NDArray[np.int64], ...]:
        """First and end MCU, first and end row: what ``of_edges`` takes."""
        return self.first_mcu, self.end_mcu, self.first_row, self.end_row


def cover_boxes(
    grids: McuGrids,
    first_x: NDArray[np.int64],
    first_y: NDArray[np.int64],
    end_x: NDArray[np.int64],
    end_y: NDArray[np.int64],
    scales: NDArray[np.int64],
) -> TileWindows:
    """Return the MCUs that decode to the exact pixels of [first_x, end_x) × [first_y, end_y).

    All are (n,) and in source pixels; a box may reach past its image and is clipped to it.
    ``scales`` are the DCT denominators, 1, 2, 4 or 8.
    """
    reach = grids.chroma_reach_px * scales
    mcu_w, mcu_h = grids.mcu_width_px, grids.mcu_height_px
    mcus = -(-grids.width // mcu_w)
    first_mcu = np.maximum(first_x - reach, 0) // mcu_w
    first_row = np.maximum(first_y - reach, 0) // mcu_h
    end_mcu = np.minimum(-(-(end_x + reach) // mcu_w), mcus)
    end_row = np.minimum(-(-(end_y + reach) // mcu_h), -(-grids.height // mcu_h))

    right = np.minimum(end_mcu * mcu_w, grids.width)
    missing = _MIN_DECODED_PX * scales - (right - first_mcu * mcu_w)
    more_left = np.minimum(np.maximum(-(-missing // mcu_w), 0), first_mcu)
    more_right = np.maximum(-(-(missing - more_left * mcu_w) // mcu_w), 0)
    first_mcu -= more_left
    end_mcu = np.minimum(end_mcu + more_right, mcus)

    return TileWindows.of_edges(grids, first_mcu, end_mcu, first_row, end_row)


rebuild_jpeg = _native.rebuild_jpeg
"""Return a window as a baseline JPEG: its coefficients, with near-optimal Huffman tables.

Takes the sample's blob and the window (first_mcu, end_mcu, first_row, end_row, and its width and
height in pixels). Raises ValueError where the blob is damaged or has no such window.
"""


def whole_jpeg(blob: bytes | memoryview | NDArray[np.uint8], record: np.void) -> bytes:
    """Return a sample as an ordinary JPEG: the source's coefficients, no restart markers.

    ``record`` is of dtype ``feeder.dataset.format.RECORD``. Raises ValueError where the blob is
    damaged or of another size.
    """
    width, height = int(record["width"]), int(record["height"])
    mcu_width_px, mcu_height_px = MCU_PX[Subsampling(record["subsampling"])]
    mcus, rows = -(-width // mcu_width_px), -(-height // mcu_height_px)
    return rebuild_jpeg(blob, 0, mcus, 0, rows, width, height)


check_blob = _native.check_blob
"""Decode all of a blob; return its content checksum, the width and height of the image, those of an
MCU, and the MCUs of a tile.

Raises ValueError where it is damaged.
"""
