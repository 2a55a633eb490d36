"""The connections of the node process's socket: who holds memory without end, and is cut for it.

libzmq takes in a message of many parts until its last part has come, and asks nobody (its limits
are the bytes of a part and the number of whole messages). So a client that sends part after part
fills the process's memory without one message to show for it. Here the bytes that a tcp connection
has received, which the kernel counts, are compared with those of its messages.

The kernel counts nothing for ipc. There a connection becomes a suspect when it has unread bytes
while memory grows. It is cut if memory keeps growing, it has unread bytes again, and no message has
come from it in between. libzmq reads from all connections in turn, so by then it has read the first
bytes, and a well-behaved client's would have completed a message. If its I/O thread has not run,
the bytes are still unread, but then memory does not grow either. A connection that sends no message
for _SILENT_S while memory grows is cut, too.

Cutting is shutdown(2) on the descriptor, which libzmq's monitor names; to libzmq it looks as if the
client had hung up.

So that this never is another connection's, which got the number in the meantime, the descriptor is
held on to and its inode compared. One is kept in reserve for that: it matters most when no more can
be had.

Who speaks over a connection, messages say, and news and messages come by different ways. The news
that a connection was opened is there before its first message can be, and news comes in order. So
where ``is_known`` says no, all news that is there is to be told before the message: then a number
is that connection's which sent it, or a later one's. Invariant: one thread uses this object; while
nobody is connected, it has nothing to do.
"""

import ctypes
import fcntl
import logging
import os
import socket
import struct
import sys
import termios
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from feeder.metrics import SocketCounters

UNFINISHED_BYTES_MAX: Final = 24 << 20
"""What a well-behaved peer can have sent and we not have read: 32 messages of 64 KiB that wait,
and what the kernel holds, with as much again to spare."""

UNFINISHED_TOTAL_BYTES_MAX: Final = 512 << 20
"""Of all tcp connections; clients with 64 KiB on their way each would have to be 8000."""

_LOOK_S: Final = 0.1
_LOOK_CLOSELY_S: Final = 0.01
_GROWTH_BYTES: Final = 16 << 20
"""Memory grows by that before anything is looked at."""

_GROWTH_LOCAL_BYTES: Final = 64 << 20
_PROOF_BYTES: Final = 8 << 20
_PROOF_SHARE_BYTES: Final = 128 << 10
"""After growth by _PROOF_BYTES, and _PROOF_SHARE_BYTES more for each connection, libzmq has read
from every one: it takes at most one frame from each in turn."""

_QUIET_S: Final = 0.2
_LATE_S: Final = 5.0
"""Clients speak every second, or are slow ones on a busy machine."""

_SILENT_S: Final = 20.0
"""Clients speak every second. One that does not, while memory grows and nobody else explains it."""

_ACCEPT_GROWTH_S: Final = 30.0
_FRAME_OVERHEAD_BYTES: Final = 64
"""Of ZMTP and CURVE, or a little more."""

_BYTES_RECEIVED_AT: Final = 128  # tcpi_bytes_received in struct tcp_info
_TCP_INFO_BYTES: Final = 192
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_LOG_PAUSE_S: Final = 60.0
"""Between two lines about the same: who connects again and again must not fill the log."""

_TOO_MANY: Final = "too-many"
_ENDLESS: Final = "endless-message"

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Connection:
    inode: int
    listener: str
    """Endpoint that it came to."""
    heard_s: float
    peers: set[bytes] = field(default_factory=set)
    """Who has spoken over it, and those whose last words came after it had got their number."""
    messages: int = 0
    seen_messages: int = 0
    message_bytes: int = 0
    suspected_at_bytes: int | None = None
    """Memory held when unread bytes were first seen here, lowered when memory shrinks; None if none
    were seen since the last message."""
    is_cut: bool = False

    def lately_s(self, now_s: float) -> float:
        """Return when it was last heard, now where that was after the last look."""
        return self.heard_s if self.messages == self.seen_messages else now_s

    def unfinished_bytes(self, received: int) -> int:
        """Return what it holds of the bytes that the kernel has received, those of no message."""
        # What messages were counted too long by is no credit for an endless one.
        self.message_bytes = min(self.message_bytes, received)
        return received - self.message_bytes

    def holds_memory(self, waiting: int, held: int, proof_bytes: int, now_s: float) -> bool:
        """Return whether an ipc connection may be what fills memory, of which ``held`` bytes are in
        use: it had unread bytes before memory grew by ``proof_bytes``, and has ``waiting`` now.
        """
        if now_s - self.heard_s > _SILENT_S:
            return True
        if self.suspected_at_bytes is None:
            self.suspected_at_bytes = held if waiting else None
            return False
        self.suspected_at_bytes = min(self.suspected_at_bytes, held)
        return waiting > 0 and held - self.suspected_at_bytes >= proof_bytes


