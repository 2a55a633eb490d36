"""A minimal client: one request at a time, no prefetch, no torch."""

import time
from dataclasses import dataclass
from types import TracebackType

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
    Request,
    Stats,
    StatsRequest,
    Welcome,
    decode_from_node,
    encode,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedBatch:
    """pixels int8 (rows, S, S, 3), labels and sample ids int64 (rows,), padding included."""

    pixels: NDArray[np.int8]
    labels: NDArray[np.int64]
    sample_ids: NDArray[np.int64]


class WireClient:
    """A DEALER socket; each reply has a deadline of `deadline_s`. Use as a context manager."""

    def __init__(self, endpoint: str, deadline_s: float = 60.0) -> None:
        self._deadline_s = deadline_s
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(endpoint)
        self._session: int | None = None
        self._recipe: Recipe | None = None

    def __enter__(self) -> "WireClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._session is not None:
            self._send(Bye(session=self._session))
            self._socket.linger = 1000
        self._socket.close()
        self._context.term()

    def hello(self, dataset: str, recipe: Recipe, seed: int = 0, window: int = 1) -> Welcome:
        """Open the session."""
        self._send(
            Hello(dataset=dataset, recipe=recipe, seed=seed, window=window, client="wire-client")
        )
        answer, _ = self._receive(time.monotonic() + self._deadline_s)
        assert isinstance(answer, Welcome), answer
        self._session, self._recipe = answer.session, recipe
        return answer

    def fetch(self, epoch: int, index: int) -> FetchedBatch:
        """Request a batch, assemble its chunks, release it."""
        assert self._session is not None
        assert self._recipe is not None
        rows, side = self._recipe.batch_size, self._recipe.image_size
        pixels = np.zeros((rows, side, side, 3), np.int8)
        labels, sample_ids = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._send(Request(session=self._session, want=((epoch, index),)))
        remaining = rows
        until_s = time.monotonic() + self._deadline_s
        while remaining:
            chunk, frames = self._receive(until_s)
            assert isinstance(chunk, Chunk), chunk
            assert (chunk.epoch, chunk.index) == (epoch, index)
            received = slice(chunk.first, chunk.first + chunk.images)
            pixels[received] = np.frombuffer(frames[0], np.int8).reshape(-1, side, side, 3)
            labels[received] = np.frombuffer(frames[1], "<i8")
            sample_ids[received] = np.frombuffer(frames[2], "<i8")
            remaining -= chunk.images
        self._send(Request(session=self._session, release=((epoch, index),)))
        return FetchedBatch(pixels=pixels, labels=labels, sample_ids=sample_ids)

    def stats(self) -> dict[str, int | float | str]:
        """Return the node process's counters."""
        self._send(StatsRequest())
        answer, _ = self._receive(time.monotonic() + self._deadline_s)
        assert isinstance(answer, Stats), answer
        return answer.counters

    def _send(self, message: ClientMessage) -> None:
        self._socket.send(encode(message))

    def _receive(self, until_s: float) -> tuple[NodeMessage, list[bytes]]:
        remaining_ms = max(0, int((until_s - time.monotonic()) * 1000))
        if not self._socket.poll(remaining_ms):
            raise TimeoutError(f"no reply from the node within {self._deadline_s} s")
        header, *frames = self._socket.recv_multipart()
        return decode_from_node(header), frames
