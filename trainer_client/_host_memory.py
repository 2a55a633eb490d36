"""The host memory that batches arrive in, as numpy arrays.

A ``BatchBuffer`` has one writer at a time. Whoever serves the sockets writes arriving chunks; the
buffer of a complete batch belongs to the consumer, and is reused only after that gave it back.

A ``SlotBuffer`` is the same to the consumer, but lies in the node process's memory: it is
read-only, needs no copy, and giving it back returns the slot to the node.
"""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from feeder.client.io_loop import Bytes
from feeder.client.mapped_slots import LentMemory
from feeder.plan.labels import INDEX_LABELS, LabelRows, LabelSpec
from feeder.plan.packing import DEFAULT_PACKING, Packing, Pixels, pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.wire.messages import PADDING_SAMPLE_ID

Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], NDArray[Any]]
"""Returns a new array of a shape and type, whatever its contents."""


class HostRows(Protocol):
    """A complete batch in host memory: pixels, labels and int64 ids, as they are on the wire."""

    @property
    def pixels(self) -> Pixels: ...
    @property
    def labels(self) -> LabelRows: ...
    @property
    def sample_ids(self) -> NDArray[np.int64]: ...


class SlotBuffer:
    """A lent slot, which nothing may write; its arrays keep all slots mapped."""

    def __init__(self, memory: LentMemory, number: int) -> None:
        slot = memory.slot(number)
        self.memory = memory
        self.address = memory.address + number * memory.layout.slot_bytes
        self.is_page_locked: bool | None = None  # None: not tried yet
        self.pixels: Pixels = slot.pixels
        self.labels = slot.labels
        self.sample_ids = slot.sample_ids


class BatchBuffer:
    """Memory for one batch: pixels int8 (N, S, S, 3), labels and sample ids int64 (N,).

    Pixels of another packing and labels of another kind have its type and shape.
    """

    def __init__(
        self,
        batch_size: int,
        image_size: int,
        *,
        packing: Packing = DEFAULT_PACKING,
        labels: LabelSpec = INDEX_LABELS,
        allocate: Allocate = np.empty,
    ) -> None:
        """Allocate the pixels and labels with ``allocate``, in page-locked memory, say."""
        layout = pixel_layout_of(packing)
        shape = (batch_size, *layout.image_shape(image_size))
        self.pixels: Pixels = allocate(shape, layout.dtype)
        self.labels: LabelRows = allocate((batch_size, *labels.row_shape), labels.dtype)
        self.sample_ids: NDArray[np.int64] = np.empty(batch_size, np.int64)
        self._grey = layout.grey
        self._label_padding = labels.padding
        self._pixel_rows = self.pixels.reshape(batch_size, -1)

    def write(self, first: int, pixels: Bytes, labels: Bytes, sample_ids: Bytes) -> None:
        """Copy a chunk's frames to the rows from ``first`` on; callers check the sizes."""
        ids = np.frombuffer(sample_ids, "<i8")
        rows = slice(first, first + len(ids))
        for frame, to in ((pixels, self._pixel_rows[rows]), (labels, self.labels[rows])):
            to[...] = np.frombuffer(frame, to.dtype).reshape(to.shape)
        self.sample_ids[rows] = ids

    def fill_padding(self) -> None:
        """Make all rows padding: grey pixels, no label, no sample."""
        self._pixel_rows[:] = self._grey
        self.labels[:] = self._label_padding
        self.sample_ids[:] = PADDING_SAMPLE_ID


class BatchBuffers:
    """The buffers of a loader, by number; allocated at first use, so never for lent batches."""

    def __init__(
        self, recipe: Recipe, labels_of: Callable[[], LabelSpec], allocate: Allocate = np.empty
    ) -> None:
        """``labels_of`` returns the kind of the labels; it is called when a welcome has come."""
        self._recipe = recipe
        self._labels_of = labels_of
        self._allocate = allocate
        self._buffers: dict[int, BatchBuffer] = {}

    def __getitem__(self, number: int) -> BatchBuffer:
        """Return a buffer; only its present owner may call this."""
        buffer = self._buffers.get(number)
        if buffer is None:
            recipe = self._recipe
            buffer = self._buffers[number] = BatchBuffer(
                recipe.batch_size,
                recipe.image_size,
                packing=recipe.packing,
                labels=self._labels_of(),
                allocate=self._allocate,
            )
        return buffer