class Connections:
    """What is known of each connection, by its descriptor."""

    def __init__(self, counters: SocketCounters, connections_max: int) -> None:
        """More than ``connections_max`` at a time are cut: who was quiet longest, if too long."""
        self._counters = counters
        self._max = connections_max
        self._open: dict[int, _Connection] = {}
        self._floor_bytes = 0
        self._grown_s = 0.0
        self._look_at_s = float("inf")
        self._is_to_trim = False
        self._logged_s: dict[str, float] = {}  # when a cut was last logged, by its reason
        self._nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._reserve = os.dup(self._nothing)

    @property
    def deadline_s(self) -> float:
        """When ``run_due`` is due."""
        return self._look_at_s

    @property
    def has_room(self) -> bool:
        """Whether another connection can be accepted: no more are open than may be."""
        return len(self._open) <= self._max

    def opened(self, fd: int, listener: str, now_s: float) -> None:
        """Hear that a connection was accepted at an endpoint."""
        inode = _inode(fd)
        if inode is None:
            return  # it has ended already
        if not self._open:
            held = own_bytes()
            self._floor_bytes, self._grown_s = sys.maxsize if held is None else held, now_s
            self._look_at_s = now_s + _LOOK_S
        self._open[fd] = _Connection(inode, listener, now_s)

    def make_room(self, now_s: float) -> None:
        """Cut who is too many.

        All news must have been told: a number whose connection has ended can be another file's,
        and that one's inode is what ``opened`` saw.
        """
        if len(self._open) <= self._max:
            return
        lately = {fd: each.lately_s(now_s) for fd, each in self._open.items() if not each.is_cut}
        while len(lately) > self._max:
            fd = self._least_wanted(lately, now_s)
            del lately[fd]
            self.cut(fd, _TOO_MANY, now_s)

    def _least_wanted(self, lately: Mapping[int, float], now_s: float) -> int:
        """Return who is cut so that others can stay, of those who were heard ``lately``.

        That is whoever has been quiet for longest, where that is longer than clients are; else
        somebody who has said nothing yet, or else who came last.
        """
        quietest = min(lately, key=lately.__getitem__)
        if now_s - lately[quietest] > _LATE_S:
            return quietest
        *_, newcomer = lately
        return next((fd for fd in lately if not self._open[fd].messages), newcomer)

    def closed(self, fd: int) -> Set[bytes]:
        """Hear that a connection has ended; return whose it was, nobody's where none spoke."""
        connection = self._open.pop(fd, None)
        if not self._open and not self._is_to_trim:
            self._look_at_s = float("inf")
        return frozenset() if connection is None else connection.peers

    def is_known(self, fd: int, peer: bytes) -> bool:
        """Return whether a peer is known to speak over a connection that is open."""
        connection = self._open.get(fd)
        return connection is not None and peer in connection.peers

    def heard(self, fd: int, peer: bytes, message_bytes: int) -> bool:
        """Hear that a whole message of a peer came over a connection; return whether it is open.

        Of a peer that was not known all news must have been told.
        """
        connection = self._open.get(fd)
        if connection is None:
            return False
        connection.messages += 1
        connection.message_bytes += message_bytes + _FRAME_OVERHEAD_BYTES
        connection.peers.add(peer)
        return True

    def run_due(self, now_s: float) -> list[str]:
        """Look at the process's memory, and where it grows at who is the cause.

        Return the endpoints to which those had come that were cut.
        """
        if now_s < self._look_at_s:
            return []
        self._look_at_s = now_s + _LOOK_S if self._open else float("inf")
        if self._is_to_trim:
            trim_memory()
            self._is_to_trim = False
        for connection in self._open.values():
            if connection.messages != connection.seen_messages:
                connection.seen_messages, connection.heard_s = connection.messages, now_s
                connection.suspected_at_bytes = None
        held = own_bytes()
        if held is None:
            return []
        grown = held - self._floor_bytes
        if grown < _GROWTH_BYTES:
            self._floor_bytes, self._grown_s = min(held, self._floor_bytes), now_s
            return []
        if grown >= _GROWTH_LOCAL_BYTES:
            self._look_at_s = now_s + _LOOK_CLOSELY_S
        guilty = self._find_guilty(now_s, held)
        cut = [self.cut(fd, _ENDLESS, now_s) for fd in guilty]
        if guilty:
            self._floor_bytes, self._grown_s = held, now_s  # what is freed goes by and by
        if now_s - self._grown_s > _ACCEPT_GROWTH_S:  # nobody's fault: sessions take memory, too
            self._floor_bytes, self._grown_s = held, now_s
        return [listener for listener in cut if listener is not None]

    def _find_guilty(self, now_s: float, held: int) -> list[int]:
        """Return who holds too much: alone, or with others, of whom those that hold most."""
        has_local_growth = held - self._floor_bytes >= _GROWTH_LOCAL_BYTES
        proof_bytes = _PROOF_BYTES + _PROOF_SHARE_BYTES * len(self._open)
        guilty: list[int] = []
        unfinished: dict[int, int] = {}
        for fd, connection in self._open.items():
            if connection.is_cut:
                continue
            if connection.listener.startswith("tcp://"):
                unfinished[fd] = connection.unfinished_bytes(_received_bytes(fd))
            elif (
                has_local_growth
                and now_s - connection.heard_s >= _QUIET_S
                and connection.holds_memory(_waiting_bytes(fd), held, proof_bytes, now_s)
            ):
                guilty.append(fd)
        total = sum(unfinished.values())
        for fd in sorted(unfinished, key=unfinished.__getitem__, reverse=True):
            if unfinished[fd] <= UNFINISHED_BYTES_MAX and total <= UNFINISHED_TOTAL_BYTES_MAX:
                break
            guilty.append(fd)
            total -= unfinished[fd]
        return guilty

    def cut(self, fd: int, reason: str, now_s: float) -> str | None:
        """End a connection; return the endpoint that it had come to, None where it had ended."""
        connection = self._open.get(fd)
        if connection is None or connection.is_cut:
            return None
        connection.is_cut = self._is_to_trim = True
        try:
            name = self._shut_down(fd, connection.inode)
        except OSError:
            return None  # it has ended
        self._counters.cut(reason)
        if now_s - self._logged_s.get(reason, float("-inf")) >= _LOG_PAUSE_S:
            self._logged_s[reason] = now_s
            _log.warning("the connection of %s was cut: %s", name, self._explain(reason))
        return connection.listener

    def close(self) -> None:
        """Give the reserve up; nobody is cut any more."""
        os.close(self._reserve)
        os.close(self._nothing)

    def _shut_down(self, fd: int, inode: int) -> str:
        """Hang up on a connection, and return who it was; OSError if it has ended."""
        os.dup2(fd, self._reserve, inheritable=False)
        try:
            if _inode(self._reserve) != inode:
                raise ConnectionResetError("its number is another connection's")
            peer = socket.socket(fileno=self._reserve)
            try:
                name = _name_of(peer.getpeername())
                peer.shutdown(socket.SHUT_RDWR)
            finally:
                peer.detach()
        finally:
            os.dup2(self._nothing, self._reserve, inheritable=False)
        return name

    def _explain(self, reason: str) -> str:
        if reason == _TOO_MANY:
            why = (
                f"there are more than {self._max}; if these are clients, raise clients_max or the "
                "limit of open files (LimitNOFILE=)"
            )
        else:
            why = "it sends a message without an end, which no client of ours does"
        return f"{why}; more of this within a minute is only counted (connections_cut.{reason})"


