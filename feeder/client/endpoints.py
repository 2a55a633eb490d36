"""All endpoints of a job, watched by a thread, because a disk or a name server may hang.

Files are read every second, controllers asked every two, names looked up every ten. While one
cannot be read, or is empty, its last list stays valid: an editor that saves, or a name server that
restarts, ends no job. libzmq looks up the HOST of a single endpoint at each attempt to connect; it
is looked up here only until it resolves, so that the user learns why nothing answers.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from feeder.client.endpoint_list import INTERVALS_S, Listing, open_source
from feeder.errors import ConfigError, name_some
from feeder.process.name_lookup import describe_no_address, host_name_in
from feeder.security.keys import ClientKeys

_CHECK_INTERVAL_S: Final = 1.0
_REMOTE: Final = ("dns://", "feeder://")
"""Lists that another machine answers for: it may exceed the caller's deadline, or come up later."""

_log = logging.getLogger(__name__)


class Directory:
    """What a job's endpoints are now; ``close()`` does not wait for a read that hangs."""

    def __init__(
        self, names: str | os.PathLike[str] | Sequence[str], keys: ClientKeys | None = None
    ) -> None:
        """Check the names; ConfigError for a malformed one. A path is a file of endpoints."""
        texts = _list_texts(names)
        self.name = name_some(texts)
        self.problems: dict[str, str] = {}
        """Why a list cannot be read now, by its text: a line each."""
        self.unresolved: dict[str, str] = {}
        """Why a host name does not resolve now, by endpoint."""
        self._sources = {text: open_source(text, keys) for text in dict.fromkeys(texts)}
        self._intervals_s = {
            text: INTERVALS_S[scheme]
            for text in self._sources
            if (scheme := text.partition("://")[0]) in INTERVALS_S
        }
        hosts = {text: host_name_in(text) for text in self._sources}
        self._hosts = {text: host for text, host in hosts.items() if host}  # not resolved yet
        self._listings: dict[str, Listing] = {}  # the last valid ones
        self._is_closed = False
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()

    @property
    def may_be_local(self) -> bool:
        """Whether an endpoint may be one of this host, by ipc."""
        return any(not text.startswith(("tcp://", *_REMOTE)) for text in self._sources)

    def read(self) -> Listing:
        """Read lists and files; return the endpoints, each once. Names wait for ``watch``.

        Raises ConfigError for a file that is missing or malformed the first time; later, and for
        a name that does not resolve, the last list stays valid and a warning is logged.
        """
        for text in self._sources:
            if not text.startswith(_REMOTE):
                self._read(text)
        return self._endpoints()

    def refresh(self, passed_s: float = 0.0) -> Listing:
        """Read the lists that are due after ``passed_s``; return all endpoints, each once.

        It may block as long as a name server or a disk does. Lists that were never read are read
        each time: a job may start before its feeders.
        """
        for text in self._sources:
            if (
                text not in self._listings
                or passed_s % self._intervals_s.get(text, float("inf")) == 0
            ):
                self._read(text)
        return self._endpoints()

    def watch(self, changed: Callable[[Listing], None]) -> None:
        """Call ``changed`` from another thread whenever the endpoints change, until closed."""
        if self._hosts or self._intervals_s:
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

    def _watch(self, changed: Callable[[Listing], None]) -> None:
        last, passed_s = self._endpoints(), 0.0
        while not self._is_closed:
            now = self.refresh(passed_s)
            if now != last and not self._is_closed:
                last = now
                changed(now)
            self._look_up_hosts()
            if not (self._hosts or self._intervals_s):
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
                if text not in self.unresolved:
                    missing.append(text)
                self.unresolved[text] = f"the name {host} {describe_no_address(error)}"
            else:
                del self._hosts[text]
                self.unresolved.pop(text, None)
        if missing:
            reasons = [f"{text}: {self.unresolved[text]}" for text in missing]
            _log.warning("%s; waiting", name_some(reasons, "; "))

    def _read(self, text: str) -> None:
        try:
            self._listings[text] = self._sources[text]()
            self.problems.pop(text, None)
        except (OSError, ConfigError) as error:
            is_new = text not in self._listings
            reason = f"{text}: {error.strerror}" if isinstance(error, OSError) else str(error)
            if is_new and not text.startswith(_REMOTE):
                raise ConfigError(f"endpoint {reason}") from None
            if self.problems.get(text) != reason:
                self.problems[text] = reason
                _log.warning("%s; %s", reason, "waiting" if is_new else "its last list stays valid")

    def _endpoints(self) -> Listing:
        listing: Listing = {}
        for text in self._sources:
            for endpoint, name in self._listings.get(text, {}).items():
                listing[endpoint] = name or listing.get(endpoint, "")
        return listing


def _list_texts(names: object) -> list[str]:
    """The endpoints that a caller gave, whatever that is; ConfigError for another type."""
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
