"""Where feeders are: endpoints as given, in a file that is watched, or behind a DNS name.

    tcp://HOST:PORT     one endpoint
    ipc:///PATH         one endpoint on this host
    file:///PATH        one endpoint in each line of a file; # begins a comment
    dns://NAME:PORT     tcp at every address that the name has now

Files are read every second, names looked up every ten. While one cannot be read, or is empty, its
last list stays valid: an editor that saves, or a name server that restarts, ends no job.
"""

import contextlib
import ipaddress
import logging
import os
import queue
import re
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from feeder.errors import ConfigError
from feeder.process.regular_file import IrregularFileError, read_regular

FILE_BYTES_MAX: Final = 1 << 20
ENDPOINTS_MAX: Final = 256  # each takes some four descriptors, of which there often are 1024
FILE_INTERVAL_S: Final = 1.0
NAME_INTERVAL_S: Final = 10.0
_CHECK_INTERVAL_S: Final = 1.0
_PORT: Final = re.compile(r"[0-9]{1,5}")

_log = logging.getLogger(__name__)


class Source(Protocol):
    """A list of endpoints."""

    interval_s: float
    """How often to read it; infinite if it never changes."""

    def read(self) -> tuple[str, ...]:
        """Return the endpoints; OSError where they cannot be read, ConfigError if malformed."""


class _Fixed:
    interval_s = float("inf")

    def __init__(self, endpoint: str) -> None:
        self._endpoint = check_endpoint(endpoint)

    def read(self) -> tuple[str, ...]:
        return (self._endpoint,)


class _File:
    interval_s = FILE_INTERVAL_S

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        if not self._path.is_absolute() or "\0" in path:
            raise ConfigError(f"endpoint file://{path}: write file:// and an absolute path")

    def read(self) -> tuple[str, ...]:
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
        self._host, self._port = _split_port(text, f"dns://{text}")
        try:
            self._host.encode("idna")
        except UnicodeError as error:
            raise _refuse(f"dns://{text}", f"it is no host name: {error}") from None

    def read(self) -> tuple[str, ...]:
        found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        addresses = sorted({str(each[4][0]) for each in found})
        return tuple(
            f"tcp://[{address}]:{self._port}" if ":" in address else f"tcp://{address}:{self._port}"
            for address in addresses
        )


def parse_list(content: bytes, where: str) -> tuple[str, ...]:
    """Return the endpoints in a file's content; ConfigError names ``where`` and the line."""
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{where}: over {FILE_BYTES_MAX} bytes: it is no list of endpoints")
    endpoints: list[str] = []
    for number, line in enumerate(content.split(b"\n"), 1):
        try:
            text = line.partition(b"#")[0].decode().strip()
            if text.startswith(("dns://", "file://")):
                raise ConfigError(f"{text!r} is a list: give it to the loader beside the file")
            if text:
                endpoints.append(check_endpoint(text))
        except UnicodeDecodeError:
            raise ConfigError(f"{where}:{number}: not UTF-8: write one endpoint a line") from None
        except ConfigError as error:
            raise ConfigError(f"{where}:{number}: {error}") from None
    return tuple(dict.fromkeys(endpoints))


def check_endpoint(text: str) -> str:
    """Return an endpoint that can be dialled; ConfigError for anything else."""
    if text.startswith("ipc:///") and len(text) > len("ipc:///") and "\0" not in text:
        return text
    if not text.startswith("tcp://"):
        raise _refuse(text, "neither tcp nor ipc")
    _split_port(text.removeprefix("tcp://"), text)
    return text


def _refuse(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"endpoint {text!r} cannot be dialled ({reason}): use tcp://HOST:PORT or ipc:///PATH, or "
        "dns://NAME:PORT or file:///PATH for many"
    )


def _split_port(text: str, whole: str) -> tuple[str, int]:
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


def open_source(text: str) -> Source:
    """Return the source that ``text`` describes; ConfigError if it is malformed."""
    scheme, _, rest = text.partition("://")
    match scheme:
        case "file":
            return _File(rest)
        case "dns":
            return _Name(rest)
        case _:
            return _Fixed(text)


class Directory:
    """All endpoints of a job, watched by a thread: a disk or a name server may hang.

    ``close()`` does not wait for a read that hangs.
    """

    def __init__(self, names: str | os.PathLike[str] | Sequence[str]) -> None:
        """Check the names; ConfigError for a malformed one. A path is a file of endpoints."""
        texts = [names] if isinstance(names, str) else names
        if isinstance(texts, os.PathLike):
            texts = [f"file://{Path(texts).absolute()}"]
        if not texts:
            raise ConfigError("endpoint: the list is empty: give at least one")
        self.name = ", ".join(texts)
        self._sources = {text: open_source(text) for text in dict.fromkeys(texts)}
        self._found: dict[str, tuple[str, ...]] = {}
        self._problems: dict[str, str] = {}
        self._is_closed = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def may_be_local(self) -> bool:
        """Whether an endpoint may be one of this host, by ipc."""
        return any(not text.startswith(("tcp://", "dns://")) for text in self._sources)

    @property
    def problems(self) -> list[str]:
        """The files and names that cannot be read now, one line with the reason for each."""
        return list(self._problems.values())

    def read(self) -> tuple[str, ...]:
        """Read lists and files; return the endpoints, each once. Names wait for ``watch``.

        Raises ConfigError for a file that is missing or malformed the first time; later, and for
        a name that does not resolve, the last list stays valid and a warning is logged.
        """
        for text, source in self._sources.items():
            if not isinstance(source, _Name):  # a name server may exceed the caller's deadline
                self._read(text, source)
        return self._endpoints()

    def refresh(self, passed_s: float = 0.0) -> tuple[str, ...]:
        """Read the sources that are due after ``passed_s``; return all endpoints, each once.

        It may block as long as a name server or a disk does. Names that were not found yet are
        looked up each time: a job may start before its feeders.
        """
        for text, source in self._sources.items():
            if passed_s % source.interval_s == 0 or text not in self._found:
                self._read(text, source)
        return self._endpoints()

    def watch(self, changed: Callable[[tuple[str, ...]], None]) -> None:
        """Call ``changed`` from another thread whenever the endpoints change, until closed."""
        if any(source.interval_s < float("inf") for source in self._sources.values()):
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

    def _watch(self, changed: Callable[[tuple[str, ...]], None]) -> None:
        last, passed_s = self._endpoints(), 0.0
        while not self._is_closed:
            now = self.refresh(passed_s)
            if now != last and not self._is_closed:
                last = now
                changed(now)
            with contextlib.suppress(queue.Empty):
                self._wake.get(timeout=_CHECK_INTERVAL_S)
            passed_s += _CHECK_INTERVAL_S

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
            if is_new and not text.startswith("dns://"):
                raise ConfigError(f"endpoint {reason}") from None
            if self._problems.get(text) != reason:
                self._problems[text] = reason
                _log.warning("%s; %s", reason, "waiting" if is_new else "its last list stays valid")
        else:
            self._found[text] = endpoints
            self._problems.pop(text, None)

    def _endpoints(self) -> tuple[str, ...]:
        found = (each for text in self._sources for each in self._found.get(text, ()))
        return tuple(dict.fromkeys(found))
