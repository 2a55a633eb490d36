"""Lists of endpoints: what a user names, and the endpoints that it stands for now.

    tcp://HOST:PORT     one endpoint
    ipc:///PATH         one endpoint on this host
    file:///PATH        those in a file
    dns://NAME:PORT     tcp at every address that the name has now
    feeder://HOST:PORT  what a cluster's controller publishes, in the format of a file

A file has one endpoint a line, after the feeder's name where it has one; # begins a comment:

    tcp://10.0.0.1:5555
    rack3-node7 tcp://10.0.0.2:5555

Lanes are owned by name (``serve.name``): a pod that is renumbered, or a host that is replaced,
keeps its lanes. A controller (ROUTER) answers LOOKUP_REQUEST with that line and the list.
"""

import errno
import ipaddress
import re
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import zmq

from feeder.client.connection import open_context
from feeder.errors import ConfigError, FeederError
from feeder.process.name_lookup import host_name_in, resolve_endpoint
from feeder.process.regular_file import IrregularFileError, read_regular
from feeder.security.handshake import dial, probe_mechanism
from feeder.security.keys import ClientKeys

FILE_BYTES_MAX: Final = 1 << 20
ENDPOINTS_MAX: Final = 4096  # a client connects to few of them (``core.links``)

INTERVALS_S: Final = {"file": 1.0, "feeder": 2.0, "dns": 10.0}
"""How often lists are read, by scheme."""

LOOKUP_REQUEST: Final = b"feeder-endpoints/1"
LOOKUP_S: Final = 3.0  # the most that a look-up takes
_NAME_SERVER_S: Final = 60.0  # longer than the resolver tries
_ANSWER_HEAD: Final = LOOKUP_REQUEST + b"\n"

Listing: TypeAlias = dict[str, str]
"""Endpoints in their order, each with its feeder's name; "" without one."""

_PORT: Final = re.compile(r"[0-9]{1,5}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def open_source(text: str, keys: ClientKeys | None = None) -> Callable[[], Listing]:
    """A function that reads what ``text`` names; ConfigError if that is malformed.

    It raises OSError while the list cannot be read, or FeederError: PeerError where the host name
    of a single endpoint does not resolve, ConfigError for an invalid list. ``keys`` are for a
    controller, which has the feeders' keys.
    """
    scheme, _, rest = text.partition("://")
    host = ""
    match scheme:
        case "file":
            if not rest.startswith("/") or "\0" in rest:
                raise ConfigError(f"endpoint {text}: write file:// and an absolute path")
            read: Callable[[], Listing] = partial(_read_file, Path(rest))
        case "dns":
            host, port = split_port(rest, text)
            read = partial(_resolve_all, host, port)
        case "feeder":
            split_port(rest, text)
            read = partial(_look_up, rest, keys)
        case _:
            host = host_name_in(check_endpoint(text))
            read = partial(_check_name, text)
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise _refuse(text, f"it is no host name: {error}") from None

    def read_some() -> Listing:
        listing = read()
        if not listing:
            raise ConfigError(f"{text}: lists no endpoint")
        if len(listing) > ENDPOINTS_MAX:
            raise ConfigError(f"{text}: lists more than the maximum of {ENDPOINTS_MAX} endpoints")
        return listing

    return read_some


def check_endpoint(text: str) -> str:
    """Return ``text``; ConfigError if it cannot be dialled."""
    if text.startswith("ipc:///") and len(text) > len("ipc:///") and "\0" not in text:
        return text
    if not text.startswith("tcp://"):
        raise _refuse(text, "neither tcp nor ipc")
    split_port(text.removeprefix("tcp://"), text)
    return text


def split_port(text: str, whole: str) -> tuple[str, int]:
    """Split HOST:PORT; ConfigError quotes the ``whole``."""
    host, _, port = text.rpartition(":")
    if not host or not host.isprintable() or " " in host:
        raise _refuse(whole, "it has no host and port")
    if not (_PORT.fullmatch(port) and 0 < int(port) < 65_536):
        raise _refuse(whole, f"{port!r} is no port 1 .. 65535")
    if ":" in host:
        try:
            ipaddress.IPv6Address(host.removeprefix("[").removesuffix("]").partition("%")[0])
        except ValueError:
            raise _refuse(whole, f"{host} is no IPv6 address") from None
        if not (host.startswith("[") and host.endswith("]")):
            raise _refuse(whole, "an IPv6 address needs brackets")
    return host, int(port)


def _refuse(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"endpoint {text!r} cannot be dialled ({reason}): use tcp://HOST:PORT or ipc:///PATH, or "
        "dns://NAME:PORT, feeder://HOST:PORT or file:///PATH for many"
    )


# --- Files ------------------------------------------------------------------------------------


def _read_file(path: Path) -> Listing:
    try:
        content = read_regular(path, FILE_BYTES_MAX + 1)
    except IrregularFileError as error:
        raise ConfigError(
            f"{path}: {error.strerror}: write one endpoint a line into a file"
        ) from None
    return parse_list(content, str(path))


def parse_list(content: bytes, where: str) -> Listing:
    """The endpoints in a list's content; ConfigError names ``where`` and the line."""
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
        if text.partition("://")[0] in INTERVALS_S:
            raise ConfigError(f"{text!r} is a list: give it to the loader beside the file")
        return "", check_endpoint(text)
    name, endpoint = words
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a feeder: use letters, digits and after the first of these "
            "also . _ -, 128 at most"
        )
    return name, check_endpoint(endpoint)


