"""The layout of a slot: pure arithmetic, shared by node process, worker and local client.

    slot:  [pixels (batch, image)][labels (batch, row)][sample ids int64 (batch,)][padding]

An image is S × S pixels in the recipe's packing, int8 (S, S, 3) by default. A row of labels is one
int64, or what the dataset's kind of labels makes it (``feeder.plan.labels``).

Slots follow one another in a session's memory. Each starts on a page, so that it can be mapped or
registered with a device alone. Invariant: no two slots and no two parts of a slot overlap.
"""

import math
from typing import Final, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from feeder.plan.labels import INDEX_LABELS, LabelRows, LabelSpec
from feeder.plan.packing import DEFAULT_PACKING, Packing, Pixels, pixel_layout_of
from feeder.plan.recipe import Recipe

PAGE_BYTES: Final = 4096
_ALIGNMENT_BYTES: Final = 8  # of labels and sample ids
_ID_BYTES: Final = 8


class ChunkArrays(Struct, frozen=True, kw_only=True, eq=False):
    """Views of the rows of one chunk in a slot; C-contiguous, n rows each."""

    pixels: Pixels
    """(n, S, S, 3), RGB, level - 128 as int8; or as another packing has it."""
    labels: LabelRows
    """(n,) or (n, width), of LabelSpec.dtype; LabelSpec.padding in rows of padding."""
    sample_ids: NDArray[np.int64]
    """(n,); -1 in rows of padding."""


class SlotLayout:
    """The shape of a session's slots: ``slots`` batches of ``batch_size`` rows, images of S × S."""

    def __init__(
        self,
        *,
        slots: int,
        batch_size: int,
        image_size: int,
        packing: Packing = DEFAULT_PACKING,
        labels: LabelSpec = INDEX_LABELS,
    ) -> None:
        self.pixel_layout = pixels = pixel_layout_of(packing)
        label_dtype, label_shape = labels.dtype, labels.row_shape
        self.slots = slots
        self.batch_size = batch_size
        self.image_size = image_size
        self.labels = labels
        self._image_bytes = pixels.image_bytes(image_size)
        self._label_bytes = label_dtype.itemsize * math.prod(label_shape)
        self._rows = pixels.dtype, pixels.image_shape(image_size), label_dtype, label_shape
        self.pixel_bytes = batch_size * self._image_bytes
        """Bytes of one slot's pixels; the labels begin at the next multiple of 8."""
        self.row_bytes = self._image_bytes + self._label_bytes + _ID_BYTES
        """Bytes of one row: its pixels, label and sample id."""
        self.batch_bytes = batch_size * self.row_bytes
        self._labels_start = _round_up(self.pixel_bytes, _ALIGNMENT_BYTES)
        labels_end = self._labels_start + batch_size * self._label_bytes
        self._ids_start = _round_up(labels_end, _ALIGNMENT_BYTES)
        self.slot_bytes = _round_up(self._ids_start + _ID_BYTES * batch_size, PAGE_BYTES)
        """Bytes from one slot to the next, a multiple of PAGE_BYTES."""
        self.total_bytes = slots * self.slot_bytes

    @classmethod
    def of_recipe(cls, recipe: Recipe, labels: LabelSpec, *, slots: int) -> Self:
        """Return the layout of ``slots`` batches of a recipe and a dataset's labels."""
        return cls(
            slots=slots,
            batch_size=recipe.batch_size,
            image_size=recipe.image_size,
            packing=recipe.packing,
            labels=labels,
        )

    def chunk(self, memory: NDArray[np.uint8], slot: int, first: int, count: int) -> ChunkArrays:
        """Return views of rows first .. first + count - 1 of a slot.

        ``memory`` is the session's memory, uint8 (total_bytes,). Raises IndexError for rows or
        slots that do not exist.
        """
        if not (0 <= slot < self.slots and first >= 0 and 0 < count <= self.batch_size - first):
            raise IndexError(
                f"rows {first} .. {first + count - 1} of slot {slot}: there are {self.slots} slots "
                f"of {self.batch_size} rows"
            )
        start = slot * self.slot_bytes
        image_bytes, label_bytes = self._image_bytes, self._label_bytes
        pixels_at = start + first * image_bytes
        labels_at = start + self._labels_start + first * label_bytes
        ids_at = start + self._ids_start + first * _ID_BYTES
        pixels = memory[pixels_at : pixels_at + count * image_bytes]
        labels = memory[labels_at : labels_at + count * label_bytes]
        image_dtype, image_shape, label_dtype, label_shape = self._rows
        return ChunkArrays(
            pixels=pixels.view(image_dtype).reshape(count, *image_shape),
            labels=labels.view(label_dtype).reshape(count, *label_shape),
            sample_ids=memory[ids_at : ids_at + count * _ID_BYTES].view(np.int64),
        )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
