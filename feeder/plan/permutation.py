"""Keyed permutations in constant memory: the value at position p of a shuffled range.

A permutation of range(n) is a generalised Feistel network over pairs (x, y) with x in 0 .. a - 1
and y in 0 .. b - 1, where a * b is the smallest grid near the square root that holds n (Black,
Rogaway: Ciphers with arbitrary finite domains, CT-RSA 2002). Each round adds a keyed function
of one half to the other half, modulo its range, so every round is a bijection of the grid whatever
the function is. Values outside range(n) are permuted again until they fall inside (cycle walking,
same source); since a * b - n < a this is rare, one value in about sqrt(n).

A Feistel network is visibly biased for small ranges, such as the 120 orders of 5 values. Ranges of
up to 64 are sorted by mixed keys instead, which is fair for every size.

Invariant: integer arithmetic on uint64 only.
Besides small tables, only sizes and keys are stored: 14 million samples cost the memory of 65.
"""

from math import isqrt
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.plan.rng import (
    GAMMA_U64,
    MULTIPLIER_1_U64,
    MULTIPLIER_2_U64,
    derive_keys,
    mix64,
)

MAX_SIZE: Final = 2**48  # far above any dataset; a half (24 bits) + 48 random bits fit in 64
_SORTED_SIZE: Final = 64
_ROUNDS: Final = 6  # four make a strong pseudorandom permutation (Luby, Rackoff 1988); two to spare
_SHIFT_32: Final = np.uint64(32)
_SHIFT_16: Final = np.uint64(16)


class KeyedPermutations:
    """A permutation of range(size) for each key; immutable."""

    def __init__(self, size: int, keys: NDArray[np.uint64]) -> None:
        """Take a size 1 .. MAX_SIZE and ``keys`` uint64 (m,)."""
        self._size = np.uint64(size)
        self._table: NDArray[np.uint8] | None = None  # (m, size), where that is small
        if size <= _SORTED_SIZE:
            mixed = keys[:, np.newaxis] + np.arange(1, size + 1, dtype=np.uint64) * GAMMA_U64
            # Mixed words differ, as their numbers do: any method of sorting gives the same.
            self._table = np.argsort(mix64(mixed), axis=1).astype(np.uint8)
            return
        columns = isqrt(size)
        self._columns, self._rows = np.uint64(columns), np.uint64(-(-size // columns))
        counters = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * GAMMA_U64
        self._round_keys = mix64(keys[np.newaxis, :] + counters[:, np.newaxis])  # (_ROUNDS, m)

    def __call__(self, which: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at each of ``positions`` of permutation ``which``, int64 (n,) both.

        ``which`` is the number of its key. Positions are in 0 .. size - 1 (unchecked).
        """
        if self._table is not None:
            return self._table[which, positions].astype(np.int64)
        round_keys = self._round_keys[:, which]
        values = self._walk(round_keys, positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self._size)
        while outside.size:
            again = self._walk(round_keys[:, outside], values[outside])
            values[outside] = again
            outside = outside[again >= self._size]
        return values.astype(np.int64)

    def _walk(
        self, round_keys: NDArray[np.uint64], values: NDArray[np.uint64]
    ) -> NDArray[np.uint64]:
        """Apply the Feistel network of the whole grid to ``values`` (n,) once."""
        y, x = np.divmod(values, self._columns)
        for number in range(0, _ROUNDS, 2):
            x = _shift_half(x, y, round_keys[number], self._columns)
            y = _shift_half(y, x, round_keys[number + 1], self._rows)
        y *= self._columns
        y += x
        return y


def keyed_order(labels: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    """Return ``labels`` int64 (n,) in an order drawn from ``key``, by sorting on mixed labels."""
    return labels[np.argsort(derive_keys(key, labels), kind="stable")]


def _shift_half(
    half: NDArray[np.uint64],
    other: NDArray[np.uint64],
    round_keys: NDArray[np.uint64],
    limits: np.uint64,
) -> NDArray[np.uint64]:
    """Return (half + F(other)) mod limits, F being the upper 48 bits of a two-multiply mixer.

    The mixer is SplitMix64's finaliser without its first and last fold, which do not matter to the
    upper bits. With 48 bits the bias of mod is below limits / 2**48: 2**-36 for 14 million samples.
    """
    shifted = other + round_keys
    shifted *= MULTIPLIER_1_U64
    shifted ^= shifted >> _SHIFT_32
    shifted *= MULTIPLIER_2_U64
    shifted >>= _SHIFT_16
    shifted += half
    shifted %= limits
    return shifted
