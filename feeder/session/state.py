"""One session: its batches and slots, and which requests are allowed. Pure state.

Invariant: a slot is in ``free_slots``, or belongs to one batch, or is still in use by the socket.
Whether batches are lent in place or sent as chunks is settled before the first request.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from feeder.plan.epoch import EpochPlan
from feeder.session.admission import Refusal
from feeder.session.chunk_state import PendingBatch
from feeder.session.jobs import JobKey, JobTally
from feeder.session.tally import SessionTally, SlotTimes
from feeder.wire.messages import BatchKey, Hello, Ping
from feeder.wire.slot_layout import SlotLayout

CopyReason = Literal["copied-tcp", "copied-unclaimed", "copied-refused"]


@dataclass(slots=True, eq=False, kw_only=True)
class Session:
    """A client's session, from its Hello until its memory is freed."""

    number: int
    peer: bytes
    hello: Hello
    plan: EpochPlan
    """Of epoch 0; the number of batches and their sizes are the same in every epoch."""
    layout: SlotLayout
    chunk_images: int
    """Most rows of a chunk."""
    account: str
    """The client that it counts towards."""
    last_message_s: float
    """When the client last sent something."""
    is_local: bool = False
    """Whether the client runs on this machine."""
    job_tally: JobTally = field(default_factory=JobTally)
    """Of its job, which other sessions add to as well."""
    is_ipc: bool = False
    """Whether it is connected over ipc, so that it could map the slots."""
    has_claimed: bool = False
    """The client has claimed the slots, with success or without."""
    tally: SessionTally = field(init=False)
    recipe_id: str = field(init=False)
    """The recipe's fingerprint."""
    free_slots: list[int] = field(init=False)
    wanted: dict[BatchKey, PendingBatch] = field(default_factory=dict)
    """Batches that were requested and not yet released."""
    waiting: deque[PendingBatch] = field(default_factory=deque)
    """Those without a slot, in the order of their requests."""
    in_flight: int = 0
    """Chunks that workers have, those of released batches included."""
    is_open: bool = False
    is_held: bool = False
    """The client maps the slots: batches are lent, and the memory is kept until it unmaps them."""
    started: Ping | None = None
    """The first ping after the first batch."""
    has_requested: bool = False
    """A batch was requested: whether batches are lent or sent is fixed from now on."""

    @property
    def job(self) -> JobKey:
        """The job that it belongs to."""
        return self.account, self.hello.job

    def __post_init__(self) -> None:
        self.free_slots = list(range(self.layout.slots))
        self.recipe_id = self.hello.recipe.fingerprint()
        self.tally = SessionTally(SlotTimes(self.layout.slots, self.last_message_s))

    def refusal_for(self, fresh: list[BatchKey]) -> Refusal | None:
        """Return why these batches, none of them wanted yet, cannot be requested now, or None."""
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
            return "the slots of this session are already mapped"
        if self.has_requested:
            return "this session gets its batches over the socket: claim slots before a request"
        return None

    @property
    def copied_because(self) -> CopyReason | None:
        """Why batches are copied to a client that could read them in place, if it is one."""
        if self.is_held or not self.is_local:
            return None
        if not self.is_ipc:
            return "copied-tcp"
        return "copied-refused" if self.has_claimed else "copied-unclaimed"

    def on_ping(self, ping: Ping) -> None:
        """Take the client's totals since the first ping after the first batch.

        It waited before that for workers that had read nothing yet, whatever the pace is now.
        """
        if self.started is None and self.tally.batches:
            self.started = ping
        start, tally = self.started or Ping(session=self.number), self.tally
        tally.clock_s = max(0.0, ping.clock_s - start.clock_s)
        tally.waited_s = max(0.0, ping.waited_s - start.waited_s)
        tally.cpu_s = max(0.0, ping.cpu_s - start.cpu_s)

    def want(self, key: BatchKey, request: int, now_s: float) -> None:
        """Add a batch that the client wants."""
        self.has_requested = True
        epoch, index = key
        batch = PendingBatch(
            session=self.number,
            dataset=self.hello.dataset,
            epoch=epoch,
            index=index,
            rows=self.layout.batch_size,
            valid=self.plan.valid(index),
            chunk_images=self.chunk_images,
            window_rows=self.layout.slots * self.layout.batch_size,
            recipe=self.recipe_id,
            job=self.job,
            request=request,
            wanted_s=now_s,
        )
        self.wanted[key] = batch
        self.waiting.append(batch)

    def assign_slots(self, now_s: float) -> Iterator[PendingBatch]:
        """Give free slots to waiting batches, and yield these."""
        while self.waiting and self.free_slots:
            batch = self.waiting.popleft()
            batch.slot = self.free_slots.pop()
            self.tally.slots.move(batch.slot, "filling", now_s)
            yield batch
