"""The network between ranks and hosts: connections, delays, and what a lost host does to them.

Every message takes ``latency_s``; rows pass through the sender's network card and then through the
receiving process, each first come, first served. Switches in between limit nothing. Messages on a
connection keep their order, and those in flight are lost with it, as with TCP.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from feeder.client.connection import (
    HEARTBEAT_MS,
    HEARTBEAT_TIMEOUT_MS,
    RECONNECT_MAX_MS,
    RECONNECT_MS,
)
from feeder.session.events import SendChunk
from feeder.wire.messages import Chunk, ClientMessage, NodeMessage

from .agenda import Agenda
from .host import SimulatedHost

_HEARTBEATS_S: Final = (HEARTBEAT_MS + HEARTBEAT_TIMEOUT_MS) / 1000
"""Until ZeroMQ ends a connection to a host that no longer answers."""

_HANDSHAKE_ROUNDS: Final = 4
"""Latencies from connecting to the end of ZeroMQ's handshake."""


class Peer(Protocol):
    """A rank, as far as the network knows it."""

    number: int

    def connected(self, link: int) -> None: ...
    def disconnected(self, link: int) -> None: ...
    def attempt_failed(self, link: int) -> None: ...
    def receive(self, link: int, message: NodeMessage) -> None: ...
    def receive_chunk(self, link: int, chunk: Chunk) -> None: ...
    def ingest(self, size_bytes: int) -> float: ...


@dataclass(slots=True, eq=False)
class _Connection:
    """A connection that is up, until ``is_open`` is False."""

    rank: Peer
    link: int
    host: SimulatedHost
    peer: bytes
    is_open: bool = True


class Network:
    """All connections."""

    def __init__(
        self,
        agenda: Agenda,
        hosts: Mapping[str, SimulatedHost],
        *,
        latency_s: float,
        wire_bytes: int,
    ) -> None:
        """``hosts`` are those that can be dialled, by endpoint; the mapping may grow."""
        self._agenda = agenda
        self._hosts = hosts
        self._latency_s = latency_s
        self._wire_bytes = wire_bytes
        self._links: dict[tuple[int, int], _Connection | None] = {}  # None while it is dialled
        self._peers: dict[bytes, _Connection] = {}
        self._next_peer = 1

    def connections(self, host: SimulatedHost) -> int:
        """Return how many connections a host has."""
        return sum(each.host is host for each in self._peers.values())

    # --- Ranks --------------------------------------------------------------------------------

    def dial(self, rank: Peer, link: int, endpoint: str) -> None:
        """Connect a link, and keep trying."""
        self._links[rank.number, link] = None
        self._try(rank, link, endpoint, RECONNECT_MS / 1000, self._latency_s * _HANDSHAKE_ROUNDS)

    def hang_up(self, rank: Peer, link: int) -> None:
        """Close a link for good."""
        connection = self._links.pop((rank.number, link), None)
        if connection is not None:
            # What was sent before still arrives.
            self._agenda.after(self._latency_s, partial(self._close, connection))

    def send_to_host(self, rank: Peer, link: int, message: ClientMessage) -> None:
        """Carry a client's message."""
        connection = self._links.get((rank.number, link))
        if connection is not None:

            def arrive() -> None:
                if connection.is_open:
                    connection.host.receive(connection.peer, message)

            self._agenda.after(self._latency_s, arrive)

    def _try(self, rank: Peer, link: int, endpoint: str, again_s: float, delay_s: float) -> None:
        def connect() -> None:
            if self._links.get((rank.number, link), connect) is not None:
                return  # closed or connected
            host = self._hosts.get(endpoint)
            if host is None or not host.is_up:
                rank.attempt_failed(link)
                longer_s = min(2 * again_s, RECONNECT_MAX_MS / 1000)
                self._try(rank, link, endpoint, longer_s, again_s)
                return
            peer = self._next_peer.to_bytes(5, "big")
            self._next_peer += 1
            connection = _Connection(rank, link, host, peer)
            self._links[rank.number, link] = self._peers[peer] = connection
            rank.connected(link)

        self._agenda.after(delay_s, connect)

    # --- Hosts --------------------------------------------------------------------------------

    def send_to_rank(self, peer: bytes, message: NodeMessage) -> None:
        """Carry a node's message without rows."""
        connection = self._peers.get(peer)
        if connection is not None:

            def arrive() -> None:
                if connection.is_open:
                    connection.rank.receive(connection.link, message)

            # A Welcome may not overtake, nor be overtaken by, what was sent before it.
            leaves_s = max(self._agenda.now_s, connection.host.nic_free_s)
            self._agenda.at(leaves_s + self._latency_s, arrive)

    def send_chunk(self, host: SimulatedHost, sent: SendChunk) -> None:
        """Carry a chunk's rows."""
        connection = self._peers.get(sent.peer)
        if connection is None:
            return
        message = sent.chunk
        size_bytes = message.images * self._wire_bytes
        rank, link = connection.rank, connection.link

        def arrive() -> None:
            self._agenda.at(rank.ingest(size_bytes), read)

        def read() -> None:
            if connection.is_open:
                rank.receive_chunk(link, message)

        self._agenda.at(host.transmit(size_bytes) + self._latency_s, arrive)

    def lose(self, host: SimulatedHost, *, silently: bool) -> None:
        """End a host's connections: at once, or when heartbeats are missed."""
        host.is_up = False
        delay_s = _HEARTBEATS_S if silently else self._latency_s
        for connection in [each for each in self._peers.values() if each.host is host]:
            self._agenda.after(delay_s, partial(self._break, connection))

    def _break(self, connection: _Connection) -> None:
        rank, link = connection.rank, connection.link
        if connection.is_open:
            self._close(connection)
            if self._links.get((rank.number, link)) is connection:
                self._links[rank.number, link] = None
                rank.disconnected(link)
                first_s = RECONNECT_MS / 1000
                self._try(rank, link, connection.host.endpoint, 2 * first_s, first_s)

    def _close(self, connection: _Connection) -> None:
        connection.is_open = False
        self._peers.pop(connection.peer, None)
