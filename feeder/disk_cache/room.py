"""The room of the disk cache: what it takes and may take, and how it is made.

The budget is for all datasets of the folder. Other daemons' datasets are evicted from as well, but
for what they pinned; those that no daemon has open go first, and then their folders.
"""

import contextlib
import os
from collections.abc import Sequence
from contextlib import closing
from typing import Final, NamedTuple

import numpy as np

from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.eviction import Holding, eviction_order
from feeder.disk_cache.folder import DiskCache
from feeder.disk_cache.transfers import Transfers
from feeder.errors import DatasetError
from feeder.metrics.records import StoreRecord

_FREE_SHARE: Final = 10
"""Where the budget is "auto", one in so many bytes of the file system stays free: for logs and
checkpoints, and as file systems become slow when they are full."""

_SLACK_SHARE: Final = 64
"""An eviction frees one in so many bytes of the budget beside what is asked for: to order all
pieces costs some ms."""

Served = tuple[Transfers, Holding]


class Eviction(NamedTuple):
    """What an eviction has freed."""

    bytes: int
    pieces: int
    is_enough: bool


class Room:
    """Room in ``cache``, of ``fixed_bytes``, or, if 0, a share of the file system."""

    def __init__(self, cache: DiskCache, fixed_bytes: int) -> None:
        self._cache = cache
        self._fixed_bytes = fixed_bytes
        self.used_bytes = self.budget_bytes = 0
        self.measure()

    def measure(self) -> None:
        """Look at what all files take, those of other daemons included. Raises OSError."""
        used_bytes, budget_bytes = self._cache.used_bytes(), self._fixed_bytes
        if not budget_bytes:
            status = os.statvfs(self._cache.root)
            spare = status.f_bavail - status.f_blocks // _FREE_SHARE
            budget_bytes = max(0, used_bytes + spare * status.f_frsize)
        self.used_bytes, self.budget_bytes = used_bytes, budget_bytes

    def evict(self, served: Sequence[Served], goal: int, *, with_windows: bool) -> Eviction:
        """Evict until ``goal`` bytes and some more are free; ``served`` are the own datasets.

        Takes a while. Raises OSError.
        """
        freed = pieces = 0
        enough = goal + self.budget_bytes // _SLACK_SHARE
        with contextlib.ExitStack() as stack:
            others = self._open_others(stack, {t.cached.folder for t, _ in served})
            holdings = [*served, *others]
            order = eviction_order([h for _, h in holdings], with_windows=with_windows)
            for number, piece, size in order:
                if freed >= enough:
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
        self.measure()
        return Eviction(freed, pieces, freed >= goal)

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
