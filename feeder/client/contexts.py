"""ZeroMQ contexts for a client's links: one for all addresses, and one for each host name.

libzmq looks a name up whenever it connects, in its context's one I/O thread, where all of that
context's connections wait meanwhile: 5 s and more each time while a name server is silent. So a
name waits with nobody but itself, or where there are very many with a few others: a context has two
threads and some five descriptors. libzmq aborts the process when either runs out, so both are
acquired and released as a check first.
"""

import contextlib
import os
import queue
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import zmq

from feeder.errors import ResourceError
from feeder.process.name_lookup import host_name_in
from feeder.process.shortage import ZMQ_THREADS, check_threads

Context = zmq.Context[zmq.Socket[bytes]]

CONTEXTS_MAX: Final = 16
_DESCRIPTORS: Final = 12
"""That a context takes with a first connection and a claim of slots."""

_ADDRESSES: Final = ""
_NO_ROOM: Final = "there is no room for a connection: raise the limit on open files (ulimit -n)"


@dataclass(slots=True, eq=False)
class _Shared:
    context: Context = field(default_factory=zmq.Context)
    links: Counter[str] = field(default_factory=Counter)  # by host
    may_hang: bool = False
    """Whether ending it may have to wait for a name server."""


class Contexts:
    """The contexts in use. Not thread-safe."""

    def __init__(self, farewell_ms: int) -> None:
        """``farewell_ms`` is how long closed sockets may linger for their last messages."""
        self._farewell_s = farewell_ms / 1000
        self._of_host: dict[str, _Shared] = {}
        self._ended: queue.SimpleQueue[Context | None] = queue.SimpleQueue()
        self._reaper: threading.Thread | None = None

    def take(self, endpoint: str) -> Context:
        """Return the context for another link to ``endpoint``; ResourceError without any."""
        host = host_name_in(endpoint)
        if host not in self._of_host:
            self._of_host[host] = self._choose(host)
        shared = self._of_host[host]
        shared.links[host] += 1
        return shared.context

    def give_back(self, endpoint: str) -> None:
        """Note that a link, its sockets closed, is gone: names come and go for weeks."""
        host = host_name_in(endpoint)
        shared = self._of_host[host]
        shared.links[host] -= 1
        if host != _ADDRESSES and not shared.links[host]:
            del shared.links[host], self._of_host[host]
        if not shared.links:
            self._ended.put(shared.context)

    def close(self) -> None:
        """Let the last messages leave, all sockets being closed; wait for no name server."""
        used = self._used()
        self._of_host.clear()
        for shared in used:
            if shared.may_hang:
                self._ended.put(shared.context)
        self._ended.put(None)
        for shared in used:
            if not shared.may_hang:
                shared.context.term()
        if self._reaper is not None:
            self._reaper.join(2 * self._farewell_s)

    def _used(self) -> list[_Shared]:
        return list({id(each): each for each in self._of_host.values()}.values())

    def _choose(self, host: str) -> _Shared:
        """Return a new context, or the least used where there are enough or is no room."""
        used = self._used()
        shared: _Shared | None = None
        if len(used) < CONTEXTS_MAX:
            with contextlib.suppress(OSError, zmq.ZMQError):
                check_room()
                if _has_threads(is_needed=not used):
                    shared = _Shared()
        if shared is None:
            if not used:
                raise ResourceError(_NO_ROOM)
            shared = min(used, key=lambda each: each.links.total())
        if host != _ADDRESSES:
            self._start_reaper()
            shared.may_hang = True
        return shared

    def _start_reaper(self) -> None:
        """Start the thread that can wait for a name server; at the very end it could not be."""
        if self._reaper is None:
            reaper = threading.Thread(target=self._reap, name="feeder client ends", daemon=True)
            try:
                reaper.start()
            except RuntimeError as error:
                raise ResourceError(f"{error}: allow this process more threads") from None
            self._reaper = reaper

    def _reap(self) -> None:
        while (context := self._ended.get()) is not None:
            context.term()


def _has_threads(*, is_needed: bool) -> bool:
    """Return whether a context can have its threads; ResourceError if not and it is needed."""
    try:
        check_threads(ZMQ_THREADS)
    except ResourceError:
        if is_needed:
            raise
        return False
    return True


def check_room() -> None:
    """Raise OSError where too few descriptors are left for another context."""
    with contextlib.ExitStack() as stack:
        for _ in range(_DESCRIPTORS):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))


def open_context(endpoint: str) -> Context:
    """Return a context for a connection to ``endpoint``; ResourceError where there is no room."""
    try:
        check_room()
    except OSError as error:
        raise ResourceError(f"{endpoint}: {_NO_ROOM}") from error
    check_threads(ZMQ_THREADS)
    return Context()
