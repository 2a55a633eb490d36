"""A node for the client's tests: a ROUTER socket in a thread that speaks ``feeder.wire.messages``.

It serves made-up samples in the real order, and breaks the protocol on request: ``script`` may
drop, repeat, reorder or mangle the chunks of a batch; sessions can be forgotten; replies can be
anything. Every message that arrives is kept in ``received``.
"""

import itertools
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import zmq
from numpy.typing import NDArray

from bench.daemon import free_port
from feeder.plan.epoch import EpochPlan, ShardLayout
from feeder.wire.messages import (
    Bye,
    Chunk,
    ClientMessage,
    Failed,
    Hello,
    Ping,
    Pong,
    Refused,
    Request,
    Welcome,
    decode_from_client,
    encode,
)

Key = tuple[int, int]
Message = list[bytes]  # the frames, without the peer's identity
Script = Callable[[Key, list[Message]], list[Message]]

WAIT_S = 60.0

_INCARNATIONS = itertools.count(1)


def sample_pixels(sample_ids: NDArray[np.int64], epoch: int, side: int) -> NDArray[np.int8]:
    """Return pixels (n, side, side, 3) that identify sample and epoch; padding is 0."""
    places = np.arange(side * side * 3, dtype=np.int64).reshape(side, side, 3)
    values = sample_ids[:, None, None, None] * 31 + places * 7 + epoch * 3
    pixels = (values % 256 - 128).astype(np.int8)
    pixels[sample_ids < 0] = 0
    return pixels


@dataclass
class Session:
    """What the node knows of a client."""

    hello: Hello
    peer: bytes
    wanted: set[Key] = field(default_factory=set)


