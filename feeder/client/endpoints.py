"""The endpoints of a job: what a user names, what it stands for now, and a watch over that.

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

While a list cannot be read, or is empty, its last one stays valid: an editor that saves, or a name
server that restarts, ends no job. libzmq looks up the HOST of a single endpoint at each attempt to
connect; it is looked up here only until it resolves, so that the user learns why nothing answers.
"""

import errno
import ipaddress
import logging
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Final, TypeAlias

import zmq

from feeder.client.connection import open_context
from feeder.errors import ConfigError, FeederError, name_some
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
_TICK_S: Final = 1.0  # between attempts to read what was never read; a closed watch ends in it

_log = logging.getLogger(__name__)

Listing: TypeAlias = dict[str, str]
"""Endpoints in their order, each with its feeder's name; "" without one."""

_PORT: Final = re.compile(r"[0-9]{1,5}")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Source:
    """A text that the user gave: how it is read, when that is due, and what it listed last."""

    def __init__(self, text: str, keys: ClientKeys | None = None) -> None:
        """ConfigError if ``text`` is malformed. ``keys`` are for a controller, which has the
        feeders' keys."""
        self.text = text
        self.scheme, _, rest = text.partition("://")
        self.interval_s = INTERVALS_S.get(self.scheme, inf)
        self.due_s = 0.0
        self.was_read = False
        self.listing: Listing = {}
        host = ""
        match self.scheme:
            case "file":
                if not rest.startswith("/") or "\0" in rest:
                    raise ConfigError(f"endpoint {text}: write file:// and an absolute path")
                self._read: Callable[[], Listing] = partial(_read_file, Path(rest))
            case "dns":
                host, port = split_port(rest, text)
                self._read = partial(_resolve_all, host, port)
            case "feeder":
                split_port(rest, text)
                self._read = partial(_look_up, rest, keys)
            case _:
                host = host_name_in(check_endpoint(text))
                self._read = partial(_check_name, text)
                self.listing = {text: ""}  # dialled before its name resolves
                self.due_s = 0.0 if host else inf
        try:
            host.encode("idna")
        except UnicodeError as error:
            raise _refuse(text, f"it is no host name: {error}") from None

    def read(self) -> None:
        """Read what the text lists now.

        Raises OSError while that cannot be read, or FeederError: PeerError where the host name of a
        single endpoint does not resolve, ConfigError for an invalid list.
        """
        listing = self._read()
        if not listing:
            raise ConfigError(f"{self.text}: lists no endpoint")
        if len(listing) > ENDPOINTS_MAX:
            raise ConfigError(
                f"{self.text}: lists more than the maximum of {ENDPOINTS_MAX} endpoints"
            )
        self.listing, self.was_read = listing, True


def check_endpoint(text: str) -> str:
    """The same ``text``; ConfigError if it cannot be dialled."""
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


# --- All of a job -----------------------------------------------------------------------------


class Directory:
    """What a job's endpoints are now; ``close()`` does not wait for a read that hangs."""

    def __init__(
        self, names: str | os.PathLike[str] | Sequence[str], keys: ClientKeys | None = None
    ) -> None:
        """Check the names; ConfigError for a malformed one. A path is a file of endpoints."""
        texts = _list_texts(names)
        self.name = name_some(texts)
        self.problems: dict[str, str] = {}
        """Why a list cannot be read now, or a host name not resolved, by its text: a line each."""
        self._sources = [Source(text, keys) for text in dict.fromkeys(texts)]
        self._is_closed = False

    @property
    def may_be_local(self) -> bool:
        """Whether an endpoint may be one of this host, by ipc."""
        return any(source.scheme in ("ipc", "file") for source in self._sources)

    def read(self) -> Listing:
        """Read the files; return all endpoints, each once. The rest waits for ``watch``.

        Raises ConfigError for a file that is missing or malformed the first time; later, and for
        what another machine answers, the last list stays valid and a warning is logged.
        """
        return self._read(source for source in self._sources if source.scheme == "file")

    def refresh(self) -> Listing:
        """Read what is due, as long as disk or name server take; return all endpoints."""
        return self._read(source for source in self._sources if source.due_s <= time.monotonic())

    def watch(self, changed: Callable[[Listing], None]) -> None:
        """Call ``changed`` from another thread whenever the endpoints change, until closed."""
        if self._due_s() < inf:
            threading.Thread(
                target=self._watch, args=(changed,), name="feeder endpoints", daemon=True
            ).start()

    def close(self) -> None:
        """End the watch, within a tick.

        A flag and no event, as the garbage collector may call this while the watch holds its lock.
        """
        self._is_closed = True

    def _watch(self, changed: Callable[[Listing], None]) -> None:
        last = self._endpoints()
        while not self._is_closed and (due_s := self._due_s()) < inf:
            time.sleep(max(0.0, min(due_s - time.monotonic(), _TICK_S)))
            now = self.refresh()
            if now != last and not self._is_closed:
                last = now
                changed(now)

    def _due_s(self) -> float:
        return min(source.due_s for source in self._sources)

    def _read(self, sources: Iterable[Source]) -> Listing:
        news = []
        for source in sources:
            if self._is_closed:
                break
            text = source.text
            try:
                source.read()
                self.problems.pop(text, None)
            except (OSError, FeederError) as error:
                reason = f"{text}: {error.strerror}" if isinstance(error, OSError) else str(error)
                if source.scheme == "file" and not source.was_read:
                    raise ConfigError(f"endpoint {reason}") from None
                if self.problems.get(text) != reason:
                    self.problems[text] = reason
                    outcome = "its last list stays valid" if source.was_read else "waiting"
                    news.append(f"{reason}; {outcome}")
            pause_s = source.interval_s if source.was_read else _TICK_S
            source.due_s = time.monotonic() + pause_s
        if news:
            _log.warning("%s", name_some(news, "; "))
        return self._endpoints()

    def _endpoints(self) -> Listing:
        listing: Listing = {}
        for source in self._sources:
            for endpoint, name in source.listing.items():
                listing[endpoint] = name or listing.get(endpoint, "")
        return listing


def _list_texts(names: object) -> list[str]:
    """The endpoints that a caller gave, whatever that is; ConfigError for another type."""
    if isinstance(names, str):
        return [names]
    if isinstance(names, os.PathLike):
        return [f"file://{Path(names).absolute()}"]
    where = ""
    if isinstance(names, Iterable) and not isinstance(names, bytes):
        texts = list(names)
        if not texts:
            raise ConfigError("endpoint: the list is empty: give at least one")
        wrong = [at for at, text in enumerate(texts) if not isinstance(text, str)]
        if not wrong:
            return texts
        names, where = texts[wrong[0]], f" as item {wrong[0]} of the list"
    kind = repr(names) if names is None or isinstance(names, int) else type(names).__name__
    raise ConfigError(
        "endpoint must be a string such as tcp://HOST:PORT, a list of strings, or the Path of a "
        f"file of endpoints, got {kind}{where}"
    )
