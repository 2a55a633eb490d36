"""The slot memory of all sessions of a node process, and the loans of slots to the socket.

The socket may still read a slot that its session has released. Until it has finished, the slot is
looked at with exponential backoff: a client that has stopped reading can hold its slots for hours.
"""

from dataclasses import dataclass
from typing import Final

from zmq import MessageTracker

from feeder.process.backoff import Backoff
from feeder.session.events import SlotReturned, SlotsClosed, SlotSent
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.slot_memory import SlotMemory

_FIRST_RECHECK_S: Final = 0.002
_LAST_RECHECK_S: Final = 1.0
_LOOK_INTERVAL_S: Final = 0.005
"""A tenth of the time that sending a batch takes."""

_SLOTS_A_LOOK: Final = 128
"""Takes 0.03 ms, so looking never costs as much as 1 % of a core."""

SlotEvent = SlotSent | SlotReturned | SlotsClosed


@dataclass(slots=True, eq=False)
class _Loan:
    """A slot with frames that the socket may still read."""

    trackers: list[MessageTracker]
    seen_s: float
    """When it was last known to read one."""


class SlotStore:
    """Memory and loans by session.

    libzmq does not report that it has finished reading, so ``look`` and ``look_around`` are called
    as things happen, and ``recheck`` while slots are wanted back.
    """

    def __init__(self) -> None:
        self.memories: dict[int, SlotMemory] = {}
        """By session, while its slots are open."""
        self.loans: dict[int, dict[int, _Loan]] = {}
        """By session and slot, the session that was looked at last behind all others."""
        self._wanted: dict[int, set[int]] = {}  # slots that sessions have released
        self._closing: set[int] = set()  # sessions that have ended
        self._looked_s = 0.0
        self._backoff = Backoff(_FIRST_RECHECK_S, _LAST_RECHECK_S)
        self.recheck_at_s = float("inf")
        """When ``recheck`` is due."""

    def open(self, session: int, layout: SlotLayout) -> SlotMemory:
        """Create a session's memory; OSError when the machine has none."""
        memory = self.memories[session] = SlotMemory.create(layout)
        return memory

    def lend(self, session: int, slot: int, tracker: MessageTracker, now_s: float) -> None:
        """Record that the socket reads the slot until the tracker is done."""
        loans = self.loans.setdefault(session, {})
        earlier = loans[slot].trackers if slot in loans else []
        unfinished = [frame for frame in earlier if not frame.done]
        loans[slot] = _Loan([*unfinished, tracker], now_s)

    def want_back(self, session: int, slot: int | None, now_s: float) -> list[SlotEvent]:
        """Take a slot back, or the whole memory (None), as soon as the socket does not read it."""
        if slot is None:
            self._closing.add(session)
        else:
            self._wanted.setdefault(session, set()).add(slot)
        events = self.look(session, now_s)
        if session in self._wanted or session in self._closing:
            self._backoff.reset()
            self.recheck_at_s = now_s + self._backoff.next_s()
        return events

    def recheck(self, now_s: float) -> list[SlotEvent]:
        """Look at the sessions from which slots are wanted back."""
        events = [
            event
            for session in self._wanted.keys() | self._closing
            for event in self.look(session, now_s)
        ]
        if events:
            self._backoff.reset()
        is_waiting = self._wanted or self._closing
        self.recheck_at_s = now_s + self._backoff.next_s() if is_waiting else float("inf")
        return events

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
        wanted = self._wanted.pop(session, set())
        events += [SlotReturned(session, slot) for slot in wanted if slot not in loans]
        if session in self._closing and not loans:
            self._closing.remove(session)
            memory = self.memories.pop(session, None)
            if memory is not None:
                memory.discard()  # frees the pages even if a client keeps its mapping
                memory.close()
            events.append(SlotsClosed(session))
        elif wanted := wanted & loans.keys():
            self._wanted[session] = wanted
        return events
