"""The thread of a client's sockets: interrupted waits, closing, descriptors, and its turns."""

import contextlib
import itertools
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace

import pytest
import zmq

from feeder.client.connection import Link, open_context
from feeder.client.core.events import (
    Connected,
    Dial,
    Disconnected,
    EndpointsListed,
    Event,
    Instruction,
    MessageReceived,
)
from feeder.client.core.links import Job
from feeder.client.io_loop import IDLE_MS, IoLoop
from feeder.errors import ConfigError, PeerError, ResourceError
from feeder.wire.messages import Bye, Pong, encode
from tests.support.client_shell import hello
from tests.support.daemon import DEADLINE_S, wait_until
from tests.support.fake_node import FakeNode, Message
from tests.trainer_client.test_loader import make_loader
from trainer_client import FeederLoader


class Stopped(BaseException):
    """Raised by a signal handler, as KeyboardInterrupt is."""


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as fake:
        yield fake
    assert fake.problems == []


def hold_back(node: FakeNode) -> list[Message]:
    """Have the node keep its answers, in the list that is returned."""
    kept: list[Message] = []

    def keep(key: object, messages: list[Message]) -> list[Message]:
        kept.extend(messages)
        return []

    node.script = keep
    return kept


@contextlib.contextmanager
def signalled_while_waiting(loader: FeederLoader, handler: Callable[[], None]) -> Iterator[None]:
    """Have a signal call ``handler`` in this thread as soon as this waits for a batch."""

    def handle(number: int, frame: FrameType | None) -> None:
        handler()

    transport = loader._feed._transport
    main = threading.get_ident()

    def send() -> None:
        wait_until(lambda: transport._consumer and transport._loop.is_waiting, "a wait for a batch")
        signal.pthread_kill(main, signal.SIGUSR1)

    former = signal.signal(signal.SIGUSR1, handle)
    helper = threading.Thread(target=send)
    helper.start()
    try:
        yield
    finally:
        helper.join()
        signal.signal(signal.SIGUSR1, former)


def stop() -> None:
    raise Stopped


def release(node: FakeNode, kept: list[Message]) -> None:
    node.script = lambda key, messages: messages
    for message in kept:
        node.send(message)


def test_an_exception_in_a_wait_leaves_the_loader_usable(node: FakeNode) -> None:
    with make_loader(node) as loader:
        kept = hold_back(node)
        with signalled_while_waiting(loader, stop), pytest.raises(Stopped):
            next(iter(loader))
        release(node, kept)
        assert len([*loader]) == len(loader)