def _name_of(address: object) -> str:
    """Return a peer's address for people; a unix socket's has no text."""
    if isinstance(address, tuple):
        return f"{address[0]}:{address[1]}"
    return "a process of this machine"


def own_bytes(statm: Path = Path("/proc/self/statm")) -> int | None:
    """Return this process's resident memory that it shares with nobody; None where unknown."""
    try:
        _, resident, shared, *_ = statm.read_text("ascii").split()
    except OSError:
        return None
    return (int(resident) - int(shared)) * _PAGE_BYTES


def trim_memory() -> None:
    """Give freed memory back to the machine, where the C library can."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def _inode(fd: int) -> int | None:
    try:
        return os.fstat(fd).st_ino
    except OSError:
        return None


def _received_bytes(fd: int) -> int:
    """Return the bytes that a tcp connection has received; 0 where the kernel does not say."""
    try:
        peer = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=fd)
    except OSError:
        return 0  # it has ended, and its number may be a file's by now
    try:
        answer = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return 0
    finally:
        peer.detach()  # it is libzmq's
    if len(answer) < _BYTES_RECEIVED_AT + 8:
        return 0
    received: int = struct.unpack_from("=Q", answer, _BYTES_RECEIVED_AT)[0]
    return received


def _waiting_bytes(fd: int) -> int:
    try:
        waiting: int = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]
    except OSError:
        return 0
    return waiting
