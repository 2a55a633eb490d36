"""Limits repeated log lines: some of each kind in an interval, then their number.

    0 s   a chunk cannot be filled: …                                   10 times
    …     counted, not logged
    60 s  37 more like this within 60 s, the latest: a chunk cannot be filled: …

Without a clock: the caller passes the time. At most KINDS_MAX kinds are told apart; others share
one limit, so that memory is bounded.

Invariant: each message is either admitted or counted in exactly one ``Suppressed``.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

INTERVAL_S: Final = 60.0
ADMITTED_MAX: Final = 10
"""Of a kind in an interval: enough to see a pattern, 14,400 lines a day at most."""
KINDS_MAX: Final = 256

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Suppressed(Generic[T]):
    """Messages of one kind that were not logged, and the last of them."""

    count: int
    last: T
    span_s: float = INTERVAL_S
    """Since the kind's first message: shorter than the interval at the end of the process."""


@dataclass(slots=True)
class _Window(Generic[T]):
    """An interval that began with a kind's first message."""

    start_s: float
    end_s: float
    admitted: int = 0
    suppressed: int = 0
    last: T | None = None


class LogLimiter(Generic[T]):
    """The limits of one process's log; ``T`` is what stands for a message, such as a record."""

    def __init__(
        self,
        *,
        admitted_max: int = ADMITTED_MAX,
        interval_s: float = INTERVAL_S,
        kinds_max: int = KINDS_MAX,
    ) -> None:
        self._admitted_max = admitted_max
        self._interval_s = interval_s
        self._kinds_max = kinds_max
        self._windows: dict[Hashable, _Window[T]] = {}
        self._ended: list[Suppressed[T]] = []
        self._suppressing = 0  # windows with suppressed messages

    @property
    def is_suppressing(self) -> bool:
        """Whether ``take_due`` will have something to return."""
        return self._suppressing > 0 or bool(self._ended)

    def admit(self, kind: Hashable, message: T, now_s: float) -> bool:
        """Return whether to log a message; if not, it is counted."""
        window = self._window(kind, now_s)
        if window.admitted < self._admitted_max:
            window.admitted += 1
            return True
        self._suppressing += window.suppressed == 0
        window.suppressed += 1
        window.last = message
        return False

    def take_due(self, now_s: float) -> list[Suppressed[T]]:
        """Return the counts of the intervals that are over, each once."""
        self._end_windows(now_s)
        due, self._ended = self._ended, []
        return due

    def take_all(self, now_s: float) -> list[Suppressed[T]]:
        """Return all counts that were not returned yet, also of intervals that are not over."""
        for kind in list(self._windows):
            self._end(kind, now_s)
        due, self._ended = self._ended, []
        return due

    def _window(self, kind: Hashable, now_s: float) -> _Window[T]:
        window = self._windows.get(kind)
        if window is not None and now_s >= window.end_s:
            self._end(kind, now_s)
            window = None
        if window is None and len(self._windows) >= self._kinds_max:
            self._end_windows(now_s)
            if len(self._windows) >= self._kinds_max:
                kind = None
                window = self._windows.get(kind)
        if window is None:
            window = self._windows[kind] = _Window(now_s, now_s + self._interval_s)
        return window

    def _end_windows(self, now_s: float) -> None:
        for kind in [kind for kind, window in self._windows.items() if now_s >= window.end_s]:
            self._end(kind, now_s)

    def _end(self, kind: Hashable, now_s: float) -> None:
        window = self._windows.pop(kind)
        if window.suppressed and window.last is not None:
            self._suppressing -= 1
            span_s = min(now_s, window.end_s) - window.start_s
            self._ended.append(Suppressed(window.suppressed, window.last, span_s))
