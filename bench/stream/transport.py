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
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.errors import PeerError
from feeder.pack.progress import ProgressLine
from feeder.plan.recipe import Recipe
from feeder.process.child import child_environment, python_command

from ..daemon import DATASET_NAME, free_port
from ..fetcher import BatchFetcher
from ..line_process import start_process, stop_process
from ..machine import pinned_to
from ..report import Result, summarise
from ..rounds import Contender, run_rounds, warm_up
from .transport_server import IMAGE_SIZE, WINDOW

RATE_UNIT: Final = "GB/s"
_TRANSPORTS: Final = ("ipc", "tcp")
_TIMEOUT_S: Final = 30.0
_PIXELS_FRAME: Final = 1  # after the header


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportOptions:
    """The messages, how many of them, and on which cores."""

    rounds: int
    batches: int
    """In a round."""
    batch_size: int
    chunk_images: int
    server_core: int
    client_core: int

    @property
    def batch_bytes(self) -> int:
        """Bytes of a batch's pixels; the rates count only these."""
        return self.batch_size * IMAGE_SIZE * IMAGE_SIZE * 3


def measure_transport(options: TransportOptions) -> list[Result]:
    """Return the rows; PeerError when a server stops replying."""
    with ExitStack() as stack:
        stack.enter_context(pinned_to(frozenset({options.client_core})))
        contenders: dict[str, Contender] = {"memcpy": _Copy(options).copy}
        raw = stack.enter_context(_running_server("raw", options))
        node = stack.enter_context(_running_server("node", options))
        for name in _TRANSPORTS:
            client = stack.enter_context(_RawClient(raw[name], options))
            contenders[f"zmq/{name}"] = client.receive
            contenders[f"zmq/{name}-copied"] = client.receive_and_copy
            fetcher = stack.enter_context(_open_session(node[name], options))
            contenders[f"transport/{name}"] = _Fetch(fetcher).fetch
        return _rows(_run(contenders, options))


class _Copy:
    """Copies a batch chunk by chunk, between as many buffers as there are slots."""

    def __init__(self, options: TransportOptions) -> None:
        self._chunk_bytes = options.chunk_images * IMAGE_SIZE * IMAGE_SIZE * 3
        self._from = _buffers(options)
        self._to = _buffers(options)

    def copy(self, first: int, end: int) -> None:
        """Copy the batches first .. end - 1."""
        for batch in range(first, end):
            source, target = self._from[batch % WINDOW], self._to[batch % WINDOW]
            for start in range(0, len(source), self._chunk_bytes):
                chunk = slice(start, start + self._chunk_bytes)
                target[chunk] = source[chunk]


class _RawClient:
    """A DEALER that requests batches of the raw server; a context manager."""

    def __init__(self, endpoint: str, options: TransportOptions) -> None:
        self._endpoint = endpoint
        self._chunks = -(-options.batch_size // options.chunk_images)
        self._buffers = _buffers(options)
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

    def __enter__(self) -> "_RawClient":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._context.term()


class _Fetch:
    """Our own client, which continues through the epochs."""

    def __init__(self, fetcher: BatchFetcher) -> None:
        self._fetcher = fetcher
        self._asked = 0

    def fetch(self, first: int, end: int) -> None:
        """Fetch the next end - first batches."""
        for _ in self._fetcher.fetch_run(self._asked, end - first):
            self._asked += 1


def _run(contenders: Mapping[str, Contender], options: TransportOptions) -> dict[str, list[float]]:
    """Return the rates of each contender by round."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    gigabytes = options.batches * options.batch_bytes / 1e9
    warm_up(contenders, items=options.batches, piece=options.batches)
    progress = ProgressLine(sys.stderr)
    progress.begin("transporting", "rounds", options.rounds)
    for seconds in run_rounds(
        contenders, items=options.batches, piece=options.batches, rounds=options.rounds
    ):
        for name, taken_s in seconds.items():
            rates[name].append(gigabytes / taken_s)
        progress.add(1)
    progress.end()
    return rates


def _rows(rates: Mapping[str, list[float]]) -> list[Result]:
    rows = {"memcpy": summarise("memcpy", RATE_UNIT, rates["memcpy"])}
    for transport in _TRANSPORTS:
        for name, baseline in (
            (f"zmq/{transport}", "memcpy"),
            (f"zmq/{transport}-copied", f"zmq/{transport}"),
            (f"transport/{transport}", f"zmq/{transport}"),
        ):
            rows[name] = summarise(
                name,
                RATE_UNIT,
                rates[name],
                baseline=rows[baseline],
                baseline_values=rates[baseline],
            )
    return list(rows.values())


def _buffers(options: TransportOptions) -> list[NDArray[np.int8]]:
    """Return batch buffers whose pages have been touched."""
    return [np.full(options.batch_bytes, number, np.int8) for number in range(WINDOW)]


def _open_session(endpoint: str, options: TransportOptions) -> BatchFetcher:
    return BatchFetcher(
        endpoint,
        dataset=DATASET_NAME,
        recipe=Recipe.for_split("train", batch_size=options.batch_size, image_size=IMAGE_SIZE),
        window=WINDOW,
        timeout_s=_TIMEOUT_S,
        client="feeder-bench transport",
        share_memory=False,
    )


@contextmanager
def _running_server(kind: str, options: TransportOptions) -> Iterator[Mapping[str, str]]:
    """Run a server on its core; yields its endpoints, to which ZeroMQ connects once they exist."""
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        endpoints = {"ipc": f"ipc://{folder}/{kind}", "tcp": f"tcp://127.0.0.1:{free_port()}"}
        sizes = options.batch_size, options.chunk_images
        command = python_command(
            f"{__package__}.transport_server", os.getpid(), kind, *endpoints.values(), *sizes
        )
        with pinned_to(frozenset({options.server_core})):
            process = start_process(command, env=child_environment())
        try:
            yield endpoints
        finally:
            stop_process(process, signal.SIGKILL)
            Path(folder, kind).unlink(missing_ok=True)
