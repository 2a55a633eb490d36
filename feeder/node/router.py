"""The node process's ROUTER socket: bounded, never blocking, with counters of what it drops.

A peer that stops reading blocks no other: sends never wait, and the send high-water mark is above
what a session can have in flight. For a message over MAX_HEADER_BYTES libzmq closes the connection
before it allocates memory for it.

With keys, tcp is encrypted (CURVE) and only listed clients may connect; ipc is plain, and open to
the users that the socket file's mode admits. An address keeps the socket options that were set when
it was bound, so ipc is bound first. Invariant: one thread uses this object.
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
from feeder.node.connections import Connection, Connections
from feeder.node.endpoint import Endpoint, SocketFiles
from feeder.node.messages import NodeConfig
from feeder.node.polling import AcceptGate, PollSet
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
"""Frames beyond the first of a message that are dropped in one turn."""

_FRAME_WASTE_BYTES: Final = 4096
_PART_WASTE_BYTES: Final = 256
"""The fixed cost of a message, and of a part, as the number of bytes that take as long to read."""

_LOCAL_PEER: Final = re.compile(r"localhost:(\d+):\d+:\d+")
"""libzmq's text for the peer of an ipc connection: user, group and process."""

_CLOSE_LINGER_MS: Final = 100
_TERM_DEADLINE_S: Final = 0.5
_MONITORED: Final = zmq.EVENT_ALL & ~zmq.EVENT_HANDSHAKE_SUCCEEDED
_HANDSHAKE_FAILED: Final = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_REFUSAL_REASONS: Final[dict[int, str]] = {
    zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC: "server-key",
    zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH: "mechanism",
}

_log = logging.getLogger(__name__)


ServerKeys = tuple[SecretKey, KeyList]
"""The server's secret key and the clients' public keys, for tcp."""


