"""Where things lie in a slot: pure arithmetic, the same for node process, worker and local client.

    slot:  [pixels int8 (batch, S, S, 3)][labels int64 (batch,)][sample ids int64 (batch,)][padding]

Slots follow one another in a session's memory. A slot starts on a page, so that it can be mapped or
registered with a device alone. Invariant: no two slots and no two parts of a slot overlap.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

PAGE_BYTES: Final = 4096
_LABEL_BYTES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkArrays:
    """Views of the rows of one chunk in a slot; C-contiguous, n rows each."""

    pixels: NDArray[np.int8]
    """(n, S, S, 3), RGB, value - 128."""
    labels: NDArray[np.int64]
    """(n,); -100 in rows of padding."""
    sample_ids: NDArray[np.int64]
    """(n,); -1 in rows of padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotLayout:
    """The shape of a session's slots: ``slots`` batches of ``batch_size`` rows, images of S × S."""

    slots: int
    batch_size: int
    image_size: int

    @property
    def pixel_bytes(self) -> int:
        """Bytes of one slot's pixels; the labels begin at the next multiple of 8."""
        return self.batch_size * self.image_size * self.image_size * 3

    @property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next, a multiple of PAGE_BYTES."""
        used = _round_up(self.pixel_bytes, _LABEL_BYTES) + 2 * _LABEL_BYTES * self.batch_size
        return _round_up(used, PAGE_BYTES)

    @property
    def total_bytes(self) -> int:
        """Bytes of all slots together."""
        return self.slots * self.slot_bytes

    def chunk(self, memory: NDArray[np.uint8], slot: int, first: int, count: int) -> ChunkArrays:
        """Return views of rows first .. first + count - 1 of a slot.

        ``memory`` is the whole session's memory, uint8 (total_bytes,). IndexError for rows or slots
        that do not exist.
        """
        if not (0 <= slot < self.slots and first >= 0 and 0 < count <= self.batch_size - first):
            raise IndexError(
                f"rows {first} .. {first + count - 1} of slot {slot}: there are {self.slots} slots "
                f"of {self.batch_size} rows"
            )
        size = self.image_size
        row_bytes = size * size * 3
        start = slot * self.slot_bytes
        pixels_at = start + first * row_bytes
        labels_at = start + _round_up(self.pixel_bytes, _LABEL_BYTES) + first * _LABEL_BYTES
        ids_at = labels_at + self.batch_size * _LABEL_BYTES
        pixels = memory[pixels_at : pixels_at + count * row_bytes]
        return ChunkArrays(
            pixels=pixels.view(np.int8).reshape(count, size, size, 3),
            labels=memory[labels_at : labels_at + count * _LABEL_BYTES].view(np.int64),
            sample_ids=memory[ids_at : ids_at + count * _LABEL_BYTES].view(np.int64),
        )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
