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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

BURST: Final = 512.0
CONNECTIONS_A_S: Final = 300.0
"""A cluster whose ranks all start at once takes some seconds then; 2 % of a core."""

_REST_S: Final = 0.5
_DEBT_MAX: Final = 900.0
_RESTING_SUFFIX: Final = ".resting"
_SO_ATTACH_FILTER: Final = 26
_SO_DETACH_FILTER: Final = 27
_DROP_ALL: Final = struct.pack("=HBBI", 0x06, 0, 0, 0)  # BPF_RET | BPF_K, 0 bytes are let through

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class AcceptPause:
    """All listeners of a socket; they rest together."""

    _tcp: list[int] = field(default_factory=list)
    _ipc: list[Path] = field(default_factory=list)
    _tokens: float = BURST
    _filled_s: float = 0.0
    rests: int = 0
    """How often they rested."""
    deadline_s: float = float("inf")
    """When ``tend`` is due."""

    def listens(self, fd: int, path: Path | None) -> None:
        """Hear of a listener: the descriptor of a tcp one, or the path of an ipc one."""
        if path is None:
            self._tcp.append(fd)
        else:
            self._ipc.append(path)

    def accepted(self, now_s: float, *, as_many: float = 1.0) -> None:
        """Hear that a connection was accepted; let the listeners rest if there are too many.

        One that had to be cut counts ``as_many`` as it has cost.
        """
        given = (now_s - self._filled_s) * CONNECTIONS_A_S
        self._tokens = max(-_DEBT_MAX, min(BURST, self._tokens + given) - as_many)
        self._filled_s = now_s
        if self._tokens < 1.0 and self.deadline_s == float("inf"):
            self.rests += 1
            if self.rests == 1:
                _log.warning("somebody connects again and again: connections are taken slowly")
            self.deadline_s = now_s + max(_REST_S, -self._tokens / CONNECTIONS_A_S)
            self._rest()

    def tend(self, now_s: float) -> None:
        """Go on where the rest is over."""
        if self.deadline_s <= now_s:
            self.deadline_s = float("inf")
            self._go_on()

    def close(self) -> None:
        """Go on at once, and forget the listeners."""
        self._go_on()
        self._tcp.clear()
        self._ipc.clear()

    def _rest(self) -> None:
        program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
        for fd in self._tcp:
            option = struct.pack("HL", 1, ctypes.addressof(program))
            _set_option(fd, _SO_ATTACH_FILTER, option)
        for path in self._ipc:
            with contextlib.suppress(OSError):
                path.rename(_resting(path))

    def _go_on(self) -> None:
        for fd in self._tcp:
            _set_option(fd, _SO_DETACH_FILTER, bytes(4))
        for path in self._ipc:
            with contextlib.suppress(OSError):
                if not os.path.lexists(path):  # else another daemon has taken the path over
                    _resting(path).rename(path)


def _resting(path: Path) -> Path:
    return path.with_name(path.name + _RESTING_SUFFIX)


def _set_option(fd: int, option: int, value: bytes) -> None:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=fd)
    try:
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, option, value)
    finally:
        listener.detach()  # it is libzmq's
