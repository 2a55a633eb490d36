"""The slot memory of all sessions of a node process, and the loans of slots to the socket.

The socket may still read a slot that its session has released. Until it has finished, the slot is
rechecked with exponential backoff: a client that has stopped reading can hold its slots for hours.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from feeder.process.backoff import Backoff
from feeder.session.events import SlotReturned, SlotsClosed, SlotSent
from feeder.wire.slot_layout import ChunkArrays, SlotLayout
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


class SlotLoans:
    """The frames of a session's slots that the socket may still read.

    Trackers are checked only when a slot is wanted back, not for each chunk.
    """

    def __init__(self) -> None:
        self._trackers: dict[int, list[Tracker]] = {}

    def lend(self, slot: int, tracker: Tracker) -> None:
        """Record that a frame of the slot was passed to the socket."""
        self._trackers.setdefault(slot, []).append(tracker)

    def is_back(self, slot: int) -> bool:
        """Whether the socket has finished with all frames of the slot."""
        trackers = self._trackers.get(slot)
        if trackers is not None and not trackers[-1].done:
            return False  # quick: the socket finishes frames in order
        unfinished = [tracker for tracker in self._trackers.pop(slot, ()) if not tracker.done]
        if unfinished:
            self._trackers[slot] = unfinished
        return not unfinished

    def are_all_back(self) -> bool:
        """Whether the socket has finished with all frames of all slots."""
        return all(self.is_back(slot) for slot in list(self._trackers))


class SlotStore:
    """Memory and loans by session."""

    def __init__(self) -> None:
        self._memories: dict[int, SlotMemory] = {}
        self._loans: dict[int, SlotLoans] = {}
        self._returning: dict[tuple[int, int], None] = {}  # (session, slot), oldest first
        self._closing: dict[int, None] = {}
        self._sending: dict[
            int, dict[int, float]
        ] = {}  # by session, slot: when it was last seen so
        self._looked_s = 0.0
        self._backoff = Backoff(_FIRST_RECHECK_S, _LAST_RECHECK_S)
        self.recheck_at_s = float("inf")
        """When ``recheck`` is due."""

    @property
    def has_lent(self) -> bool:
        """Whether ``find_sent`` may return slots."""
        return bool(self._sending)

    @property
    def is_lent(self) -> bool:
        """Whether the socket still reads any slot."""
        return not all(loans.are_all_back() for loans in self._loans.values())

    def open(self, session: int, layout: SlotLayout) -> SlotMemory:
        """Create a session's memory; OSError when the machine has none."""
        memory = self._memories[session] = SlotMemory.create(layout)
        self._loans[session] = SlotLoans()
        return memory

    def memory(self, session: int) -> SlotMemory:
        return self._memories[session]

    def chunk(self, session: int, slot: int, first: int, count: int) -> ChunkArrays:
        return self._memories[session].chunk(slot, first, count)

    def lend(self, session: int, slot: int, tracker: Tracker, now_s: float) -> None:
        """Record that the socket reads the slot until the tracker is done."""
        self._loans[session].lend(slot, tracker)
        self._sending.setdefault(session, {})[slot] = now_s

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
        numbers = list(self._sending) if session is None else [session]
        sent: list[SlotSent] = []
        looked = 0
        for number in numbers:
            slots, loans = self._sending.pop(number, None), self._loans.get(number)
            if slots is None or loans is None:
                continue
            looked += len(slots)
            for slot, seen_s in list(slots.items()):
                if loans.is_back(slot):
                    del slots[slot]
                    sent.append(SlotSent(number, slot, (seen_s + now_s) / 2))
                else:
                    slots[slot] = now_s
            if slots:
                self._sending[number] = slots  # behind all others
            if looked >= _SLOTS_A_LOOK:
                break
        return sent

    def want_back(self, session: int, slot: int, now_s: float) -> SlotReturned | None:
        """Return SlotReturned if the socket has finished with the slot; else ``recheck`` will."""
        if self._loans[session].is_back(slot):
            return SlotReturned(session, slot)
        self._returning[session, slot] = None
        self._recheck_soon(now_s)
        return None

    def want_closed(self, session: int, now_s: float) -> SlotsClosed | None:
        """Free a session's memory if the socket has finished with it; else ``recheck`` will.

        A session without memory counts as closed.
        """
        if session not in self._memories:
            return SlotsClosed(session)
        if self._loans[session].are_all_back():
            return self._close(session)
        self._closing[session] = None
        self._recheck_soon(now_s)
        return None

    def recheck(self, now_s: float) -> Iterable[SlotReturned | SlotsClosed]:
        """The wanted slots and memories that the socket has finished with meanwhile."""
        returned = [key for key in self._returning if self._loans[key[0]].is_back(key[1])]
        for key in returned:
            del self._returning[key]
        closed = [session for session in self._closing if self._loans[session].are_all_back()]
        events = [SlotReturned(*key) for key in returned] + [self._close(s) for s in closed]
        if events:
            self._backoff.reset()
        waiting = self._returning or self._closing
        self.recheck_at_s = now_s + self._backoff.next_s() if waiting else float("inf")
        return events

    def _recheck_soon(self, now_s: float) -> None:
        self._backoff.reset()
        self.recheck_at_s = now_s + self._backoff.next_s()

    def _close(self, session: int) -> SlotsClosed:
        memory = self._memories.pop(session)
        memory.discard()  # frees the pages even if a client keeps its mapping
        memory.close()
        del self._loans[session]
        self._sending.pop(session, None)
        self._closing.pop(session, None)
        self._returning = {key: None for key in self._returning if key[0] != session}
        return SlotsClosed(session)
