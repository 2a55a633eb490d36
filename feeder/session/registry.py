"""All sessions of a node process: open ones, and ended ones until their memory is freed.

Invariant: from its Hello until its memory is freed, a session is in exactly one of ``open`` and
``ended``. A peer has at most one open session. What sessions use is counted as they come and go: a
Hello must not take longer for each session that is there.
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
        self._by_peer[session.peer] = session
        for used in (self.used, self._used_by_account.setdefault(session.account, Usage())):
            used.open += 1
            used.slots_bytes += session.layout.total_bytes
            used.recipes[session.hello.dataset, session.hello.recipe] += 1

    def end(self, session: Session) -> None:
        """Move a session to ``ended``: its memory is not yet freed."""
        del self.open[session.number]
        del self._by_peer[session.peer]
        self.ended[session.number] = session
        recipe = session.hello.dataset, session.hello.recipe
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
        return max(1, self.used.recipes[session.hello.dataset, session.hello.recipe])

    def of_number(self, number: int) -> Session:
        """A session, open or ended, whose memory is not yet freed."""
        return self.open.get(number) or self.ended[number]

    def of_peer(self, peer: bytes) -> Session | None:
        """The open session of a peer."""
        return self._by_peer.get(peer)

    @property
    def held_bytes(self) -> int:
        """Slot memory that clients map."""
        return sum(session.layout.total_bytes for session in self if session.is_held)

    def used_by(self, account: str) -> Usage:
        """What one client uses."""
        return self._used_by_account.get(account) or Usage()
