"""Joins a Ray cluster, with one line for whatever is in the way. May hang: see ``command``."""

import logging
import re
import socket
from collections.abc import Callable
from typing import Any, Final

from feeder.cluster.ray_settings import check_version, explain_missing
from feeder.errors import ConfigError, PeerError

_CONNECT_MAX_S: Final = 3.0


def join(address: str, namespace: str, report: Callable[[str], None]) -> Any:
    """Return the module ``ray``, connected; "" is the cluster of this machine.

    ``report`` is called before each step that may hang. Raises ConfigError, PeerError and
    ResourceError.
    """
    report("importing Ray")
    try:
        import ray
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] == "ray":
            raise explain_missing() from None
        raise
    check_version(ray.__version__)
    if address:
        report(f"connecting to {address}")
        _check_port(address)
    report(f"joining the Ray cluster at {address or 'this machine'}")
    try:
        ray.init(
            address=address or "auto",
            namespace=namespace or None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if not address and isinstance(error, ConnectionError):
            raise PeerError(
                "no Ray cluster runs on this machine: give --address HOST:PORT of one's head, set "
                "RAY_ADDRESS, or start one here with `feeder cluster up --local`"
            ) from None
        raise PeerError(
            f"the Ray cluster at {address or 'this machine'} cannot be joined: {one_line(error)}"
        ) from None
    report("waiting for the cluster's head")
    return ray


def _check_port(address: str) -> None:
    """Raise PeerError where nothing listens; a hanging head is left to the deadline."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{address!r} is no address of a Ray cluster: write HOST:PORT")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_MAX_S).close()
    except OSError as error:
        raise PeerError(
            f"no Ray cluster answers at {address}: {error.strerror or error}; is its head running "
            "(`ray start --head`)?"
        ) from None


def explain_death(error: BaseException) -> str:
    """Return why an actor died: Feeder's own error where it raised one."""
    text = str(error)
    own = re.findall(r"feeder\.errors\.\w+: (.+)", text)
    return str(own[-1]) if own else one_line(error)


def one_line(error: BaseException) -> str:
    """Return the first line of an error of Ray's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
