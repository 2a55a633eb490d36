"""Byte buffers that are reused from sample to sample.

They are on huge pages where the system has them, so that their positions in the CPU's caches do not
vary from run to run.
"""

import contextlib
import mmap

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg.resize import SLACK_BYTES

_HUGE_PAGE_BYTES = 2 << 20
ROW_BYTES = 32
"""A picture's rows begin at multiples of this from the first row."""

_MISALIGNMENT_BYTES = 8
_KEEP_BYTES = 32 << 20
"""Larger scratch (a decoded picture of over 8 megapixels) is freed after the sample."""


class Scratch:
    """A byte buffer that grows as needed, and does not keep giant sizes."""

    def __init__(self) -> None:
        self._buffer = _on_huge_pages(_HUGE_PAGE_BYTES)

    def take_picture(self, width: int, height: int) -> tuple[NDArray[np.uint8], int]:
        """Return room for an RGBX picture, with ``resize_pack``'s slack after it, and its stride.

        No row is aligned to 16 bytes: libjpeg-turbo's colour conversion writes aligned rows past
        the caches (movntdq in jdcolext), and resizing would wait for memory. Decoding and resizing
        an image take 7 % less time this way.
        """
        stride_bytes = -(-4 * width // ROW_BYTES) * ROW_BYTES
        size_bytes = _MISALIGNMENT_BYTES + stride_bytes * height + SLACK_BYTES
        return self.take(size_bytes)[_MISALIGNMENT_BYTES:], stride_bytes

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return ``size_bytes`` bytes with any content; those returned before become invalid."""
        if size_bytes > self._buffer.size:
            room = _on_huge_pages(size_bytes + size_bytes // 4)
            if room.size > _KEEP_BYTES:
                return room[:size_bytes]
            self._buffer = room
        return self._buffer[:size_bytes]


def _on_huge_pages(size_bytes: int) -> NDArray[np.uint8]:
    """Return at least ``size_bytes`` bytes of whole huge pages."""
    size_bytes = -(-size_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    memory = mmap.mmap(-1, size_bytes + _HUGE_PAGE_BYTES)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % _HUGE_PAGE_BYTES
    with contextlib.suppress(OSError):  # without huge pages, ordinary ones do
        memory.madvise(mmap.MADV_HUGEPAGE, start, size_bytes)
    return whole[start : start + size_bytes]