# --- Names and controllers --------------------------------------------------------------------


def _resolve_all(host: str, port: int) -> Listing:
    records = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = sorted({str(record[4][0]) for record in records})
    hosts = [f"[{address}]" if ":" in address else address for address in addresses]
    return {f"tcp://{host}:{port}": "" for host in hosts}


def _check_name(endpoint: str) -> Listing:
    resolve_endpoint(endpoint, _NAME_SERVER_S)  # libzmq connects by name: it is for the error only
    return {endpoint: ""}


def _look_up(address: str, keys: ClientKeys | None) -> Listing:
    """Ask the controller at HOST:PORT, within LOOKUP_S."""
    name, deadline_s = f"feeder://{address}", time.monotonic() + LOOKUP_S
    try:
        endpoint = resolve_endpoint(f"tcp://{address}", LOOKUP_S)
        context = open_context(name)
    except FeederError as error:
        raise OSError(errno.EHOSTUNREACH, str(error)) from None
    try:
        with context.socket(zmq.DEALER) as dealer:
            dealer.set(zmq.LINGER, 0)
            dealer.set(zmq.MAXMSGSIZE, len(_ANSWER_HEAD) + FILE_BYTES_MAX)
            dial(dealer, endpoint, keys)
            dealer.send(LOOKUP_REQUEST)
            if dealer.poll(max(1, round((deadline_s - time.monotonic()) * 1000))):
                return parse_answer(dealer.recv_multipart()[-1], name)
    except zmq.ZMQError as error:
        raise OSError(error.errno, f"no look-up is possible: {error.strerror}") from None
    finally:
        context.destroy(linger=0)
    raise OSError(errno.ETIMEDOUT, _explain_silence(endpoint, keys))


def _explain_silence(endpoint: str, keys: ClientKeys | None) -> str:
    host, port = split_port(endpoint.removeprefix("tcp://"), endpoint)
    mechanism = probe_mechanism((host.strip("[]"), port))
    if mechanism == "CURVE" and keys is None:
        return "the controller accepts only clients with keys: give server_key and client_key"
    if mechanism == "CURVE":
        return (
            "the controller does not accept these keys: check that server_key is its public "
            "key and that client_key is on its list"
        )
    if mechanism == "NULL" and keys is not None:
        return "the controller has no keys: leave out server_key and client_key, or set its own"
    return f"no controller answered within {LOOKUP_S:g} s: see `feeder cluster status`"


def parse_answer(data: bytes, where: str) -> Listing:
    """The endpoints in a controller's answer; ConfigError names ``where`` for a malformed one."""
    if not data.startswith(_ANSWER_HEAD):
        raise ConfigError(
            f"{where}: what answers is no controller of a cluster: give the address that "
            "`feeder cluster status` shows"
        )
    return parse_list(data.removeprefix(_ANSWER_HEAD), where)


def format_answer(listed: str) -> bytes:
    return _ANSWER_HEAD + listed.encode()
