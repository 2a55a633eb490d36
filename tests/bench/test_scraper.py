"""The connections that ``feeder-bench eyes`` holds are opened again, whatever the server does."""

import contextlib
import socket
from collections.abc import Iterator, Sequence

import pytest

from bench.stream.scraper import reopen, request_unread

IDLE = 3
_DEADLINE_S = 10.0
_TOO_MUCH = 256 << 20  # bytes: more than any kernel keeps for one connection


class Server:
    """A server that accepts connections when it is told to, and replies to none."""

    def __init__(self, address: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._listening = socket.create_server(address)
        self.address = self._listening.getsockname()
        self._accepted: list[socket.socket] = []

    def accept(self, count: int) -> list[socket.socket]:
        """Return the next ``count`` connections; there must be no more."""
        self._listening.settimeout(_DEADLINE_S)
        accepted = [self._listening.accept()[0] for _ in range(count)]
        self._accepted += accepted
        self._listening.setblocking(False)
        with pytest.raises(BlockingIOError):
            self._listening.accept()
        return accepted

    def close(self) -> None:
        for each in (self._listening, *self._accepted):
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with contextlib.closing(Server()) as listening:
        yield listening


def _received(connections: Sequence[socket.socket]) -> list[bytes]:
    found = []
    for each in connections:
        each.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            found.append(each.recv(100))
    return found


def _send_all_that_fits(connection: socket.socket) -> int:
    connection.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while sent < _TOO_MUCH:
            sent += connection.send(b"x" * (1 << 16))
    return sent


@pytest.fixture
def clients() -> Iterator[list[socket.socket | None]]:
    """The places of idle connections, which are closed in the end."""
    places: list[socket.socket | None] = [None] * IDLE
    yield places
    for client in places:
        if client is not None:
            client.close()


def test_idle_connections_send_nothing_and_are_opened_again(
    server: Server, clients: list[socket.socket | None]
) -> None:
    reopen(clients, server.address)
    accepted = server.accept(IDLE)
    for closed in (0, 1, IDLE, 2):
        for each in accepted[:closed]:
            each.close()
        reopen(clients, server.address)
        accepted = accepted[closed:] + server.accept(closed)
        assert _received(accepted) == []


def test_a_scraper_hangs_after_its_request(server: Server) -> None:
    with request_unread(server.address):
        (accepted,) = server.accept(1)
        (request,) = _received([accepted])
        assert request.startswith(b"GET /metrics HTTP/1.1\r\n")
        assert 0 < _send_all_that_fits(accepted) < _TOO_MUCH


def test_a_server_that_refuses_is_tried_again(
    server: Server, clients: list[socket.socket | None]
) -> None:
    server.close()
    reopen(clients, server.address)
    request_unread(server.address).close()
    with contextlib.closing(Server(server.address)) as again:
        reopen(clients, server.address)
        assert _received(again.accept(IDLE)) == []
