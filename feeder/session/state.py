"""One session: its batches, its slots, and what its client may ask for. Pure state.

Invariant: a slot is in ``free_slots``, or held by one batch, or on its way back from the socket.
Whether batches are lent in place or sent as chunks is settled before the first one is asked for.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from feeder.plan.epoch import EpochPlan
from feeder.session.admission import Refusal
from feeder.session.chunk_state import Batch
from feeder.wire.messages import Hello
from feeder.wire.slot_layout import SlotLayout

BatchKey = tuple[int, int]
"""Epoch and index."""


@dataclass(slots=True, eq=False, kw_only=True)
class Session:
    """A client's session, from its Hello until its memory has been given back."""

    number: int
    peer: bytes
    hello: Hello
    plan: EpochPlan
    """Of epoch 0; how many batches there are and how full is the same in every epoch."""
    layout: SlotLayout
    chunk_images: int
    """Most rows of a chunk."""
    account: str
    """Whose limits it counts against."""
    seen_s: float
    """When the client last said something."""
    free_slots: list[int] = field(init=False)
    wanted: dict[BatchKey, Batch] = field(default_factory=dict)
    """Batches that were asked for and not released."""
    waiting: deque[Batch] = field(default_factory=deque)
    """Those of them that have no slot yet, in the order of their requests."""
    in_flight: int = 0
    """Chunks that workers have in hand, those of released batches included."""
    is_open: bool = False
    is_held: bool = False
    """The client maps the slots: batches are lent in place, and the memory stays while it does."""
    has_asked: bool = False
    """A batch was asked for: how batches are handed over does not change any more."""

    def __post_init__(self) -> None:
        self.free_slots = list(range(self.layout.slots))

    def refusal_for(self, fresh: list[BatchKey]) -> Refusal | None:
        """Return why these batches, none of them wanted yet, cannot be asked for now, or None."""
        for epoch, index in fresh:
            if index >= self.plan.batches:
                return Refusal(
                    "range",
                    f"batch {index} of epoch {epoch} does not exist: an epoch of this recipe has "
                    f"the indices 0 .. {self.plan.batches - 1}",
                )
        wanted = len(self.wanted) + len(fresh)
        if wanted > self.layout.slots:
            return Refusal(
                "window",
                f"{wanted} batches wanted and not released, the window is {self.layout.slots}: "
                "release batches first",
            )
        return None

    def refusal_for_claim(self) -> str | None:
        """Return why the slots cannot be claimed now, or None."""
        if not self.is_open:
            return "there is no such session here (any more)"
        if self.is_held:
            return "the slots of this session are mapped already"
        if self.has_asked:
            return "this session gets its batches over the socket: claim slots before asking"
        return None

    def want(self, key: BatchKey, request: int) -> None:
        """Remember that the client wants a batch."""
        self.has_asked = True
        epoch, index = key
        batch = Batch(
            session=self.number,
            dataset=self.hello.dataset,
            epoch=epoch,
            index=index,
            rows=self.layout.batch_size,
            valid=self.plan.valid(index),
            chunk_images=self.chunk_images,
            request=request,
        )
        self.wanted[key] = batch
        self.waiting.append(batch)

    def assign_slots(self) -> Iterator[Batch]:
        """Give free slots to batches that wait for one, and yield these."""
        while self.waiting and self.free_slots:
            batch = self.waiting.popleft()
            batch.slot = self.free_slots.pop()
            yield batch
