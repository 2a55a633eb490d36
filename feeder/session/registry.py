"""All sessions of a node process: those that are open, and ended ones whose memory is still out.

Invariant: a session is in one of the two, from its Hello until its memory has been given back; a
peer has at most one that is open.
"""

from collections.abc import Iterator

from feeder.session.admission import Usage
from feeder.session.state import Session


class SessionRegistry:
    """The sessions, by number and by peer, and what they use."""

    def __init__(self) -> None:
        self.open: dict[int, Session] = {}
        self.ended: dict[int, Session] = {}
        self._by_peer: dict[bytes, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        """Yield all of them."""
        yield from self.open.values()
        yield from self.ended.values()

    def add(self, session: Session) -> None:
        """Take in a new session; its peer has no other one."""
        self.open[session.number] = session
        self._by_peer[session.peer] = session

    def end(self, session: Session) -> None:
        """Note that a session is over; its memory is not yet back."""
        del self.open[session.number]
        del self._by_peer[session.peer]
        self.ended[session.number] = session

    def forget(self, number: int) -> None:
        """Note that an ended session's memory is back."""
        self.ended.pop(number, None)

    def of_peer(self, peer: bytes) -> Session | None:
        """Return the open session of a peer."""
        return self._by_peer.get(peer)

    @property
    def committed_bytes(self) -> int:
        """Slot memory of all sessions, those of ended ones that is still lent included."""
        return sum(session.layout.total_bytes for session in self)

    @property
    def held_bytes(self) -> int:
        """Slot memory that clients map, that of ended sessions included."""
        return sum(session.layout.total_bytes for session in self if session.is_held)

    def usage(self, account: str | None = None) -> Usage:
        """Return what is in use, of one client or in all."""
        open_, ended = (
            [each for each in sessions.values() if account is None or each.account == account]
            for sessions in (self.open, self.ended)
        )
        return Usage(
            # Ended sessions whose memory is still lent hold descriptors: no more of these either.
            sessions=max(len(open_), len(ended)),
            memories=len(open_) + len(ended),
            slots_bytes=sum(each.layout.total_bytes for each in (*open_, *ended)),
            recipes=frozenset((each.hello.dataset, each.hello.recipe) for each in open_),
        )
