"""Sessions, their batches and the chunks of these: the state that the other modules change. Pure.

Invariants:
- A slot is free, or belongs to one batch, or is still in use by the socket. It is in one SlotState
  at any time from its session's Hello to its end, so the seconds of the states add up to slots
  times that time.
- Whether batches are lent in place or sent as chunks is settled before the first request.
- From its Hello until its memory is freed, a session is in exactly one of ``SessionRegistry.open``
  and ``ended``, and a peer has at most one open session.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from feeder.metrics.records import ClientRecord, JobRecord, SlotSeconds
from feeder.plan.epoch import EpochPlan
from feeder.session.admission import HelloReceived, Refusal, Usage
from feeder.wire.messages import BatchKey, Ping
from feeder.wire.slot_layout import SlotLayout

JobKey: TypeAlias = tuple[str, str]
"""An account, and the name of a job of its own; "" for the sessions without one."""

ChunkKind: TypeAlias = tuple[str, str]
"""A dataset, and the fingerprint of a recipe: what decides how long a chunk takes."""

CopyReason = Literal["copied-tcp", "copied-unclaimed", "copied-refused"]

SlotState = Literal["free", "filling", "sending", "client"]
"""As in SlotSeconds."""


class SlotTimes:
    """How long a session's slots were in each state.

    A change of state adds its time to the state that is left, and subtracts it from the one that is
    entered. So a change may be recorded late, and nothing has to run in between.
    """

    __slots__ = ("_since_s", "_sums_s", "states")

    def __init__(self, slots: int, now_s: float) -> None:
        self.states: list[SlotState] = ["free"] * slots
        """By slot."""
        self._since_s = now_s
        self._sums_s: dict[SlotState, float] = dict.fromkeys(get_args(SlotState), 0.0)

    def move(self, slot: int, state: SlotState, at_s: float) -> None:
        """Record that a slot has changed its state."""
        elapsed_s = at_s - self._since_s
        self._sums_s[self.states[slot]] += elapsed_s
        self._sums_s[state] -= elapsed_s
        self.states[slot] = state

    def seconds(self, now_s: float) -> SlotSeconds:
        """The seconds so far, summed over slots."""
        elapsed_s = now_s - self._since_s
        seconds = SlotSeconds()
        for state, sum_s in self._sums_s.items():
            # Rounding can make a zero negative.
            setattr(seconds, state, max(0.0, sum_s + self.states.count(state) * elapsed_s))
        return seconds


@dataclass(slots=True, eq=False)
class Job:
    """What the sessions of a job share."""

    weight: float
    record: JobRecord
    """Its own, or that of all other jobs."""
    virtual_s: float = 0.0
    ready: "OrderedDict[Session, None]" = field(default_factory=OrderedDict)
    """Its sessions that have chunks to dispatch, the next one first."""
    unfinished: int = 0
    """Its chunks that workers have, or that are to be dispatched again."""


@dataclass(slots=True, eq=False)
class PendingBatch:
    """A batch that a client wants, and its progress."""

    session: "Session"
    epoch: int
    index: int
    valid: int
    """Rows that are real samples."""
    request: int = 0
    """Number of the client's request for it."""
    wanted_s: float = 0.0
    """When that was handled."""
    is_unowned: bool = False
    """Another feeder owns its lane."""
    fetch: int = 0
    """Number of the fetch that puts its samples on disk and keeps them there; 0: there is none."""
    slot: int = -1
    """-1: it has none."""
    enqueued_s: float = field(default=0.0, init=False)
    """When it could first be dispatched."""
    unfilled: int = field(default=0, init=False)
    """First row that was never dispatched."""
    filled: int = field(default=0, init=False)
    """Rows that workers have written."""
    in_flight: int = field(default=0, init=False)
    """Chunks that workers have now."""
    is_cancelled: bool = field(default=False, init=False)
    """Released, failed or its session ended: nothing more of it is filled or sent."""

    @property
    def is_whole(self) -> bool:
        return self.filled == self.session.layout.batch_size


@dataclass(slots=True, eq=False)
class PendingChunk:
    """Consecutive rows of a batch, filled by one worker at a time."""

    batch: PendingBatch
    first: int
    count: int
    ticket: int = field(default=0, init=False)
    worker: int = field(default=0, init=False)
    dispatched_s: float = field(default=0.0, init=False)
    """When it was sent to its worker."""
    charged_s: float = field(default=0.0, init=False)
    """Worker time that its job was charged when it was dispatched."""
    is_doubted: bool = field(default=False, init=False)
    """It could not be filled from the disk cache, and its samples were looked at again."""
    deaths: int = field(default=0, init=False)
    """Workers that crashed with only this chunk in flight."""
    kills: int = field(default=0, init=False)
    """Workers that SIGKILL ended with only this chunk in flight."""
    hangs: int = field(default=0, init=False)
    """Workers that were killed because they did not finish it in time, though nothing stopped them
    and storage answered."""
    silent_s: float = field(default=0.0, init=False)
    """How long the worker that finished it took, if that was silent."""

    @property
    def images(self) -> int:
        """Rows that are samples, not padding."""
        return max(0, min(self.count, self.batch.valid - self.first))


