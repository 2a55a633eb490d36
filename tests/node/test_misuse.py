"""The daemon under misuse: bounded memory, well-behaved clients served, offenders named or cut."""

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from bench.fetcher import BatchFetcher
from feeder.node.endpoint import parse_endpoint
from feeder.node.router import Router
from feeder.wire.messages import NodeMessage, Refused
from tests.support.daemon import DEADLINE_S, Daemon, RawClient, serve, small_recipe, wait_until
from tests.support.misuse import dial_zmtp, frame

MEMORY_MAX = 1 << 30
"""The most that misuse may allocate: what loopback transfers between two checks, with a margin."""

CUT_S = 120.0
"""Deadline for cutting a message without end on a busy machine."""


@pytest.fixture(scope="module")
def daemon(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    options = ("--bind", f"ipc://{tmp_path_factory.mktemp('misuse')}/s", "--chunk-images", "4")
    limits = ("--slots-bytes", str(4 << 20), "--client-sessions-max", "3", "--lease-s", "600")
    with serve(packed, *options, *limits, workers=1) as running:
        yield running


def endpoint_of(daemon: Daemon, transport: str) -> str:
    return next(text for text in daemon.endpoints if text.startswith(transport))


def fetch_some(endpoint: str, batches: int = 30) -> None:
    with BatchFetcher(
        endpoint, dataset="d", recipe=small_recipe(), timeout_s=DEADLINE_S
    ) as fetcher:
        for _ in fetcher.fetch(0, batches):
            pass


@contextlib.contextmanager
def flooding(endpoint: str, block: bytes) -> Iterator[list[int]]:
    """Send a block repeatedly, reconnecting when cut; yields the number of connections."""
    is_over = threading.Event()
    connections = [0]

    def flood() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError), dial_zmtp(endpoint) as connection:
                connections[0] += 1
                connection.settimeout(0.2)
                while not is_over.is_set():
                    with contextlib.suppress(TimeoutError):
                        connection.sendall(block)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield connections
    finally:
        is_over.set()
        thread.join(DEADLINE_S)


def counter(daemon: Daemon, name: str) -> int:
    return int(daemon.counters().get(name, 0))


def send_without_end(daemon: Daemon, endpoint: str) -> None:
    """Send parts of one message until the connection is cut; memory must stay below MEMORY_MAX."""
    resident = daemon.node.memory_info().rss
    part = frame(bytes(60_000), more=True)
    began_s = time.monotonic()
    with dial_zmtp(endpoint) as connection, contextlib.suppress(ConnectionError):
        while True:
            connection.sendall(part)
            assert daemon.node.memory_info().rss - resident < MEMORY_MAX
            assert time.monotonic() - began_s < CUT_S, "it was never cut"


def test_endless_tcp_message_is_cut_before_it_fills_memory(daemon: Daemon) -> None:
    endpoint = endpoint_of(daemon, "tcp")
    before = counter(daemon, "connections_cut.endless-message")
    resident = daemon.node.memory_info().rss
    with BatchFetcher(endpoint, dataset="d", recipe=small_recipe()) as good:
        for _ in range(3):
            send_without_end(daemon, endpoint)
        assert counter(daemon, "connections_cut.endless-message") == before + 3
        next(good.fetch())
    assert daemon.node.memory_info().rss - resident < MEMORY_MAX, "freed memory is reused"


@pytest.mark.parametrize(
    ("transport", "block"),
    [
        ("tcp", frame(b"garbage!") * 5000),
        ("ipc", frame(b"a", more=True) * 5000 + frame(b"b")),
    ],
    ids=["garbage", "many-parts"],
)
def test_garbage_takes_little_cpu_time_and_does_not_starve_clients(
    daemon: Daemon, transport: str, block: bytes
) -> None:
    endpoint = endpoint_of(daemon, transport)
    node = psutil.Process(daemon.node.pid)
    with flooding(endpoint, block):
        fetch_some(endpoint)

        def is_mostly_idle() -> bool:
            busy_s, began_s = sum(node.cpu_times()[:2]), time.monotonic()
            threading.Event().wait(0.5)
            busy_s = sum(node.cpu_times()[:2]) - busy_s
            return busy_s < 0.25 * (time.monotonic() - began_s)

        wait_until(is_mostly_idle, "garbage takes under a quarter of a core")


def test_client_over_its_message_rate_is_refused_by_name(daemon: Daemon) -> None:
    with RawClient(endpoint_of(daemon, "tcp")) as client:
        answers: list[NodeMessage] = []

        def is_refused() -> bool:
            for _ in range(400):  # repeated, because a busy machine may take seconds to read them
                client.ping()
            while client.socket.poll(0):
                answers.append(client.receive())
            return any(isinstance(a, Refused) and a.code == "rate" for a in answers)

        wait_until(is_refused, "it is refused")
        rate = [isinstance(answer, Refused) and answer.code == "rate" for answer in answers]
        assert rate.index(True) > 200, "a burst is allowed"
        refused = answers[rate.index(True)]
        assert isinstance(refused, Refused)
        assert refused.message.startswith("address 127.0.0.1")
    assert counter(daemon, "frames_dropped.over-rate") > 0


def test_account_is_not_taken_from_the_clients_own_metadata(tmp_path: Path) -> None:
    router = Router()
    try:
        addresses = [f"ipc://{tmp_path}/s", "tcp://127.0.0.1:0"]
        for endpoint in router.bind([parse_endpoint(text) for text in addresses]):
            claims = {b"User-Id": b"another", b"Peer-Address": b"localhost:1:1:1"}
            with dial_zmtp(endpoint, claims=claims) as client:
                client.sendall(frame(b"x"))
                wait_until(
                    lambda: router.receive(time.monotonic()) is not None, "its frame has arrived"
                )
            is_ipc = endpoint.startswith("ipc")
            account = f"user {os.getuid()}" if is_ipc else "address 127.0.0.1"
            assert router.sender() == (account, True, is_ipc)
    finally:
        router.close()
