"""Credentials that expire: refreshed early, at a random time, and kept while that fails.

A refresh is due in the last quarter of their lifetime, at most 15 minutes before they expire, with
jitter: hosts that started together do not refresh together. If it fails, requests go on with the
current credentials until these have expired, and the next attempt is half a minute later.
"""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from feeder.errors import ConfigError, StoreError

_EARLY_S: Final = 900.0
_EARLY_SHARE: Final = 0.25  # of the remaining lifetime
_ASK_AGAIN_S: Final = 30.0
_LIFE_MIN_S: Final = 5.0
"""Of the last outcome: requests that wait for the lock reuse it instead of asking in turn."""

_log = logging.getLogger(__name__)


class Found(NamedTuple):
    """Credentials as obstore takes them."""

    values: Mapping[str, str | None]
    expires_s: float | None = None
    """Seconds since the epoch; None if that is unknown, or never."""


class Credentials:
    """The current credentials of a store. One thread refreshes them, while others go on."""

    refresh_threshold = timedelta(0)  # obstore reads it: it calls again at `expires_at`, not before

    def __init__(
        self,
        find: Callable[[], Found],
        on_failure: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``find`` gets them, or raises StoreError; ``on_failure`` counts refreshes that failed."""
        self._find = find
        self._on_failure = on_failure
        self._clock = clock
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._error: StoreError | ConfigError | None = None
        self._asked_s = 0.0
        self._due_s: float | None = 0.0  # None: never

    @property
    def found(self) -> Found | None:
        return self._found

    def refresh(self) -> None:
        """Refresh them if that is due; StoreError if there are none, or only expired ones."""
        if self._due_s is None or self._clock() < self._due_s:
            return
        has_time = self._found is not None and not self._is_over(self._found)
        if not self._lock.acquire(blocking=not has_time):
            return  # another thread does it
        try:
            if self._due_s is not None and self._clock() >= self._due_s:
                self._ask()
        finally:
            self._lock.release()

    def replace(self, refused: Found) -> bool:
        """Ask again, as the store refused these; return whether there are others now.

        The user may have renewed them in their file, or this machine's clock is slow.
        """
        with self._lock:
            if self._found is None or self._found.values == refused.values:
                self._ask()
            return self._found is not None and self._found.values != refused.values

    def __call__(self) -> dict[str, object]:
        """Return them, without a request: obstore's credential provider."""
        assert self._found is not None, "refresh() comes first"
        ask_at = None if self._due_s is None else datetime.fromtimestamp(self._due_s, UTC)
        return {**self._found.values, "expires_at": ask_at}

    def _ask(self) -> None:
        now_s = self._clock()
        if now_s >= self._asked_s + _LIFE_MIN_S:
            self._asked_s, self._error = now_s, None
            try:
                self._found = self._find()
            except (StoreError, ConfigError) as error:  # a file half written
                self._error = error
                self._on_failure()
        if self._found is None:
            assert self._error is not None
            raise self._error
        if self._error is None:
            self._due_s = _next_due_s(self._found.expires_s, self._clock())
        elif not self._is_over(self._found):
            self._due_s = now_s + _ASK_AGAIN_S * random.uniform(0.5, 1.5)
            _log.warning(
                "credentials could not be renewed; the old ones are used until they expire: %s",
                self._error,
            )
        else:
            text = f"the credentials have expired and cannot be renewed: {self._error}"
            raise StoreError("expired", text)

    def _is_over(self, found: Found) -> bool:
        return found.expires_s is not None and self._clock() >= found.expires_s


def _next_due_s(expires_s: float | None, now_s: float) -> float | None:
    if expires_s is None:
        return None
    left_s = expires_s - now_s
    early_s = min(_EARLY_S, _EARLY_SHARE * left_s) * random.uniform(0.5, 1.0)
    return now_s + max(left_s - early_s, 1.0)
