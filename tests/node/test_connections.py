"""Which connections are accepted, and which cut: beyond the maximum, or with endless messages."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.metrics.counters import SocketCounters
from feeder.node import connections
from feeder.node.connections import CHECK_INTERVAL_S, Connections
from feeder.node.polling import BURST, CONNECTIONS_A_S, AcceptGate

UNFINISHED = 100_000
TOTAL = 250_000


class Server:
    """Connections with real descriptors, at times that the test sets."""

    def __init__(self, connections_max: int) -> None:
        self.counters = SocketCounters()
        self.connections = Connections(self.counters, connections_max)
        self.ends: list[tuple[socket.socket, socket.socket]] = []

    def accept(self, now_s: float) -> int:
        """Accept an ipc connection; return its index."""
        self.ends.append(socket.socketpair())
        self.connections.opened(self.ends[-1][0].fileno(), "ipc:///s", now_s)
        self.connections.make_room(now_s)
        return len(self.ends) - 1

    def accept_tcp(self) -> int:
        """Accept a tcp connection at time 0; return its index."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        self.ends.append((ours, theirs))
        self.connections.opened(ours.fileno(), "tcp://127.0.0.1:1", 0.0)
        return len(self.ends) - 1

    def receive(self, index: int, count: int) -> None:
        """Have ``count`` bytes arrive and be read, as libzmq reads parts."""
        ours, theirs = self.ends[index]
        theirs.sendall(bytes(count))
        while count:
            count -= len(ours.recv(count))

    def record_message(self, index: int, now_s: float, size: int = 10) -> None:
        """Record a complete message of a connection."""
        connection = self.connections.open[self.ends[index][0].fileno()]
        connection.peers.add(b"peer")
        connection.last_active_s = now_s
        connection.add_bytes(size)

    def cut(self) -> set[int]:
        """Return the connections that have been cut: the other end reads the end."""
        return {index for index, (_, theirs) in enumerate(self.ends) if has_ended(theirs)}


def has_ended(end: socket.socket) -> bool:
    try:
        return end.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(connections, "UNFINISHED_BYTES_MAX", UNFINISHED)
    monkeypatch.setattr(connections, "UNFINISHED_TOTAL_BYTES_MAX", TOTAL)
    server = Server(3)
    yield server
    for ends in server.ends:
        for end in ends:
            end.close()


def test_longest_idle_connection_makes_room(server: Server) -> None:
    late, idle, client = (server.accept(0.0) for _ in range(3))
    server.record_message(idle, 2.0)
    server.record_message(client, 9.0)
    server.record_message(late, 9.0)
    server.accept(9.5)
    assert server.cut() == {idle}
    assert server.counters.connections_cut == {"too-many": 1}


def test_burst_of_new_connections_does_not_cut_active_clients(server: Server) -> None:
    client = server.accept(0.0)
    server.record_message(client, 9.0)
    mute, active = server.accept(9.8), server.accept(9.8)
    server.record_message(active, 9.9)
    server.accept(9.9)
    assert server.cut() == {mute}


def test_newest_connection_is_cut_where_all_are_active(server: Server) -> None:
    for index in [server.accept(0.0) for _ in range(3)]:
        server.record_message(index, 1.0)
    server.ends.append(socket.socketpair())
    fd = server.ends[-1][0].fileno()
    server.connections.opened(fd, "ipc:///s", 1.0)
    server.record_message(3, 1.0)
    server.connections.make_room(1.0)
    assert server.cut() == {3}


def test_unfinished_bytes_of_a_connection_are_capped(server: Server) -> None:
    endless, client = server.accept_tcp(), server.accept_tcp()
    server.receive(endless, UNFINISHED + 1)
    server.receive(client, UNFINISHED + 1)
    for _ in range(2):
        server.record_message(client, 0.1, size=50_000)
    assert server.connections.deadline_s == CHECK_INTERVAL_S
    server.connections.run_due(1.0)
    assert server.cut() == {endless}
    server.connections.run_due(2.0)
    assert server.counters.connections_cut == {"endless-message": 1}


def test_unfinished_bytes_are_capped_in_total_largest_first(server: Server) -> None:
    for size in (90_000, 70_000, 95_000):
        server.receive(server.accept_tcp(), size)
    server.connections.run_due(1.0)
    assert server.cut() == {2}
    server.connections.run_due(2.0)
    assert server.cut() == {2}
    assert server.counters.connections_cut == {"endless-message": 1}


def test_message_overhead_is_no_credit_for_an_endless_message(server: Server) -> None:
    endless = server.accept_tcp()
    server.receive(endless, 1000)
    for _ in range(10_000):
        server.record_message(endless, 0.5, size=1)
    server.connections.run_due(1.0)
    server.receive(endless, UNFINISHED + 1000)
    server.connections.run_due(2.0)
    assert server.cut() == {endless}


@pytest.mark.parametrize("is_reused", [False, True])
def test_ended_connection_counts_no_bytes(server: Server, is_reused: bool) -> None:
    """libzmq closes connections at any time; a file can then get the number."""
    server.receive(server.accept_tcp(), UNFINISHED + 1)
    ours, _ = server.ends[0]
    number = ours.fileno()
    ours.close()
    if is_reused:
        with Path(os.devnull).open() as file:
            os.dup2(file.fileno(), number)
    server.connections.run_due(1.0)
    assert server.counters.connections_cut == {}
    if is_reused:
        os.close(number)


@pytest.mark.parametrize("kind", ["too-many", "endless-message"])
def test_connection_that_reuses_the_number_is_not_cut(server: Server, kind: str) -> None:
    index = server.accept_tcp()
    successor = server.accept_tcp()
    server.receive(successor, UNFINISHED + 1)
    numbers = [ours.fileno() for ours, _ in server.ends]
    before = psutil.Process().num_fds()
    os.dup2(numbers[successor], numbers[index])
    server.connections.closed(numbers[successor])  # the event of the first one's end is unread
    if kind == "too-many":
        for _ in range(3):
            server.record_message(server.accept(6.0), 6.0)
    else:
        server.connections.run_due(1.0)
    assert successor not in server.cut()
    assert server.counters.connections_cut == {}
    if kind == "endless-message":
        assert psutil.Process().num_fds() == before


def test_cuts_are_logged_once_a_minute_with_the_limit_to_raise(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        server.accept(1.0)
    assert server.counters.connections_cut == {"too-many": 97}
    assert [line for line in caplog.messages if "was cut" in line] == [
        "the connection of a process of this machine was cut: there are more than 3; if these are "
        "clients, raise clients_max or the limit of open files (LimitNOFILE=); further cuts within "
        "a minute are only counted (connections_cut.too-many)"
    ]
    server.accept(61.0)
    assert len([line for line in caplog.messages if "was cut" in line]) == 2


def accept_until_delayed(gate: AcceptGate, now_s: float) -> int:
    """Accept connections at one moment; return how many came before one had to wait."""
    accepted = 0
    while True:
        gate.accepted(now_s)
        if gate.due_s > now_s:
            return accepted
        accepted += 1


def test_new_connections_are_a_burst_and_then_a_rate() -> None:
    gate = AcceptGate()
    assert abs(accept_until_delayed(gate, 1000.0) - BURST) <= 1
    assert gate.due_s <= 1000.0 + 2 / CONNECTIONS_A_S
    assert abs(accept_until_delayed(gate, 1001.0) - CONNECTIONS_A_S) <= 2
    assert abs(accept_until_delayed(gate, 2000.0) - BURST) <= 1, "unused time earns one burst"
