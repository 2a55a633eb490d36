"""Clients over all their sessions, for snapshots: at most CLIENTS_MAX one by one, the rest as one.

A client's totals are of the time since it has a place among them. They only grow while it has an
open session, whichever of its sessions end, so differences between two snapshots are rates; so do
the totals of the rest. A client keeps its place unless one of the rest gets images SWAP_RATIO times
as fast: ranks of one job, all equally fast, do not take turns.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from feeder.metrics.snapshot import CLIENTS_MAX, OTHERS, ClientSnapshot, SlotSeconds
from feeder.process.path_text import printable
from feeder.session.state import Session
from feeder.session.tally import add_slot_seconds

SWAP_RATIO: Final = 2.0
PACE_S: Final = 30.0
"""Time constant of the mean rates that decide on places."""

LABEL_CHARS: Final = 128

_COUNTS: Final = tuple(
    name
    for name in ClientSnapshot.__struct_fields__
    if name not in ("name", "account", "dataset", "job", "is_lent", "is_local", "silent_s", "slots")
)


@dataclass(slots=True, eq=False, kw_only=True)
class Totals:
    """The fields of ClientSnapshot that only grow."""

    images: int = 0
    batches: int = 0
    sent_bytes: int = 0
    worker_s: float = 0.0
    waited_s: float = 0.0
    clock_s: float = 0.0
    cpu_s: float = 0.0
    slots: SlotSeconds = field(default_factory=SlotSeconds)

    @classmethod
    def of(cls, session: Session, now_s: float) -> "Totals":
        """Return those of one session."""
        tally = session.tally
        return cls(
            images=tally.images,
            batches=tally.batches,
            sent_bytes=tally.sent_bytes,
            worker_s=tally.worker_s,
            waited_s=tally.waited_s,
            clock_s=tally.clock_s,
            cpu_s=tally.cpu_s,
            slots=tally.slots.seconds(now_s),
        )

    def add(self, more: "Totals", *, less: "Totals") -> None:
        """Add what has grown from ``less`` to ``more``."""
        self.images += more.images - less.images
        self.batches += more.batches - less.batches
        self.sent_bytes += more.sent_bytes - less.sent_bytes
        self.worker_s += max(0.0, more.worker_s - less.worker_s)
        self.waited_s += max(0.0, more.waited_s - less.waited_s)
        self.clock_s += max(0.0, more.clock_s - less.clock_s)
        self.cpu_s += max(0.0, more.cpu_s - less.cpu_s)
        slots, now, then = self.slots, more.slots, less.slots
        self.slots = SlotSeconds(
            free=slots.free + max(0.0, now.free - then.free),
            filling=slots.filling + max(0.0, now.filling - then.filling),
            sending=slots.sending + max(0.0, now.sending - then.sending),
            client=slots.client + max(0.0, now.client - then.client),
        )


_NOTHING: Final = Totals()


@dataclass(slots=True, eq=False)
class _Client:
    """A client with at least one open session."""

    sessions: list[Session] = field(default_factory=list)
    totals: Totals | None = None
    """Since it has a place; None without one."""
    pace: float = 0.0
    """Images of the last PACE_S or so, weighted by age."""


class ClientBook:
    """Keeps the totals from one snapshot to the next."""

    def __init__(self) -> None:
        self._seen: dict[int, Totals] = {}  # by session, at the last update
        self._clients: dict[tuple[str, str, str], _Client] = {}
        self._rest = Totals()
        self._at_s = -math.inf

    def update(
        self, sessions: Iterable[Session], now_s: float, heard_s: float = 0.0
    ) -> tuple[ClientSnapshot, ...]:
        """Return the clients of the open sessions, the fastest first, then the rest as one.

        Until ``heard_s`` their messages may have waited to be read: none was silent then.
        """
        self._find_clients(sessions)
        clients = list(self._clients.values())
        growths = [self._growth(client, now_s) for client in clients]
        fading = math.exp(min(0.0, self._at_s - now_s) / PACE_S)
        self._at_s = now_s
        for client, growth in zip(clients, growths, strict=True):
            client.pace = client.pace * fading + growth.images
        _assign_places(clients)
        placed: list[tuple[float, ClientSnapshot]] = []
        rest: list[_Client] = []
        for client, growth in zip(clients, growths, strict=True):
            if client.totals is None:
                rest.append(client)
                self._rest.add(growth, less=_NOTHING)
            else:
                client.totals.add(growth, less=_NOTHING)
                placed.append(
                    (client.pace, _describe(client.sessions, client.totals, now_s, heard_s))
                )
        placed.sort(key=lambda each: -each[0])
        shown = tuple(client for _, client in placed)
        if not rest:
            return shown
        of_rest = [session for client in rest for session in client.sessions]
        others = _describe(of_rest, self._rest, now_s, heard_s)
        unnamed = {"name": OTHERS, "account": "", "dataset": "", "job": "", "clients": len(rest)}
        return (*shown, msgspec.structs.replace(others, **unnamed))

    def _find_clients(self, sessions: Iterable[Session]) -> None:
        """Assign the sessions to their clients; forget those that have none."""
        for client in self._clients.values():
            client.sessions = []
        numbers = set()
        for session in sessions:
            numbers.add(session.number)
            key = session.account, session.hello.client, session.hello.dataset
            self._clients.setdefault(key, _Client()).sessions.append(session)
        self._clients = {key: each for key, each in self._clients.items() if each.sessions}
        self._seen = {number: self._seen[number] for number in self._seen.keys() & numbers}

    def _growth(self, client: _Client, now_s: float) -> Totals:
        """Return what a client's sessions have done since the last update.

        Each session reports the clock and the CPU time of its process, which therefore count by
        their mean. Waits add up: a training loop waits for one of its sessions at a time.
        """
        total = Totals()
        for session in client.sessions:
            now = Totals.of(session, now_s)
            total.add(now, less=self._seen.get(session.number, _NOTHING))
            self._seen[session.number] = now
        total.clock_s /= len(client.sessions)
        total.cpu_s /= len(client.sessions)
        return total


def sum_clients(clients: Sequence[ClientSnapshot]) -> ClientSnapshot:
    """Return clients as one, named OTHERS."""
    slots = SlotSeconds()
    for client in clients:
        slots = add_slot_seconds(slots, client.slots)
    return ClientSnapshot(
        name=OTHERS,
        account="",
        dataset="",
        is_lent=all(client.is_lent for client in clients),
        is_local=all(client.is_local for client in clients),
        silent_s=max(client.silent_s for client in clients),
        slots=slots,
        **{name: sum(getattr(client, name) for client in clients) for name in _COUNTS},
    )


def _assign_places(clients: Sequence[_Client]) -> None:
    """Give places to the fastest clients without one, and to those that are much faster than the
    slowest clients with one."""
    placed = sorted((c for c in clients if c.totals is not None), key=lambda client: client.pace)
    waiting = sorted((c for c in clients if c.totals is None), key=lambda client: -client.pace)
    free = CLIENTS_MAX - len(placed)
    for client in waiting[:free]:
        client.totals = Totals()
    for slow, fast in zip(placed, waiting[max(0, free) :], strict=False):
        if fast.pace <= SWAP_RATIO * slow.pace:
            break
        slow.totals, fast.totals = None, Totals()


def _describe(
    sessions: Sequence[Session], totals: Totals, now_s: float, heard_s: float
) -> ClientSnapshot:
    """Return sessions as one client, named after the first."""
    messages_s = [session.last_message_s for session in sessions if session.tally.clock_s]
    first = sessions[0]
    return ClientSnapshot(
        name=printable(first.hello.client)[:LABEL_CHARS],
        account=printable(first.account)[:LABEL_CHARS],
        dataset=printable(first.hello.dataset)[:LABEL_CHARS],
        job=printable(first.hello.job)[:LABEL_CHARS],
        is_lent=all(session.is_held for session in sessions),
        is_local=all(session.is_local for session in sessions),
        sessions=len(sessions),
        silent_s=max(0.0, now_s - max(heard_s, min(messages_s, default=now_s))),
        window=sum(session.layout.slots for session in sessions),
        wanted=sum(len(session.wanted) for session in sessions),
        images=totals.images,
        batches=totals.batches,
        sent_bytes=totals.sent_bytes,
        worker_s=totals.worker_s,
        waited_s=totals.waited_s,
        clock_s=totals.clock_s,
        cpu_s=totals.cpu_s,
        slots=totals.slots,
    )
