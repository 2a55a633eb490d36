"""The batches in flight of ``blocking``: which rows have come, and where they are.

Invariant: each row is written exactly once, or lies in the slot that the batch is lent in. A node
answers each request once, so a chunk or batch that comes twice is a ProtocolError.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.client.core.answer_checks import check_chunk, check_loan, count_valid, name_batch
from feeder.errors import ConfigError, ProtocolError
from feeder.plan.labels import LabelRows, LabelSpec
from feeder.plan.packing import Pixels, pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.wire.messages import BatchKey, Chunk, Failed, Lent, Request, Welcome
from feeder.wire.slot_layout import ChunkArrays

_REQUEST: Final = 0  # the number of all requests: none is repeated while it is in flight


class ArrivingBatch:
    """A buffer for one batch after another: ``begin`` each one."""

    def __init__(self, recipe: Recipe, labels: LabelSpec) -> None:
        batch_size, layout = recipe.batch_size, pixel_layout_of(recipe.packing)
        shape = (batch_size, *layout.image_shape(recipe.image_size))
        self.pixels: Pixels = np.empty(shape, layout.dtype)
        self.labels: LabelRows = np.empty((batch_size, *labels.row_shape), labels.dtype)
        self.sample_ids: NDArray[np.int64] = np.empty(batch_size, np.int64)
        self.missing: set[int] = set()
        """The rows that are still to come."""
        self.valid = 0
        self.slot: int | None = None
        """The slot that the batch is lent in, if it is."""
        self._recipe = recipe
        self._labels = labels
        self._key: BatchKey = (0, 0)

    def begin(self, key: BatchKey, valid: int) -> None:
        """Expect another batch, of which ``valid`` rows are real."""
        self._key, self.valid, self.slot = key, valid, None
        self.missing = set(range(self._recipe.batch_size))

    def write(self, chunk: Chunk, frames: Sequence[zmq.Frame]) -> None:
        """Copy a chunk's rows to their place."""
        sizes = [len(frame) for frame in frames]
        check_chunk(self._recipe, self._labels, chunk, sizes, valid=self.valid)
        numbers = set(range(chunk.first, chunk.first + chunk.images))
        if not numbers <= self.missing:
            raise ProtocolError(
                f"the chunk from row {chunk.first} of {name_batch(self._key)} came twice"
            )
        rows = slice(chunk.first, chunk.first + chunk.images)
        for frame, array in zip(frames, (self.pixels, self.labels, self.sample_ids), strict=True):
            to = array[rows]
            to[...] = np.frombuffer(frame.buffer, to.dtype).reshape(to.shape)
        self.missing -= numbers

    def view(self, lent: Lent, slot: ChunkArrays) -> None:
        """Use the arrays of the slot that the batch is lent in."""
        check_loan(self._key, lent.valid, self.valid)
        if not self.missing:
            raise ProtocolError(f"{name_batch(self._key)} came twice")
        self.pixels, self.labels, self.sample_ids = slot.pixels, slot.labels, slot.sample_ids
        self.slot = lent.slot
        self.missing.clear()


class BatchWindow:
    """The batches that are requested and not yet released, as many as the node granted."""

    def __init__(self, recipe: Recipe, welcome: Welcome, slots: Sequence[ChunkArrays]) -> None:
        """``slots`` are the session's slots where they are mapped, else none."""
        self.batches: dict[BatchKey, ArrivingBatch] = {}
        """In the order of the requests."""
        self._recipe = recipe
        self._welcome = welcome
        self._slots = slots
        self._free = [ArrivingBatch(recipe, welcome.labels) for _ in range(welcome.window)]

    def request(self, want: tuple[BatchKey, ...], release: tuple[BatchKey, ...]) -> Request | None:
        """Return a request that also releases batches, None for nothing.

        ConfigError, and nothing is changed, for a batch that is already in flight.
        """
        for number, key in enumerate(want):
            if (key in self.batches and key not in release) or key in want[:number]:
                raise ConfigError(
                    f"{name_batch(key)} is requested twice at once: request it again when it has "
                    "come"
                )
        self._free.extend(self.batches.pop(key) for key in release)
        for key in want:
            batch = self._free.pop()
            batch.begin(key, count_valid(self._recipe, self._welcome.samples, key[1]))
            self.batches[key] = batch
        if not want and not release:
            return None
        return Request(session=self._welcome.session, want=want, release=release)

    def write(self, chunk: Chunk, frames: Sequence[zmq.Frame]) -> None:
        """Copy a chunk's rows to their place; ProtocolError for what was not requested."""
        if self._slots:
            raise ProtocolError("it sent a chunk where it lends whole batches")
        self._find(chunk).write(chunk, frames)

    def borrow(self, lent: Lent) -> None:
        """Use a lent batch; ProtocolError for what was not requested."""
        batch = self._find(lent)
        if lent.request != _REQUEST:
            raise ProtocolError(f"it answered request {lent.request}, which was never made")
        if lent.slot >= len(self._slots):
            raise ProtocolError(f"slot {lent.slot} was lent, {len(self._slots)} are mapped here")
        if any(other.slot == lent.slot for other in self.batches.values()):
            raise ProtocolError(f"slot {lent.slot} was lent while a batch in it is still read")
        batch.view(lent, self._slots[lent.slot])

    def check_failed(self, failed: Failed) -> None:
        """Raise ProtocolError unless the batch was requested and is not complete."""
        if not self._find(failed).missing:
            key = (failed.epoch, failed.index)
            raise ProtocolError(f"it cannot make {name_batch(key)}, which it has sent")

    def clear(self) -> None:
        """Drop all arrays, so that slots can be unmapped."""
        self.batches.clear()
        self._free.clear()
        self._slots = ()

    def _find(self, message: Chunk | Lent | Failed) -> ArrivingBatch:
        key = (message.epoch, message.index)
        if key not in self.batches:
            raise ProtocolError(f"it sent {name_batch(key)}, which was not requested")
        return self.batches[key]
