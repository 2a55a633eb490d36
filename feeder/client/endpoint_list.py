"""What a list of endpoints may hold, and how it is written.

    tcp://10.0.0.1:5555               one endpoint a line; # begins a comment
    rack3-node7 tcp://10.0.0.2:5555   the same, with the name by which lanes are owned

A name stays where an address does not: a pod that is renumbered, or a host that is replaced, keeps
its lanes under its name. Names are those of ``serve.name``: letters, digits and ``. _ -``.
"""

import ipaddress
import re
from typing import Final, TypeAlias

from feeder.errors import ConfigError

FILE_BYTES_MAX: Final = 1 << 20
LISTS: Final = ("dns://", "file://", "feeder://")
"""Schemes of lists, which no list may hold."""

Listing: TypeAlias = dict[str, str]
"""Endpoints in their order, each with its name; "" without one."""

_PORT: Final = re.compile(r"[0-9]{1,5}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def parse_list(content: bytes, where: str) -> Listing:
    """Return the endpoints in a list's content; ConfigError names ``where`` and the line."""
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{where}: over {FILE_BYTES_MAX} bytes: it is no list of endpoints")
    listing: Listing = {}
    numbers: dict[str, int] = {}  # by name, of its line
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            text = line.partition(b"#")[0].decode().strip()
            if text:
                name, endpoint = _parse_line(text)
                if name and numbers.setdefault(name, number) != number:
                    raise ConfigError(
                        f"{name!r} is the name of line {numbers[name]} already: give each feeder "
                        "one line and a name of its own"
                    )
                listing[endpoint] = name or listing.get(endpoint, "")
        except UnicodeDecodeError:
            raise ConfigError(f"{where}:{number}: not UTF-8: write one endpoint a line") from None
        except ConfigError as error:
            raise ConfigError(f"{where}:{number}: {error}") from None
    return listing


def _parse_line(text: str) -> tuple[str, str]:
    words = text.split()
    if len(words) != 2 or "://" in words[0]:
        if text.startswith(LISTS):
            raise ConfigError(f"{text!r} is a list: give it to the loader beside the file")
        return "", check_endpoint(text)
    name, endpoint = words
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a feeder: use letters, digits and after the first of these "
            "also . _ -, 128 at most"
        )
    return name, check_endpoint(endpoint)


def check_endpoint(text: str) -> str:
    """Return an endpoint that can be dialled; ConfigError for anything else."""
    if text.startswith("ipc:///") and len(text) > len("ipc:///") and "\0" not in text:
        return text
    if not text.startswith("tcp://"):
        raise refuse(text, "neither tcp nor ipc")
    split_port(text.removeprefix("tcp://"), text)
    return text


def refuse(text: str, reason: str) -> ConfigError:
    """Return the error for an endpoint or list that cannot be used."""
    return ConfigError(
        f"endpoint {text!r} cannot be dialled ({reason}): use tcp://HOST:PORT or ipc:///PATH, or "
        "dns://NAME:PORT, feeder://HOST:PORT or file:///PATH for many"
    )


def split_port(text: str, whole: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT; ConfigError quotes the ``whole``."""
    host, _, port = text.rpartition(":")
    if not host or not host.isprintable() or " " in host:
        raise refuse(whole, "it has no host and port")
    if not (_PORT.fullmatch(port) and 0 < int(port) < 65_536):
        raise refuse(whole, f"{port!r} is no port 1 .. 65535")
    if ":" in host:
        try:
            ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]").partition("%")[0])
        except ValueError:
            raise refuse(whole, f"{host} is no IPv6 address") from None
        if not (host.startswith("[") and host.endswith("]")):
            raise refuse(whole, "an IPv6 address needs brackets")
    return host, int(port)
