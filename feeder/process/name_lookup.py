"""Resolves host names within a deadline, even if no name server answers.

libzmq resolves names in its I/O thread, and a context whose thread waits for a name server cannot
be closed. So a client with a deadline resolves the name here, in a daemon thread that it abandons
at the deadline, and has libzmq connect to the address.
"""

import ipaddress
import socket
import threading
from concurrent.futures import Future

from feeder.errors import ConfigError, PeerError, ResourceError


def host_name_in(endpoint: str) -> str:
    """The host name in an endpoint that needs a look-up, "" if there is none."""
    if not endpoint.startswith("tcp://"):
        return ""
    host = endpoint.removeprefix("tcp://").rpartition(":")[0]
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return host
    return ""


def resolve_endpoint(endpoint: str, timeout_s: float) -> str:
    """Replace the host name in ``endpoint`` by an address.

    Anything but a tcp endpoint with a name is returned unchanged. Raises PeerError when the name
    has no address or none is found in time, ConfigError when it is not a valid name.
    """
    host, port = host_name_in(endpoint), endpoint.rpartition(":")[2]
    if not host or host == "*" or not port.isdecimal():
        return endpoint
    try:
        address = look_up(host, timeout_s)
    except TimeoutError as error:
        raise PeerError(f"{endpoint}: {error}") from None
    except OSError as error:
        raise PeerError(
            f"{endpoint}: the name {host} does not resolve ({error.strerror}): correct it, or give "
            "the address"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{endpoint!r} cannot be dialled ({host!r} is not a host name: {error})"
        ) from None
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def look_up(host: str, timeout_s: float) -> str:
    """Look up an address of ``host``.

    Raises TimeoutError when no name server answers in time, another OSError without an address,
    ValueError for an invalid name, ResourceError when no thread can be started.
    """
    address: Future[str] = Future()

    def resolve() -> None:
        try:
            rows = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            first = min(rows, key=lambda row: row[0])  # IPv4 first, as in libzmq
            address.set_result(str(first[4][0]))
        except (OSError, ValueError) as error:
            address.set_exception(error)

    try:
        threading.Thread(target=resolve, name="feeder name look-up", daemon=True).start()
        return address.result(max(0.0, timeout_s))
    except RuntimeError as error:
        raise ResourceError(f"{error}: allow this process more threads") from None
    except TimeoutError:
        raise TimeoutError(
            f"no name server gave the address of {host} within {timeout_s:.3g} s: try again, or "
            "give the address"
        ) from None
