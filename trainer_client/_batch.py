"""A batch as the trainer gets it, and the host memory that it arrives in.

A ``BatchBuffer`` has one writer at a time. The I/O thread writes arriving chunks; when the batch is
complete the buffer belongs to the consumer, and only after the consumer gave it back may the I/O
thread assign it to another batch.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from feeder.packing import DEFAULT_PACKING, Packing, pixel_layout_of
from feeder.wire import PADDING_LABEL, PADDING_SAMPLE_ID

Bytes = bytes | memoryview


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
        """Copy a chunk's frames to the rows from ``first`` on; the sizes are checked before."""
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
