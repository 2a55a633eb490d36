"""The slot memory of all sessions of a node process, and the loans of slots to the socket.

The socket may still read a slot that its session has released. Until it has finished, the slot is
rechecked with exponential backoff: a client that has stopped reading can hold its slots for hours.
"""

from dataclasses import dataclass
from typing import Final, Protocol

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


class Tracker(Protocol):
    """Reports whether the socket still reads a frame: zmq.MessageTracker."""

    @property
    def done(self) -> bool:
        """Whether the socket has finished with the frame."""


@dataclass(slots=True, eq=False)
class _Loan:
    """A slot with frames that the socket may still read."""

    trackers: list[Tracker]
    seen_s: float
    """When it was last known to read one."""

    @property
    def is_over(self) -> bool:
        # The socket finishes frames in order, so mostly the last one answers for all.
        return self.trackers[-1].done and all(tracker.done for tracker in self.trackers)


class SlotStore:
    """Memory and loans by session."""

    def __init__(self) -> None:
        self.memories: dict[int, SlotMemory] = {}
        """By session, while its slots are open."""
        self.loans: dict[int, dict[int, _Loan]] = {}
        """By session and slot, the session that was looked at last behind all others."""
        self._wanted: dict[tuple[int, int | None], None] = {}  # (session, slot), oldest first
        self._looked_s = 0.0
        self._backoff = Backoff(_FIRST_RECHECK_S, _LAST_RECHECK_S)
        self.recheck_at_s = float("inf")
        """When ``recheck`` is due."""

    @property
    def is_lent(self) -> bool:
        """Whether the socket still reads any slot."""
        return not all(self._is_back(session, None) for session in self.loans)

    def open(self, session: int, layout: SlotLayout) -> SlotMemory:
        """Create a session's memory; OSError when the machine has none."""
        memory = self.memories[session] = SlotMemory.create(layout)
        return memory

    def lend(self, session: int, slot: int, tracker: Tracker, now_s: float) -> None:
        """Record that the socket reads the slot until the tracker is done."""
        loans = self.loans.setdefault(session, {})
        earlier = loans[slot].trackers if slot in loans else []
        unfinished = [frame for frame in earlier if not frame.done]
        loans[slot] = _Loan([*unfinished, tracker], now_s)

    def find_sent(self, now_s: float, session: int | None = None) -> list[SlotSent]:
        """Find the slots that the socket has finished reading, of one session or of all.

        libzmq reports nothing of its own, so this is called as things happen. It looks at all
        sessions every _LOOK_INTERVAL_S at most, and then at _SLOTS_A_LOOK slots or a few more, in
        turn. The time between the last two looks is divided evenly between before and after.
        """
        if session is None:
            if now_s - self._looked_s < _LOOK_INTERVAL_S:
                return []
            self._looked_s = now_s
        sent: list[SlotSent] = []
        looked = 0
        for number in list(self.loans) if session is None else [session]:
            loans = self.loans.pop(number, {})
            looked += len(loans)
            for slot, loan in list(loans.items()):
                if loan.is_over:
                    del loans[slot]
                    sent.append(SlotSent(number, slot, (loan.seen_s + now_s) / 2))
                else:
                    loan.seen_s = now_s
            if loans:
                self.loans[number] = loans
            if looked >= _SLOTS_A_LOOK:
                break
        return sent

    def want_back(
        self, session: int, slot: int | None, now_s: float
    ) -> SlotReturned | SlotsClosed | None:
        """Take a slot back, or the whole memory (None), which is then freed.

        None while the socket reads it: ``recheck`` returns the event later.
        """
        if self._is_back(session, slot):
            return self._take_back(session, slot)
        self._wanted[session, slot] = None
        self._backoff.reset()
        self.recheck_at_s = now_s + self._backoff.next_s()
        return None

    def recheck(self, now_s: float) -> list[SlotReturned | SlotsClosed]:
        """The wanted slots and memories that the socket has finished with meanwhile."""
        back = [key for key in self._wanted if self._is_back(*key)]
        events = [self._take_back(*key) for key in back]
        if events:
            self._backoff.reset()
        self.recheck_at_s = now_s + self._backoff.next_s() if self._wanted else float("inf")
        return events

    def _is_back(self, session: int, slot: int | None) -> bool:
        loans = self.loans.get(session)
        if not loans:
            return True
        if slot is None:
            return all(loan.is_over for loan in loans.values())
        return slot not in loans or loans[slot].is_over

    def _take_back(self, session: int, slot: int | None) -> SlotReturned | SlotsClosed:
        if slot is not None:
            self._wanted.pop((session, slot), None)
            return SlotReturned(session, slot)
        memory = self.memories.pop(session, None)
        if memory is not None:
            memory.discard()  # frees the pages even if a client keeps its mapping
            memory.close()
        self.loans.pop(session, None)
        self._wanted = {key: None for key in self._wanted if key[0] != session}
        return SlotsClosed(session)
