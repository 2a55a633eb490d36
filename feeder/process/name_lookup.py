"""Looks host names up within a deadline, however long a name server is silent.

libzmq looks a name up in its I/O thread, again for each attempt to connect. Nothing interrupts
that: a context whose thread waits for a name server cannot be closed, and the process cannot exit.
So a client that has a deadline looks the name up here and has libzmq connect to the address. The
look-up runs in a daemon thread, which is abandoned at the deadline and keeps no process alive.
"""

import ipaddress
import queue
import socket
import threading
from typing import Final

from feeder.errors import ConfigError, PeerError, ResourceError

_PREFERRED: Final = (socket.AF_INET, socket.AF_INET6)
"""As libzmq does, which looks for IPv4 addresses first."""


class LookupTimeout(PeerError):  # noqa: N818 -- a name that says what happened
    """Raised when no name server has answered by the deadline."""


def host_name_in(endpoint: str) -> str:
    """Return the host name that an endpoint has to be looked up by, "" where it has none."""
    if not endpoint.startswith("tcp://"):
        return ""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host
    return ""


def resolve_endpoint(endpoint: str, timeout_s: float) -> str:
    """Return ``endpoint`` with the address of its host in place of the name.

    What is no tcp endpoint with a name, or none at all, comes back as it is. Raises PeerError when
    the name has no address or none is found in time, ConfigError when it can be no name.
    """
    host, port = host_name_in(endpoint), endpoint.rpartition(":")[2]
    if not host or host == "*" or not port.isdecimal():
        return endpoint
    try:
        address = look_up(host, timeout_s)
    except LookupTimeout as error:
        raise LookupTimeout(f"{endpoint}: {error}") from None
    except OSError as error:
        raise PeerError(
            f"{endpoint}: the name {host} has no address ({error.strerror}): correct it, or give "
            "the address"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{endpoint!r} cannot be dialled ({host!r} is no name: {error})"
        ) from None
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def look_up(host: str, timeout_s: float) -> str:
    """Return an address of ``host``.

    Raises LookupTimeout when there is no answer in time, OSError when there is no such address,
    ValueError for what can be no name, ResourceError where no thread can be started.
    """
    answers: queue.SimpleQueue[str | OSError | ValueError] = queue.SimpleQueue()
    thread = threading.Thread(
        target=lambda: answers.put(_ask(host)), name="feeder name look-up", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:
        raise ResourceError(f"{error}: allow this process more threads") from None
    try:
        answer = answers.get(timeout=max(0.0, timeout_s))
    except queue.Empty:
        raise LookupTimeout(
            f"no name server gave the address of {host} within {timeout_s:.3g} s: try again, or "
            "give the address"
        ) from None
    if isinstance(answer, str):
        return answer
    raise answer


def _ask(host: str) -> str | OSError | ValueError:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, ValueError) as error:
        return error
    for family in _PREFERRED:
        for each in found:
            if each[0] == family:
                return str(each[4][0])
    return OSError(None, "neither IPv4 nor IPv6")