def read_keys(config: NodeConfig) -> ServerKeys | None:
    """The keys for tcp, None if it is plain; ConfigError if a key file is unusable."""
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
        """
        self.counters = SocketCounters()
        self.wasted_bytes = 0
        """The cost of misuse so far: bytes of dropped frames, and a fixed cost for each frame."""
        self._connections = Connections(self.counters, connections_max)
        self.ended: list[bytes] = []
        """The peers whose connections have ended or that have not read for too long, until
        ``take_ended``."""
        self._gate = AcceptGate()
        self._keys = keys
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
        self._files = SocketFiles(socket_mode)
        self._body: zmq.Frame | None = None  # of the last message
        self._sender: Connection | None = None  # its connection, if that is open
        self._is_skipping = False  # the rest of a message of several frames
        # The method in C, without pyzmq's Python layer that takes options for other socket types.
        self._send = super(zmq.Socket, self.socket).send

    def bind(self, endpoints: Sequence[Endpoint]) -> tuple[str, ...]:
        """Bind all endpoints, once; return them as bound, with the ports that the system chose.

        Raises ResourceError when one is in use or unavailable.
        """
        bound = {}
        for endpoint in sorted(endpoints, key=lambda endpoint: endpoint.transport):  # ipc first
            if endpoint.transport == "tcp" and self._keys is not None:
                self.socket.set(zmq.CURVE_SERVER, 1)
                self.socket.set(zmq.CURVE_SECRETKEY, self._keys[0].text.encode())
                self.socket.set(zmq.ZAP_DOMAIN, DOMAIN.encode())
                self.socket.set(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a handler none is admitted
            self.socket.set(zmq.IPV6, int(":" in endpoint.host))
            is_ipc = endpoint.transport == "ipc"
            files = self._files.create(Path(endpoint.path)) if is_ipc else contextlib.nullcontext()
            try:
                with files:
                    self.socket.bind(str(endpoint))
            except zmq.ZMQError as error:
                raise _explain_bind(endpoint, error) from error
            self.read_monitor(time.monotonic())
            bound[endpoint] = self.socket.get_string(zmq.LAST_ENDPOINT).rstrip("\0")
        return tuple(bound[endpoint] for endpoint in endpoints)

    def start(self, poll_set: PollSet) -> None:
        """Begin to follow connections, and to admit clients, which wait in their handshakes."""
        poll_set.add(self.monitor, self.read_monitor)
        if self.zap is not None:
            poll_set.add(self.zap.socket, self.zap.answer)
        poll_set.timed += [self._connections, self._gate]

    @property
    def has_unread(self) -> bool:
        """Whether messages wait to be received."""
        return self._is_skipping or bool(int(self.socket.get(zmq.EVENTS)) & _READABLE)

    def receive(self, now_s: float) -> tuple[bytes, bytes] | None:
        """Return the peer and the frame of the next message, None if there is none now.

        Messages of several frames are dropped and counted; None follows each.
        """
        if not self._is_skipping:
            # Asking costs less than zmq.Again.
            if not int(self.socket.get(zmq.EVENTS)) & _READABLE:
                return None
            peer = self.socket.recv(_NOBLOCK)
            body = self._body = self.socket.recv(_NOBLOCK, copy=False)
            self._record(peer, body, now_s)
            if not body.more:
                return peer, body.bytes
            self.counters.frames_dropped["several-frames"] += 1
            self.waste(0)
            self._is_skipping = True
        for _ in range(_PARTS_A_TURN):
            part = self.socket.recv(_NOBLOCK, copy=False)
            self.wasted_bytes += len(part) + _PART_WASTE_BYTES
            if self._sender is not None:
                self._sender.add_bytes(len(part))
            if not part.more:
                self._is_skipping = False
                break
        return None

    def _record(self, peer: bytes, body: zmq.Frame, now_s: float) -> None:
        """Count a message for its connection; its peer has ended if that is not open."""
        self._sender = None
        try:
            fd = body.get(zmq.SRCFD)
        except zmq.ZMQError:
            return  # the peer speaks ZMTP 2 or earlier
        sender = self._connections.open.get(fd)
        if sender is None or peer not in sender.peers:
            self.read_monitor(now_s)  # the number may be a later connection's by now
            sender = self._connections.open.get(fd)
        if sender is None:
            self.ended.append(peer)
            return
        sender.peers.add(peer)
        sender.last_active_s = now_s
        sender.add_bytes(len(body))
        self._sender = sender

    def waste(self, frame_bytes: int) -> None:
        """Count a frame that was dropped."""
        self.wasted_bytes += frame_bytes + _FRAME_WASTE_BYTES

    def take_ended(self) -> list[bytes]:
        """The peers that have ended since the last call; none while any message is unread.

        Otherwise a client would count as lost while its Bye is unread. Under a flood the lease
        ends its session.
        """
        if self.has_unread:
            return []
        ended, self.ended = self.ended, []
        return ended

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
        assert self._body is not None, "a message was received"
        try:
            return str(self._body.get(name))
        except zmq.ZMQError:
            return ""

    def send(self, peer: bytes, *frames: bytes | memoryview | zmq.Frame) -> bool:
        """Send a message; False for a peer that cannot be sent to, which counts as ended."""
        try:
            # Only the first frame can fail: it finds the peer and reserves a place in its queue.
            self._send(peer, _MORE)
            for frame in frames[:-1]:
                self._send(frame, _MORE)
            self._send(frames[-1], _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno not in _UNREACHABLE:
                raise
            self.counters.sends_dropped += 1
            self.ended.append(peer)
            return False
        return True

    def send_chunk(
        self, peer: bytes, header: Chunk, arrays: ChunkArrays
    ) -> zmq.MessageTracker | None:
        """Send a chunk without copying its pixels; the tracker is done once they have been read.

        None when the peer cannot be sent to: then nothing was sent.
        """
        crops = (arrays.pixels, *arrays.further)
        pixels = [zmq.Frame(crop.data, track=True, copy=False) for crop in crops]
        if not self.send(peer, encode(header), *pixels, arrays.labels.data, arrays.sample_ids.data):
            return None
        self.counters.bytes_sent += (
            sum(crop.nbytes for crop in crops) + arrays.labels.nbytes + arrays.sample_ids.nbytes
        )
        if len(pixels) > 1:
            return zmq.MessageTracker(*pixels)
        tracker: zmq.MessageTracker = pixels[0].tracker
        return tracker

    def read_monitor(self, now_s: float) -> None:
        """Read all pending events of connections; ``ended`` gets the peers that have ended.

        It terminates, as each listener accepts one connection only until the gate opens again.
        """
        while int(self.monitor.get(zmq.EVENTS)) & _READABLE:
            event, value = _EVENT.unpack(self.monitor.recv(_NOBLOCK))
            where = self.monitor.recv(_NOBLOCK).decode()
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
                self.ended += self._connections.closed(value)
            elif event in _HANDSHAKE_FAILED:
                self.counters.handshakes_failed += 1
                reason = _REFUSAL_REASONS.get(value)
                if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and reason is not None:
                    self.counters.clients_refused[reason] += 1
        # Without room the gate waits for connections to end, which the monitor reports.
        has_room = self._connections.make_room(now_s)
        self._gate.deadline_s = self._gate.due_s if has_room else float("inf")
        if self._gate.deadline_s <= now_s:
            self._gate.run_due(now_s)

    def close(self) -> None:
        """Close the socket; what is not sent within the linger is lost. Removes socket files."""
        if self.socket.closed:
            return
        self._files.remove()
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


def _explain_bind(endpoint: Endpoint, error: zmq.ZMQError) -> ConfigError | ResourceError:
    if error.errno == errno.EADDRINUSE:
        return ResourceError(
            f"{endpoint} is in use by another process: stop that one or bind another port"
        )
    if error.errno == errno.EADDRNOTAVAIL:
        return ConfigError(f"bind: {endpoint}: this machine has no such address")
    return ResourceError(f"{endpoint} cannot be bound: {error.strerror}")
