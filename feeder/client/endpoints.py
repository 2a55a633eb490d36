"""Where feeders are: endpoints as given, in a file that is watched, or behind a DNS name.

    tcp://HOST:PORT     one endpoint
    ipc:///PATH         one endpoint on this host
    file:///PATH        those in a file, a line each (``endpoint_list``)
    dns://NAME:PORT     tcp at every address that the name has now
    feeder://HOST:PORT  what a cluster's controller publishes (lookup.py)

Files are read every second, controllers asked every two, names looked up every ten. While one
cannot be read, or is empty, its last list stays valid: an editor that saves, or a name server that
restarts, ends no job. The HOST of a single endpoint is looked up by libzmq, at each attempt to
connect; here only until it resolves, so that the user learns why nothing answers.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final, Protocol

from feeder.client.endpoint_list import (
    FILE_BYTES_MAX,
    Listing,
    check_endpoint,
    parse_list,
    refuse,
    split_port,
)
from feeder.errors import ConfigError, name_some
from feeder.process.name_lookup import describe_no_address, host_name_in
from feeder.process.regular_file import IrregularFileError, read_regular
from feeder.security.keys import ClientKeys

ENDPOINTS_MAX: Final = 4096  # a client connects to few of them (``core.link_choice``)
FILE_INTERVAL_S: Final = 1.0
NAME_INTERVAL_S: Final = 10.0
_CHECK_INTERVAL_S: Final = 1.0
_REMOTE: Final = ("dns://", "feeder://")
"""Lists that another machine answers for: it may exceed the caller's deadline, or come up later."""

_log = logging.getLogger(__name__)


class Source(Protocol):
    """A list of endpoints."""

    interval_s: float
    """How often to read it; infinite if it never changes."""

    def read(self) -> Listing:
        """Return the endpoints; OSError where they cannot be read, ConfigError if malformed."""


class _Fixed:
    interval_s = float("inf")

    def __init__(self, endpoint: str) -> None:
        self._endpoint = check_endpoint(endpoint)
        _check_name(host_name_in(endpoint), endpoint)

    def read(self) -> Listing:
        return {self._endpoint: ""}


class _File:
    interval_s = FILE_INTERVAL_S

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        if not self._path.is_absolute() or "\0" in path:
            raise ConfigError(f"endpoint file://{path}: write file:// and an absolute path")

    def read(self) -> Listing:
        try:
            content = read_regular(self._path, FILE_BYTES_MAX + 1)
        except IrregularFileError as error:
            raise ConfigError(
                f"{self._path}: {error.strerror}: write one endpoint a line into a file"
            ) from None
        return parse_list(content, str(self._path))


class _Name:
    interval_s = NAME_INTERVAL_S

    def __init__(self, text: str) -> None:
        self._host, self._port = split_port(text, f"dns://{text}")
        _check_name(self._host, f"dns://{text}")

    def read(self) -> Listing:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = sorted({str(each[4][0]) for each in found})
        hosts = [f"[{address}]" if ":" in address else address for address in addresses]
        return {f"tcp://{host}:{self._port}": "" for host in hosts}


def _check_name(host: str, whole: str) -> None:
    try:
        host.encode("idna")
    except UnicodeError as error:
        raise refuse(whole, f"it is no host name: {error}") from None


def open_source(text: str, keys: ClientKeys | None = None) -> Source:
    """Return the source that ``text`` describes; ConfigError if it is malformed.

    ``keys`` are for a controller, which has the feeders' keys.
    """
    scheme, _, rest = text.partition("://")
    match scheme:
        case "file":
            return _File(rest)
        case "dns":
            return _Name(rest)
        case "feeder":
            from feeder.client.lookup import LookupSource

            split_port(rest, text)
            return LookupSource(rest, keys)
        case _:
            return _Fixed(text)


