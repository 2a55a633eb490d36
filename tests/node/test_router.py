"""The node process's socket: which connections have ended, and how it is bound and closed."""

import contextlib
import ipaddress
import os
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.errors import ResourceError
from feeder.node.connections import Connections
from feeder.node.endpoint import parse_endpoint
from feeder.node.router import Router
from feeder.wire.messages import MAX_HEADER_BYTES
from tests.support.daemon import happens_within, wait_until
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


def receive_peer(router: Router) -> bytes:
    """Wait for the next message; return its peer."""
    received: list[tuple[bytes, bytes]] = []

    def has_arrived() -> bool:
        message = router.receive(time.monotonic())
        if message is not None:
            received.append(message)
        return message is not None

    wait_until(has_arrived, "a message has arrived")
    return received[0][0]


def take_ended(router: Router) -> list[bytes]:
    ended, router.ended = router.ended, []
    return ended


def await_closed(router: Router, count: int) -> list[bytes]:
    """Wait until ``count`` connections have ended in all; return the peers that have."""

    def have_ended() -> bool:
        router.read_monitor(time.monotonic())
        return router.counters.connections_closed >= count

    wait_until(have_ended, "the connections have ended")
    return take_ended(router)


def await_opened(router: Router, count: int) -> None:
    """Read the monitor until ``count`` connections have been accepted in all."""

    def are_open() -> bool:
        router.read_monitor(time.monotonic())
        return router.counters.connections_opened >= count

    wait_until(are_open, f"{count} connections were accepted")


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_end_of_a_connection_is_reported_with_its_peer_if_it_sent_a_message(
    router: Router, endpoint: str
) -> None:
    speaker = dial_zmtp(endpoint)
    await_opened(router, 1)
    mute = dial_zmtp(endpoint)
    speaker.sendall(frame(b"x") * 2)
    assert receive_peer(router) == (peer := receive_peer(router))
    assert take_ended(router) == []
    mute.close()
    assert await_closed(router, 1) == []
    speaker.close()
    assert await_closed(router, 2) == [peer]


def test_a_message_over_the_limit_ends_its_connection_unread(router: Router, endpoint: str) -> None:
    with dial_zmtp(endpoint) as client:
        client.sendall(frame(bytes(MAX_HEADER_BYTES)))
        peer = receive_peer(router)
        client.sendall(frame(bytes(MAX_HEADER_BYTES + 1)))

        def has_ended() -> bool:
            assert router.receive(time.monotonic()) is None, "it is over the limit"
            router.read_monitor(time.monotonic())
            return router.ended == [peer]

        wait_until(has_ended, "the connection has ended")


@pytest.mark.parametrize(
    ("address", "is_local"),
    [
        ("localhost:1000:100:4242", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.7", True),
        ("10.0.0.8", False),
        ("", False),
    ],
)
def test_ipc_and_the_machines_own_addresses_are_local(
    router: Router, monkeypatch: pytest.MonkeyPatch, address: str, is_local: bool
) -> None:
    monkeypatch.setattr(router, "_own_addresses", {ipaddress.ip_address("10.0.0.7")})
    monkeypatch.setattr(router, "_metadata", lambda _: address)
    assert router.sender()[1] is is_local


@pytest.mark.parametrize("has_sent", [True, False])
def test_end_of_a_connection_is_not_attributed_to_its_numbers_next_one(
    router: Router, endpoint: str, has_sent: bool
) -> None:
    """The new connection's message is received before the monitor events of either are read."""

    def reconnect() -> bool:
        """Return whether the number was reused."""
        before = descriptors()
        former = b""
        with dial_zmtp(endpoint) as client:
            if has_sent:
                client.sendall(frame(b"former"))
                former = receive_peer(router)
            else:
                await_opened(router, router.counters.connections_opened + 1)
            during = descriptors()
        wait_until(lambda: len(descriptors()) <= len(before), "the former has ended")
        with dial_zmtp(endpoint) as client:
            client.sendall(frame(b"next"))
            following = receive_peer(router)
            is_same = descriptors() == during
            assert take_ended(router) == [former] * has_sent
            closed = router.counters.connections_closed
        assert await_closed(router, closed + 1) == [following]
        wait_until(lambda: len(descriptors()) <= len(before), "the next one has ended")
        return is_same

    wait_until(reconnect, "a connection reuses the number of the former one")


def test_a_peer_counts_as_ended_once_its_last_messages_are_read(
    router: Router, endpoint: str
) -> None:
    """Else a client would count as lost while its Bye is unread."""
    with dial_zmtp(endpoint) as client:
        client.sendall(frame(b"x"))
        peer = receive_peer(router)
        client.sendall(frame(b"bye"))

    def has_closed() -> bool:
        router.read_monitor(time.monotonic())
        return router.counters.connections_closed == 1

    wait_until(has_closed, "the connection has ended")
    assert router.take_ended() == []
    assert receive_peer(router) == peer
    assert set(router.take_ended()) == {peer}


def test_close_is_bounded_while_monitor_events_are_unread(tmp_path: Path) -> None:
    def close() -> float:
        router = Router()
        router.bind([parse_endpoint(f"ipc://{tmp_path}/crowd")])
        with contextlib.suppress(BlockingIOError):  # the backlog is full
            for _ in range(5000):
                with socket.socket(socket.AF_UNIX) as caller:
                    timeout = struct.pack("ll", 1, 0)
                    caller.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
                    caller.connect(f"{tmp_path}/crowd")
        begun_s = time.monotonic()
        router.close()
        return time.monotonic() - begun_s

    happens_within(5.0, close)


def test_a_successor_that_binds_during_the_close_keeps_its_socket_file(tmp_path: Path) -> None:
    """Its file may have the inode number of the one that it replaces."""
    endpoint = parse_endpoint(f"ipc://{tmp_path}/s")
    router, successor = Router(), Router()
    monitor = router.monitor

    class Succession:
        """Stands in for the monitor, which is closed after the listener."""

        def close(self, linger: int) -> None:
            monitor.close(linger)
            wait_until(self.has_bound, "the successor is bound")

        def has_bound(self) -> bool:
            try:
                successor.bind([endpoint])
            except ResourceError:  # the listener is closed by another thread
                return False
            return True

    router.bind([endpoint])
    router.monitor = Succession()  # type: ignore[assignment]
    with contextlib.closing(successor):
        router.close()
        assert (tmp_path / "s").is_socket()
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_accepted_while_one_too_many_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connections, "_cut", lambda *_: None)  # as without a free descriptor
    with contextlib.closing(Router(connections_max=1)) as router, contextlib.ExitStack() as stack:
        (endpoint,) = router.bind([parse_endpoint(f"ipc://{tmp_path}/s")])
        first = stack.enter_context(dial_zmtp(endpoint))
        await_opened(router, 1)
        stack.enter_context(dial_zmtp(endpoint))
        await_opened(router, 2)
        stack.enter_context(socket.socket(socket.AF_UNIX)).connect(f"{tmp_path}/s")
        for _ in range(20):
            router.read_monitor(time.monotonic())
            time.sleep(0.005)
        assert router.counters.connections_opened == 2
        first.close()
        await_opened(router, 3)
