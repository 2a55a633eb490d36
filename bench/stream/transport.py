"""The rate of transport without decoding: memcpy, raw ZeroMQ, and our wire.

All move the same messages: chunks of a batch as four frames, of which the pixels are a few MB,
requested four batches ahead. The sender has the worker's core, the receiver the client's.

    memcpy            the chunks' pixels from one buffer to another, on the client's core
    zmq/X             DEALER and ROUTER only; frames are received and dropped
    zmq/X-copied      the same, with the pixels copied into batch buffers, as our client must
    transport/X       the daemon's node process, whose worker does nothing, and ``BatchFetcher``
"""

import os
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.errors import PeerError
from feeder.plan.recipe import Recipe
from feeder.process.child import child_environment, python_command

from ..daemon import free_port
from ..fetcher import BatchFetcher
from ..line_process import start_process, stop_process
from ..machine import pinned_to
from ..report import Result, compare
from ..rounds import Contender, measure, rates
from .transport_server import CHUNK_IMAGES, IMAGE_SIZE, WINDOW

_TIMEOUT_S: Final = 30.0
_PIXELS_FRAME: Final = 1  # after the header
_CHUNK_BYTES: Final = CHUNK_IMAGES * IMAGE_SIZE * IMAGE_SIZE * 3


def measure_transport(
    *, rounds: int, batches: int, batch_size: int, worker_core: int, client_core: int
) -> list[Result]:
    """Return the rows, which count the pixels' bytes; PeerError when a server stops replying."""
    batch_bytes = batch_size * IMAGE_SIZE * IMAGE_SIZE * 3
    recipe = Recipe.for_split("train", batch_size=batch_size, image_size=IMAGE_SIZE)
    with ExitStack() as stack:
        stack.enter_context(pinned_to(client_core))
        contenders: dict[str, Contender] = {"memcpy": _Copy(batch_bytes).copy}
        baselines: dict[str, str | None] = {"memcpy": None}
        raw = stack.enter_context(_running_server("raw", batch_size, worker_core))
        node = stack.enter_context(_running_server("node", batch_size, worker_core))
        for name in ("ipc", "tcp"):
            client = stack.enter_context(_RawClient(raw[name], batch_bytes))
            fetcher = stack.enter_context(
                BatchFetcher(
                    node[name],
                    recipe=recipe,
                    window=WINDOW,
                    timeout_s=_TIMEOUT_S,
                    share_memory=False,
                )
            )
            contenders |= {
                f"zmq/{name}": client.receive,
                f"zmq/{name}-copied": client.receive_and_copy,
                f"transport/{name}": fetcher.advance,
            }
            baselines |= {
                f"zmq/{name}": "memcpy",
                f"zmq/{name}-copied": f"zmq/{name}",
                f"transport/{name}": f"zmq/{name}",
            }
        taken = measure(contenders, rounds=rounds, items=batches, verb="transporting")
    return compare(rates(taken, batches * batch_bytes / 1e9), "GB/s", baselines)


class _Copy:
    """Copies a batch chunk by chunk, between as many buffers as there are slots."""

    def __init__(self, batch_bytes: int) -> None:
        self._from, self._to = _buffers(batch_bytes), _buffers(batch_bytes)

    def copy(self, first: int, end: int) -> None:
        """Copy the batches first .. end - 1."""
        for batch in range(first, end):
            source, target = self._from[batch % WINDOW], self._to[batch % WINDOW]
            for start in range(0, len(source), _CHUNK_BYTES):
                chunk = slice(start, start + _CHUNK_BYTES)
                target[chunk] = source[chunk]


class _RawClient:
    """A DEALER that requests batches of the raw server; a context manager."""

    def __init__(self, endpoint: str, batch_bytes: int) -> None:
        self._endpoint = endpoint
        self._chunks = -(-batch_bytes // _CHUNK_BYTES)
        self._buffers = _buffers(batch_bytes)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.rcvhwm = 0
        self._socket.connect(endpoint)

    def receive(self, first: int, end: int) -> None:
        """Receive the batches first .. end - 1 and drop them."""
        for _ in self._receive(end - first):
            pass

    def receive_and_copy(self, first: int, end: int) -> None:
        """Receive them and copy their pixels into batch buffers."""
        at = 0
        for batch, frame in self._receive(end - first):
            buffer = self._buffers[batch % WINDOW]
            at = 0 if at + len(frame) > len(buffer) else at
            buffer[at : at + len(frame)] = np.frombuffer(frame.buffer, np.int8)
            at += len(frame)

    def _receive(self, batches: int) -> Iterator[tuple[int, zmq.Frame]]:
        """Yield the pixels' frame of each chunk with the number of its batch."""
        for _ in range(min(WINDOW, batches)):
            self._socket.send(b"")
        for batch in range(batches):
            for _ in range(self._chunks):
                if not self._socket.poll(int(_TIMEOUT_S * 1000)):
                    raise PeerError(f"no message from {self._endpoint} within {_TIMEOUT_S:g} s")
                frames = self._socket.recv_multipart(copy=False)
                yield batch, frames[_PIXELS_FRAME]
            if batch + WINDOW < batches:
                self._socket.send(b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()


def _buffers(batch_bytes: int) -> list[NDArray[np.int8]]:
    """Return batch buffers whose pages have been touched."""
    return [np.full(batch_bytes, number, np.int8) for number in range(WINDOW)]


@contextmanager
def _running_server(kind: str, batch_size: int, core: int) -> Iterator[Mapping[str, str]]:
    """Run a server on its core; yields its endpoints, to which ZeroMQ connects once they exist."""
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        endpoints = {"ipc": f"ipc://{folder}/{kind}", "tcp": f"tcp://127.0.0.1:{free_port()}"}
        command = python_command(
            f"{__package__}.transport_server", os.getpid(), kind, *endpoints.values(), batch_size
        )
        with pinned_to(core):
            process = start_process(command, env=child_environment())
        try:
            yield endpoints
        finally:
            stop_process(process, signal.SIGKILL)
            Path(folder, kind).unlink(missing_ok=True)
