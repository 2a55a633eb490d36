"""ZeroMQ contexts of clients: made only where there are descriptors and threads enough.

libzmq aborts the process for want of a descriptor in a context's threads, or of a thread.
"""

import contextlib
import os
from typing import Final

import zmq

from feeder.errors import ResourceError
from feeder.process.shortage import ZMQ_THREADS, check_threads

Context = zmq.Context[zmq.Socket[bytes]]

_DESCRIPTORS: Final = 12
"""That a context takes with a first connection and a claim of slots."""


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
        raise ResourceError(
            f"{endpoint}: there is no room for a connection: raise the limit on open files "
            "(ulimit -n)"
        ) from error
    check_threads(ZMQ_THREADS)
    return Context()
