"""The node process's socket: whose connections are said to have ended."""

import contextlib
import errno
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.errors import ResourceError
from feeder.node.endpoint import parse_endpoint
from feeder.node.router import Router
from tests.support.daemon import wait_until
from tests.support.misuse import dial_zmtp, frame


@pytest.fixture
def router() -> Iterator[Router]:
    with contextlib.closing(Router()) as router:
        yield router


@pytest.fixture(params=["tcp", "ipc"])
def endpoint(router: Router, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    wanted = "tcp://127.0.0.1:0" if request.param == "tcp" else f"ipc://{tmp_path}/s"
    (bound,) = router.bind([parse_endpoint(wanted)])
    router.read_monitor(time.monotonic())
    return bound


def hear(router: Router) -> bytes:
    """Wait for the next message, and return whose it is."""
    received: list[tuple[bytes, bytes]] = []

    def has_come() -> bool:
        message = router.receive(time.monotonic())
        if message is not None:
            received.append(message)
        return message is not None

    wait_until(has_come, "a message is here")
    return received[0][0]


def hear_ends(router: Router, count: int) -> list[bytes]:
    """Wait for the ends of so many connections, and return whose they were."""
    ended: list[bytes] = []

    def have_ended() -> bool:
        router.read_monitor(time.monotonic())
        ended.extend(router.take_ended())
        return len(ended) >= count

    wait_until(have_ended, "the connections have ended")
    return ended


def await_opened(router: Router, count: int) -> None:
    """Read the monitor until so many connections were accepted in all."""

    def are_open() -> bool:
        router.read_monitor(time.monotonic())
        return router.counters.connections_opened >= count

    wait_until(are_open, f"{count} connections were accepted")


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def sockets() -> set[int]:
    found = set()
    for fd in map(int, descriptors()):
        with contextlib.suppress(OSError):  # that was the folder's
            if stat.S_ISSOCK(os.fstat(fd).st_mode):
                found.add(fd)
    return found


def test_who_has_left_is_said_to_have_ended_and_who_never_spoke_is_nobody(
    router: Router, endpoint: str
) -> None:
    speaker = dial_zmtp(endpoint)
    await_opened(router, 1)
    mute = dial_zmtp(endpoint)
    speaker.sendall(frame(b"x") * 2)
    assert hear(router) == (peer := hear(router))
    assert router.take_ended() == []
    mute.close()
    assert hear_ends(router, 1) == [b""]
    speaker.close()
    assert hear_ends(router, 1) == [peer]


@pytest.mark.parametrize("spoke", [True, False])
def test_the_end_of_a_connection_is_not_taken_for_its_successors(
    router: Router, endpoint: str, spoke: bool
) -> None:
    """Its number went to a newcomer, whose message came before the news of that was read."""

    def succeed() -> bool:
        """Return whether the number was the same."""
        before = descriptors()
        former = b""
        with dial_zmtp(endpoint) as client:
            if spoke:
                client.sendall(frame(b"former"))
                former = hear(router)
            else:
                await_opened(router, router.counters.connections_opened + 1)
            during = descriptors()
        wait_until(lambda: len(descriptors()) <= len(before), "the former has ended")
        with dial_zmtp(endpoint) as client:
            client.sendall(frame(b"newcomer"))
            newcomer = hear(router)
            is_same = descriptors() == during
            assert router.take_ended() == [former]
        assert hear_ends(router, 1) == [newcomer]
        wait_until(lambda: len(descriptors()) <= len(before), "the newcomer has ended")
        return is_same

    wait_until(succeed, "a newcomer gets the number of the former")


def test_last_words_read_after_the_end_are_of_one_who_has_ended(
    router: Router, endpoint: str
) -> None:
    """Not of whoever has the number now, nor of nobody."""
    before = descriptors()
    with dial_zmtp(endpoint) as client:
        client.sendall(frame(b"last words"))
        wait_until(lambda: router.has_unread, "they are here")
    wait_until(lambda: len(descriptors()) <= len(before), "the former has ended")
    assert router.take_ended() == []
    former = hear(router)
    assert set(router.take_ended()) == {former, b""}
    with dial_zmtp(endpoint) as client:
        client.sendall(frame(b"x"))
        assert hear(router) != former
        assert router.take_ended() == []


def test_closing_waits_for_nobody_where_the_news_of_connections_is_not_read(
    router: Router, tmp_path: Path
) -> None:
    router.bind([parse_endpoint(f"ipc://{tmp_path}/crowd")])
    with contextlib.suppress(BlockingIOError):  # nobody is taken in any more
        for _ in range(5000):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
                caller.connect(f"{tmp_path}/crowd")
    begun_s = time.monotonic()
    router.close()
    assert time.monotonic() - begun_s < 5.0


def test_a_socket_file_that_cannot_get_its_name_is_an_error_and_none_stays(
    router: Router, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(ResourceError, match=r"ipc://.*/s cannot be bound: Input/output error"):
        router.bind([parse_endpoint(f"ipc://{tmp_path}/s")])
    assert not list(tmp_path.iterdir())
    router.close()


def test_who_is_too_many_and_gone_is_not_cut_where_its_number_is_something_elses(
    tmp_path: Path,
) -> None:
    """As a worker's channel, which the node process opened before it read the news."""
    with contextlib.closing(Router(connections_max=1)) as router:
        (endpoint,) = router.bind([parse_endpoint(f"ipc://{tmp_path}/s")])
        router.read_monitor(time.monotonic())
        with dial_zmtp(endpoint) as client:
            client.sendall(frame(b"x"))
            hear(router)
            before = sockets()
            with dial_zmtp(endpoint) as newcomer:
                (number,) = sockets() - before - {newcomer.fileno()}
            wait_until(lambda: number not in sockets(), "it has ended")
            ours, theirs = socket.socketpair()
            with ours, theirs:
                assert number in {ours.fileno(), theirs.fileno()}
                router.read_monitor(time.monotonic())
                theirs.send(b"x")
                assert ours.recv(1) == b"x"
            assert router.counters.connections_cut == {}
