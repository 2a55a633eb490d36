"""What the host's batches will read, and what it owns: by what each connection has said. Pure.

A piece is in the windows while more Aheads than Behinds have named a part of it; two lanes, and two
sessions, may share one. A connection that ends takes what it said along.

One thread calls it; ``added`` and ``owned``, which make arrays, may be called in another one.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from feeder.disk_cache.ranges import Range, Ranges
from feeder.disk_cache.wants import Key


class Windows:
    """The windows and the shares of all connections."""

    def __init__(self) -> None:
        self._counts: dict[int, Counter[Key]] = {}  # by connection
        self._total: Counter[Key] = Counter()
        self._added: dict[str, dict[int, int]] = {}  # by dataset and piece
        self._orders = 0
        self._owned: dict[tuple[int, str], Ranges] = {}

    def enter(self, client: int, dataset: str, parts: Mapping[int, list[Range]]) -> None:
        """Count an Ahead: the parts of its ranges, by piece."""
        counts = self._counts.setdefault(client, Counter())
        added = self._added.setdefault(dataset, {})
        for piece in parts:
            key = dataset, piece
            counts[key] += len(parts[piece])
            self._total[key] += len(parts[piece])
            if piece not in added:
                self._orders += 1
                added[piece] = self._orders

    def leave(self, client: int, dataset: str, parts: Mapping[int, list[Range]]) -> list[Key]:
        """Count a Behind; return the pieces that are in no window any more."""
        keys = [(dataset, piece) for piece in parts]
        return [key for key in keys if self._leave(client, key, len(parts[key[1]]))]

    def own(self, client: int, dataset: str, ranges: Ranges) -> None:
        self._owned[client, dataset] = ranges

    def disconnect(self, client: int) -> list[Key]:
        """Take back what a connection said; return the pieces that are in no window any more."""
        counts = list(self._counts.get(client, Counter()).items())
        left = [key for key, count in counts if self._leave(client, key, count)]
        self._counts.pop(client, None)
        self._owned = {key: own for key, own in self._owned.items() if key[0] != client}
        return left

    def added(self, dataset: str, pieces: int) -> NDArray[np.int64]:
        """Return when each piece came into a window, counted up; 0 for those in none."""
        orders = self._added.get(dataset, {}).copy()  # at once, for the other thread
        added = np.zeros(pieces, np.int64)
        added[np.fromiter(orders, np.int64, len(orders))] = list(orders.values())
        return added

    def owned(self, dataset: str, pieces: int, piece: int) -> NDArray[np.bool_] | None:
        """Return which pieces, of ``piece`` samples, this host owns a part of; None: it is open."""
        shares = [own for (_, name), own in self._owned.copy().items() if name == dataset and own]
        if not shares:
            return None
        owned = np.zeros(pieces, np.bool_)
        for first, end in (part for ranges in shares for part in ranges):
            owned[first // piece : -(-end // piece)] = True
        return owned

    def _leave(self, client: int, key: Key, count: int) -> bool:
        counts = self._counts.get(client, Counter())
        count = min(count, counts[key])
        for counter in (counts, self._total):
            counter[key] -= count
            if not counter[key]:
                del counter[key]
        added = self._added.get(key[0], {})
        return key not in self._total and added.pop(key[1], None) is not None
