"""Makes libzmq's listeners accept one connection at a time, on permission and at a bounded rate.

libzmq accepts connections as fast as they arrive, in its I/O thread, and aborts the process when an
ipc listener runs out of descriptors (``ipc_listener_t::accept``, up to 4.3.5). A cap that is
enforced after accepting comes too late for that. So a listener's entry in libzmq's epoll set is
made one-shot: after one connection the kernel reports no other until ``rearm``, and further ones
wait in the listener's backlog. A token bucket bounds the rate, because a connection costs what a
hundred messages cost.

The entry is found in /proc/PID/fdinfo (``tfd``, see proc(5)). Invariant: one thread uses this
object, and not after the listener is closed.
"""

import contextlib
import ctypes
import os
import platform
import re
import select
import time
from pathlib import Path
from typing import Final

_FDS: Final = Path("/proc/self/fd")
_EPOLL: Final = "anon_inode:[eventpoll]"
_ENTRY: Final = re.compile(r"^tfd:\s*(\d+)\s+events:\s*([0-9a-f]+)\s+data:\s*([0-9a-f]+)", re.M)
_MODIFY: Final = 3  # EPOLL_CTL_MOD

BURST: Final = 512
CONNECTIONS_A_S: Final = 300
"""2 % of a core; a cluster whose ranks all start at once takes some seconds."""

_APPEAR_S: Final = 1.0
"""libzmq's I/O thread adds the entry as soon as it runs."""

_POLL_S: Final = 0.0005
_RETRY_S: Final = 0.1


class _Event(ctypes.Structure):
    """struct epoll_event, which is packed on x86-64 only."""

    if platform.machine() == "x86_64":
        _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


class AcceptGate:
    """The gate of all listeners of a socket."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, int]] = {}  # by listener: epoll set, and user data
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._earned_s = 0.0  # when the accepted connections are paid for, less the burst
        self.deadline_s = float("inf")
        """When ``rearm`` is due."""

    def add(self, listener: int) -> bool:
        """Add a listener that libzmq has just begun to poll, and let it accept one connection.

        False if its epoll entry cannot be found: then libzmq accepts without limit.
        """
        entry = _await_entry(listener)
        if entry is None:
            return False
        self._entries[listener] = entry
        self._rearm(listener)
        return True

    def accepted(self, now_s: float) -> None:
        """Record that a listener has accepted a connection; the next one may have to wait."""
        self._earned_s = max(self._earned_s, now_s - BURST / CONNECTIONS_A_S) + 1 / CONNECTIONS_A_S
        self.deadline_s = self._earned_s

    def failed(self, now_s: float) -> None:
        """Record that a listener has failed to accept one; it retries after _RETRY_S."""
        self.deadline_s = now_s + _RETRY_S

    def rearm(self, now_s: float) -> None:
        """Let each listener accept one connection, if that is due."""
        if now_s >= self.deadline_s:
            self.deadline_s = float("inf")
            for listener in self._entries:
                self._rearm(listener)

    def _rearm(self, listener: int) -> None:
        epoll, data = self._entries[listener]
        event = _Event(select.EPOLLIN | select.EPOLLONESHOT, data)
        if self._libc.epoll_ctl(epoll, _MODIFY, listener, ctypes.byref(event)) != 0:
            raise OSError(ctypes.get_errno(), "epoll_ctl")


def _await_entry(fd: int) -> tuple[int, int] | None:
    """Return the epoll set that polls a descriptor and its user data; None if not found."""
    give_up_s = time.monotonic() + _APPEAR_S
    while (entry := _find_entry(fd)) is None and time.monotonic() < give_up_s:
        time.sleep(_POLL_S)
    return entry


def _find_entry(fd: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        for link in _FDS.iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(link) != _EPOLL:
                    continue
                shown = (_FDS.with_name("fdinfo") / link.name).read_text()
                for found, events, data in _ENTRY.findall(shown):
                    if int(found) == fd and int(events, 16) & select.EPOLLIN:
                        return int(link.name), int(data, 16)
    return None
