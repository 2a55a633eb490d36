"""A client that sends what the test asks for; the guests of tests.numa have it, too."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.plan.recipe import Recipe
from feeder.wire.messages import (
    Bye,
    Chunk,
    ClientMessage,
    Hello,
    NodeMessage,
    Ping,
    Refused,
    Request,
    Welcome,
    decode_from_node,
    encode,
)

Key = tuple[int, int]
DEADLINE_S = 60.0
"""For events that are expected soon: generous, because test machines are busy."""


def wait_until(holds: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Return once ``holds()`` is true; AssertionError with ``what`` if it is not in time."""
    give_up_s = time.monotonic() + deadline_s
    never = threading.Event()
    while not holds():
        assert time.monotonic() < give_up_s, f"not within {deadline_s:g} s: {what}"
        never.wait(0.01)


@dataclass
class Arrived:
    """The received rows of a batch: pixels int8 (rows, S, S, 3), labels and ids int64 (rows,)."""

    pixels: NDArray[np.int8]
    labels: NDArray[np.int64]
    sample_ids: NDArray[np.int64]
    missing: int
    valid: int = -1

    def add(self, chunk: Chunk, frames: list[bytes]) -> None:
        rows = slice(chunk.first, chunk.first + chunk.images)
        shape = (chunk.images, *self.pixels.shape[1:])
        self.pixels[rows] = np.frombuffer(frames[0], np.int8).reshape(shape)
        self.labels[rows] = np.frombuffer(frames[1], np.int64)
        self.sample_ids[rows] = np.frombuffer(frames[2], np.int64)
        self.missing -= chunk.images
        self.valid = chunk.valid


class RawClient:
    """One DEALER socket that sends what the test asks for."""

    def __init__(self, endpoint: str, receive_mark: int = 1000, receive_bytes: int = -1) -> None:
        """Connect; the socket queues ``receive_mark`` messages, ``receive_bytes`` in the kernel.

        Without a fixed size (-1) Linux lets a connection's receive buffer grow to many megabytes.
        """
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.RCVHWM, receive_mark)
        self.socket.set(zmq.RCVBUF, receive_bytes)
        self.socket.connect(endpoint)
        self.recipe: Recipe | None = None
        self.session = 0
        self.batches: dict[Key, Arrived] = {}
        self.others: list[NodeMessage] = []

    def __enter__(self) -> "RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.context.destroy(linger=0)

    def send(self, message: ClientMessage) -> None:
        self.socket.send(encode(message))

    def receive(self, deadline_s: float = DEADLINE_S) -> NodeMessage:
        """Return the next message; a chunk's frames go into ``batches``."""
        assert self.socket.poll(int(deadline_s * 1000)), f"no message within {deadline_s:g} s"
        header, *frames = self.socket.recv_multipart()
        message = decode_from_node(header)
        if isinstance(message, Chunk):
            assert message.session == self.session
            self.batches[message.epoch, message.index].add(message, frames)
        return message

    def hello(self, recipe: Recipe, *, window: int = 4, seed: int = 3, dataset: str = "d") -> Any:
        """Send a Hello; return the Welcome or Refused."""
        self.recipe = recipe
        self.send(Hello(dataset=dataset, recipe=recipe, seed=seed, window=window, client="test"))
        answer = self.receive()
        while not isinstance(answer, Welcome | Refused) or _is_of_no_session(answer):
            answer = self.receive()  # messages to the session that this Hello replaces
        if isinstance(answer, Welcome):
            self.session = answer.session
        return answer

    def want(
        self, *keys: Key, release: tuple[Key, ...] = (), unowned: tuple[Key, ...] = ()
    ) -> None:
        assert self.recipe is not None
        rows, size = self.recipe.batch_size, self.recipe.image_size
        for key in keys:
            self.batches[key] = Arrived(
                np.full((rows, size, size, 3), 99, np.int8),
                np.full(rows, -7, np.int64),
                np.full(rows, -7, np.int64),
                rows,
            )
        request = Request(session=self.session, want=keys, release=release, unowned=unowned)
        self.send(request)

    def take(self, key: Key, deadline_s: float = DEADLINE_S) -> Arrived:
        """Return a requested batch once all of it has arrived."""
        while self.batches[key].missing > 0:
            message = self.receive(deadline_s)
            if not isinstance(message, Chunk):
                self.others.append(message)
        assert self.batches[key].missing == 0, "rows came twice"
        return self.batches[key]

    def ping(self) -> None:
        self.send(Ping(session=self.session))

    def await_no_session(self) -> None:
        """Ping until the node replies that it has no such session; pings may be lost."""

        def is_unknown() -> bool:
            self.ping()
            while self.socket.poll(100):
                if _is_of_no_session(self.receive()):
                    return True
            return False

        wait_until(is_unknown, "the session is unknown")

    def bye(self) -> None:
        self.send(Bye(session=self.session))


def _is_of_no_session(message: NodeMessage) -> bool:
    return isinstance(message, Refused) and message.code == "unknown-session"
