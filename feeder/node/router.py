"""The node process's ROUTER socket: bounded, never blocking, and counting what it drops.

A peer that stops reading blocks nobody: sends never wait, and the send mark lies above what a
session can have on its way, so only a peer that misuses the protocol ever meets it. What a peer
sends is one frame of at most MAX_HEADER_BYTES; libzmq cuts the connection for a longer one before
it takes memory for it.

With keys, tcp is encrypted (CURVE) and for those on the list only; ipc is plain, and for those whom
the socket file's mode lets connect. libzmq keeps, for each address, the options that hold when it
is bound: so ipc is bound first, and then the options are set for tcp. Invariant: one thread uses
this object.
"""

import contextlib
import errno
import logging
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq
from zmq.utils.monitor import recv_monitor_message

from feeder.errors import ConfigError, ResourceError
from feeder.metrics import SocketCounters
from feeder.node.accept_gate import AcceptGate
from feeder.node.accept_pause import AcceptPause
from feeder.node.connections import Connections
from feeder.node.endpoint import (
    Endpoint,
    clear_stale_socket,
    created_with_mode,
    identify_file,
    resting_path,
)
from feeder.node.zap_handler import KeyList, ZapHandler
from feeder.process.shortage import ZMQ_THREADS, check_threads
from feeder.security.keys import SecretKey
from feeder.session.admission import SESSION_CHUNKS_MAX
from feeder.wire.messages import MAX_HEADER_BYTES, Chunk, NodeMessage, encode
from feeder.wire.slot_layout import ChunkArrays
from feeder.wire.zap import DOMAIN
from feeder.worker.slot_memory import Tracker

_SEND_MARK: Final = 2 * SESSION_CHUNKS_MAX
_RECEIVE_MARK: Final = 32
"""Messages of one peer that wait here: its window of requests and a ping a second."""

_BACKLOG: Final = 256
_HANDSHAKE_MS: Final = 10_000
"""A client that takes longer is gone, or never meant to come in."""

_CUT_COST: Final = 450.0
"""Connections that take as much time as reading what one sends until it is cut: some 100 MB."""

_PARTS_A_TURN: Final = 1024
"""Of messages of several frames, which are dropped."""

_FRAME_WASTE_BYTES: Final = 4096
_PART_WASTE_BYTES: Final = 256
"""What handling any message costs, and any part of one, in the time that so many bytes take."""

