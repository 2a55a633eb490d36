"""How many rows of each batch come from each component of a mix: closed arithmetic.

Of batch j, a component of share s out of T gets ⌊B · s / T⌋ rows, and some get one more. Which, is
systematic sampling: what the shares leave over is laid end to end on a line, [F, F + f) for each,
and those are chosen that the points v, v + T, v + 2 T, … hit. As f < T, none is hit twice, and in
every batch equally many are. With each batch v moves on by T over the golden ratio, which spreads
extra rows most evenly over the batches. How many a component had before batch j is a sum of floors.

Invariant: the rows of a batch add up to B; each component has ⌊B · s / T⌋ or one more.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

_GOLDEN: Final = 0x9E3779B9  # 2**32 over the golden ratio
_FINE: Final = 2**16
"""The least T, by scaling: a step is the next whole number from T over the golden ratio on that has
no common divisor with T."""


class Shares:
    """The rows of each component in batches of ``batch_size``, by shares."""

    def __init__(self, shares: Sequence[int], batch_size: int) -> None:
        """Shares are whole numbers, relative to their sum."""
        self.batch_size = batch_size
        scale = -(-_FINE // sum(shares))
        shares = [scale * share for share in shares]
        self._total = total = sum(shares)
        self._whole = [batch_size * share // total for share in shares]
        rests = [batch_size * share % total for share in shares]
        self._step = next(
            step for step in itertools.count(total * _GOLDEN >> 32) if math.gcd(step, total) == 1
        )
        # Chunks of a batch, and those of neighbouring turns, ask again.
        self.rows_before = functools.lru_cache(64)(self._rows_before)
        self.components = functools.lru_cache(16)(self._components)
        # What v mod T is where a component gets one more: one interval, or two that wrap.
        self._intervals: list[list[tuple[int, int]]] = []
        ends = itertools.accumulate(rests)
        for rest, end in zip(rests, ends, strict=True):
            first = (end - rest) % total
            split = min(first + rest, total)
            self._intervals.append([(first, split), (0, first + rest - split)])

    def rows_of(self, batch: int) -> list[int]:
        """Return how many rows each component has in a batch."""
        point = batch * self._step % self._total
        return [
            whole + sum(first <= point < end for first, end in intervals)
            for whole, intervals in zip(self._whole, self._intervals, strict=True)
        ]

    def _rows_before(self, batch: int) -> list[int]:
        """Return how many rows each component has in batches 0 .. batch - 1."""
        return [
            batch * whole + sum(self._count_hits(batch, *interval) for interval in intervals)
            for whole, intervals in zip(self._whole, self._intervals, strict=True)
        ]

    def _components(self, batch: int) -> NDArray[np.int64]:
        """Return the component of each row of a batch, int64 (batch_size,): those of each are
        spread evenly over the batch."""
        counts = np.array(self.rows_of(batch))
        components = np.repeat(np.arange(len(counts)), counts)
        firsts = np.cumsum(counts) - counts
        places = np.arange(self.batch_size) - firsts[components] + 0.5
        return components[np.argsort(places / counts[components], kind="stable")]

    def _count_hits(self, batches: int, first: int, end: int) -> int:
        """Return in how many of the first batches ``first <= v mod T < end``, 0 <= both <= T."""
        if first == end:
            return 0
        return _floor_sum(batches, self._total, self._step, self._total - first) - _floor_sum(
            batches, self._total, self._step, self._total - end
        )


def _floor_sum(count: int, divisor: int, factor: int, offset: int) -> int:
    """Return the sum of (factor · j + offset) // divisor over j = 0 .. count - 1, none negative.

    It counts the lattice points under a line, exchanging the axes as Euclid's algorithm does.
    """
    total = 0
    while True:
        quotient, factor = divmod(factor, divisor)
        total += count * (count - 1) // 2 * quotient
        quotient, offset = divmod(offset, divisor)
        total += count * quotient
        last = factor * count + offset
        if last < divisor:
            return total
        count, offset = divmod(last, divisor)
        divisor, factor = factor, divisor
