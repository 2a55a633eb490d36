"""All sessions of a node process: open ones, and ended ones until their memory is freed.

Invariant: from its Hello until its memory is freed, a session is in exactly one of ``open`` and
``ended``. A peer has at most one open session. What sessions use is counted as they come and go: a
Hello must not take longer for each session that is there.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from feeder.plan.recipe import Recipe
from feeder.session.admission import NOTHING, Usage
from feeder.session.state import Session


@dataclass(slots=True, eq=False)
class _Use:
    """What the sessions of one client, or of all, use."""

    open: int = 0
    ended: int = 0
    slots_bytes: int = 0
    recipes: Counter[tuple[str, Recipe]] = field(default_factory=Counter)
    """Of open sessions, each with its dataset's name."""

    def begin(self, session: Session) -> None:
        self.open += 1
        self.slots_bytes += session.layout.total_bytes
        self.recipes[session.hello.dataset, session.hello.recipe] += 1

    def end(self, session: Session) -> None:
        self.open -= 1
        self.ended += 1
        recipe = session.hello.dataset, session.hello.recipe
        self.recipes[recipe] -= 1
        if not self.recipes[recipe]:
            del self.recipes[recipe]

    def forget(self, session: Session) -> None:
        self.ended -= 1
        self.slots_bytes -= session.layout.total_bytes


class SessionRegistry:
    """The sessions, by number and by peer, and their use of resources."""

    def __init__(self) -> None:
        self.open: dict[int, Session] = {}
        self.ended: dict[int, Session] = {}
        self._by_peer: dict[bytes, Session] = {}
        self._use = _Use()
        self._use_by_account: dict[str, _Use] = {}

    def __iter__(self) -> Iterator[Session]:
        """Yield open and ended sessions."""
        yield from self.open.values()
        yield from self.ended.values()

    def add(self, session: Session) -> None:
        """Add a session; its peer has no other open one."""
        self.open[session.number] = session
        self._by_peer[session.peer] = session
        self._use.begin(session)
        self._use_by_account.setdefault(session.account, _Use()).begin(session)

    def end(self, session: Session) -> None:
        """Move a session to ``ended``: its memory is not yet freed."""
        del self.open[session.number]
        del self._by_peer[session.peer]
        self.ended[session.number] = session
        self._use.end(session)
        self._use_by_account[session.account].end(session)

    def forget(self, number: int) -> None:
        """Remove an ended session: its memory is freed."""
        session = self.ended.pop(number, None)
        if session is None:
            return
        self._use.forget(session)
        use = self._use_by_account[session.account]
        use.forget(session)
        if not (use.open or use.ended):
            del self._use_by_account[session.account]

    def count_alike(self, session: Session) -> int:
        """Return how many open sessions have a session's dataset and recipe, itself included."""
        return max(1, self._use.recipes[session.hello.dataset, session.hello.recipe])

    def of_number(self, number: int) -> Session:
        """Return a session, open or ended, whose memory is not yet freed."""
        return self.open.get(number) or self.ended[number]

    def of_peer(self, peer: bytes) -> Session | None:
        """Return the open session of a peer."""
        return self._by_peer.get(peer)

    @property
    def committed_bytes(self) -> int:
        """Slot memory of all sessions, that of ended ones included."""
        return self._use.slots_bytes

    @property
    def held_bytes(self) -> int:
        """The part of it that clients map."""
        return sum(session.layout.total_bytes for session in self if session.is_held)

    def usage(self, account: str | None = None) -> Usage:
        """Return what one client uses, or all (None)."""
        use = self._use if account is None else self._use_by_account.get(account)
        if use is None:
            return NOTHING
        return Usage(
            # Ended sessions hold descriptors while their memory is lent, so sessions_max bounds
            # them as well.
            sessions=max(use.open, use.ended),
            memories=use.open + use.ended,
            slots_bytes=use.slots_bytes,
            recipes=frozenset(use.recipes),
        )
