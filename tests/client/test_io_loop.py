"""Turns with a client's sockets, with a script in place of the session."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import zmq

from feeder.client.connection import Link
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
from feeder.wire.messages import Pong, encode
from tests.support.client_shell import hello
from tests.support.daemon import DEADLINE_S


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
