"""ZeroMQ contexts, opened only where there is room, and I/O threads for host names.

libzmq looks a host name up in the connection's I/O thread, each time it connects, and that thread's
other connections wait: 5 s and more while a name server is silent. So a context for several links
has I/O threads for names, apart from the one for addresses. libzmq aborts the process when
descriptors or threads run out, so both are acquired and released as a check first.
"""

import contextlib
import os
import threading
from collections.abc import Iterable
from typing import Final

import zmq

from feeder.errors import ResourceError
from feeder.process.name_lookup import host_name_in
from feeder.process.shortage import ZMQ_THREADS, check_threads

Context = zmq.Context[zmq.Socket[bytes]]

NAME_THREADS: Final = 7
_DESCRIPTORS: Final = 12
"""Descriptors of a context with one I/O thread, a first connection and a claim of slots."""
_THREAD_DESCRIPTORS: Final = 2
"""Descriptors of each further I/O thread."""


class LinkContext:
    """One context for a client's links, to be used by one thread."""

    def __init__(self, name: str, linger_ms: int, endpoints: Iterable[str]) -> None:
        """``name`` begins the ResourceError; ``linger_ms`` is that of the sockets.

        If no host name is among the first ``endpoints``, later ones share one I/O thread.
        """
        self._name_threads = NAME_THREADS if any(map(host_name_in, endpoints)) else 1
        self.context = open_context(name, self._name_threads)
        self._linger_s = linger_ms / 1000
        self._threads: dict[str, int] = {}  # by host name
        self._has_closed = threading.Event()
        self._ender: threading.Thread | None = None

    def choose_threads(self, endpoint: str) -> int:
        """Return the ZMQ_AFFINITY of a socket for ``endpoint``: a bit for each I/O thread."""
        host = host_name_in(endpoint)
        if not host:
            return 1
        if self._ender is None:  # now, as no thread starts while the interpreter shuts down
            ender = threading.Thread(target=self._end, name="feeder client ends", daemon=True)
            try:
                ender.start()
            except RuntimeError as error:
                raise ResourceError(f"{error}: allow this process more threads") from None
            self._ender = ender
        return 2 << self._threads.setdefault(host, len(self._threads) % self._name_threads)

    def close(self) -> None:
        """Send the last messages, all sockets being closed, without waiting for a name server."""
        if self._ender is None:
            self.context.term()
        else:
            self._has_closed.set()
            self._ender.join(2 * self._linger_s)

    def _end(self) -> None:
        self._has_closed.wait()
        self.context.term()


def no_room(name: str) -> ResourceError:
    """Return the error for a process without spare descriptors."""
    return ResourceError(
        f"{name}: there is no room for a connection: raise the limit on open files (ulimit -n)"
    )


def open_context(name: str, further_threads: int = 0) -> Context:
    """Return a context with one I/O thread or more.

    Raises ResourceError, which begins with ``name``, where there is no room for it.
    """
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(_DESCRIPTORS + _THREAD_DESCRIPTORS * further_threads):
                stack.callback(os.close, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        raise no_room(name) from error
    check_threads(ZMQ_THREADS + further_threads)
    return zmq.Context(1 + further_threads)
