"""The node process's ROUTER socket: bounded, never blocking, with counters of what it drops.

A peer that stops reading blocks no other: sends never wait, and the send high-water mark is above
what a session can have in flight, so only a peer that misuses the protocol reaches it. A client
sends messages of one frame of at most MAX_HEADER_BYTES; for a longer one libzmq closes the
connection before it allocates memory for it.

With keys, tcp is encrypted (CURVE) and only listed clients may connect; ipc is plain, and open to
the users that the socket file's mode admits. An address keeps the socket options that were set when
it was bound, so ipc is bound first and the options for tcp are set afterwards. Invariant: one
thread uses this object.
"""

import contextlib
import errno
import ipaddress
import logging
import re
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zmq

from feeder.errors import ConfigError, ResourceError
from feeder.host.addresses import own_addresses
from feeder.metrics.counters import SocketCounters
from feeder.node.connections import Connections
from feeder.node.endpoint import (
    Endpoint,
    clear_stale_socket,
    created_with_mode,
    identify_file,
    remove_own,
    temporary_path,
)
from feeder.node.messages import NodeConfig
from feeder.node.polling import AcceptGate
from feeder.node.zap_handler import KeyList, ZapHandler
from feeder.process.path_text import path_from_bytes
from feeder.process.shortage import ZMQ_THREADS, check_threads
from feeder.security.keys import SecretKey, read_secret_key
from feeder.session.admission import SESSION_CHUNKS_MAX
from feeder.wire.messages import MAX_HEADER_BYTES, Chunk, encode
from feeder.wire.slot_layout import ChunkArrays
from feeder.wire.zap import DOMAIN

_SEND_MARK: Final = 2 * SESSION_CHUNKS_MAX
_RECEIVE_MARK: Final = 32
"""Unread messages of one peer: its window of requests and a ping a second."""

# As int: an enum's operators are functions in Python.
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE: Final = int(zmq.POLLIN)

_UNREACHABLE: Final = (errno.EHOSTUNREACH, errno.EAGAIN)
"""Its connection has ended, or it has not read for too long."""

_EVENT: Final = struct.Struct("=HI")
"""An event of the monitor, and its value: a descriptor, or what went wrong."""

_BACKLOG: Final = 256
_HANDSHAKE_MS: Final = 10_000
"""A client that takes longer is gone, or does not speak ZMTP."""

_PARTS_A_TURN: Final = 1024
"""Frames beyond the first of a message that are read, and dropped, in one turn."""

_FRAME_WASTE_BYTES: Final = 4096
_PART_WASTE_BYTES: Final = 256
"""The fixed cost of a message, and of a part, as the number of bytes that take as long to read."""

_LOCAL_PEER: Final = re.compile(r"localhost:(\d+):\d+:\d+")
"""libzmq's text for the peer of an ipc connection: user, group and process."""

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
_REFUSAL_REASONS: Final[dict[int, str]] = {
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "server-key",
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "mechanism",
}

_log = logging.getLogger(__name__)


ServerKeys = tuple[SecretKey, KeyList]
"""What tcp needs to be encrypted: the server's secret key and the clients' public keys."""


def read_keys(config: NodeConfig) -> ServerKeys | None:
    """Return the keys for tcp, None if it is plain; ConfigError if a key file is unusable."""
    if not config.secret_key:
        return None
    clients = KeyList(path_from_bytes(config.client_keys), may_wait=config.is_successor)
    return read_secret_key(path_from_bytes(config.secret_key)), clients