_LOCAL_PEER: Final = re.compile(r"localhost:(\d+):\d+:\d+")
"""How libzmq writes who is at the other end of an ipc connection: user, group and process."""
_CLOSE_LINGER_MS: Final = 100
_TERM_DEADLINE_S: Final = 0.5
_MONITORED: Final = (
    zmq.EVENT_LISTENING
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_REFUSALS: Final[dict[int, str]] = {
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "server-key",
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "mechanism",
}


_log = logging.getLogger(__name__)


class PeerUnreachableError(Exception):
    """Raised when a peer has no connection any more, or has not read for longer than it may."""


@dataclass(frozen=True, slots=True)
class ServerKeys:
    """What tcp needs to be encrypted: who we are, and who may come in."""

    own: SecretKey
    clients: KeyList


class Router:
    """The socket that clients connect to; ``close()`` is idempotent and bounded in time."""

    def __init__(
        self,
        keys: ServerKeys | None = None,
        *,
        socket_mode: int = 0o600,
        connections_max: int = 4096,
    ) -> None:
        """Make the socket and its monitor, in a context of their own.

        ``socket_mode`` is that of ipc socket files; more than ``connections_max`` are cut. With
        ``keys``, ``zap`` must be polled: clients wait for its answer.
        """
        self.counters = SocketCounters()
        self.wasted_bytes = 0
        """What misuse has cost so far: bytes of dropped frames, and a share for each frame."""
        self._connections = Connections(self.counters, connections_max)
        self._ended: list[bytes] = []
        self._pauses: dict[str, AcceptPause] = {}  # by endpoint, as libzmq was told it
        self._gate = AcceptGate()
        self._keys = keys
        self._socket_mode = socket_mode
        check_threads(ZMQ_THREADS)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.zap = None if keys is None else ZapHandler(self._context, keys.clients, self.counters)
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self.socket.set(zmq.SNDHWM, _SEND_MARK)
        self.socket.set(zmq.RCVHWM, _RECEIVE_MARK)
        self.socket.set(zmq.MAXMSGSIZE, MAX_HEADER_BYTES)
        self.socket.set(zmq.BACKLOG, _BACKLOG)
        self.socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        self.monitor = self.socket.get_monitor_socket(_MONITORED)
        self._files: dict[Path, tuple[int, int]] = {}  # socket files, and what tells them apart
        self._paths: dict[str, Path] = {}  # theirs, by the endpoint that libzmq was told
        self._body: zmq.Frame | None = None  # of the last message
        self._is_skipping = False  # a message of more parts than a turn has time for

    def bind(self, endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
        """Bind all endpoints, once; return them as bound, with the ports that the system chose.

        Raises ResourceError when one is in use or not to be had.
        """
        bound = {each: self._bind(each) for each in endpoints if each.transport == "ipc"}
        self._encrypt()
        bound |= {each: self._bind(each) for each in endpoints if each.transport == "tcp"}
        return tuple(bound[each] for each in endpoints)

    @property
    def has_unread(self) -> bool:
        """Whether messages wait to be received."""
        return self._is_skipping or self.socket.poll(0, zmq.POLLIN) != 0

    def receive(self, now_s: float) -> tuple[bytes, bytes] | None:
        """Return the peer and the frame of the next message, None when there is none now.

        Messages of several frames are dropped and counted; None also when there are many.
        """
        while not self._is_skipping:
            try:
                peer = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return None
            body = self._body = self.socket.recv(zmq.NOBLOCK, copy=False)
            with contextlib.suppress(zmq.ZMQError):  # a peer that speaks as before ZMTP 3
                self._hear(body.get(zmq.SRCFD), peer, len(body), now_s)
            if not body.more:
                return peer, body.bytes
            self.counters.drop("several-frames")
            self._is_skipping = True
        self._skip()
        return None

    def _skip(self) -> None:
        """Drop the rest of a message of several frames, or as much as a turn has time for."""
        for _ in range(_PARTS_A_TURN):
            part = self.socket.recv(zmq.NOBLOCK, copy=False)
            self.wasted_bytes += len(part) + _PART_WASTE_BYTES
            if not part.more:
                self._is_skipping = False
                self.waste(0)
                return

    def waste(self, frame_bytes: int) -> None:
        """Take account of a frame that was of no use to anybody."""
        self.wasted_bytes += frame_bytes + _FRAME_WASTE_BYTES

    def account(self) -> str:
        """Return whose limits the sender of the last message counts against.

        That is its user where it came over ipc, or the name of its key, or else its address. A
        name counts with keys only: without, libzmq takes over what clients call themselves.
        """
        assert self._body is not None, "asked about a message"
        address = _metadata(self._body, "Peer-Address")
        if local := _LOCAL_PEER.fullmatch(address):
            return f"user {local[1]}"
        name = "" if self._keys is None else _metadata(self._body, "User-Id")
        return name or f"address {address}"

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

    @property
    def deadline_s(self) -> float:
        """When ``run_due`` is due."""
        pauses = (pause.deadline_s for pause in self._pauses.values())
        # Without room the gate waits for connections to end, which the monitor reports.
        let_in_s = self._gate.deadline_s if self._connections.has_room else float("inf")
        return min(self._connections.deadline_s, let_in_s, *pauses)

    def run_due(self, now_s: float) -> None:
        """Cut who takes memory without end; take connections again after a rest."""
        for listener in self._connections.run_due(now_s):
            self._hold_off(listener, now_s, as_many=_CUT_COST)
        for pause in self._pauses.values():
            pause.run_due(now_s)
        self._let_in(now_s)

    def read_monitor(self, now_s: float) -> None:
        """Take in all that has happened to connections; ``take_ended`` tells whose have ended.

        It comes to an end: those who connect faster than this reads are held off on the way.
        """
        while True:
            try:
                said = recv_monitor_message(self.monitor, zmq.NOBLOCK)
            except zmq.Again:
                self._connections.make_room(now_s)
                self._let_in(now_s)
                return
            event, value, where = said["event"], int(said["value"]), said["endpoint"].decode()
            if event == zmq.EVENT_LISTENING:
                path = self._paths.get(where)
                identity = None if path is None else self._files.get(path)
                self._pauses[where] = AcceptPause(value, path, identity)
                if not self._gate.add(value):
                    _log.warning(
                        "%s: /proc does not show how libzmq polls it: too many connections at once "
                        "can take all open files",
                        where,
                    )
            elif event == zmq.EVENT_ACCEPTED:
                self.counters.connections_opened += 1
                self._connections.opened(value, where, now_s)
                self._gate.accepted()
                self._hold_off(where, now_s)
            elif event == zmq.EVENT_ACCEPT_FAILED:
                self._gate.failed(now_s)
            elif event == zmq.EVENT_DISCONNECTED:
                self.counters.connections_closed += 1
                self._ended += self._connections.closed(value) or (b"",)
            else:
                self.counters.handshakes_failed += 1
                reason = _REFUSALS.get(value)
                if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and reason is not None:
                    self.counters.refuse_client(reason)

    def take_ended(self) -> list[bytes]:
        """Return whose connections have ended since this was asked last; b"" of who never spoke.

        What those peers said before may still wait to be received.
        """
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Close the socket; what is not sent within the linger is lost. Removes socket files."""
        if self.socket.closed:
            return
        for pause in self._pauses.values():
            pause.close()
        self._pauses.clear()
        self._gate.close()
        if self.zap is not None:
            self.zap.close()
        # Not disable_monitor: it waits for libzmq's thread, which waits here where so much news
        # is unread that no more has room. The context's end ends both.
        self.socket.close(_CLOSE_LINGER_MS)
        self.monitor.close(0)
        self._connections.close()
        # Ending a context can hang on a stale I/O thread (libzmq#2586): never wait for it for long.
        ending = threading.Thread(target=self._context.term, daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be had: the process's end does it
            ending.start()
            ending.join(_TERM_DEADLINE_S)
        for path, identity in self._files.items():
            with contextlib.suppress(OSError):  # its folder may be read-only by now
                if identify_file(path) == identity:  # else another daemon has taken the path over
                    path.unlink()

    def _hear(self, fd: int, peer: bytes, message_bytes: int, now_s: float) -> None:
        """Note whose connection a message came over, once it is sure which one that is."""
        if not self._connections.is_known(fd, peer):
            self.read_monitor(now_s)
        if not self._connections.heard(fd, peer, message_bytes):
            self._ended.append(peer)

    def _hold_off(self, listener: str | None, now_s: float, *, as_many: float = 1.0) -> None:
        """Take account of a connection, or one that was cut, where it came in."""
        pause = self._pauses.get(listener or "")
        if pause is not None:
            self.counters.accept_rests += pause.accepted(now_s, as_many=as_many)

    def _let_in(self, now_s: float) -> None:
        """Have each listener accept another connection, unless there are too many."""
        if self._connections.has_room:
            self._gate.let_in(now_s)

    def _encrypt(self) -> None:
        """Have the addresses that are bound from now on take clients with keys only."""
        if self._keys is None:
            return
        self.socket.set(zmq.CURVE_SERVER, 1)
        self.socket.set(zmq.CURVE_SECRETKEY, self._keys.own.text.encode())
        self.socket.set(zmq.ZAP_DOMAIN, DOMAIN.encode())
        self.socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler nobody comes in

    def _bind(self, endpoint: Endpoint) -> str:
        path, first_name = Path(endpoint.path), str(endpoint)
        if endpoint.transport == "ipc":
            clear_stale_socket(path)
            clear_stale_socket(resting_path(path))
            first_name = f"ipc://{resting_path(path)}"
        self.socket.set(zmq.IPV6, int(":" in endpoint.host))
        try:
            with created_with_mode(self._socket_mode):
                self.socket.bind(first_name)
        except zmq.ZMQError as error:
            raise _explain_bind(endpoint, error) from error
        if endpoint.transport == "tcp":
            self.read_monitor(time.monotonic())
            return self.socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        try:
            self._files[path] = identify_file(resting_path(path))
            self._paths[first_name] = path
            self.read_monitor(time.monotonic())
            resting_path(path).rename(path)  # nobody can come before the gate is there
        except OSError as error:
            with contextlib.suppress(OSError):
                resting_path(path).unlink()
            raise _explain_bind(endpoint, error) from error
        return str(endpoint)


def _metadata(frame: zmq.Frame, name: str) -> str:
    """Return what libzmq knows of a message's sender; "" where it knows nothing of the kind."""
    try:
        return str(frame.get(name))
    except zmq.ZMQError:
        return ""


def _unreachable(error: zmq.ZMQError) -> PeerUnreachableError:
    if error.errno in (errno.EHOSTUNREACH, errno.EAGAIN):
        return PeerUnreachableError(error.strerror)
    raise error


def _explain_bind(endpoint: Endpoint, error: zmq.ZMQError | OSError) -> ConfigError | ResourceError:
    if error.errno == errno.EADDRINUSE:
        return ResourceError(
            f"{endpoint} is in use by another process: stop that one or bind another port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"bind: {endpoint}: this machine has no such address")
    return ResourceError(f"{endpoint} cannot be bound: {error.strerror}")