def test_an_exception_while_messages_are_handled_ends_the_session(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, handle = threading.get_ident(), IoLoop._handle

    def interrupted(self: IoLoop, *args: object) -> None:
        if threading.get_ident() == main:
            raise Stopped
        handle(self, *args)  # type: ignore[arg-type]

    with make_loader(node) as loader:
        hold_back(node)
        monkeypatch.setattr(IoLoop, "_handle", interrupted)
        with pytest.raises(Stopped):
            next(iter(loader))
        with pytest.raises(ResourceError, match=r"interrupted while it handled .*: make a new one"):
            next(iter(loader))
        thread = loader._feed._transport._thread
        wait_until(lambda: not thread.is_alive(), "the I/O thread has ended")


def test_a_stop_counts_as_a_quarter_second_of_the_timeout_at_most(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock_s = itertools.count(0.0, 60.0)  # it is read before and after each turn
    with make_loader(node, timeout_s=1.5) as loader:
        hold_back(node)
        turns: list[int] = []
        monkeypatch.setattr(loader._feed._transport, "_take_turn", turns.append)
        time_then = SimpleNamespace(monotonic=lambda: next(clock_s))
        monkeypatch.setattr("feeder.client.transport.time", time_then)
        with pytest.raises(PeerError, match=r"within 1\.5 s"):
            next(iter(loader))
        monkeypatch.undo()
    assert turns == [250] * 6


def test_closing_in_a_signal_handler_ends_the_wait(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    with make_loader(node) as loader:
        hold_back(node)
        thread = loader._feed._transport._thread
        with (
            signalled_while_waiting(loader, loader.close),
            pytest.raises(ConfigError, match="was closed in the meantime"),
        ):
            next(iter(loader))
        node.wait_until(lambda: node.count(Bye) == 1, "no Bye")
        wait_until(lambda: not thread.is_alive(), "the I/O thread has ended")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


# Room for ZeroMQ contexts


@contextlib.contextmanager
def no_further_file(spare: int) -> Iterator[None]:
    """Leave room for ``spare`` more descriptors only."""
    former = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 1 + max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, former[1]))
    filling = []
    try:
        with contextlib.suppress(OSError):
            while True:
                filling.append(os.dup(0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit + spare, former[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, former)
        for fd in filling:
            os.close(fd)


def test_without_descriptors_a_context_is_refused() -> None:
    with no_further_file(spare=4), pytest.raises(ResourceError, match=r"^job: .*\(ulimit -n\)"):
        open_context("job", 1)


@pytest.mark.parametrize("spare", [0, 10])
def test_a_job_continues_without_descriptors_for_further_feeders(spare: int) -> None:
    with FakeNode() as node:
        loader = make_loader(node, timeout_s=DEADLINE_S)
        batches = iter(loader)
        next(batches)
        # These count as names, being no dotted quads, and resolve without a name server.
        listed = (node.endpoint, *(f"tcp://127.{number}:9" for number in range(1, 6)))
        with no_further_file(spare=spare):
            loader._feed._transport._set_endpoints(dict.fromkeys(listed, ""))
            links = loader._feed._session.links
            wait_until(
                lambda: len(links.by_number) + len(links.left_out) == len(listed),
                "all are dialled, or left out",
            )
            assert next(batches).index == 1
        assert next(batches).index == 2
        threads = set(threading.enumerate())
        loader.close()
        threads.remove(loader._feed._transport._thread)
        wait_until(lambda: set(threading.enumerate()) <= threads, "its thread has ended")


# Turns, with a script in place of the session


class Script:
    """A session whose instructions come from ``answer``; takes the turns in the test's thread."""

    due_s = float("inf")

    def __init__(self, answer: Callable[[Event], Sequence[Instruction] | None]) -> None:
        self.job = Job(name="a job", hello=hello())
        self.now_s = 0.0
        self._answer = answer
        self._is_over = False
        self._waker, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        self.loop = IoLoop(
            self,  # type: ignore[arg-type]
            threading.RLock(),
            buffer=lambda number: pytest.fail("no chunk comes"),
            keys=None,
            wakeup=wakeup,
        )

    def run(self, *endpoints: str) -> None:
        self.loop.listed = dict.fromkeys(endpoints, "")
        try:
            while not self._is_over:
                self.loop.turn(IDLE_MS)
        finally:
            self.loop.close()
            self.loop.wait_until_sent()
            self._waker.close()

    def stop(self) -> None:
        self._is_over = True

    def handle(self, event: Event, now_s: float) -> Sequence[Instruction]:
        self.now_s = now_s
        return self._answer(event) or ()

    def is_clock_due(self) -> bool:
        return True


def test_after_a_stop_waiting_messages_are_read_before_the_clock_advances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.client.connection.RECONNECT_MS", 10)  # far below CATCH_UP_MS
    seen: list[tuple[type[Event], bool]] = []
    now = time.monotonic

    def answer(event: Event) -> Sequence[Instruction] | None:
        seen.append((type(event), script.now_s > now() + 10.0))
        if isinstance(event, EndpointsListed):
            return [Dial(0, f"ipc://{tmp_path}/node")]
        if isinstance(event, Disconnected):
            monkeypatch.setattr(time, "monotonic", lambda: now() + 30.0)
            if seen[-1][1]:
                script.stop()
        return None

    script = Script(answer)
    script.run("one")
    assert next(kind for kind, is_later in seen if is_later) is Disconnected


def test_a_host_that_does_not_answer_is_known_to_be_away_within_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its kernel drops the connection's first packet, as that of a host without power does."""
    monkeypatch.setattr("feeder.client.connection.CONNECT_MS", 100)

    def answer(event: Event) -> Sequence[Instruction] | None:
        if isinstance(event, Disconnected):
            script.stop()
        return [Dial(0, f"tcp://127.0.0.1:{port}")] if isinstance(event, EndpointsListed) else None

    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):  # all that its backlog holds
            script = Script(answer)
            script.run("one")


def test_what_a_node_sent_before_it_ended_is_read_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links: list[Link] = []
    monkeypatch.setattr(
        "feeder.client.io_loop.Link", lambda *a, **k: links.append(Link(*a, **k)) or links[0]
    )
    endpoint = f"ipc://{tmp_path}/node"
    messages = [Pong(session=number) for number in range(12)]
    seen: list[Event] = []

    def answer(event: Event) -> Sequence[Instruction] | None:
        match event:
            case EndpointsListed():
                return [Dial(0, endpoint)]
            case Connected():
                for message in messages:
                    node.send(encode(message))
                node.close(linger=-1)
                context.term()  # returns once they are sent
                assert links[0].monitor.poll(int(DEADLINE_S * 1000)), "the connection ends"
            case MessageReceived() | Disconnected():
                seen.append(event)
                if event == Disconnected(0):
                    script.stop()
            case _:
                pass
        return None

    with zmq.Context() as context, context.socket(zmq.DEALER) as node:
        node.bind(endpoint)
        script = Script(answer)
        script.run("one")
    received = [MessageReceived(0, message) for message in messages]
    assert seen[: len(messages) + 1] == [*received, Disconnected(0)]
