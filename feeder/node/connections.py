"""The connections of the node process's socket, capped in number and in unfinished bytes.

libzmq caps only the bytes of a part and the number of complete messages: a multipart message
without an end could fill the process's memory. So the bytes that the kernel has received on each
tcp connection are compared with those of its complete messages. The kernel has no such count for
ipc; ipc peers are trusted (docs/security.md).

A connection is cut by shutdown(2) on a duplicate of the descriptor that libzmq's monitor reports,
after its inode was compared, because the number may have been reused. Messages and monitor events
arrive separately: all pending events must be read before a message counts for a connection that
does not have its peer, and after ``opened`` before ``make_room`` or ``run_due``. One thread uses
this.
"""

import contextlib
import logging
import os
import socket
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from feeder.metrics.counters import SocketCounters
from feeder.process.log_lines import LogLimiter

UNFINISHED_BYTES_MAX: Final = 24 << 20
"""Limit of a tcp connection. A well-behaved peer can have sent 32 messages of 64 KiB that wait
here, and what the kernel buffers; this is twice that."""

UNFINISHED_TOTAL_BYTES_MAX: Final = 512 << 20
"""Limit of all tcp connections; enough for 8000 clients with 64 KiB in flight each."""

CHECK_INTERVAL_S: Final = 0.2
"""Between checks for unfinished bytes. A check takes 2 µs for each tcp connection; until the next
one, a sender at 1 GB/s adds 0.2 GB."""

_IDLE_S: Final = 5.0
"""Clients ping every second; this allows for a busy machine."""

_MESSAGE_OVERHEAD_BYTES: Final = 128
"""More than ZMTP and CURVE add to a message, heartbeats between two messages included."""

_BYTES_RECEIVED_AT: Final = 128  # tcpi_bytes_received in struct tcp_info
_TCP_INFO_BYTES: Final = _BYTES_RECEIVED_AT + 8

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Connection:
    """A connection that libzmq has accepted."""

    file: os.stat_result
    is_tcp: bool
    last_active_s: float
    """When it was accepted, or sent its last message."""
    peers: set[bytes] = field(default_factory=set)
    """Routing ids of messages with its number, possibly also of the number's former connection: its
    last messages may be read after the reuse."""
    message_bytes: int = 0
    is_cut: bool = False

    def add_bytes(self, part_bytes: int) -> None:
        """Count a part of a complete message."""
        self.message_bytes += part_bytes + _MESSAGE_OVERHEAD_BYTES


class Connections:
    """The open connections."""

    def __init__(self, counters: SocketCounters, connections_max: int) -> None:
        """At more than ``connections_max``, ``make_room`` cuts one that is idle or new."""
        self._counters = counters
        self._max = connections_max
        self.open: dict[int, Connection] = {}
        """By descriptor."""
        self._log_limit = LogLimiter(admitted_max=1)
        self.deadline_s = float("inf")
        """When ``run_due`` is due."""

    def opened(self, fd: int, listener: str, now_s: float) -> None:
        """``listener`` is the endpoint at which it was accepted."""
        try:
            file = os.fstat(fd)
        except OSError:
            return  # it has ended already
        is_tcp = listener.startswith("tcp://")
        self.open[fd] = Connection(file, is_tcp, now_s)
        if is_tcp:
            self.deadline_s = min(self.deadline_s, now_s + CHECK_INTERVAL_S)

    def closed(self, fd: int) -> Set[bytes]:
        """Record the end of a connection; return its peers, none if it sent no message."""
        connection = self.open.pop(fd, None)
        return frozenset() if connection is None else connection.peers

    def make_room(self, now_s: float) -> bool:
        """Cut what is too many; whether another one may be accepted: one is above the maximum."""
        if len(self.open) <= self._max:
            return True
        staying = {fd: connection for fd, connection in self.open.items() if not connection.is_cut}
        while len(staying) > self._max:
            fd = _choose_excess(staying, now_s)
            del staying[fd]
            why = (
                f"there are more than {self._max}; if these are clients, raise clients_max or the "
                "limit of open files (LimitNOFILE=)"
            )
            self._cut(fd, "too-many", why, now_s)
        return False

    def run_due(self, now_s: float) -> None:
        """Cut the tcp connections over the individual or the total cap of unfinished bytes."""
        unfinished: dict[int, int] = {}
        for fd, connection in self.open.items():
            if connection.is_tcp and not connection.is_cut:
                received = _received_bytes(fd)
                # Messages are counted too long, which must not become credit for an endless one.
                connection.message_bytes = min(connection.message_bytes, received)
                unfinished[fd] = received - connection.message_bytes
        self.deadline_s = now_s + CHECK_INTERVAL_S if unfinished else float("inf")
        total = sum(unfinished.values())
        for fd in sorted(unfinished, key=unfinished.__getitem__, reverse=True):
            if unfinished[fd] <= UNFINISHED_BYTES_MAX and total <= UNFINISHED_TOTAL_BYTES_MAX:
                break
            total -= unfinished[fd]
            why = "it sends a message without an end, which no Feeder client does"
            self._cut(fd, "endless-message", why, now_s)

    def _cut(self, fd: int, reason: str, why: str, now_s: float) -> None:
        connection = self.open[fd]
        try:
            copy = os.dup(fd)
        except OSError:
            return  # it has ended, or no descriptor is free: then the next check cuts it
        connection.is_cut = True
        if not os.path.samestat(os.fstat(copy), connection.file):
            os.close(copy)
            return
        with socket.socket(fileno=copy) as end:
            try:
                address = end.getpeername()
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it has ended
        self._counters.connections_cut[reason] += 1
        if self._log_limit.admit(reason, now_s):  # reconnecting clients must not fill the log
            is_ip = isinstance(address, tuple)  # a unix socket's peer has no name
            name = f"{address[0]}:{address[1]}" if is_ip else "a process of this machine"
            text = (
                "the connection of %s was cut: %s; further cuts within a minute are only counted "
                "(connections_cut.%s)"
            )
            _log.warning(text, name, why, reason)


def _choose_excess(connections: Mapping[int, Connection], now_s: float) -> int:
    """The longest idle, if over _IDLE_S; else one without messages; else the newest."""
    idlest = min(connections, key=lambda fd: connections[fd].last_active_s)
    if now_s - connections[idlest].last_active_s > _IDLE_S:
        return idlest
    mute = [fd for fd, connection in connections.items() if not connection.peers]
    return mute[0] if mute else list(connections)[-1]


def _received_bytes(fd: int) -> int:
    """What a tcp connection has received; 0 where the kernel does not count it.

    0 also if the connection has ended and its number is another file's.
    """
    with contextlib.suppress(OSError):
        end = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=fd)
        try:
            info = end.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        finally:
            end.detach()  # libzmq owns the descriptor
        if len(info) == _TCP_INFO_BYTES:
            return int.from_bytes(info[_BYTES_RECEIVED_AT:], sys.byteorder)
    return 0
