"""Unix sockets beside the ipc endpoints, where clients of this machine claim their slots.

A client that claims a session's slots gets a read-only descriptor and keeps the connection open for
as long as it reads them. The kernel closes the connection whatever ends the client, so its end
means that the slots are no longer read. Beyond ``callers_max`` connections without a claim, the
oldest is closed. Invariant: one thread uses this object, and no call waits.
"""

import contextlib
import functools
import logging
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from feeder.errors import ProtocolError, ResourceError
from feeder.metrics.counters import ClaimCounters
from feeder.node.endpoint import Endpoint, SocketFiles
from feeder.node.polling import PollSet
from feeder.session.events import HolderGone, SlotsClaimed
from feeder.wire.claim import CLAIM_BYTES, CLAIM_SUFFIX, decode_claim, encode_answer
from feeder.worker.slot_memory import SlotMemory

_BACKLOG: Final = 64
CALLERS_MAX: Final = 64
_RETRY_S: Final = 0.1
"""After running out of descriptors: until one is free, the listener stays readable, so polling it
would spin."""

_Handler = Callable[[Sequence[HolderGone | SlotsClaimed], float], None]

_log = logging.getLogger(__name__)


class ClaimListener:
    """Listens for claims and keeps the connections; ``close()`` is idempotent."""

    _poll_set: PollSet
    _handle: _Handler

    def __init__(self, *, socket_mode: int = 0o600, callers_max: int = CALLERS_MAX) -> None:
        """``socket_mode`` is that of the files; ``callers_max`` caps those yet to claim."""
        self._callers_max = callers_max
        self.counters = ClaimCounters()
        self._listeners: list[socket.socket] = []
        self._files = SocketFiles(socket_mode)
        self._connections: dict[int, socket.socket] = {}  # by descriptor, the oldest first
        self._sessions: dict[int, int] = {}  # whose slots these hold

    def bind(self, endpoints: Sequence[Endpoint]) -> None:
        """Listen beside each ipc endpoint; ResourceError when a path is in use."""
        for endpoint in endpoints:
            if endpoint.transport != "ipc":
                continue
            path = Path(endpoint.path + CLAIM_SUFFIX)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            self._listeners.append(listener)
            try:
                with self._files.create(path):
                    listener.bind(os.fspath(path))
                listener.listen(_BACKLOG)
            except OSError as error:
                raise ResourceError(f"{path} cannot be bound: {error.strerror}") from error

    def start(self, poll_set: PollSet, handle: _Handler) -> None:
        """Begin to accept connections; earlier ones wait in the backlog.

        ``handle`` gets claims, which it answers by ``grant`` or ``refuse``, and what ends the
        holders.
        """
        self._poll_set, self._handle = poll_set, handle
        for listener in self._listeners:
            poll_set.add(listener.fileno(), functools.partial(self._on_caller, listener))

    def grant(self, connection: int, session: int, memory: SlotMemory) -> bool:
        """Send a read-only descriptor of the memory; False when that is not possible."""
        try:
            reader = memory.open_read_only()
        except OSError as error:
            self.counters.shares_failed += 1
            _log.warning("slots cannot be shared: /proc/self/fd: %s", error.strerror)
            self.refuse(connection, f"the feeder cannot share its slots: {error.strerror}")
            return False
        try:
            socket.send_fds(self._connections[connection], [encode_answer()], [reader])
        except OSError:  # it has ended, or its buffer is full
            self._drop(connection)
            return False
        finally:
            os.close(reader)
        self._sessions[connection] = session
        return True

    def refuse(self, connection: int, reason: str) -> None:
        """Send the reason and close the connection."""
        self.counters.claims_refused += 1
        with contextlib.suppress(OSError):
            self._connections[connection].send(encode_answer(reason))
        self._drop(connection)

    def close(self) -> None:
        """Close all connections and remove the files; clients can read what they have mapped."""
        self._files.remove()
        for end in (*self._connections.values(), *self._listeners):
            end.close()

    def _on_caller(self, listener: socket.socket, now_s: float) -> None:
        try:
            caller, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            _log.warning("a claim of slots cannot be accepted: %s", error.strerror)
            self._poll_set.pause(listener.fileno(), now_s + _RETRY_S)
            return
        caller.setblocking(False)
        waiting = [number for number in self._connections if number not in self._sessions]
        if len(waiting) >= self._callers_max:
            self._drop(waiting[0])
        number = caller.fileno()
        self._connections[number] = caller
        self._poll_set.add(number, functools.partial(self._on_packet, number))

    def _on_packet(self, number: int, now_s: float) -> None:
        # A claim or, after one, a farewell or the end of the connection.
        try:
            packet = self._connections[number].recv(CLAIM_BYTES + 1)
        except BlockingIOError:
            return
        except ConnectionResetError:
            packet = b""
        session = self._sessions.get(number)
        if session is not None or not packet:
            self._drop(number)
            if session is not None:
                self._handle([HolderGone(session, has_died=not packet)], now_s)
            return
        try:
            claim = decode_claim(packet)
        except ProtocolError as error:
            self.refuse(number, str(error))
            return
        self._handle([SlotsClaimed(claim, number)], now_s)

    def _drop(self, number: int) -> None:
        self._poll_set.remove(number)
        self._connections.pop(number).close()
        self._sessions.pop(number, None)
