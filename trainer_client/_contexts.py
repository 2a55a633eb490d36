"""ZeroMQ contexts for a client's links: one for all addresses, one for each host name.

libzmq looks a name up whenever it connects, in its context's one I/O thread, where all of that
context's connections wait meanwhile: 5 s and more each time while a name server is silent. So a
name waits with nobody but itself.
"""

import contextlib
import ipaddress
import threading
import time
from typing import Final

import zmq

Context = zmq.Context[zmq.Socket[bytes]]

_ADDRESSES: Final = ""


class Contexts:
    """The contexts in use. Not thread-safe."""

    def __init__(self, farewell_ms: int) -> None:
        """``farewell_ms`` is how long closed sockets may linger for their last messages."""
        self._farewell_s = farewell_ms / 1000
        self._contexts: dict[str, Context] = {}
        self._users: dict[str, int] = {}

    def take(self, endpoint: str) -> Context:
        """Return the context for another link to ``endpoint``."""
        host = _name_in(endpoint)
        if host not in self._contexts:
            self._contexts[host] = zmq.Context()
            self._users[host] = 0
        self._users[host] += 1
        return self._contexts[host]

    def give_back(self, endpoint: str) -> None:
        """Note that a link, its sockets closed, is gone: names come and go for weeks."""
        host = _name_in(endpoint)
        self._users[host] -= 1
        if host != _ADDRESSES and not self._users[host]:
            _end(self._contexts.pop(host))

    def close(self) -> None:
        """Let the last messages leave, all sockets being closed; wait for no name server."""
        addresses = self._contexts.pop(_ADDRESSES, None)
        ends = [_end(context) for context in self._contexts.values()]
        self._contexts.clear()
        if addresses is not None:
            addresses.term()
        by_s = time.monotonic() + self._farewell_s
        for end in filter(threading.Thread.is_alive, ends):
            end.join(max(0.0, by_s - time.monotonic()))


def _end(context: Context) -> threading.Thread:
    """Terminate a context in a thread of its own, which may have to wait for a name server."""
    end = threading.Thread(target=context.term, name="feeder client ends", daemon=True)
    with contextlib.suppress(RuntimeError):  # the interpreter ends, and all with it
        end.start()
    return end


def _name_in(endpoint: str) -> str:
    """Return the host name that an endpoint has to be looked up by, "" where it has none."""
    if not endpoint.startswith("tcp://"):
        return _ADDRESSES
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host
    return _ADDRESSES
