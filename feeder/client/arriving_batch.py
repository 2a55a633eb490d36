"""A batch of ``blocking`` on its way here: which of its rows have come, and where they are.

Invariant: each row is written exactly once, or lies in the slot that the batch is lent in. A node
answers each request once, so whatever comes twice, or after the batch is whole, is ProtocolError.
"""

from collections.abc import Sequence

import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.client.core.answer_checks import check_chunk, check_loan, name_batch
from feeder.errors import ProtocolError
from feeder.plan.packing import Pixels, pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.wire.messages import BatchKey, Chunk, Lent
from feeder.wire.slot_layout import ChunkArrays


class ArrivingBatch:
    """The place of one batch after another: ``begin`` each one."""

    def __init__(self, recipe: Recipe, chunk_images: int) -> None:
        """``chunk_images`` is how many rows the node puts into a chunk."""
        batch_size, layout = recipe.batch_size, pixel_layout_of(recipe.packing)
        shape = (batch_size, *layout.image_shape(recipe.image_size))
        self.pixels: Pixels = np.empty(shape, layout.dtype)
        self.labels: NDArray[np.int64] = np.empty(batch_size, np.int64)
        self.sample_ids: NDArray[np.int64] = np.empty(batch_size, np.int64)
        self.missing: set[int] = set()
        """First rows of the chunks that are still to come."""
        self.valid = 0
        self.slot: int | None = None
        """The slot that the batch is lent in, if it is."""
        self._recipe = recipe
        self._chunk_images = chunk_images
        self._key: BatchKey = (0, 0)

    def begin(self, key: BatchKey, valid: int) -> None:
        """Expect another batch, of which ``valid`` rows are real."""
        self._key, self.valid, self.slot = key, valid, None
        self.missing = set(range(0, self._recipe.batch_size, self._chunk_images))

    def write(self, chunk: Chunk, frames: Sequence[zmq.Frame]) -> None:
        """Copy a chunk's rows to their place."""
        sizes = [len(frame) for frame in frames]
        check_chunk(self._recipe, chunk, sizes, chunk_images=self._chunk_images, valid=self.valid)
        if chunk.first not in self.missing:
            raise ProtocolError(
                f"the chunk from row {chunk.first} on of {name_batch(self._key)} came twice"
            )
        rows = slice(chunk.first, chunk.first + chunk.images)
        for frame, array in zip(frames, (self.pixels, self.labels, self.sample_ids), strict=True):
            to = array[rows]
            to[...] = np.frombuffer(frame.buffer, to.dtype).reshape(to.shape)
        self.missing.discard(chunk.first)

    def view(self, lent: Lent, slot: ChunkArrays) -> None:
        """Show a batch that is lent."""
        check_loan(self._key, lent.valid, self.valid)
        if not self.missing:
            raise ProtocolError(f"{name_batch(self._key)} came twice")
        self.pixels, self.labels, self.sample_ids = slot.pixels, slot.labels, slot.sample_ids
        self.slot = lent.slot
        self.missing.clear()
