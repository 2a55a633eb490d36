"""A session's slots as its client sees them: claimed from the node process, mapped to be read only.

The mapping lives as long as anything views it, and the connection by which it was claimed as long
as the mapping: so the node process hears that nobody reads the slots any more exactly when that is
so. Neither side can pull the pages from under the other: the size is checked before mapping and
sealed against change, and the pages cannot be written here.

Needs numpy and the standard library only: training environments have this module.
"""

import contextlib
import fcntl
import mmap
import os
import socket
import stat
import weakref
from collections.abc import Callable
from typing import Final

import numpy as np

from feeder.errors import ProtocolError
from feeder.wire.claim import ANSWER_BYTES_MAX, FAREWELL, decode_answer, encode_claim
from feeder.wire.slot_layout import ChunkArrays, SlotLayout

_SEALS: Final = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK


_connections: Final[weakref.WeakSet[socket.socket]] = weakref.WeakSet()


def _close_in_fork() -> None:
    """Leave the connections to the parent alone: a fork that outlives it would hide its death."""
    for connection in list(_connections):
        connection.close()


os.register_at_fork(after_in_child=_close_in_fork)


class NotSharedError(Exception):
    """Raised when the slots cannot be mapped here; the message says why, in one clause."""


class LentMemory:
    """A mapping of all slots of a session; it goes when it and all its views are garbage."""

    def __init__(self, fd: int, layout: SlotLayout, connection: socket.socket) -> None:
        """Map the file; takes the connection over, but not ``fd``. NotSharedError if unfit."""
        _check_file(fd, layout.total_bytes)
        try:
            mapping = mmap.mmap(fd, layout.total_bytes, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError as error:
            raise NotSharedError(f"they cannot be mapped: {error.strerror}") from error
        self.layout = layout
        self.address: int = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
        self._ends: list[Callable[[], object]] = []
        # Not at exit: the kernel does it then, after the session's own goodbye.
        end = weakref.finalize(self, _let_go, os.getpid(), self._ends, mapping, connection)
        end.atexit = False

    @property
    def __array_interface__(self) -> dict[str, object]:
        """Let numpy view the pages. They pass as writable, or torch warns of every tensor of them;
        the page tables know better: to write here is a segmentation fault."""
        return {
            "version": 3,
            "shape": (self.layout.total_bytes,),
            "typestr": "|u1",
            "data": (self.address, False),
        }

    def slot(self, number: int) -> ChunkArrays:
        """Return views of all rows of a slot, never to be written to."""
        return self.layout.chunk(np.asarray(self), number, 0, self.layout.batch_size)

    def before_unmapping(self, call: Callable[[], object]) -> None:
        """Have ``call``, which must not refer to this object, made before the pages go."""
        self._ends.append(call)


class SlotClaim:
    """A claim on its way; ``close`` it unless ``take`` has returned the memory."""

    def __init__(self, path: str, session: int) -> None:
        """Claim the slots of a session at a door; NotSharedError when nobody is there."""
        self._connection = socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK
        )
        _connections.add(self._connection)  # at once: a thread may fork while the claim waits
        try:
            self._connection.connect(path)
            self._connection.send(encode_claim(session))
        except OSError as error:
            self._connection.close()
            raise NotSharedError(f"{path}: {error.strerror or error}") from error

    def fileno(self) -> int:
        """Return the descriptor to poll for the answer."""
        return self._connection.fileno()

    def take(self, layout: SlotLayout) -> LentMemory | None:
        """Return the slots, mapped, once the answer is there; None before.

        Raises NotSharedError when they were refused or are not what they should be.
        """
        try:
            packet, fds, _, _ = socket.recv_fds(self._connection, ANSWER_BYTES_MAX, 1)
        except BlockingIOError:
            return None
        except OSError as error:
            raise NotSharedError(f"the feeder went away: {error.strerror}") from error
        try:
            if not packet:
                raise NotSharedError("the feeder went away")
            try:
                refusal = decode_answer(packet)
            except ProtocolError as error:
                raise NotSharedError(str(error)) from error
            if refusal or not fds:
                raise NotSharedError(refusal or "no descriptor came with the answer")
            return LentMemory(fds[0], layout, self._connection)
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        """Give the claim up."""
        self._connection.close()


def _check_file(fd: int, size_bytes: int) -> None:
    """Raise NotSharedError unless a file has this size and can never have another one."""
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size != size_bytes:
        raise NotSharedError(f"{status.st_size} bytes came where {size_bytes} were announced")
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError as error:
        raise NotSharedError(f"its size is not sealed: {error.strerror}") from error
    if seals & _SEALS != _SEALS:
        raise NotSharedError("its size is not sealed: it could be cut short while it is read")


def _let_go(
    owner: int, ends: list[Callable[[], object]], mapping: mmap.mmap, connection: socket.socket
) -> None:
    if os.getpid() == owner:  # a fork must not speak for the process that may still read
        for end in ends:
            end()
        mapping.close()
        with contextlib.suppress(OSError):  # the node process may be gone
            connection.send(FAREWELL)
    connection.close()
