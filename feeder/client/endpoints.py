"""All endpoints of a job, watched by a thread, because a disk or a name server may hang.

Files are read every second, controllers asked every two, names looked up every ten. While one
cannot be read, or is empty, its last list stays valid: an editor that saves, or a name server that
restarts, ends no job. libzmq looks up the HOST of a single endpoint at each attempt to connect; it
is looked up here only until it resolves, so that the user learns why nothing answers.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from feeder.client.endpoint_list import INTERVALS_S, Listing, open_source
from feeder.errors import ConfigError, FeederError, name_some
from feeder.process.name_lookup import host_name_in
from feeder.security.keys import ClientKeys

_TICK_S: Final = 1.0  # between attempts to read what was never read; a closed watch ends in it
_NEVER_S: Final = float("inf")

_log = logging.getLogger(__name__)


class _Source:
    """A text that the user gave: what reads it, when it is due, and what it listed last."""

    def __init__(self, text: str, keys: ClientKeys | None) -> None:
        self.text = text
        self.scheme = text.partition("://")[0]
        self.read = open_source(text, keys)
        self.was_read = False
        is_list = self.scheme in INTERVALS_S
        self.due_s = 0.0 if is_list or host_name_in(text) else _NEVER_S
        self.listing: Listing = {} if is_list else {text: ""}  # dialled before its name resolves


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
        self._sources = [_Source(text, keys) for text in dict.fromkeys(texts)]
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
        """Read what is due, as long as a disk or a name server takes; return all endpoints."""
        return self._read(source for source in self._sources if source.due_s <= time.monotonic())

    def watch(self, changed: Callable[[Listing], None]) -> None:
        """Call ``changed`` from another thread whenever the endpoints change, until closed."""
        if self._due_s() < _NEVER_S:
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
        while not self._is_closed and (due_s := self._due_s()) < _NEVER_S:
            time.sleep(max(0.0, min(due_s - time.monotonic(), _TICK_S)))
            now = self.refresh()
            if now != last and not self._is_closed:
                last = now
                changed(now)

    def _due_s(self) -> float:
        return min(source.due_s for source in self._sources)

    def _read(self, sources: Iterable[_Source]) -> Listing:
        news = []
        for source in sources:
            if self._is_closed:
                break
            text, interval_s = source.text, INTERVALS_S.get(source.scheme, _NEVER_S)
            try:
                source.listing = source.read()
                source.was_read = True
                self.problems.pop(text, None)
            except (OSError, FeederError) as error:
                reason = f"{text}: {error.strerror}" if isinstance(error, OSError) else str(error)
                if source.scheme == "file" and not source.was_read:
                    raise ConfigError(f"endpoint {reason}") from None
                if self.problems.get(text) != reason:
                    self.problems[text] = reason
                    outcome = "its last list stays valid" if source.was_read else "waiting"
                    news.append(f"{reason}; {outcome}")
            source.due_s = time.monotonic() + (interval_s if source.was_read else _TICK_S)
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
