"""The node process's ROUTER socket: bounded, never blocking, and counting what it drops.

A peer that stops reading blocks nobody: sends never wait, and the send mark lies above what a
session can have on its way, so only a peer that misuses the protocol ever meets it. What a peer
sends is one frame of at most MAX_HEADER_BYTES; libzmq cuts the connection for a longer one before
it takes memory for it. Invariant: one thread uses this object.
"""

import contextlib
import errno
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from feeder.admission import SESSION_CHUNKS_MAX
from feeder.endpoint import Endpoint, clear_stale_socket
from feeder.errors import ConfigError, ResourceError
from feeder.metrics import SocketCounters
from feeder.slot_layout import ChunkArrays
from feeder.slots import Tracker
from feeder.wire import MAX_HEADER_BYTES, Chunk, NodeMessage, encode

_SEND_MARK: Final = 2 * SESSION_CHUNKS_MAX
_RECEIVE_MARK: Final = 128
"""Messages of one peer that wait here: its window of requests and a ping a second."""

_BACKLOG: Final = 256
_CLOSE_LINGER_MS: Final = 100
_TERM_DEADLINE_S: Final = 0.5
_MONITORED: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)


class PeerUnreachableError(Exception):
    """Raised when a peer has no connection any more, or has not read for longer than it may."""


class Router:
    """The socket that clients connect to; ``close()`` is idempotent and bounded in time."""

    def __init__(self) -> None:
        """Make the socket and its monitor, in a context of their own."""
        self.counters = SocketCounters()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self.socket.set(zmq.SNDHWM, _SEND_MARK)
        self.socket.set(zmq.RCVHWM, _RECEIVE_MARK)
        self.socket.set(zmq.MAXMSGSIZE, MAX_HEADER_BYTES)
        self.socket.set(zmq.BACKLOG, _BACKLOG)
        self.monitor = self.socket.get_monitor_socket(_MONITORED)
        self._files: dict[Path, tuple[int, int]] = {}  # socket files, and what tells them apart

    def bind(self, endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
        """Bind all endpoints; return them as bound, with the ports that the system chose.

        Raises ResourceError when one is in use or not to be had.
        """
        bound: list[str] = []
        for endpoint in endpoints:
            if endpoint.transport == "ipc":
                clear_stale_socket(Path(endpoint.path))
            self.socket.set(zmq.IPV6, int(":" in endpoint.host))
            try:
                self.socket.bind(str(endpoint))
            except zmq.ZMQError as error:
                raise _explain_bind(endpoint, error) from error
            if endpoint.transport == "ipc":
                self._files[Path(endpoint.path)] = _identify(Path(endpoint.path))
            bound.append(self.socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0"))
        return tuple(bound)

    def receive(self) -> tuple[bytes, bytes] | None:
        """Return the peer and the frame of the next message, None when there is none now.

        Messages of several frames are dropped and counted.
        """
        while True:
            try:
                peer = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            frame = self.socket.recv(zmq.NOBLOCK)
            if not self.socket.get(zmq.RCVMORE):
                return peer, frame
            while self.socket.get(zmq.RCVMORE):
                self.socket.recv(zmq.NOBLOCK)
            self.counters.drop("several-frames")

    def send(self, peer: bytes, message: NodeMessage) -> None:
        """Send a message of one frame; PeerUnreachableError when the peer cannot take it."""
        try:
            self.socket.send_multipart((peer, encode(message)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise _unreachable(error) from error

    def send_chunk(self, peer: bytes, header: Chunk, arrays: ChunkArrays) -> Tracker:
        """Send a chunk, its pixels straight from the slot; the tracker tells when they are read.

        Raises PeerUnreachableError when the peer cannot take it; then nothing of it was sent.
        """
        pixels = zmq.Frame(arrays.pixels.data, track=True, copy=False)
        send = self.socket.send
        try:
            # Only the first frame can fail: it finds the peer and reserves room for the message.
            send(peer, zmq.NOBLOCK | zmq.SNDMORE)
            send(encode(header), zmq.NOBLOCK | zmq.SNDMORE)
            send(pixels, zmq.NOBLOCK | zmq.SNDMORE)
            send(arrays.labels.data, zmq.NOBLOCK | zmq.SNDMORE)
            send(arrays.sample_ids.data, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise _unreachable(error) from error
        self.counters.bytes_sent += (
            arrays.pixels.nbytes + arrays.labels.nbytes + arrays.sample_ids.nbytes
        )
        tracker: Tracker = pixels.tracker
        return tracker

    def read_monitor(self) -> bool:
        """Count one thing that happened to a connection; return whether one has ended."""
        try:
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)["event"]
        except zmq.Again:
            return False
        if event == zmq.EVENT_ACCEPTED:
            self.counters.connections_opened += 1
        elif event == zmq.EVENT_DISCONNECTED:
            self.counters.connections_closed += 1
        else:
            self.counters.handshakes_failed += 1
        return bool(event == zmq.EVENT_DISCONNECTED)

    def close(self) -> None:
        """Close the socket; what is not sent within the linger is lost. Removes socket files."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self.monitor.close(0)
        self.socket.close(_CLOSE_LINGER_MS)
        # Ending a context can hang on a stale I/O thread (libzmq#2586): never wait for it for long.
        ending = threading.Thread(target=self._context.term, daemon=True)
        ending.start()
        ending.join(_TERM_DEADLINE_S)
        for path, identity in self._files.items():
            with contextlib.suppress(FileNotFoundError):
                if _identify(path) == identity:  # else another daemon has taken the path over
                    path.unlink()


def _identify(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _unreachable(error: zmq.ZMQError) -> PeerUnreachableError:
    if error.errno in (errno.EHOSTUNREACH, errno.EAGAIN):
        return PeerUnreachableError(error.strerror)
    raise error


def _explain_bind(endpoint: Endpoint, error: zmq.ZMQError) -> ConfigError | ResourceError:
    if error.errno == errno.EADDRINUSE:
        return ResourceError(
            f"{endpoint} is in use by another process: stop that one or bind another port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"bind: {endpoint}: this machine has no such address")
    return ResourceError(f"{endpoint} cannot be bound: {error.strerror}")
