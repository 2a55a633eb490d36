"""Which connections are cut: when there are too many, and when they hold too much."""

import contextlib
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.metrics import SocketCounters
from feeder.node import connections
from feeder.node.connections import Connections


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
        self.connections.make_room(now_s)
        return len(self.ends) - 1

    def come_over_tcp(self, *, with_bytes: int) -> None:
        """Have somebody connect who sends so much, which libzmq has read but finds no end of."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            ours, _ = listener.accept()
        self.ends.append((ours, theirs))
        self.connections.opened(ours.fileno(), "tcp://127.0.0.1:1", 0.0)
        theirs.sendall(bytes(with_bytes))
        left = with_bytes
        while left:
            left -= len(ours.recv(left))

    def speak(self, number: int, now_s: float) -> None:
        """Have somebody send a message, which is noticed."""
        self.connections.heard(self.ends[number][0].fileno(), b"peer", 10)
        self.connections.run_due(now_s)

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
    crowd.connections.close()
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


def test_who_is_too_many_is_cut_when_no_file_more_can_be_opened(crowd: Crowd) -> None:
    before = psutil.Process().num_fds()
    ends = [socket.socketpair() for _ in range(5)]
    crowd.ends += ends
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 + max(int(name) for name in os.listdir("/proc/self/fd"))
    filling = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, former[1]))
    try:
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.dup(0))
        for ours, _ in ends:
            crowd.connections.opened(ours.fileno(), "ipc:///s", 0.0)
        crowd.connections.make_room(0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)
        for fd in filling:
            os.close(fd)
    assert len(crowd.cut()) == 2
    assert crowd.counters.connections_cut == {"too-many": 2}
    assert psutil.Process().num_fds() <= before + 2 * len(ends)


def set_memory(monkeypatch: pytest.MonkeyPatch, *held_mib: int | None) -> None:
    """Have the process hold so much, at one look after another."""
    held = iter([None if mib is None else mib << 20 for mib in held_mib])
    monkeypatch.setattr(connections, "own_bytes", lambda: next(held))


def test_memory_that_cannot_be_read_once_is_no_growth(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_memory(monkeypatch, 100, None, 100, 200, 300)
    mute = crowd.come(0.0)
    crowd.ends[mute][1].sendall(b"not read yet")
    for now_s in (1.0, 2.0, 3.0):
        crowd.connections.run_due(now_s)
        assert crowd.cut() == set()
    crowd.connections.run_due(4.0)
    assert crowd.cut() == {mute}, "that is growth"


def test_a_message_that_waits_while_another_fills_memory_is_nobodys_fault(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_memory(monkeypatch, 100, 200, 300, 400)
    endless, client = crowd.come(0.0), crowd.come(0.0)
    for number in (endless, client):
        crowd.ends[number][1].sendall(b"not read yet")
    crowd.connections.run_due(1.0)
    assert crowd.cut() == set(), "either may be the one"
    assert crowd.ends[client][0].recv(100)
    crowd.connections.heard(crowd.ends[client][0].fileno(), b"client", 10)
    crowd.connections.run_due(2.0)
    assert crowd.cut() == {endless}
    crowd.ends[client][1].sendall(b"not read yet")
    crowd.connections.run_due(3.0)
    assert crowd.cut() == {endless}


def test_a_message_that_waits_while_memory_no_longer_grows_is_nobodys_fault(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that reads has not got the processor."""
    set_memory(monkeypatch, 100, 200, 201, 202)
    client = crowd.come(0.0)
    crowd.ends[client][1].sendall(b"not read yet")
    for now_s in (1.0, 2.0, 3.0):
        crowd.connections.run_due(now_s)
    assert crowd.cut() == set()


