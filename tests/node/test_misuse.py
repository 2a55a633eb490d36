"""The daemon under misuse: bounded memory, good clients served, and the culprit named or cut."""

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from feeder.client.blocking import BatchFetcher
from feeder.client.stats import request_counters
from feeder.errors import ResourceError
from feeder.node.accept_pause import BURST, CONNECTIONS_A_S, AcceptPause
from feeder.node.connections import UNFINISHED_BYTES_MAX
from feeder.node.endpoint import identify_file, parse_endpoint, resting_path
from feeder.node.router import Router
from feeder.wire.messages import NodeMessage, Ping, Refused, Welcome, encode
from tests.support.daemon import DEADLINE_S, Daemon, RawClient, pack_small, small_recipe, wait_until
from tests.support.misuse import dial, dial_zmtp, frame

MEMORY_MAX = 1 << 30
"""What misuse may take at its worst: tens of ms at a busy machine's speed, generously."""

CUT_S = 120.0
"""Until a message without end is cut: 64 MiB come first, which takes a busy machine a while."""

SLOW_S = 20.0
"""A machine that has not taken enough connections for a rest after that is too slow to."""


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("misuse")
    with Daemon(
        *("--data", f"d={pack_small(folder)}", "--workers", "1", "--chunk-images", "4"),
        *("--bind", "tcp://127.0.0.1:0", "--bind", f"ipc://{folder}/s"),
        *("--slots-bytes", str(4 << 20), "--client-sessions-max", "3", "--lease-s", "600"),
    ) as running:
        yield running


@pytest.fixture(params=["tcp", "ipc"])
def endpoint(daemon: Daemon, request: pytest.FixtureRequest) -> str:
    return next(text for text in daemon.endpoints if text.startswith(request.param))


def fetch_some(endpoint: str, batches: int = 30) -> None:
    with BatchFetcher(
        endpoint, dataset="d", recipe=small_recipe(), timeout_s=DEADLINE_S
    ) as fetcher:
        for _ in fetcher.fetch(divmod(number, 5) for number in range(batches)):
            pass


@contextlib.contextmanager
def flooding(endpoint: str, block: bytes) -> Iterator[list[int]]:
    """Send a block again and again, over a new connection where one ends; counts connections."""
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


def test_a_message_without_end_is_cut_before_it_fills_memory(daemon: Daemon, endpoint: str) -> None:
    before = counter(daemon, "connections_cut.endless-message")
    resident = daemon.node.memory_info().rss
    most = 0
    with BatchFetcher(endpoint, dataset="d", recipe=small_recipe()) as good:
        with dial_zmtp(endpoint) as endless, contextlib.suppress(ConnectionError):
            part = frame(bytes(60_000), more=True)
            began_s = time.monotonic()
            while True:
                endless.sendall(part)
                most = max(most, daemon.node.memory_info().rss - resident)
                assert most < MEMORY_MAX
                assert time.monotonic() - began_s < CUT_S, "it was never cut"
        assert counter(daemon, "connections_cut.endless-message") == before + 1
        next(good.fetch([(0, 0)]))
    wait_until(
        lambda: daemon.node.memory_info().rss - resident < 2 * UNFINISHED_BYTES_MAX, "given back"
    )


@pytest.mark.parametrize(
    "block",
    [
        frame(b"garbage!") * 5000,
        frame(bytes(60_000)) * 5,
        frame(encode(Ping(session=1))) * 5000,
        frame(b"a", more=True) * 5000 + frame(b"b"),
    ],
    ids=["garbage", "large-garbage", "pings", "many-parts"],
)
def test_frames_of_no_use_take_little_time_and_starve_nobody(
    daemon: Daemon, endpoint: str, block: bytes
) -> None:
    node = psutil.Process(daemon.node.pid)
    with flooding(endpoint, block):
        fetch_some(endpoint)

        def rests() -> bool:
            busy_s, began_s = sum(node.cpu_times()[:2]), time.monotonic()
            threading.Event().wait(0.5)
            busy_s = sum(node.cpu_times()[:2]) - busy_s
            return busy_s < 0.25 * (time.monotonic() - began_s)

        wait_until(rests, "most of the time is others'")


def test_who_says_too_much_is_told_by_name(daemon: Daemon, endpoint: str) -> None:
    with RawClient(endpoint) as client:
        answers: list[NodeMessage] = []

        def is_told() -> bool:
            for _ in range(400):  # more than once where a busy machine takes seconds for them
                client.ping()
            while client.socket.poll(0):
                answers.append(client.receive())
            return any(isinstance(a, Refused) and a.code == "rate" for a in answers)

        wait_until(is_told, "it is told")
        rate = [isinstance(answer, Refused) and answer.code == "rate" for answer in answers]
        assert rate.index(True) > 200, "a burst is nobody's fault"
        told = answers[rate.index(True)]
        assert isinstance(told, Refused)
        who = "address 127.0.0.1" if endpoint.startswith("tcp") else "user "
        assert told.message.startswith(who)
    assert counter(daemon, "frames_dropped.over-rate") > 0


