"""Clients over all their sessions, for snapshots: at most CLIENTS_MAX one by one, the rest as one.

A client's counters are of the time since it has a place among them. They only grow while it has an
open session, whichever of its sessions end, so differences between two snapshots are rates; so do
the counters of the rest. A client keeps its place unless one of the rest gets images SWAP_RATIO
times as fast: ranks of one job, all equally fast, do not take turns.
"""

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from feeder.metrics.fields import add, growth, merged
from feeder.metrics.records import CLIENTS_MAX, OTHERS, ClientRecord
from feeder.process.path_text import printable
from feeder.session.state import Session

SWAP_RATIO: Final = 2.0
PACE_S: Final = 30.0
"""Time constant of the mean rates that decide on places."""

LABEL_CHARS: Final = 128

_NOTHING: Final = ClientRecord(name=OTHERS, account="", dataset="", is_lent=True)


@dataclass(slots=True, eq=False)
class _Client:
    """A client with at least one open session."""

    sessions: list[Session] = field(default_factory=list)
    latest: ClientRecord = _NOTHING
    """Its counters are what has grown since the last update."""
    record: ClientRecord | None = None
    """Since it has a place; None without one."""
    pace: float = 0.0
    """Images of the last PACE_S or so, weighted by age."""


class ClientBook:
    """Keeps the counters from one snapshot to the next."""

    def __init__(self) -> None:
        self._seen: dict[int, ClientRecord] = {}  # by session, at the last update
        self._clients: dict[tuple[str, str, str], _Client] = {}
        self._rest = _NOTHING
        self._at_s = -math.inf

    def update(
        self, sessions: Iterable[Session], now_s: float, heard_s: float = 0.0
    ) -> tuple[ClientRecord, ...]:
        """Return the clients of the open sessions, the fastest first, then the rest as one.

        Until ``heard_s`` their messages may have waited to be read: none was silent then.
        """
        self._find_clients(sessions)
        clients = list(self._clients.values())
        fading = math.exp(min(0.0, self._at_s - now_s) / PACE_S)
        self._at_s = now_s
        for client in clients:
            client.latest = self._look(client.sessions, now_s, heard_s)
            client.pace = client.pace * fading + client.latest.images
        _assign_places(clients)
        placed = sorted((c for c in clients if c.record is not None), key=lambda c: -c.pace)
        for client in placed:
            assert client.record is not None
            record = client.latest
            add(record, client.record)
            record.name = printable(record.name)[:LABEL_CHARS]
            record.account = printable(record.account)[:LABEL_CHARS]
            record.dataset = printable(record.dataset)[:LABEL_CHARS]
            record.job = printable(record.job)[:LABEL_CHARS]
            client.record = record
        rest = [client.latest for client in clients if client.record is None]
        if rest:
            others = sum_clients(rest)
            add(others, self._rest)
            self._rest = others
        records = [client.latest for client in placed]
        return (*records, self._rest) if rest else tuple(records)

    def _find_clients(self, sessions: Iterable[Session]) -> None:
        """Assign the sessions to their clients; forget those that have none."""
        for client in self._clients.values():
            client.sessions = []
        numbers = set()
        for session in sessions:
            numbers.add(session.number)
            key = session.account, session.hello.client, session.hello.dataset
            self._clients.setdefault(key, _Client()).sessions.append(session)
        self._clients = {key: client for key, client in self._clients.items() if client.sessions}
        self._seen = {number: self._seen[number] for number in self._seen.keys() & numbers}

    def _look(self, sessions: Sequence[Session], now_s: float, heard_s: float) -> ClientRecord:
        """Return a client as it is now, its counters being what its sessions have done since the
        last update."""
        growths = []
        for session in sessions:
            record = session.record
            record.is_lent, record.wanted = session.is_held, len(session.wanted)
            record.slots = session.slot_times.seconds(now_s)
            pings = record.clock_s > 0
            silent_since_s = max(heard_s, session.last_message_s) if pings else now_s
            record.silent_s = max(0.0, now_s - silent_since_s)
            growths.append(growth(self._seen.get(session.number, _NOTHING), record))
            self._seen[session.number] = copy.copy(record)
        latest = growths[0] if len(growths) == 1 else merged(growths)
        latest.clients = 1
        # Each session reports the clock and the CPU time of its process, so these count by their
        # mean. Waits add up: a training loop waits for one of its sessions at a time.
        latest.clock_s /= len(growths)
        latest.cpu_s /= len(growths)
        return latest


def sum_clients(clients: Sequence[ClientRecord]) -> ClientRecord:
    """Return clients as one, named OTHERS."""
    unnamed = {"name": OTHERS, "account": "", "dataset": "", "job": ""}
    return msgspec.structs.replace(merged(clients), **unnamed)


def _assign_places(clients: Sequence[_Client]) -> None:
    """Give places to the fastest clients without one, and to those that are much faster than the
    slowest clients with one."""
    placed = sorted((c for c in clients if c.record is not None), key=lambda client: client.pace)
    waiting = sorted((c for c in clients if c.record is None), key=lambda client: -client.pace)
    free = CLIENTS_MAX - len(placed)
    for client in waiting[:free]:
        client.record = _NOTHING
    for slow, fast in zip(placed, waiting[max(0, free) :], strict=False):
        if fast.pace <= SWAP_RATIO * slow.pace:
            break
        slow.record, fast.record = None, _NOTHING
