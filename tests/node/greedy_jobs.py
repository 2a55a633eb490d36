"""Jobs that take batches as fast as a daemon makes them: the load under which shares are kept."""

import contextlib
import time
from dataclasses import dataclass, field
from typing import Self

import zmq

from feeder.plan.recipe import Recipe
from feeder.wire.messages import (
    BatchKey,
    Chunk,
    Hello,
    Request,
    Welcome,
    decode_from_node,
    encode,
)

WINDOW = 16
"""Batches of a session: seconds of a worker's time, so that a job always waits for workers, also
where this thread gets a CPU only now and then."""


@dataclass(eq=False)
class GreedyJob:
    """A job with sessions of equal recipes; it counts what they get."""

    name: str
    recipe: Recipe
    sessions: int = 1
    seed: int = 3
    rows: int = 0
    batches: int = 0


@dataclass(eq=False)
class _Session:
    job: GreedyJob
    socket: "zmq.Socket[bytes]"
    number: int = 0
    per_epoch: int = 0
    asked: int = 0
    missing: dict[BatchKey, int] = field(default_factory=dict)
    """Rows of requested batches that have not come."""


class GreedyClients:
    """All sessions of some jobs, in this thread: each keeps its window of requests full."""

    def __init__(self, endpoint: str, jobs: list[GreedyJob], *, dataset: str = "d") -> None:
        self.jobs = jobs
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._sessions: dict[zmq.Socket[bytes], _Session] = {}
        for job in jobs:
            for number in range(job.sessions):
                socket = self._context.socket(zmq.DEALER)
                socket.set(zmq.LINGER, 0)
                socket.connect(endpoint)
                self._poller.register(socket, zmq.POLLIN)
                self._sessions[socket] = _Session(job, socket)
                hello = Hello(
                    dataset=dataset,
                    recipe=job.recipe,
                    seed=job.seed,
                    window=WINDOW,
                    client=f"{job.name} rank {number}",
                    job=job.name,
                )
                socket.send(encode(hello))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._context.destroy(linger=0)

    def turn(self, deadline_s: float) -> None:
        """Handle what has come; AssertionError if nothing comes in time."""
        ready = self._poller.poll(int(deadline_s * 1000))
        assert ready, f"no message within {deadline_s:g} s"
        for socket, _ in ready:
            assert isinstance(socket, zmq.Socket)
            with contextlib.suppress(zmq.Again):
                while True:  # all of it: a job must not depend on how many sockets others have
                    header, *_ = socket.recv_multipart(zmq.NOBLOCK, copy=False)
                    self._handle(self._sessions[socket], header.bytes)

    def run_until_rows(self, rows: int, deadline_s: float) -> None:
        """Take batches until the jobs have got so many more rows together."""
        target = rows + sum(job.rows for job in self.jobs)
        until_s = time.monotonic() + deadline_s
        while sum(job.rows for job in self.jobs) < target:
            assert time.monotonic() < until_s, f"fewer than {rows} rows within {deadline_s:g} s"
            self.turn(deadline_s)

    def _handle(self, session: _Session, header: bytes) -> None:
        message = decode_from_node(header)
        if isinstance(message, Welcome):
            session.number, session.per_epoch = message.session, message.batches
            self._want(session, message.window)
            return
        assert isinstance(message, Chunk), message
        key = message.epoch, message.index
        session.missing[key] -= message.images
        session.job.rows += message.images
        if not session.missing[key]:
            del session.missing[key]
            session.job.batches += 1
            self._want(session, 1, release=(key,))

    def _want(self, session: _Session, count: int, release: tuple[BatchKey, ...] = ()) -> None:
        keys = []
        for _ in range(count):
            keys.append(divmod(session.asked, session.per_epoch))
            session.missing[keys[-1]] = session.job.recipe.batch_size
            session.asked += 1
        request = Request(session=session.number, want=tuple(keys), release=release)
        session.socket.send(encode(request))
