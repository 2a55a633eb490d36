"""Which connections are cut: when there are too many, and when they hold too much."""

import socket
from collections.abc import Iterator

import pytest

from feeder.connections import Connections
from feeder.metrics import SocketCounters


class Crowd:
    """Connections that come in, at a time that the test sets."""

    def __init__(self, connections_max: int) -> None:
        self.counters = SocketCounters()
        self.connections = Connections(self.counters, connections_max)
        self.ends: list[tuple[socket.socket, socket.socket]] = []

    def come(self, now_s: float) -> int:
        """Have somebody connect; return its number."""
        self.ends.append(socket.socketpair())
        self.connections.opened(self.ends[-1][0].fileno(), "ipc:///s", now_s)
        return len(self.ends) - 1

    def speak(self, number: int, now_s: float) -> None:
        """Have somebody send a message, which is noticed."""
        self.connections.heard(self.ends[number][0].fileno(), 10)
        self.connections.tend(now_s)

    def cut(self) -> set[int]:
        """Return who has been cut: its other end reads the end."""
        return {number for number, (_, theirs) in enumerate(self.ends) if is_over(theirs)}


def is_over(end: socket.socket) -> bool:
    try:
        return end.recv(1, socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    crowd = Crowd(3)
    yield crowd
    for ends in crowd.ends:
        for end in ends:
            end.close()


def test_who_was_quiet_for_longest_makes_room(crowd: Crowd) -> None:
    silent, once, client = (crowd.come(0.0) for _ in range(3))
    for now_s in range(1, 10):
        crowd.speak(client, now_s)
        if now_s < 3:
            crowd.speak(once, now_s)
        if now_s == 9:
            crowd.speak(silent, now_s)
    newcomer = crowd.come(9.5)
    assert crowd.cut() == {once}
    assert crowd.counters.connections_cut == {"too-many": 1}
    assert newcomer not in crowd.cut()


def test_a_burst_of_newcomers_cuts_nobody_who_speaks_every_second(crowd: Crowd) -> None:
    client = crowd.come(0.0)
    crowd.speak(client, 9.0)
    mute, talker = crowd.come(9.8), crowd.come(9.8)
    crowd.speak(talker, 9.9)
    crowd.come(9.9)
    assert crowd.cut() == {mute}