def test_nobody_counts_as_who_it_says_it_is(tmp_path: Path) -> None:
    router = Router()
    try:
        addresses = [f"ipc://{tmp_path}/s", "tcp://127.0.0.1:0"]
        for endpoint in router.bind([parse_endpoint(text) for text in addresses]):
            claims = {b"User-Id": b"somebody", b"Peer-Address": b"localhost:1:1:1"}
            with dial_zmtp(endpoint, claims=claims) as client:
                client.sendall(frame(b"x"))
                wait_until(
                    lambda: router.receive(time.monotonic()) is not None, "its frame is here"
                )
            is_ipc = endpoint.startswith("ipc")
            assert router.account() == (f"user {os.getuid()}" if is_ipc else "address 127.0.0.1")
    finally:
        router.close()


def test_sessions_beyond_a_clients_share_are_refused_by_name(daemon: Daemon, endpoint: str) -> None:
    other = next(each for each in daemon.endpoints if each != endpoint)
    wait_until(lambda: counter(daemon, "sessions") == 0, "former sessions have ended")
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(RawClient(endpoint)) for _ in range(4)]
        answers = [client.hello(small_recipe(), window=1) for client in clients]
        assert [isinstance(answer, Welcome) for answer in answers] == [True] * 3 + [False]
        assert answers[3].code == "clients"
        assert "client_sessions_max" in answers[3].message
        fetch_some(other, 5)
        for client in clients[:3]:
            client.bye()


def test_connecting_again_and_again_slows_down_who_does_it(daemon: Daemon, endpoint: str) -> None:
    """Where the machine has the time for as many as that takes; else nobody is let in sooner."""
    other = next(each for each in daemon.endpoints if each != endpoint)
    is_over = threading.Event()
    began_s = time.monotonic()
    before = daemon.counters()

    def knock() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError), dial(endpoint) as connection:
                connection.sendall(b"garbage" * 20)

    with BatchFetcher(endpoint, dataset="d", recipe=small_recipe()) as good:
        thread = threading.Thread(target=knock)
        thread.start()
        try:
            for look in itertools.count(1):
                now = request_counters(other, DEADLINE_S)
                if now.get("accept_rests", 0) > before.get("accept_rests", 0):
                    break
                came = now["connections_opened"] - before["connections_opened"]
                took_s = time.monotonic() - began_s
                assert came - look - 2 <= BURST + CONNECTIONS_A_S * took_s, "nobody was slowed down"
                if took_s > SLOW_S:
                    break
                for _ in good.fetch((0, index) for index in range(5)):
                    pass
            for _ in good.fetch((1, index) for index in range(5)):
                pass
        finally:
            is_over.set()
            thread.join(DEADLINE_S)
    fetch_some(endpoint, 5)  # newcomers get in


def test_an_ipc_socket_has_its_name_again_after_a_rest(daemon: Daemon) -> None:
    path = Path(daemon.endpoints[1].removeprefix("ipc://"))
    wait_until(path.is_socket, "it has its name")
    assert not resting_path(path).exists()


def test_a_rest_leaves_the_socket_file_of_another_daemon_alone(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.touch()
    pause = AcceptPause(0, path, identify_file(path))
    path.rename(tmp_path / "ours")
    path.write_text("another's")
    pause.accepted(0.0, as_many=BURST)
    assert path.read_text() == "another's"
    path.rename(resting_path(path))
    pause.close()
    assert resting_path(path).read_text() == "another's"


def test_a_rest_gives_the_name_back(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("ours")
    pause = AcceptPause(0, path, identify_file(path))
    pause.accepted(0.0, as_many=BURST)
    assert resting_path(path).read_text() == "ours"
    assert not path.exists()
    pause.run_due(10.0)
    assert path.read_text() == "ours"


def test_a_daemon_that_rests_keeps_its_path_and_a_dead_ones_file_goes(tmp_path: Path) -> None:
    path, resting = tmp_path / "s", resting_path(tmp_path / "s")
    with contextlib.closing(Router()) as router:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(os.fspath(resting))
            listener.listen()
            with pytest.raises(ResourceError, match="in use"):
                router.bind([parse_endpoint(f"ipc://{path}")])
        router.bind([parse_endpoint(f"ipc://{path}")])
        assert not resting.exists()