class Session:
    """A client's session, from its Hello until its memory is freed."""

    def __init__(
        self,
        arrival: HelloReceived,
        plan: EpochPlan,
        layout: SlotLayout,
        chunk_images: Sequence[int],
        job: Job,
        now_s: float,
    ) -> None:
        """Begin with a Hello and the terms on which it was admitted; ``plan`` is that of epoch
        0, ``chunk_images`` are the most rows of a chunk in each phase of the recipe."""
        hello = arrival.hello
        self.arrival = arrival
        self.number, self.peer, self.account = arrival.number, arrival.peer, arrival.account
        self.hello, self.dataset = hello, hello.dataset
        self.plan = plan  # the number of batches and their sizes are the same in every epoch
        self.layout = layout
        self.chunk_images = max(chunk_images)  # at most
        self._phase_images = chunk_images
        self.job = job  # which workers' time is charged to
        self.kind: ChunkKind = hello.dataset, hello.recipe.fingerprint()
        self.record = ClientRecord(
            name=hello.client,
            account=arrival.account,
            dataset=hello.dataset,
            job=hello.job,
            is_lent=False,
            is_local=arrival.is_local,
            window=layout.slots,
            lanes=plan.shape.lanes,
            working_set_bytes=plan.working_set_bytes,
        )
        self.last_message_s = now_s
        self.slot_times = SlotTimes(layout.slots, now_s)
        self.wanted: dict[BatchKey, PendingBatch] = {}  # requested and not yet released
        self.waiting: deque[PendingBatch] = deque()  # those without a slot, first requested first
        self.queue: deque[PendingBatch] = deque()  # those with chunks to dispatch
        # The client maps the slots: batches are lent, and the memory is kept until it unmaps them.
        self.is_held = False
        self.has_claimed = False  # the slots, with success or without
        self.is_closing = False  # CloseSlots was returned
        self.has_requested = False  # from then on, it is fixed whether batches are lent or sent
        self.started: Ping | None = None  # the first ping after the first batch

    def chunk_images_at(self, epoch: int) -> int:
        """The most rows of a chunk of an epoch's batch."""
        if len(self._phase_images) == 1:
            return self.chunk_images
        return self._phase_images[self.hello.recipe.phase_at(epoch)]

    def refusal_for(self, fresh: list[BatchKey]) -> Refusal | None:
        """Why these batches, none of them wanted yet, cannot be requested now, or None."""
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
        """Why the slots cannot be claimed now, or None."""
        if self.is_held:
            return "the slots of this session are already mapped"
        if self.has_requested:
            return "this session gets its batches over the socket: claim slots before a request"
        return None

    @property
    def copied_because(self) -> CopyReason | None:
        """Why batches are copied to a client that could read them in place, if it is one."""
        if self.is_held or not self.arrival.is_local:
            return None
        if not self.arrival.is_ipc:
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

    def want(self, key: BatchKey, request: int, now_s: float) -> PendingBatch:
        """Add a batch that the client wants, and return it."""
        self.has_requested = True
        epoch, index = key
        batch = PendingBatch(self, epoch, index, self.plan.valid(index), request, now_s)
        self.wanted[key] = batch
        return batch


class SessionRegistry:
    """The sessions of a node process, and what they use.

    That is counted as they come and go: a Hello must not take longer for each session that is
    there.
    """

    def __init__(self) -> None:
        self.open: dict[int, Session] = {}
        self.ended: dict[int, Session] = {}
        self.by_peer: dict[bytes, Session] = {}
        """The open ones."""
        self.used = Usage()
        """By all sessions."""
        self._used_by_account: dict[str, Usage] = {}

    def __iter__(self) -> Iterator[Session]:
        """Yield open and ended sessions."""
        yield from self.open.values()
        yield from self.ended.values()

    def add(self, session: Session) -> None:
        """Add a session; its peer has no other open one."""
        self.open[session.number] = session
        self.by_peer[session.peer] = session
        for used in (self.used, self._used_by_account.setdefault(session.account, Usage())):
            used.open += 1
            used.slots_bytes += session.layout.total_bytes
            used.recipes[session.dataset, session.hello.recipe] += 1

    def end(self, session: Session) -> None:
        """Move a session to ``ended``: its memory is not yet freed."""
        del self.open[session.number]
        del self.by_peer[session.peer]
        self.ended[session.number] = session
        recipe = session.dataset, session.hello.recipe
        for used in (self.used, self._used_by_account[session.account]):
            used.open -= 1
            used.ended += 1
            used.recipes[recipe] -= 1
            if not used.recipes[recipe]:
                del used.recipes[recipe]

    def forget(self, number: int) -> None:
        """Remove an ended session: its memory is freed."""
        session = self.ended.pop(number, None)
        if session is None:
            return
        for used in (self.used, by_account := self._used_by_account[session.account]):
            used.ended -= 1
            used.slots_bytes -= session.layout.total_bytes
        if not (by_account.open or by_account.ended):
            del self._used_by_account[session.account]

    def count_alike(self, session: Session) -> int:
        """How many open sessions have a session's dataset and recipe, itself included."""
        return max(1, self.used.recipes[session.dataset, session.hello.recipe])

    @property
    def held_bytes(self) -> int:
        """Slot memory that clients map."""
        return sum(session.layout.total_bytes for session in self if session.is_held)

    def used_by(self, account: str) -> Usage:
        """What one client uses."""
        return self._used_by_account.get(account) or Usage()