class Router:
    """The socket that clients connect to; ``close()`` is idempotent and bounded in time."""

    def __init__(
        self,
        keys: ServerKeys | None = None,
        *,
        socket_mode: int = 0o600,
        connections_max: int = 4096,
    ) -> None:
        """Create the socket and its monitor, in a context of their own.

        ``socket_mode`` is that of ipc socket files; connections beyond ``connections_max`` are cut.
        With ``keys``, ``zap`` must be polled: clients wait for its answer in their handshakes.
        """
        self.counters = SocketCounters()
        self.wasted_bytes = 0
        """The cost of misuse so far: bytes of dropped frames, and a fixed cost for each frame."""
        self._connections = Connections(self.counters, connections_max)
        self.ended: list[bytes] = []
        """The peers whose connections have ended or that have not read for too long, until the
        reader clears it. Earlier messages of theirs may still be unread; b"" stands for a
        connection that sent none."""
        self._gate = AcceptGate()
        self._keys = keys
        self._socket_mode = socket_mode
        self._own_addresses = own_addresses()
        check_threads(ZMQ_THREADS)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self.zap = None if keys is None else ZapHandler(self._context, keys[1], self.counters)
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.set(zmq.ROUTER_MANDATORY, 1)
        self.socket.set(zmq.SNDHWM, _SEND_MARK)
        self.socket.set(zmq.RCVHWM, _RECEIVE_MARK)
        self.socket.set(zmq.MAXMSGSIZE, MAX_HEADER_BYTES)
        self.socket.set(zmq.BACKLOG, _BACKLOG)
        self.socket.set(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
        self.monitor = self.socket.get_monitor_socket(_MONITORED)
        self._files: dict[Path, tuple[int, int]] = {}  # socket files, and their device and inode
        self._body: zmq.Frame | None = None  # of the last message
        self._is_skipping = False  # the rest of a message of several frames
        # The method in C, without pyzmq's Python layer that takes options for other socket types.
        self._send = super(zmq.Socket, self.socket).send
        self.deadline_s = float("inf")
        """When ``run_due`` is due."""

    def bind(self, endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
        """Bind all endpoints, once; return them as bound, with the ports that the system chose.

        Raises ResourceError when one is in use or unavailable.
        """
        bound = {ipc: self._bind(ipc) for ipc in endpoints if ipc.transport == "ipc"}
        if self._keys is not None:
            secret_key, _ = self._keys
            self.socket.set(zmq.CURVE_SERVER, 1)
            self.socket.set(zmq.CURVE_SECRETKEY, secret_key.text.encode())
            self.socket.set(zmq.ZAP_DOMAIN, DOMAIN.encode())
            self.socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler no client is admitted
        bound |= {tcp: self._bind(tcp) for tcp in endpoints if tcp.transport == "tcp"}
        return tuple(bound[endpoint] for endpoint in endpoints)

    @property
    def has_unread(self) -> bool:
        """Whether messages wait to be received."""
        return self._is_skipping or bool(int(self.socket.get(zmq.EVENTS)) & _READABLE)

    def receive(self, now_s: float) -> tuple[bytes, bytes] | None:
        """Return the peer and the frame of the next message, None if there is none now.

        Messages of several frames are dropped and counted; None follows each.
        """
        if self._is_skipping:
            self._skip_parts()
            return None
        if not int(self.socket.get(zmq.EVENTS)) & _READABLE:  # asking costs less than zmq.Again
            return None
        peer = self.socket.recv(_NOBLOCK)
        body = self._body = self.socket.recv(_NOBLOCK, copy=False)
        try:
            fd = body.get(zmq.SRCFD)
        except zmq.ZMQError:
            pass  # the peer speaks ZMTP 2 or earlier
        else:
            if not self._connections.knows(fd, peer):
                self.read_monitor(now_s)
            if not self._connections.record_message(fd, peer, len(body), now_s):
                self.ended.append(peer)
        if not body.more:
            return peer, body.bytes
        self.counters.frames_dropped["several-frames"] += 1
        self._is_skipping = True
        self._skip_parts()
        return None

    def _skip_parts(self) -> None:
        """Drop the rest of a message of several frames, at most _PARTS_A_TURN."""
        assert self._body is not None, "the message's second frame"
        fd = -1
        with contextlib.suppress(zmq.ZMQError):  # as in ``receive``
            fd = self._body.get(zmq.SRCFD)
        for _ in range(_PARTS_A_TURN):
            part = self.socket.recv(_NOBLOCK, copy=False)
            self._connections.record_part(fd, len(part))
            self.wasted_bytes += len(part) + _PART_WASTE_BYTES
            if not part.more:
                self._is_skipping = False
                self.waste(0)
                return

    def waste(self, frame_bytes: int) -> None:
        """Count a frame that was dropped."""
        self.wasted_bytes += frame_bytes + _FRAME_WASTE_BYTES

    def sender(self) -> tuple[str, bool, bool]:
        """The last message's sender: its account, whether it runs on this machine, and over ipc.

        Limits apply to accounts: its user over ipc, else the name of its key, else its address.
        Addresses that this machine has got since this router was created are not known.
        """
        text = self._metadata("Peer-Address")
        if local := _LOCAL_PEER.fullmatch(text):
            return f"user {local[1]}", True, True
        # Without keys libzmq copies the name from the client's own metadata.
        name = "" if self._keys is None else self._metadata("User-Id")
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            is_local = False
        else:
            address = getattr(address, "ipv4_mapped", None) or address
            is_local = address.is_loopback or address in self._own_addresses
        return name or f"address {text}", is_local, False

    def _metadata(self, name: str) -> str:
        """A property of the last message's connection; "" if libzmq does not have it."""
        assert self._body is not None, "a message was received"
        try:
            return str(self._body.get(name))
        except zmq.ZMQError:
            return ""

    def send(self, peer: bytes, frame: bytes) -> None:
        """Send an encoded message; a peer that cannot be sent to counts as ended."""
        try:
            # Only the first frame can fail: it finds the peer and reserves a place in its queue.
            self._send(peer, _MORE)
            self._send(frame, _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in _UNREACHABLE:
                raise
            self.counters.sends_dropped += 1
            self.ended.append(peer)

    def send_chunk(
        self, peer: bytes, header: Chunk, arrays: ChunkArrays
    ) -> zmq.MessageTracker | None:
        """Send a chunk without copying its pixels; the tracker is done once they have been read.

        None when the peer cannot be sent to: then nothing was sent, and it counts as ended.
        """
        pixels = zmq.Frame(arrays.pixels.data, track=True, copy=False)
        send = self._send
        try:
            send(peer, _MORE)
            send(encode(header), _MORE)
            send(pixels, _MORE)
            send(arrays.labels.data, _MORE)
            send(arrays.sample_ids.data, _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in _UNREACHABLE:
                raise
            self.ended.append(peer)
            return None
        self.counters.bytes_sent += (
            arrays.pixels.nbytes + arrays.labels.nbytes + arrays.sample_ids.nbytes
        )
        tracker: zmq.MessageTracker = pixels.tracker
        return tracker

    def run_due(self, now_s: float) -> None:
        """Cut connections with too many unfinished bytes; accept again after a failure or burst."""
        self._connections.run_due(now_s)
        self._make_room(now_s)

    def read_monitor(self, now_s: float) -> None:
        """Read all pending events of connections; ``ended`` gets the peers that have ended.

        It terminates, as each listener accepts one connection only until ``_make_room``.
        """
        monitor = self.monitor
        while int(monitor.get(zmq.EVENTS)) & _READABLE:
            event, value = _EVENT.unpack(monitor.recv(_NOBLOCK))
            where = monitor.recv(_NOBLOCK).decode()
            if event == zmq.EVENT_LISTENING:
                if not self._gate.add(value):
                    _log.warning(
                        "%s: /proc does not show how libzmq polls the listener: too many "
                        "connections at once can use up the limit of open files",
                        where,
                    )
            elif event == zmq.EVENT_ACCEPTED:
                self.counters.connections_opened += 1
                self._connections.opened(value, where, now_s)
                self._gate.accepted(now_s)
            elif event == zmq.EVENT_ACCEPT_FAILED:
                self._gate.failed(now_s)
            elif event == zmq.EVENT_DISCONNECTED:
                self.counters.connections_closed += 1
                self.ended += self._connections.closed(value) or (b"",)
            else:
                self.counters.handshakes_failed += 1
                reason = _REFUSAL_REASONS.get(value)
                if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and reason is not None:
                    self.counters.clients_refused[reason] += 1
        self._make_room(now_s)

    def close(self) -> None:
        """Close the socket; what is not sent within the linger is lost. Removes socket files."""
        if self.socket.closed:
            return
        # First: as long as this one listens, no other daemon takes the path over. A later one's
        # file could have the same inode number, and would be taken for this one's.
        remove_own(self._files)
        if self.zap is not None:
            self.zap.socket.close(0)
        # Not disable_monitor: it waits for libzmq's I/O thread, which blocks while the monitor's
        # queue is full. Terminating the context ends both.
        self.socket.close(_CLOSE_LINGER_MS)
        self.monitor.close(0)
        # Terminating a context can hang on a stale I/O thread (libzmq#2586): bound the wait.
        ending = threading.Thread(target=self._context.term, daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread available: the process is about to exit
            ending.start()
            ending.join(_TERM_DEADLINE_S)

    def _make_room(self, now_s: float) -> None:
        """Cut connections beyond the maximum; with room, let each listener accept another one."""
        connections, gate = self._connections, self._gate
        connections.make_room(now_s)
        self.deadline_s = connections.deadline_s
        if connections.has_room:
            gate.rearm(now_s)
            self.deadline_s = min(self.deadline_s, gate.deadline_s)
        # Else the gate waits for connections to end, which the monitor reports.

    def _bind(self, endpoint: Endpoint) -> str:
        path, first_name = Path(endpoint.path), str(endpoint)
        if endpoint.transport == "ipc":
            clear_stale_socket(path)
            clear_stale_socket(temporary_path(path))
            first_name = f"ipc://{temporary_path(path)}"
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
            self._files[path] = identify_file(temporary_path(path))
            self.read_monitor(time.monotonic())
            temporary_path(path).rename(path)  # no client can connect before the gate is set up
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary_path(path).unlink()
            raise _explain_bind(endpoint, error) from error
        return str(endpoint)


def _explain_bind(endpoint: Endpoint, error: zmq.ZMQError | OSError) -> ConfigError | ResourceError:
    if error.errno == errno.EADDRINUSE:
        return ResourceError(
            f"{endpoint} is in use by another process: stop that one or bind another port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"bind: {endpoint}: this machine has no such address")
    return ResourceError(f"{endpoint} cannot be bound: {error.strerror}")
