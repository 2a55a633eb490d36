"""The room of the disk cache: what it takes and may take, and how it is made.

    may_take ─► there is room                  ─► the transfer begins, its bytes are pending
             └► Evictor, in a thread ─► freed  ─► it is asked again
                                     └► stuck  ─► for STUCK_S, only what batches wait for begins

The budget is for all datasets of the folder. Other daemons' datasets are evicted from as well, but
for what they pinned; those that no daemon has open go first, and then their folders.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.eviction import Holding, eviction_order
from feeder.disk_cache.folder import DiskCache
from feeder.disk_cache.threads import End, Result, Threads
from feeder.disk_cache.transfers import Transfers
from feeder.errors import DatasetError
from feeder.metrics.records import StoreRecord

STUCK_S: Final = 0.5
"""Between evictions, after one that could not free what was needed."""

_MEASURE_S: Final = 5.0
_FREE_SHARE: Final = 10
"""Where the budget is "auto", one in so many bytes of the file system stays free: for logs and
checkpoints, and as file systems become slow when they are full."""

_SLACK_SHARE: Final = 64
"""An eviction frees one in so many bytes of the budget beside what is asked for: to order all
pieces costs some ms."""

Served = tuple[Transfers, Holding]


class Usage(NamedTuple):
    used_bytes: int
    budget_bytes: int


class Eviction(NamedTuple):
    """What an eviction has freed."""

    bytes: int
    pieces: int
    is_enough: bool
    usage: Usage
    """After it."""


class Evictor:
    """Evicts from ``cache`` what exceeds ``fixed_bytes``, or, if 0, a share of the file system."""

    def __init__(self, cache: DiskCache, fixed_bytes: int) -> None:
        self._cache = cache
        self._fixed_bytes = fixed_bytes

    def measure(self) -> Usage:
        """Look at what all files take, those of other daemons included. Raises OSError."""
        used_bytes = self._cache.used_bytes()
        if self._fixed_bytes:
            return Usage(used_bytes, self._fixed_bytes)
        status = os.statvfs(self._cache.root)
        spare = status.f_bavail - status.f_blocks // _FREE_SHARE
        return Usage(used_bytes, max(0, used_bytes + spare * status.f_frsize))

    def evict(
        self, served: Sequence[Served], goal: int, *, with_windows: bool, slack: int = 0
    ) -> Eviction:
        """Evict until ``goal`` bytes, and if possible ``slack`` more, are free; ``served`` are the
        own datasets.

        Takes a while. Raises OSError.
        """
        freed = pieces = 0
        with contextlib.ExitStack() as stack:
            others = self._open_others(stack, {t.cached.folder for t, _ in served})
            holdings = [*served, *others]
            order = eviction_order([h for _, h in holdings], with_windows=with_windows)
            for number, piece, size in order:
                if freed >= goal + slack:
                    break
                if holdings[number][0].evict(piece):
                    freed, pieces = freed + size, pieces + 1
            empty = [
                transfers.cached.folder
                for transfers, holding in others
                if not holding.is_served and not transfers.cached.samples_there.any()
            ]
        for folder in empty:
            self._cache.drop(folder)
        return Eviction(freed, pieces, freed >= goal, self.measure())

    def _open_others(self, stack: contextlib.ExitStack, own: set[object]) -> list[Served]:
        others = []
        for folder in self._cache.folders():
            if folder in own:
                continue
            with contextlib.suppress(DatasetError, FileNotFoundError):  # damaged, or just dropped
                cached = stack.enter_context(closing(CachedDataset.open(folder)))
                transfers = Transfers(cached, None, StoreRecord())
                is_served = cached.is_used_by_others() or self._cache.is_new(folder)
                holding = Holding(there_bytes=transfers.there_bytes(), is_served=is_served)
                holding.held = (np.arange(cached.pieces) == 0) & is_served
                others.append((transfers, holding))
        return others


class Room:
    """The room as a fetcher's loop sees it; transfers that are pending count as done."""

    def __init__(
        self,
        evictor: Evictor,
        hold: Callable[[], Callable[[], list[Served]]],
        chores: Threads,
        end: End,
        record: StoreRecord,
    ) -> None:
        """``hold`` returns what makes the holdings, in the thread of ``chores``, as it takes up to
        0.1 s; ``end`` logs an exception."""
        self._pending_bytes = 0
        self.is_evicting = False
        self._evictor = evictor
        self._hold = hold
        self._chores = chores
        self._end = end
        self._record = record
        self._usage = evictor.measure()
        self._measured_at_s = 0.0
        self._stuck_until_s = {True: 0.0, False: 0.0}  # evictions with and without windows

    def may_take(self, size: int, now_s: float, *, is_wanted: bool) -> bool:
        """Whether to begin a transfer of so many bytes; if not, room is being made, or cannot.

        With True, they are pending until ``settle``.
        """
        used_bytes, budget_bytes = self._usage
        excess = used_bytes + self._pending_bytes + size - budget_bytes
        if excess > 0:
            if self.is_evicting:
                return False
            if self._stuck_until_s[is_wanted] <= now_s:
                self.make(excess, with_windows=is_wanted)
                return False
            if not is_wanted:
                return False
            self._record.over_budget += 1  # a batch waits for it, and nothing else can go
        self.expect(size)
        return True

    def expect(self, size: int) -> None:
        """A transfer of so many bytes begins, whether or not there is room."""
        self._pending_bytes += size

    def settle(self, size: int, written: int) -> None:
        """A transfer that was expected to write ``size`` bytes has ended, and wrote ``written``."""
        self._pending_bytes -= size
        self._usage = self._usage._replace(used_bytes=self._usage.used_bytes + written)

    def is_stuck(self, now_s: float) -> bool:
        """Whether what is ahead can get no room."""
        return self._stuck_until_s[False] > now_s

    def look_again(self) -> None:
        """There may be something to evict now."""
        self._stuck_until_s = {True: 0.0, False: 0.0}

    def make(self, goal: int, *, with_windows: bool) -> None:
        """Have ``goal`` bytes and some more evicted, unless that is being done."""
        if not self.is_evicting:
            self.is_evicting = True
            hold, slack = self._hold(), self._usage.budget_bytes // _SLACK_SHARE

            def evict() -> Eviction:
                return self._evictor.evict(hold(), goal, with_windows=with_windows, slack=slack)

            self._chores.start(evict, partial(self._end_eviction, with_windows))

    def run_due(self, now_s: float) -> None:
        """Measure now and then, and have what exceeds the budget evicted."""
        if now_s - self._measured_at_s >= _MEASURE_S:
            self._measured_at_s = now_s
            self._chores.start(self._evictor.measure, self._end_measurement)
        excess = self._usage.used_bytes - self._usage.budget_bytes
        if excess > 0 and not self.is_stuck(now_s):
            self.make(excess, with_windows=False)
        self._record.used_bytes, self._record.budget_bytes = self._usage

    @property
    def deadlines_s(self) -> list[float]:
        """When ``run_due`` is due, and when what had no room is tried again; past ones, too."""
        return [self._measured_at_s + _MEASURE_S, *self._stuck_until_s.values()]

    def _end_measurement(self, usage: Result, error: Exception | None) -> None:
        self._end(usage, error)
        if isinstance(usage, Usage):
            self._usage = usage  # too much: what pending transfers have written counts twice

    def _end_eviction(self, with_windows: bool, eviction: Result, error: Exception | None) -> None:
        self.is_evicting = False
        self._end(eviction, error)
        if isinstance(eviction, Eviction):
            self._usage = eviction.usage
            self._record.evicted_bytes += eviction.bytes
            self._record.evicted_pieces += eviction.pieces
            if eviction.is_enough:
                return
        for less in {False, with_windows}:  # where windows do not help, nothing else does
            self._stuck_until_s[less] = time.monotonic() + STUCK_S
