"""Listeners of libzmq's that accept one connection at a time, each only when they are let.

libzmq accepts as fast as connections come, in a thread of its own, and aborts the process when an
ipc listener runs out of descriptors (``ipc_listener_t::accept``, in 4.3.5 and before). A limit that
is enforced afterwards comes too late for that. So a listener's entry in libzmq's epoll set becomes
one-shot: after one connection the kernel reports no other one until ``let_in``; those that come
wait in the listener's backlog.

The entry is found by what the kernel shows of an epoll set (``tfd`` in proc(5), /proc/PID/fdinfo).
Invariant: one thread uses this object, and not after the listener is closed.
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

_APPEAR_S: Final = 1.0
"""libzmq's thread adds the entry, as soon as it runs."""

_LOOK_S: Final = 0.0005
_RETRY_S: Final = 0.1


class _Event(ctypes.Structure):
    """struct epoll_event, which is packed on x86-64 only."""

    if platform.machine() == "x86_64":
        _pack_ = 1
    _fields_ = (("events", ctypes.c_uint32), ("data", ctypes.c_uint64))


class AcceptGate:
    """Of all listeners of a socket; each is let accept one connection when it is added."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[int, int]] = {}  # by listener: epoll set, and its data
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._is_due = False
        self._due_s = float("-inf")

    @property
    def deadline_s(self) -> float:
        """When ``let_in`` is due although nothing has happened."""
        return self._due_s if self._is_due and self._due_s > 0 else float("inf")

    def add(self, listener: int) -> bool:
        """Take the descriptor of a listener that libzmq has just begun to poll.

        False where the kernel does not show how: then libzmq goes on to accept as it likes.
        """
        entry = _await_entry(listener)
        if entry is None:
            return False
        self._entries[listener] = entry
        self._let_in(listener)
        return True

    def accepted(self) -> None:
        """Record that a listener has accepted a connection."""
        self._is_due = True

    def failed(self, now_s: float) -> None:
        """Record that a listener has failed to; it tries again soon."""
        self._is_due, self._due_s = True, now_s + _RETRY_S

    def let_in(self, now_s: float) -> None:
        """Have each listener accept one connection, where any has since the last time."""
        if self._is_due and now_s >= self._due_s:
            self._is_due, self._due_s = False, float("-inf")
            for listener in self._entries:
                self._let_in(listener)

    def close(self) -> None:
        """Forget the listeners, which are about to be closed."""
        self._entries.clear()

    def _let_in(self, listener: int) -> None:
        epoll, data = self._entries[listener]
        event = _Event(select.EPOLLIN | select.EPOLLONESHOT, data)
        if self._libc.epoll_ctl(epoll, _MODIFY, listener, ctypes.byref(event)) != 0:
            raise OSError(ctypes.get_errno(), "epoll_ctl")


def _await_entry(fd: int) -> tuple[int, int] | None:
    """Return the epoll set that polls a descriptor and what it keeps with it; None if not known."""
    give_up_s = time.monotonic() + _APPEAR_S
    while (entry := _find_entry(fd)) is None and time.monotonic() < give_up_s:
        time.sleep(_LOOK_S)
    return entry


def _find_entry(fd: int) -> tuple[int, int] | None:
    with contextlib.suppress(OSError):
        for link in _FDS.iterdir():
            with contextlib.suppress(OSError):  # it is closed by now
                if os.readlink(link) != _EPOLL:
                    continue
                shown = (_FDS.with_name("fdinfo") / link.name).read_text()
                for found, events, data in _ENTRY.findall(shown):
                    if int(found) == fd and int(events, 16) & select.EPOLLIN:
                        return int(link.name), int(data, 16)
    return None
