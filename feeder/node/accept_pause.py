"""Who connects again and again does so at our pace: listeners that rest, and lose nobody.

A connection costs what a hundred messages cost, and libzmq accepts as fast as it can. When more
came than clients can explain, the kernel is told to let nobody in for a moment: a filter on the tcp
listener drops what arrives, so that the other side's kernel tries again after a second; an ipc
socket's file has another name meanwhile, so that libzmq on the other side tries again. Connections
that are open notice nothing. The listener itself stays: nobody can take its address over.

Invariant: one thread uses this object; ``close`` leaves every listener as it was.
"""

import contextlib
import ctypes
import logging
import os
import socket
import struct
from pathlib import Path
from typing import Final

from feeder.node.endpoint import identify_file, resting_path

BURST: Final = 512.0
CONNECTIONS_A_S: Final = 300.0
"""A cluster whose ranks all start at once takes some seconds then; 2 % of a core."""

_REST_S: Final = 0.5
_DEBT_MAX: Final = 900.0
_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_DROP_ALL: Final = struct.pack("=HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K, 0 bytes are let through

_log = logging.getLogger(__name__)


class AcceptPause:
    """One listener, which rests where too many come."""

    def __init__(self, fd: int, path: Path | None, identity: tuple[int, int] | None = None) -> None:
        """Take the descriptor of a tcp listener, or the path of an ipc one and what tells it apart.

        A file that is not ``identity`` is another daemon's, and stays as it is.
        """
        self._fd = fd
        self._path = path
        self._identity = identity
        self._tokens = BURST
        self._filled_s = 0.0
        self._has_rested = False
        self.deadline_s = float("inf")
        """When ``run_due`` is due."""

    def accepted(self, now_s: float, *, as_many: float = 1.0) -> bool:
        """Hear that a connection was accepted; return whether the listener begins to rest.

        One that had to be cut counts ``as_many`` as it has cost.
        """
        given = (now_s - self._filled_s) * CONNECTIONS_A_S
        self._tokens = max(-_DEBT_MAX, min(BURST, self._tokens + given) - as_many)
        self._filled_s = now_s
        if self._tokens >= 1.0 or self.deadline_s != float("inf"):
            return False
        if not self._has_rested:
            self._has_rested = True
            where = "tcp" if self._path is None else self._path
            _log.warning("%s: somebody connects again and again: newcomers may wait", where)
        self.deadline_s = now_s + max(_REST_S, -self._tokens / CONNECTIONS_A_S)
        self._rest()
        return True

    def run_due(self, now_s: float) -> None:
        """Go on where the rest is over."""
        if self.deadline_s <= now_s:
            self.close()

    def close(self) -> None:
        """Go on at once."""
        if self.deadline_s == float("inf"):
            return
        self.deadline_s = float("inf")
        if self._path is None:
            _set_option(self._fd, _SO_DETACH_FILTER, bytes(4))
        elif not os.path.lexists(self._path):  # else another daemon has taken the path over
            self._rename(resting_path(self._path), self._path)

    def _rest(self) -> None:
        if self._path is None:
            program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
            option = struct.pack("HL", 1, ctypes.addressof(program))
            _set_option(self._fd, _SO_ATTACH_FILTER, option)
        else:
            self._rename(self._path, resting_path(self._path))

    def _rename(self, path: Path, new: Path) -> None:
        with contextlib.suppress(OSError):
            if identify_file(path) == self._identity:
                path.rename(new)


def _set_option(fd: int, option: int, value: bytes) -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=fd)
    try:
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, option, value)
    finally:
        listener.detach()  # it is libzmq's
