"""The slot memory of all sessions of a node process, and when each slot comes back.

A slot that nobody needs may still be read by the socket. Whoever wants it back is told at once
where that is over; else it is looked at again, soon at first and then seldom: a client that has
stopped reading can hold its own slots for hours without costing anything else.
"""

from collections.abc import Iterable
from typing import Final

from feeder.session.events import SlotReturned, SlotsClosed
from feeder.wire.slot_layout import ChunkArrays, SlotLayout
from feeder.worker.slot_memory import SlotLoans, SlotMemory, Tracker

_FIRST_RECHECK_S: Final = 0.002
_LAST_RECHECK_S: Final = 1.0


class SlotStore:
    """Memory and loans by session."""

    def __init__(self) -> None:
        self._memories: dict[int, SlotMemory] = {}
        self._loans: dict[int, SlotLoans] = {}
        self._returning: dict[tuple[int, int], None] = {}  # (session, slot), oldest first
        self._closing: dict[int, None] = {}
        self._pause_s = _FIRST_RECHECK_S
        self.recheck_at_s = float("inf")
        """When ``recheck`` is due."""

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
        """Return the memory of an open session."""
        return self._memories[session]

    def chunk(self, session: int, slot: int, first: int, count: int) -> ChunkArrays:
        """Return views of a chunk's rows."""
        return self._memories[session].chunk(slot, first, count)

    def lend(self, session: int, slot: int, tracker: Tracker) -> None:
        """Remember that the socket reads the slot until the tracker is done."""
        self._loans[session].lend(slot, tracker)

    def want_back(self, session: int, slot: int, now_s: float) -> SlotReturned | None:
        """Return SlotReturned if the slot is back; else ``recheck`` will, once it is."""
        if self._loans[session].is_back(slot):
            return SlotReturned(session, slot)
        self._returning[session, slot] = None
        self._recheck_soon(now_s)
        return None

    def want_closed(self, session: int, now_s: float) -> SlotsClosed | None:
        """Free a session's memory if all of it is back; else ``recheck`` will, once it is.

        A session whose memory was never opened counts as closed.
        """
        if session not in self._memories:
            return SlotsClosed(session)
        if self._loans[session].are_all_back():
            return self._close(session)
        self._closing[session] = None
        self._recheck_soon(now_s)
        return None

    def recheck(self, now_s: float) -> Iterable[SlotReturned | SlotsClosed]:
        """Return what has come back since it was wanted."""
        returned = [key for key in self._returning if self._loans[key[0]].is_back(key[1])]
        for key in returned:
            del self._returning[key]
        closed = [session for session in self._closing if self._loans[session].are_all_back()]
        events = [SlotReturned(*key) for key in returned] + [self._close(s) for s in closed]
        self._pause_s = _FIRST_RECHECK_S if events else min(2 * self._pause_s, _LAST_RECHECK_S)
        waiting = self._returning or self._closing
        self.recheck_at_s = now_s + self._pause_s if waiting else float("inf")
        return events

    def _recheck_soon(self, now_s: float) -> None:
        self._pause_s = _FIRST_RECHECK_S
        self.recheck_at_s = now_s + self._pause_s

    def _close(self, session: int) -> SlotsClosed:
        memory = self._memories.pop(session)
        memory.discard()  # a client that lets go only in words keeps no memory by that
        memory.close()
        del self._loans[session]
        self._closing.pop(session, None)
        self._returning = {key: None for key in self._returning if key[0] != session}
        return SlotsClosed(session)
