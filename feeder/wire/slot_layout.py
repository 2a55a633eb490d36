"""The layout of a slot: pure arithmetic, shared by node process, worker and local client.

    slot:  [pixels (batch, image)][labels (batch, row)][sample ids int64 (batch,)][padding]

An image is S × S pixels in the recipe's packing, int8 (S, S, 3) by default. A row of labels is one
int64, or what the dataset's kind of labels makes it (``feeder.plan.labels``).

Where the recipe has several crops a sample, the pixels are those of group after group, each of them
(count, batch, image) and at a multiple of 64 bytes. Where the image size changes by epoch, slots
are sized for the largest, and a slot is laid out for the epoch of the batch in it: ``at(epoch)``.

Slots follow one another in a session's memory. Each starts on a page, so that it can be mapped or
registered with a device alone. Invariant: no two slots and no two parts of a slot overlap.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from feeder.plan.labels import INDEX_LABELS, LabelRows, LabelSpec
from feeder.plan.packing import DEFAULT_PACKING, Packing, Pixels, pixel_layout_of
from feeder.plan.recipe import Recipe

PAGE_BYTES: Final = 4096
_ALIGNMENT_BYTES: Final = 8  # of labels and sample ids
_GROUP_ALIGNMENT_BYTES: Final = 64  # a cache line
_ID_BYTES: Final = 8


class ChunkArrays(Struct, frozen=True, kw_only=True, eq=False):
    """Views of the rows of one chunk in a slot; C-contiguous, n rows each."""

    pixels: Pixels
    """(n, S, S, 3), RGB, level - 128 as int8; or as another packing has it. Of the first crop."""
    further: tuple[Pixels, ...] = ()
    """The same of each further crop of a sample, where the recipe has several."""
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
        image_size: int = 0,
        groups: Sequence[tuple[int, int]] = (),
        packing: Packing = DEFAULT_PACKING,
        labels: LabelSpec = INDEX_LABELS,
        slot_bytes: int = 0,
    ) -> None:
        """``groups`` are (count, image size), by default one image of ``image_size``; a slot has
        ``slot_bytes`` at least."""
        self.pixel_layout = pixels = pixel_layout_of(packing)
        label_dtype, label_shape = labels.dtype, labels.row_shape
        self.slots = slots
        self.batch_size = batch_size
        self.labels = labels
        self._label_bytes = label_dtype.itemsize * math.prod(label_shape)
        self._label_rows = label_dtype, label_shape
        self._groups: list[tuple[int, tuple[int, ...]]] = []
        """Where the pixels of each group begin, and their shape."""
        self._crops: list[tuple[int, int, tuple[int, int, int]]] = []
        """Where the pixels of each crop begin, the bytes of an image, and its shape."""
        end = 0
        for count, size in groups or ((1, image_size),):
            start, shape = _round_up(end, _GROUP_ALIGNMENT_BYTES), pixels.image_shape(size)
            image_bytes = pixels.image_bytes(size)
            self._groups.append((start, (count, batch_size, *shape)))
            for crop in range(count):
                self._crops.append((start + crop * batch_size * image_bytes, image_bytes, shape))
            end = start + count * batch_size * image_bytes
        self.pixel_bytes = end
        """Bytes of one slot's pixels; the labels begin at the next multiple of 8."""
        image_bytes = sum(image_bytes for _, image_bytes, _ in self._crops)
        self.row_bytes = image_bytes + self._label_bytes + _ID_BYTES
        """Bytes of one row: its pixels, label and sample id."""
        self.batch_bytes = batch_size * self.row_bytes
        self._labels_start = _round_up(self.pixel_bytes, _ALIGNMENT_BYTES)
        labels_end = self._labels_start + batch_size * self._label_bytes
        self._ids_start = _round_up(labels_end, _ALIGNMENT_BYTES)
        needed_bytes = _round_up(self._ids_start + _ID_BYTES * batch_size, PAGE_BYTES)
        self.slot_bytes = max(needed_bytes, slot_bytes)
        """Bytes from one slot to the next, a multiple of PAGE_BYTES."""
        self.total_bytes = slots * self.slot_bytes
        self._epochs: list[int] = []  # from which the layout changes, and those that hold then
        self._later: list[SlotLayout] = []

    @classmethod
    def of_recipe(cls, recipe: Recipe, labels: LabelSpec, *, slots: int) -> "SlotLayout":
        """Return the layout of ``slots`` batches of a recipe and a dataset's labels.

        It is that of epoch 0; ``at`` has those of other epochs.
        """

        def make(recipe: Recipe, slot_bytes: int) -> "SlotLayout":
            return cls(
                slots=slots,
                batch_size=recipe.batch_size,
                groups=recipe.group_shapes,
                packing=recipe.packing,
                labels=labels,
                slot_bytes=slot_bytes,
            )

        if not recipe.phases:
            return make(recipe, 0)
        recipes = recipe.over_epochs()
        slot_bytes = max(make(each, 0).slot_bytes for each in recipes)
        layout, *later = (make(each, slot_bytes) for each in recipes)
        layout._epochs, layout._later = [phase.epoch for phase in recipe.phases], later
        return layout

    def at(self, epoch: int) -> "SlotLayout":
        """Return the layout of slots that hold batches of an epoch."""
        number = bisect_right(self._epochs, epoch) if self._epochs else 0
        return self._later[number - 1] if number else self

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
        start, dtype = slot * self.slot_bytes, self.pixel_layout.dtype
        crops: list[Pixels] = []
        for crop_start, image_bytes, shape in self._crops:
            at = start + crop_start + first * image_bytes
            crops.append(memory[at : at + count * image_bytes].view(dtype).reshape(count, *shape))
        label_dtype, label_shape = self._label_rows
        labels_at = start + self._labels_start + first * self._label_bytes
        ids_at = start + self._ids_start + first * _ID_BYTES
        labels = memory[labels_at : labels_at + count * self._label_bytes]
        return ChunkArrays(
            pixels=crops[0],
            further=tuple(crops[1:]),
            labels=labels.view(label_dtype).reshape(count, *label_shape),
            sample_ids=memory[ids_at : ids_at + count * _ID_BYTES].view(np.int64),
        )

    def groups(self, pixels: NDArray[np.uint8]) -> tuple[Pixels, ...]:
        """Return views (count, batch_size, image) of each group of crops, in the order of groups.

        ``pixels`` are the first ``pixel_bytes`` bytes of a slot, or a copy of them.
        """
        dtype = self.pixel_layout.dtype
        return tuple(
            pixels[at : at + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)
            for at, shape in self._groups
        )


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
