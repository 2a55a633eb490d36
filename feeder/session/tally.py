"""What sessions, workers and slots have done: totals for reports and diagnosis. Pure.

Invariant: a session's slots are each in one SlotState at any time from its Hello to its end, so the
seconds of the states add up to slots times that time.
"""

from dataclasses import dataclass, field
from typing import Final, Literal

from feeder.metrics.histogram import Histogram
from feeder.metrics.snapshot import SlotSeconds
from feeder.session.chunk_state import PendingChunk
from feeder.session.jobs import JobTallies

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


def add_slot_seconds(one: SlotSeconds, other: SlotSeconds) -> SlotSeconds:
    """Return the sum."""
    return SlotSeconds(
        free=one.free + other.free,
        filling=one.filling + other.filling,
        sending=one.sending + other.sending,
        client=one.client + other.client,
    )


@dataclass(slots=True, eq=False)
class SessionTally:
    """Totals of one session; units and meaning as in ClientSnapshot."""

    slots: SlotTimes
    images: int = 0
    batches: int = 0
    sent_bytes: int = 0
    worker_s: float = 0.0
    waited_s: float = 0.0
    clock_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(slots=True, eq=False)
class WorkerTally:
    """Totals of one worker; units and meaning as in WorkerSnapshot."""

    chunks: int = 0
    images: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    in_flight: int = 0
    """Now: chunks that it has."""


@dataclass(slots=True, eq=False)
class NodeTally:
    """Totals of all sessions and workers of a node process, those that have ended included."""

    workers: dict[int, WorkerTally] = field(default_factory=dict)
    """By number; those that are up."""
    lost_worker_busy_s: float = 0.0
    lent_bytes: int = 0
    chunk_s: Histogram = field(default_factory=Histogram)
    batch_s: Histogram = field(default_factory=Histogram)
    jobs: JobTallies = field(default_factory=JobTallies)
    ended_slots: SlotSeconds = field(default_factory=SlotSeconds)
    """Of sessions that have ended."""

    def on_dispatched(self, chunk: PendingChunk, now_s: float) -> None:
        """Count a chunk that is sent to its worker."""
        chunk.dispatched_s = now_s
        self.workers[chunk.worker].in_flight += 1

    def on_finished(self, chunk: PendingChunk) -> None:
        """Count a chunk that its worker has finished, or failed to fill."""
        self.workers[chunk.worker].in_flight -= 1

    def on_filled(self, chunk: PendingChunk, busy_s: float, cpu_s: float, now_s: float) -> None:
        """Add a filled chunk to its worker's totals."""
        worker = self.workers[chunk.worker]
        worker.chunks += 1
        worker.images += real_images(chunk)
        worker.busy_s += busy_s
        worker.cpu_s += cpu_s
        self.chunk_s.add(now_s - chunk.dispatched_s)

    def on_worker_lost(self, number: int) -> None:
        """Keep what remains of a worker's totals."""
        worker = self.workers.pop(number, None)
        if worker is not None:
            self.lost_worker_busy_s += worker.busy_s

    def on_session_ended(self, session: SessionTally, now_s: float) -> None:
        """Keep what remains of a session's totals."""
        self.ended_slots = add_slot_seconds(self.ended_slots, session.slots.seconds(now_s))


def real_images(chunk: PendingChunk) -> int:
    """Return how many rows of a chunk are samples, not padding."""
    return max(0, min(chunk.count, chunk.batch.valid - chunk.first))