class Directory:
    """All endpoints of a job, watched by a thread: a disk or a name server may hang.

    ``close()`` does not wait for a read that hangs.
    """

    def __init__(
        self, names: str | os.PathLike[str] | Sequence[str], keys: ClientKeys | None = None
    ) -> None:
        """Check the names; ConfigError for a malformed one. A path is a file of endpoints."""
        texts = _list_texts(names)
        self.name = name_some(texts)
        self._sources = {text: open_source(text, keys) for text in dict.fromkeys(texts)}
        hosts = {text: host_name_in(text) for text in self._sources}
        self._hosts = {text: host for text, host in hosts.items() if host}  # not resolved yet
        self._found: dict[str, Listing] = {}
        self._problems: dict[str, str] = {}
        self._unresolved: dict[str, str] = {}
        self._is_closed = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def may_be_local(self) -> bool:
        """Whether an endpoint may be one of this host, by ipc."""
        return any(not text.startswith(("tcp://", *_REMOTE)) for text in self._sources)

    @property
    def problems(self) -> list[str]:
        """The files and names that cannot be read now, one line with the reason for each."""
        return list(self._problems.values())

    @property
    def unresolved(self) -> dict[str, str]:
        """The endpoints with a host name that does not resolve now, each with the reason."""
        return self._unresolved.copy()

    def read(self) -> Listing:
        """Read lists and files; return the endpoints, each once. Names wait for ``watch``.

        Raises ConfigError for a file that is missing or malformed the first time; later, and for
        a name that does not resolve, the last list stays valid and a warning is logged.
        """
        for text, source in self._sources.items():
            if not text.startswith(_REMOTE):
                self._read(text, source)
        return self._endpoints()

    def refresh(self, passed_s: float = 0.0) -> Listing:
        """Read the sources that are due after ``passed_s``; return all endpoints, each once.

        It may block as long as a name server or a disk does. Names that were not found yet are
        looked up each time: a job may start before its feeders.
        """
        for text, source in self._sources.items():
            if passed_s % source.interval_s == 0 or text not in self._found:
                self._read(text, source)
        return self._endpoints()

    def watch(self, changed: Callable[[Listing], None]) -> None:
        """Call ``changed`` from another thread whenever the endpoints change, until closed."""
        if self._hosts or self._has_lists:
            threading.Thread(
                target=self._watch, args=(changed,), name="feeder endpoints", daemon=True
            ).start()

    def close(self) -> None:
        """End the watch.

        The garbage collector may call this in any thread, the watch's too, at any point. A
        SimpleQueue is reentrant; an Event has a lock, which that thread may hold.
        """
        self._is_closed = True
        self._wake.put(None)

    @property
    def _has_lists(self) -> bool:
        return any(source.interval_s < float("inf") for source in self._sources.values())

    def _watch(self, changed: Callable[[Listing], None]) -> None:
        last, passed_s = self._endpoints(), 0.0
        while not self._is_closed:
            now = self.refresh(passed_s)
            if now != last and not self._is_closed:
                last = now
                changed(now)
            self._look_up_hosts()
            if not (self._hosts or self._has_lists):
                return
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=_CHECK_INTERVAL_S)
            passed_s += _CHECK_INTERVAL_S

    def _look_up_hosts(self) -> None:
        """Look up the hosts that did not resolve yet, and log those that do not, once."""
        missing = []
        for text, host in list(self._hosts.items()):
            try:
                socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError as error:
                if text not in self._unresolved:
                    missing.append(text)
                self._unresolved[text] = f"the name {host} {describe_no_address(error)}"
            else:
                del self._hosts[text]
                self._unresolved.pop(text, None)
        if missing:
            reasons = [f"{text}: {self._unresolved[text]}" for text in missing]
            _log.warning("%s; waiting", name_some(reasons, "; "))

    def _read(self, text: str, source: Source) -> None:
        try:
            endpoints = source.read()
            if not endpoints:
                raise ConfigError(f"{text}: lists no endpoint")
            if len(endpoints) > ENDPOINTS_MAX:
                raise ConfigError(
                    f"{text}: lists more than the maximum of {ENDPOINTS_MAX} endpoints"
                )
        except (OSError, ConfigError) as error:
            is_new = text not in self._found
            reason = f"{text}: {error.strerror}" if isinstance(error, OSError) else str(error)
            if is_new and not text.startswith(_REMOTE):
                raise ConfigError(f"endpoint {reason}") from None
            if self._problems.get(text) != reason:
                self._problems[text] = reason
                _log.warning("%s; %s", reason, "waiting" if is_new else "its last list stays valid")
        else:
            self._found[text] = endpoints
            self._problems.pop(text, None)

    def _endpoints(self) -> Listing:
        listing: Listing = {}
        for text in self._sources:
            for endpoint, name in self._found.get(text, {}).items():
                listing[endpoint] = name or listing.get(endpoint, "")
        return listing


def _list_texts(names: object) -> list[str]:
    """Return the endpoints that a caller gave, whatever that is; ConfigError for another type."""
    if isinstance(names, os.PathLike):
        return [f"file://{Path(names).absolute()}"]
    if isinstance(names, Iterable) and not isinstance(names, str | bytes):
        texts = list(names)
        wrong = [(at, text) for at, text in enumerate(texts) if not isinstance(text, str)]
        if not texts:
            raise ConfigError("endpoint: the list is empty: give at least one")
        if not wrong:
            return texts
        names, where = wrong[0][1], f" as item {wrong[0][0]} of the list"
    elif isinstance(names, str):
        return [names]
    else:
        where = ""
    kind = repr(names) if names is None or isinstance(names, int) else type(names).__name__
    raise ConfigError(
        "endpoint must be a string such as tcp://HOST:PORT, a list of strings, or the Path of a "
        f"file of endpoints, got {kind}{where}"
    )