def test_all_that_fill_memory_at_once_are_cut_at_once(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_memory(monkeypatch, 100, 170, 180)
    endless = {crowd.come(0.0) for _ in range(3)}
    for number in endless:
        crowd.ends[number][1].sendall(b"not read yet")
    for now_s in (1.0, 2.0):
        crowd.connections.run_due(now_s)
    assert crowd.cut() == endless


def test_memory_that_was_freed_is_not_free_to_fill_again(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_memory(monkeypatch, 100, 1000, 100, 180, 190)
    endless = crowd.come(0.0)
    crowd.ends[endless][1].sendall(b"not read yet")
    for now_s in (1.0, 2.0, 3.0):
        crowd.connections.run_due(now_s)
        assert crowd.cut() == set()
    crowd.connections.run_due(4.0)
    assert crowd.cut() == {endless}


def test_many_that_hold_little_each_are_cut_when_it_is_much_in_all(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNFINISHED_TOTAL_BYTES_MAX", 100_000)
    memory = iter([0, 1 << 30, 1 << 30])
    monkeypatch.setattr(connections, "own_bytes", lambda: next(memory))
    for size in (10_000, 60_000, 50_000):
        crowd.come_over_tcp(with_bytes=size)
    crowd.connections.run_due(1.0)
    assert crowd.cut() == {1}
    crowd.connections.run_due(2.0)
    assert crowd.cut() == {1}
    assert crowd.counters.connections_cut == {"endless-message": 1}


@pytest.mark.parametrize("is_taken", [False, True])
def test_who_has_ended_before_the_news_of_it_is_read_holds_nothing(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """libzmq closes connections at any time; their numbers can be files' then."""
    memory = iter([0, 1 << 30])
    monkeypatch.setattr(connections, "own_bytes", lambda: next(memory))
    crowd.come_over_tcp(with_bytes=10)
    ours, _ = crowd.ends[0]
    number = ours.fileno()
    ours.close()
    if is_taken:
        with Path(os.devnull).open() as file:
            os.dup2(file.fileno(), number)
    crowd.connections.run_due(1.0)
    assert crowd.counters.connections_cut == {}
    if is_taken:
        os.close(number)


def test_messages_counted_too_long_are_no_credit_for_an_endless_one(
    crowd: Crowd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "UNFINISHED_BYTES_MAX", 100_000)
    memory = iter([0, 1 << 25, 1 << 26])
    monkeypatch.setattr(connections, "own_bytes", lambda: next(memory))
    crowd.come_over_tcp(with_bytes=1000)
    ours, theirs = crowd.ends[0]
    for _ in range(10_000):
        crowd.connections.heard(ours.fileno(), b"peer", 1)
    crowd.connections.run_due(1.0)
    theirs.sendall(bytes(101_000))
    crowd.connections.run_due(2.0)
    assert crowd.cut() == {0}


def test_a_connection_is_its_speakers_until_it_ends(crowd: Crowd) -> None:
    fd = crowd.ends[crowd.come(0.0)][0].fileno()
    assert not crowd.connections.is_known(fd, b"peer")
    assert crowd.connections.heard(fd, b"peer", 10)
    assert crowd.connections.is_known(fd, b"peer")
    assert crowd.connections.closed(fd) == {b"peer"}
    assert not crowd.connections.is_known(fd, b"peer")
    assert not crowd.connections.heard(fd, b"peer", 10), "it has ended"
    assert crowd.connections.closed(fd) == set()


def test_last_words_do_not_make_a_number_anothers(crowd: Crowd) -> None:
    fd = crowd.ends[crowd.come(0.0)][0].fileno()
    for peer in (b"peer", b"whose number it was", b"peer"):
        crowd.connections.heard(fd, peer, 10)
    assert b"peer" in crowd.connections.closed(fd)


def test_a_crowd_does_not_fill_the_log_and_the_line_says_what_to_raise(
    crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(100):
        crowd.come(1.0)
    assert crowd.counters.connections_cut == {"too-many": 97}
    assert [line for line in caplog.messages if "was cut" in line] == [
        "the connection of a process of this machine was cut: there are more than 3; if these are "
        "clients, raise clients_max or the limit of open files (LimitNOFILE=); more of this within "
        "a minute is only counted (connections_cut.too-many)"
    ]
    crowd.come(61.0)
    assert len([line for line in caplog.messages if "was cut" in line]) == 2
