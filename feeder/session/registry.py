"""All sessions of a node process: open ones, and ended ones until their memory is freed.

Invariant: from its Hello until its memory is freed, a session is in exactly one of ``open`` and
``ended``. A peer has at most one open session.
"""

from collections.abc import Iterator

from feeder.session.admission import Usage
from feeder.session.state import Session


class SessionRegistry:
    """The sessions, by number and by peer, and their use of resources."""

    def __init__(self) -> None:
        self.open: dict[int, Session] = {}
        self.ended: dict[int, Session] = {}
        self._by_peer: dict[bytes, Session] = {}

    def __iter__(self) -> Iterator[Session]:
        """Yield open and ended sessions."""
        yield from self.open.values()
        yield from self.ended.values()

    def add(self, session: Session) -> None:
        """Add a session; its peer has no other open one."""
        self.open[session.number] = session
        self._by_peer[session.peer] = session

    def end(self, session: Session) -> None:
        """Move a session to ``ended``: its memory is not yet freed."""
        del self.open[session.number]
        del self._by_peer[session.peer]
        self.ended[session.number] = session

    def forget(self, number: int) -> None:
        """Remove an ended session: its memory is freed."""
        self.ended.pop(number, None)

    def of_number(self, number: int) -> Session:
        """Return a session, open or ended, whose memory is not yet freed."""
        return self.open.get(number) or self.ended[number]

    def of_peer(self, peer: bytes) -> Session | None:
        """Return the open session of a peer."""
        return self._by_peer.get(peer)

    @property
    def committed_bytes(self) -> int:
        """Slot memory of all sessions, that of ended ones included."""
        return sum(session.layout.total_bytes for session in self)

    @property
    def held_bytes(self) -> int:
        """The part of it that clients map."""
        return sum(session.layout.total_bytes for session in self if session.is_held)

    def usage(self, account: str | None = None) -> Usage:
        """Return what one client uses, or all (None)."""
        open_, ended = (
            [each for each in sessions.values() if account is None or each.account == account]
            for sessions in (self.open, self.ended)
        )
        return Usage(
            # Ended sessions hold descriptors while their memory is lent, so sessions_max bounds
            # them as well.
            sessions=max(len(open_), len(ended)),
            memories=len(open_) + len(ended),
            slots_bytes=sum(each.layout.total_bytes for each in (*open_, *ended)),
            recipes=frozenset((each.hello.dataset, each.hello.recipe) for each in open_),
        )