class FakeNode:
    """Serves until ``close``; a context manager. Attributes may be changed while it runs."""

    def __init__(
        self,
        *,
        samples: int = 97,
        classes: Sequence[str] = ("cat", "dog", "emu"),
        chunk_images: int = 4,
        window: int = 64,
        endpoint: str | None = None,
        content: str = "f" * 32,
    ) -> None:
        """Bind ``endpoint``, or a port that no other process gets, even after ``close``."""
        endpoint = endpoint or f"tcp://127.0.0.1:{free_port()}"
        self.layout = ShardLayout(samples=samples, shards=5)
        self.classes = tuple(classes)
        self.chunk_images = chunk_images
        self.window = window
        self.content = content
        self.script: Script = lambda key, messages: messages
        self.greeting: Callable[[Hello], Message | None] | None = None  # instead of a Welcome
        self.received: list[ClientMessage] = []
        self.peers: list[bytes] = []  # identities, in the order of their first messages
        self.sessions: dict[int, Session] = {}
        self.largest_window = 0  # most batches that a client wanted without releasing
        self.problems: list[str] = []
        self._incarnation = next(_INCARNATIONS)
        self._numbers = itertools.count(1)  # of sessions
        self._changed = threading.Condition()
        self._outbox: list[tuple[bytes, Message]] = []
        self._closing = False
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        self._router.ipv6 = "[" in endpoint
        self._router.bind(endpoint)
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._thread = threading.Thread(target=self._run, name="fake node")
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close without a message. Idempotent."""
        self._closing = True
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def wait_until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition on this node holds."""
        with self._changed:
            assert self._changed.wait_for(condition, WAIT_S), f"{what}; received {self.received}"

    def count(self, kind: type[ClientMessage]) -> int:
        return sum(isinstance(message, kind) for message in self.received)

    def send(self, message: Message, peer: bytes | None = None) -> None:
        """Send frames to the last peer that greeted."""
        with self._changed:
            peer = peer or next(reversed(self.sessions.values())).peer
            self._outbox.append((peer, message))

    def plan(self, session: Session, epoch: int) -> EpochPlan:
        recipe = session.hello.recipe
        return recipe.plan_epoch(self.layout, seed=session.hello.seed, epoch=epoch)

    def chunks(self, number: int, key: Key) -> list[Message]:
        session = self.sessions[number]
        recipe, (epoch, index) = session.hello.recipe, key
        plan = self.plan(session, epoch)
        sample_ids = np.full(recipe.batch_size, -1, dtype=np.int64)
        sample_ids[: plan.valid(index)] = plan.samples(index)
        labels = np.where(sample_ids < 0, -100, sample_ids % len(self.classes))
        pixels = sample_pixels(sample_ids, epoch, recipe.at(epoch).image_size)
        messages: list[Message] = []
        for first in range(0, recipe.batch_size, self.chunk_images):
            rows = slice(first, min(first + self.chunk_images, recipe.batch_size))
            header = Chunk(
                session=number,
                epoch=epoch,
                index=index,
                first=first,
                images=rows.stop - rows.start,
                valid=plan.valid(index),
            )
            frames = [pixels[rows], labels[rows], sample_ids[rows]]
            messages.append([encode(header), *(frame.tobytes() for frame in frames)])
        return messages

    def _run(self) -> None:
        try:
            while not self._closing:
                if self._router.poll(5):
                    peer, *frames = self._router.recv_multipart()
                    with self._changed:
                        self._handle(peer, decode_from_client(frames[0]))
                        self._changed.notify_all()
                with self._changed:
                    outbox, self._outbox = self._outbox, []
                for peer, message in outbox:
                    self._router.send_multipart([peer, *message])
        finally:
            self._context.destroy(linger=0)

    def _handle(self, peer: bytes, message: ClientMessage) -> None:
        self.received.append(message)
        if peer not in self.peers:
            self.peers.append(peer)
        match message:
            case Hello():
                greet = self.greeting or (lambda hello: [encode(self._welcome(peer, hello))])
                reply = greet(message)
                self._outbox += [(peer, reply)] if reply is not None else []
            case Bye():
                self.sessions.pop(message.session, None)
            case Ping() | Request() if message.session not in self.sessions:
                refusal = Refused(
                    code="unknown-session", message="no such session", session=message.session
                )
                self._outbox.append((peer, [encode(refusal)]))
            case Ping():
                self._outbox.append((peer, [encode(Pong(session=message.session))]))
            case Request():
                self._serve(message)

    def _welcome(self, peer: bytes, hello: Hello) -> Welcome:
        number = next(self._numbers)
        self.sessions[number] = session = Session(hello, peer)
        plan = self.plan(session, 0)
        return Welcome(
            session=number,
            dataset=hello.dataset,
            content=self.content,
            recipe_fingerprint=hello.recipe.fingerprint(),
            classes=self.classes,
            samples=self.layout.samples,
            batches=plan.batches,
            shards=self.layout.shards,
            window=min(self.window, hello.window),
            chunk_images=self.chunk_images,
            node=f"fake/0 {self.endpoint}",
            number=0,
            incarnation=self._incarnation,
            siblings=((self.endpoint,),),
            feeder_version="0",
            self_test="5" * 32,
            libraries={},
            **plan.shape._asdict(),
        )

    def _serve(self, request: Request) -> None:
        session = self.sessions[request.session]
        for key in request.release:
            if key not in session.wanted:
                self.problems.append(f"{key} was released without being wanted")
            session.wanted.discard(key)
        for key in request.want:
            if key in session.wanted:
                self.problems.append(f"{key} was wanted twice")
            session.wanted.add(key)
        self.largest_window = max(self.largest_window, len(session.wanted))
        for key in request.want:
            replies = self.script(key, self.chunks(request.session, key))
            self._outbox.extend((session.peer, reply) for reply in replies)


def failed(session: int, key: Key, message: str) -> Message:
    """Return the message that a batch cannot be made."""
    epoch, index = key
    return [
        encode(Failed(session=session, epoch=epoch, index=index, code="dataset", message=message))
    ]
