"""How far the packing of sources is, in a line: for clients, probes and systemd, and for other
starts that wait for the same packing. These read it in the lock that the packing holds.

    412                             the process that packs
    150000004357                    the number of its progress
    34 %, 5 min left

The number grows with all progress. It begins with the source and counts the images packed, those of
an earlier run included: a packing that fails and starts over passes no number a second time.
One thread packs. Any thread may read ``text`` and ``advances``.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Final, TextIO

from feeder.pack.progress import ProgressLine

_SHARE_S: Final = 0.5
"""Between two writes to the lock."""

_SOURCE_NUMBERS: Final = 10**11
"""For each source; the second half is for images packed, the first for all that comes before."""

_SHARED_BYTES_MAX: Final = 512
_DETAIL_CHARS_MAX: Final = 160
_NAME_CHARS_MAX: Final = 128
_BEGINNING: Final = "looking at its files"


class SharedProgress(ProgressLine):
    """The progress line of packing one or several sources."""

    def __init__(
        self,
        stream: TextIO,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_terminal: bool | None = None,
    ) -> None:
        super().__init__(stream, clock, is_terminal=is_terminal)
        self.advances = 0
        """Grows with all progress: while it stands still, the packing does."""
        self._base = 0  # of the source's numbers
        self._source = "sources"
        self._detail = _BEGINNING  # "" while there is a count
        self._lock: int | None = None
        self._shared_s = float("-inf")

    @property
    def text(self) -> str:
        """What is packed, and how far that is, e.g. ``packing imagenet, 34 %, 5 min left``."""
        return f"packing {self._source}, {self._describe()}"

    def begin_source(self, name: str, number: int, sources: int) -> None:
        """Start with the ``number``-th of the sources, which will be served as ``name``."""
        of = f" ({number} of {sources})" if sources > 1 else ""
        self._source = name[:_NAME_CHARS_MAX] + of
        self._base = number * _SOURCE_NUMBERS
        self.advance(_BEGINNING)

    def begin(self, verb: str, unit: str, total: int | None, done: int = 0) -> None:
        super().begin(verb, unit, total, done)
        self.advance("")

    def add(self, count: int, size_bytes: int = 0, quarantined: int = 0) -> None:
        super().add(count, size_bytes, quarantined)
        self.advance()

    def note(self, text: str) -> None:
        super().note(text)
        self.advance()

    def advance(self, detail: str | None = None) -> None:
        """Record an advance; ``detail`` describes the state, "" stands for the count."""
        if detail is not None:
            self._detail = detail[:_DETAIL_CHARS_MAX]
        is_packing = self._verb == "packing" and not self._detail
        packed = _SOURCE_NUMBERS // 2 + self._done if is_packing else 0
        self.advances = max(self.advances + 1, self._base + packed)
        now_s = self._clock()
        if self._lock is not None and now_s - self._shared_s >= _SHARE_S:
            self._shared_s = now_s
            line = f"{os.getpid()}\n{self.advances}\n{self._describe()}\n".encode()
            os.pwrite(self._lock, line, 0)
            os.ftruncate(self._lock, len(line))

    @contextlib.contextmanager
    def shared_in(self, lock: int) -> Iterator[None]:
        """Write the progress of the body to the descriptor ``lock`` now and then."""
        self._lock, self._shared_s = lock, float("-inf")
        self.advance()
        try:
            yield
        finally:
            self._lock = None

    def follow(self, lock: int, last: str) -> str:
        """Show the progress that another process writes to ``lock``; return its number.

        It has advanced if that is not ``last``, the result of the call before.
        """
        pid, number, detail = read_shared(lock)
        own = f"waiting for process {pid}" + (f": {detail}" if detail else ", which packs it")
        if number != last:
            self.advance(own)
        self._detail = own[:_DETAIL_CHARS_MAX]
        return number

    def _describe(self) -> str:
        if self._detail:
            return self._detail
        if self._total is None:
            return f"{self._verb} {self._done:,} {self._unit}"
        share = f"{100 * self._done // self._total if self._total else 100} %"
        if self._verb != "packing":
            share = f"{self._verb} {self._unit}, {share}"
        remaining_s = self.remaining_s()
        return share if remaining_s is None else f"{share}, {round_duration(remaining_s)} left"


def read_shared(lock: int) -> tuple[str, str, str]:
    """Return the process that holds ``lock``, the number of its progress, and that in words.

    The last two are empty where it does not write them.
    """
    data = os.pread(lock, _SHARED_BYTES_MAX, 0).decode("utf-8", "replace")
    lines = ["".join(filter(str.isprintable, line)) for line in data.split("\n")]
    pid, number, detail = (*lines, "", "", "")[:3]
    return pid or "another", number, detail


def round_duration(seconds: float) -> str:
    """Return a duration in one unit, e.g. ``40 s``, ``5 min`` or ``3 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.0f} h"
