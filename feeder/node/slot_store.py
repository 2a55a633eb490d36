"""The slot memory of all sessions of a node process, and the loans of slots to the socket.

The socket may still read a slot that its session has released: it is looked at again until it has
finished. A client that has stopped reading can hold its slots for hours.
"""

from dataclasses import dataclass, field
from typing import Final

from zmq import MessageTracker

from feeder.session.events import SlotReturned, SlotsClosed, SlotSent
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.slot_memory import SlotMemory

_LOOK_INTERVAL_S: Final = 0.005
"""A tenth of the time that sending a batch takes."""

_SLOTS_A_LOOK: Final = 128
"""Takes 0.03 ms, so looking never costs as much as 1 % of a core."""

_WAKE_S: Final = 0.02
"""While slots are wanted back, the event loop wakes up for a look: 0.5 % of a core."""

SlotEvent = SlotSent | SlotReturned | SlotsClosed


@dataclass(slots=True, eq=False)
class _Loan:
    """A slot with frames that the socket may still read."""

    trackers: list[MessageTracker] = field(default_factory=list)
    seen_s: float = 0.0
    """When it was last known to read one."""


class SlotStore:
    """Memory and loans by session.

    libzmq does not report that it has finished reading, so ``look`` and ``look_around`` are called
    as things happen, and at ``deadline_s`` at the latest.
    """

    def __init__(self) -> None:
        self.memories: dict[int, SlotMemory] = {}
        """By session, while its slots are open."""
        self.loans: dict[int, dict[int, _Loan]] = {}
        """By session and slot, the session that was looked at last behind all others."""
        # The slots that sessions have released; None, for all memory, of those that have ended.
        self._wanted: dict[int, set[int | None]] = {}
        self._looked_s = 0.0

    @property
    def deadline_s(self) -> float:
        """When ``look_around`` is due, at the latest."""
        return self._looked_s + _WAKE_S if self._wanted else float("inf")

    def open(self, session: int, layout: SlotLayout) -> SlotMemory:
        """Create a session's memory; OSError when the machine has none."""
        memory = self.memories[session] = SlotMemory.create(layout)
        return memory

    def lend(self, session: int, slot: int, tracker: MessageTracker, now_s: float) -> None:
        """Record that the socket reads the slot until the tracker is done."""
        loan = self.loans.setdefault(session, {}).setdefault(slot, _Loan())
        loan.trackers.append(tracker)
        loan.seen_s = now_s

    def want_back(self, session: int, slot: int | None, now_s: float) -> list[SlotEvent]:
        """Take a slot back, or the whole memory (None), as soon as the socket does not read it."""
        self._wanted.setdefault(session, set()).add(slot)
        return self.look(session, now_s)

    def look_around(self, now_s: float) -> list[SlotEvent]:
        """Look at _SLOTS_A_LOOK slots or a few more, every _LOOK_INTERVAL_S at most, in turn."""
        events: list[SlotEvent] = []
        if now_s - self._looked_s >= _LOOK_INTERVAL_S:
            self._looked_s, looked = now_s, 0
            for session, loans in list(self.loans.items()):
                looked += len(loans)
                events += self.look(session, now_s)
                if looked >= _SLOTS_A_LOOK:
                    break
        return events

    def look(self, session: int, now_s: float) -> list[SlotEvent]:
        """Find the slots of a session that the socket has finished reading.

        The time between the last two looks is divided evenly between before and after.
        """
        events: list[SlotEvent] = []
        loans = self.loans.pop(session, {})
        for slot, loan in list(loans.items()):
            # The socket finishes frames in order, so mostly the last one answers for all.
            if loan.trackers[-1].done and all(tracker.done for tracker in loan.trackers):
                del loans[slot]
                events.append(SlotSent(session, slot, (loan.seen_s + now_s) / 2))
            else:
                loan.seen_s = now_s
        if loans:
            self.loans[session] = loans
        for wanted in self._wanted.pop(session, ()):
            if wanted in loans or (wanted is None and loans):
                self._wanted.setdefault(session, set()).add(wanted)
            elif wanted is not None:
                events.append(SlotReturned(session, wanted))
            else:
                memory = self.memories.pop(session, None)
                if memory is not None:
                    memory.discard()  # frees the pages even if a client keeps its mapping
                    memory.close()
                events.append(SlotsClosed(session))
        return events
