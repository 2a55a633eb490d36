"""One session: its batches and slots, and which requests are allowed. Pure state.

Invariants: A slot is in ``free_slots``, or belongs to one batch, or is still in use by the socket.
Slots are each in one SlotState from the session's Hello to its end, so the seconds of the states
add up to slots times that time. Whether batches are lent in place or sent as chunks is settled
before the first request.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, Literal

from feeder.metrics.records import ClientRecord, JobRecord, SlotSeconds
from feeder.plan.epoch import EpochPlan
from feeder.session.admission import Refusal
from feeder.session.chunk_state import PendingBatch
from feeder.session.jobs import JobKey
from feeder.wire.messages import BatchKey, Hello, Ping
from feeder.wire.slot_layout import SlotLayout

CopyReason = Literal["copied-tcp", "copied-unclaimed", "copied-refused"]

SlotState = Literal["free", "filling", "sending", "client"]
"""As in SlotSeconds."""

_STATES: Final[tuple[SlotState, ...]] = ("free", "filling", "sending", "client")


class SlotTimes:
    """How long a session's slots were in each state.

    A change of state adds its time to the state that is left, and subtracts it from the one that is
    entered. So a change may be recorded late, and nothing has to run in between.
    """

    __slots__ = ("_numbers", "_since_s", "_states", "_sums_s")

    def __init__(self, slots: int, now_s: float) -> None:
        """Begin with all slots free."""
        self._since_s = now_s
        self._states: list[SlotState] = ["free"] * slots
        self._numbers = dict.fromkeys(_STATES, 0)
        self._numbers["free"] = slots
        self._sums_s = dict.fromkeys(_STATES, 0.0)  # relative to ``_since_s``

    def state(self, slot: int) -> SlotState:
        """Return the state of a slot."""
        return self._states[slot]

    def move(self, slot: int, state: SlotState, at_s: float) -> None:
        """Record that a slot has changed its state."""
        former, elapsed_s = self._states[slot], at_s - self._since_s
        self._states[slot] = state
        self._numbers[former] -= 1
        self._sums_s[former] += elapsed_s
        self._numbers[state] += 1
        self._sums_s[state] -= elapsed_s

    def seconds(self, now_s: float) -> SlotSeconds:
        """Return the seconds so far, summed over slots."""
        elapsed_s, sums_s, numbers = now_s - self._since_s, self._sums_s, self._numbers
        # Rounding can make a zero negative.
        return SlotSeconds(
            free=max(0.0, sums_s["free"] + numbers["free"] * elapsed_s),
            filling=max(0.0, sums_s["filling"] + numbers["filling"] * elapsed_s),
            sending=max(0.0, sums_s["sending"] + numbers["sending"] * elapsed_s),
            client=max(0.0, sums_s["client"] + numbers["client"] * elapsed_s),
        )


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
    job_record: JobRecord = field(default_factory=lambda: JobRecord(name="", account=""))
    """Its job's, which other sessions count in as well."""
    is_ipc: bool = False
    """Whether it is connected over ipc, so that it could map the slots."""
    has_claimed: bool = False
    """The client has claimed the slots, with success or without."""
    record: ClientRecord = field(init=False)
    slot_times: SlotTimes = field(init=False)
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
        self.slot_times = SlotTimes(self.layout.slots, self.last_message_s)
        self.record = ClientRecord(
            name=self.hello.client,
            account=self.account,
            dataset=self.hello.dataset,
            job=self.hello.job,
            is_lent=False,
            is_local=self.is_local,
            window=self.layout.slots,
        )

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
        if self.started is None and self.record.batches:
            self.started = ping
        start, record = self.started or Ping(session=self.number), self.record
        record.clock_s = max(0.0, ping.clock_s - start.clock_s)
        record.waited_s = max(0.0, ping.waited_s - start.waited_s)
        record.cpu_s = max(0.0, ping.cpu_s - start.cpu_s)

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
