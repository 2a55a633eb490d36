"""The layout of a slot: pure arithmetic, shared by node process, worker and local client.

    slot:  [pixels (batch, image)][labels (batch, row)][sample ids int64 (batch,)][padding]

An image is S × S pixels in the recipe's packing, int8 (S, S, 3) by default. A row of labels is one
int64, or what the dataset's kind of labels makes it (``feeder.plan.labels``).

Slots follow one another in a session's memory. Each starts on a page, so that it can be mapped or
registered with a device alone. Invariant: no two slots and no two parts of a slot overlap.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Self

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from feeder.plan.labels import INDEX_LABELS, LabelRows, LabelSpec
from feeder.plan.packing import DEFAULT_PACKING, Packing, PixelLayout, Pixels, pixel_layout_of
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


@dataclass(frozen=True, kw_only=True)  # without slots, for what is computed once
class SlotLayout:
    """The shape of a session's slots: ``slots`` batches of ``batch_size`` rows, images of S × S."""

    slots: int
    batch_size: int
    image_size: int
    packing: Packing = DEFAULT_PACKING
    labels: LabelSpec = INDEX_LABELS

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

    @cached_property
    def pixel_layout(self) -> PixelLayout:
        """The layout of an image's pixels."""
        return pixel_layout_of(self.packing)

    @property
    def pixel_bytes(self) -> int:
        """Bytes of one slot's pixels; the labels begin at the next multiple of 8."""
        return self.batch_size * self._image_bytes

    @property
    def row_bytes(self) -> int:
        """Bytes of one row: its pixels, label and sample id."""
        return self._image_bytes + self._label_bytes + _ID_BYTES

    @property
    def batch_bytes(self) -> int:
        """Bytes of one batch: its pixels, labels and sample ids."""
        return self.batch_size * self.row_bytes

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes from one slot to the next, a multiple of PAGE_BYTES."""
        return _round_up(self._ids_start + _ID_BYTES * self.batch_size, PAGE_BYTES)

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of all slots together."""
        return self.slots * self.slot_bytes

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

    @cached_property
    def _rows(self) -> tuple["np.dtype[Any]", tuple[int, ...], "np.dtype[Any]", tuple[int, ...]]:
        """Type and shape of an image, and of its labels."""
        layout, labels = self.pixel_layout, self.labels
        return layout.dtype, layout.image_shape(self.image_size), labels.dtype, labels.row_shape

    @cached_property
    def _image_bytes(self) -> int:
        return self.pixel_layout.image_bytes(self.image_size)

    @cached_property
    def _label_bytes(self) -> int:
        return self.labels.row_bytes

    @cached_property
    def _labels_start(self) -> int:
        return _round_up(self.pixel_bytes, _ALIGNMENT_BYTES)

    @cached_property
    def _ids_start(self) -> int:
        return _round_up(self._labels_start + self.batch_size * self._label_bytes, _ALIGNMENT_BYTES)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
