"""What a node process waits for: its own sources of input, and libzmq's listeners, on permission.

libzmq accepts connections as fast as they arrive, in its I/O thread, and aborts the process when an
ipc listener runs out of descriptors (``ipc_listener_t::accept``, up to 4.3.5). A cap that is
enforced after accepting comes too late for that. So a listener's entry in libzmq's epoll set is
made one-shot: after one connection the kernel reports no other until ``run_due``, and further ones
wait in the listener's backlog. A token bucket bounds the rate, because a connection costs what a
hundred messages cost.

The entry is found in /proc/PID/fdinfo (``tfd``, see proc(5)). Invariant: one thread uses these
objects, and the gate not after its listeners are closed.
"""

import contextlib
import ctypes
import os
import platform
import re
import select
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import zmq

Source = zmq.Socket[bytes] | int

_SLEEP_MAX_S: Final = 60.0

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


class Timed(Protocol):
    """A part of a process that does what is due when it is due."""

    @property
    def deadline_s(self) -> float: ...

    def run_due(self, now_s: float) -> None: ...


class PollSet:
    """ZeroMQ sockets and descriptors, each with a callback for its input or its end.

    A turn of the loop has one time, which is read after the wait and passed to every callback.
    """

    def __init__(self) -> None:
        self._poller = zmq.Poller()
        self._callbacks: dict[Source, Callable[[float], None]] = {}
        self._paused: dict[Source, float] = {}  # until when
        self.timed: list[Timed] = []
        """The parts that a turn runs, after the callbacks, if they are due."""

    def add(self, source: Source, callback: Callable[[float], None]) -> None:
        self._poller.register(source, zmq.POLLIN)
        self._callbacks[source] = callback

    def pause(self, source: Source, until_s: float) -> None:
        """Leave a source unread until then."""
        self._poller.unregister(source)
        self._paused[source] = until_s

    def remove(self, source: Source) -> None:
        self._poller.unregister(source)
        del self._callbacks[source]

    def run(
        self, due_s: float, begin_turn: Callable[[float, float], None] = lambda now_s, due_s: None
    ) -> float:
        """Wait for input, until ``due_s`` at most, and handle it; return the turn's time.

        ``begin_turn`` is called with it, and with when the turn was due, before any callback.
        """
        due_s = min([due_s, *self._paused.values()])
        for part in self.timed:
            due_s = min(due_s, part.deadline_s)
        wait_s = min(due_s - time.monotonic(), _SLEEP_MAX_S)
        ready = self._poller.poll(max(0, int(wait_s * 1000) + 1))
        now_s = time.monotonic()
        begin_turn(now_s, due_s)
        for source, _ in ready:
            callback = self._callbacks.get(source)
            if callback is not None:  # else an earlier callback has removed it
                callback(now_s)
        for paused, until_s in list(self._paused.items()):
            if until_s <= now_s:
                self._poller.register(paused, zmq.POLLIN)
                del self._paused[paused]
        for part in self.timed:
            if part.deadline_s <= now_s:
                part.run_due(now_s)
        return now_s


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
        self.due_s = float("inf")
        """When the next connection may be accepted."""
        self.deadline_s = float("inf")
        """When ``run_due`` is due: at ``due_s``, or later if there is no room."""

    def add(self, listener: int) -> bool:
        """Add a listener that libzmq has just begun to poll; it may accept.

        False if its epoll entry cannot be found: then libzmq accepts without limit.
        """
        give_up_s = time.monotonic() + _APPEAR_S
        while (entry := _find_entry(listener)) is None:
            if time.monotonic() >= give_up_s:
                return False
            time.sleep(_POLL_S)
        self._entries[listener] = entry
        self.due_s = 0.0
        return True

    def accepted(self, now_s: float) -> None:
        """Record that a listener has accepted a connection; the next one may have to wait."""
        self._earned_s = max(self._earned_s, now_s - BURST / CONNECTIONS_A_S) + 1 / CONNECTIONS_A_S
        self.due_s = self._earned_s

    def failed(self, now_s: float) -> None:
        """Record that a listener has failed to accept one; it retries after _RETRY_S."""
        self.due_s = now_s + _RETRY_S

    def run_due(self, now_s: float) -> None:
        """Let each listener accept one connection."""
        self.due_s = self.deadline_s = float("inf")
        for listener, (epoll, data) in self._entries.items():
            event = _Event(select.EPOLLIN | select.EPOLLONESHOT, data)
            if self._libc.epoll_ctl(epoll, _MODIFY, listener, ctypes.byref(event)) != 0:
                raise OSError(ctypes.get_errno(), "epoll_ctl")


def _find_entry(fd: int) -> tuple[int, int] | None:
    """The epoll set that polls a descriptor, and its user data; None if there is none."""
    with contextlib.suppress(OSError):
        for link in _FDS.iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(link) != _EPOLL:
                    continue
                text = (_FDS.with_name("fdinfo") / link.name).read_text()
                for number, events, data in _ENTRY.findall(text):
                    if int(number) == fd and int(events, 16) & select.EPOLLIN:
                        return int(link.name), int(data, 16)
    return None
