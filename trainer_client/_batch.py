"""A batch as the trainer gets it, and the host memory that it arrives in.

A ``BatchBuffer`` has one writer at a time. The I/O thread writes arriving chunks; the buffer of a
complete batch belongs to the consumer, and is reused only after the consumer gave it back.

A ``SlotBuffer`` is the same to the consumer, but lies in the node process's memory: it is
read-only, needs no copy, and giving it back returns the slot to the node.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from feeder.client.io_thread import Bytes
from feeder.client.mapped_slots import LentMemory
from feeder.plan.packing import DEFAULT_PACKING, Packing, pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.wire.messages import PADDING_LABEL, PADDING_SAMPLE_ID


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """One batch on the device; unpacks to ``(images, labels)``.

    ``images`` is (N, 4, S, S) in the loader's dtype, channels_last, normalised. ``labels`` is int64
    (N,) on the same device. ``sample_ids`` is int64 (N,) on the host. All have N = batch size
    rows, of which the first ``valid`` are real; the padding of a last batch has the label -100,
    which ``cross_entropy`` ignores, and the sample id -1.
    """

    images: torch.Tensor
    labels: torch.Tensor
    sample_ids: torch.Tensor
    valid: int
    epoch: int
    index: int

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield images, then labels: ``for images, labels in loader``."""
        yield self.images
        yield self.labels


class HostTensors(Protocol):
    """A complete batch in host memory: pixels in the recipe's packing, int64 labels and ids."""

    @property
    def pixels(self) -> torch.Tensor: ...
    @property
    def labels(self) -> torch.Tensor: ...
    @property
    def sample_ids(self) -> torch.Tensor: ...


class SlotBuffer:
    """A lent slot as tensors, which are read-only and keep the slots mapped."""

    def __init__(self, memory: LentMemory, number: int) -> None:
        slot = memory.slot(number)
        self.memory = memory
        self.address = memory.address + number * memory.layout.slot_bytes
        self.is_page_locked: bool | None = None  # None: not tried yet
        self.pixels = torch.from_numpy(slot.pixels)
        self.labels = torch.from_numpy(slot.labels)
        self.sample_ids = torch.from_numpy(slot.sample_ids)


class BatchBuffer:
    """Host memory for one batch: pixels int8 (N, S, S, 3), labels and sample ids int64 (N,).

    Pixels of another packing have its type and shape.
    """

    def __init__(
        self,
        batch_size: int,
        image_size: int,
        *,
        pinned: bool,
        packing: Packing = DEFAULT_PACKING,
    ) -> None:
        """Allocate; ``pinned`` memory is page-locked for asynchronous copies to a CUDA device."""
        layout = pixel_layout_of(packing)
        shape = (batch_size, *layout.image_shape(image_size))
        dtype = getattr(torch, layout.dtype.name)
        self.pixels = torch.empty(shape, dtype=dtype, pin_memory=pinned)
        self._grey = layout.grey
        self.labels = torch.empty(batch_size, dtype=torch.int64, pin_memory=pinned)
        self.sample_ids = torch.empty(batch_size, dtype=torch.int64)
        self._pixel_rows = self.pixels.numpy().reshape(batch_size, -1)
        self._label_rows = self.labels.numpy()
        self._id_rows = self.sample_ids.numpy()

    def write(self, first: int, pixels: Bytes, labels: Bytes, sample_ids: Bytes) -> None:
        """Copy a chunk's frames to the rows from ``first`` on; callers check the sizes."""
        label_rows = np.frombuffer(labels, "<i8")
        rows = slice(first, first + len(label_rows))
        self._pixel_rows[rows] = np.frombuffer(pixels, self._pixel_rows.dtype).reshape(
            len(label_rows), -1
        )
        self._label_rows[rows] = label_rows
        self._id_rows[rows] = np.frombuffer(sample_ids, "<i8")

    def fill_padding(self) -> None:
        """Make all rows padding: grey pixels, no label, no sample."""
        self._pixel_rows[:] = self._grey
        self._label_rows[:] = PADDING_LABEL
        self._id_rows[:] = PADDING_SAMPLE_ID


class BatchBuffers:
    """The buffers of a loader, by number; allocated at first use, so never for lent batches."""

    def __init__(self, recipe: Recipe, *, pinned: bool) -> None:
        self._recipe = recipe
        self._pinned = pinned
        self._buffers: dict[int, BatchBuffer] = {}

    def __getitem__(self, number: int) -> BatchBuffer:
        """Return a buffer; only its present owner may call this."""
        buffer = self._buffers.get(number)
        if buffer is None:
            recipe = self._recipe
            buffer = self._buffers[number] = BatchBuffer(
                recipe.batch_size, recipe.image_size, pinned=self._pinned, packing=recipe.packing
            )
        return buffer
