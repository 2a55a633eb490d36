"""Keyed permutations in constant memory: the value at position p of a shuffled range.

A permutation of range(n) is a generalised Feistel network over pairs (x, y) with x in 0 .. a - 1
and y in 0 .. b - 1, where a * b is the smallest grid near the square root that holds n (Black,
Rogaway: Ciphers with arbitrary finite domains, CT-RSA 2002). Each round adds a keyed function
of one half to the other half, modulo its range, so every round is a bijection of the grid whatever
the function is. Values outside range(n) are permuted again until they fall inside (cycle walking,
same source); since a * b - n < a this is rare, one value in about sqrt(n).

A Feistel network is visibly biased for small ranges, such as the 120 orders of 5 values. Ranges of
up to 256 are sorted by mixed keys instead, which is fair for every size.

Invariant: integer arithmetic on uint64 only (and one square root, exactly rounded by IEEE 754).
Only sizes and keys are stored: 14 million samples cost the same memory as 14.
"""

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
_SORTED_SIZE: Final = 256
_ROUNDS: Final = 6  # four make a strong pseudorandom permutation (Luby, Rackoff 1988); two to spare
_SHIFT_32: Final = np.uint64(32)
_SHIFT_16: Final = np.uint64(16)
_ONE: Final = np.uint64(1)
_LARGEST: Final = np.uint64(2**64 - 1)


class KeyedPermutations:
    """One permutation of range(size) for each (size, key); immutable, a few words for each."""

    def __init__(self, sizes: NDArray[np.int64], keys: NDArray[np.uint64]) -> None:
        """Take ``sizes`` int64 (m,) in 0 .. MAX_SIZE and ``keys`` uint64 (m,), m >= 1."""
        columns = np.maximum(np.sqrt(sizes.astype(np.float64)).astype(np.int64), 1)
        self._sizes = sizes.astype(np.uint64)
        self._columns = columns.astype(np.uint64)
        self._rows = (-(-sizes // columns)).astype(np.uint64)
        self._keys = keys
        counters = np.arange(1, _ROUNDS + 1, dtype=np.uint64) * GAMMA_U64
        self._round_keys = mix64(keys[np.newaxis, :] + counters[:, np.newaxis])  # (_ROUNDS, m)
        # One choice of method for all rows: the sizes in one plan are alike.
        self._largest = int(sizes.max())

    def __call__(self, which: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the value at each of ``positions`` of permutation ``which``, int64 (n,).

        ``which`` is int64 (n,). Positions are in 0 .. size - 1 of their permutation (unchecked).
        """
        if self._largest <= _SORTED_SIZE:
            return self._sort(which, positions)
        values = self._walk(which, positions.astype(np.uint64))
        outside = np.flatnonzero(values >= self._sizes[which])
        while outside.size:
            again = self._walk(which[outside], values[outside])
            values[outside] = again
            outside = outside[again >= self._sizes[which[outside]]]
        return values.astype(np.int64)

    def _sort(self, which: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Look ``positions`` up in tables sorted by mixed keys, (distinct ``which``, largest)."""
        distinct, table_rows = np.unique(which, return_inverse=True)
        numbers = np.arange(self._largest, dtype=np.uint64)
        mixed = mix64(self._keys[distinct][:, np.newaxis] + (numbers + _ONE) * GAMMA_U64)
        mixed[numbers >= self._sizes[distinct][:, np.newaxis]] = _LARGEST  # stable: never first
        tables = np.argsort(mixed, axis=1, kind="stable")
        found: NDArray[np.int64] = tables[table_rows, positions]
        return found

    def _walk(self, which: NDArray[np.int64], values: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Apply the Feistel network of the whole grid to ``values`` once."""
        columns = self._columns[which]
        rows = self._rows[which]
        round_keys = self._round_keys[:, which]
        y, x = np.divmod(values, columns)
        for number in range(0, _ROUNDS, 2):
            x = _shift_half(x, y, round_keys[number], columns)
            y = _shift_half(y, x, round_keys[number + 1], rows)
        y *= columns
        y += x
        return y


def keyed_order(labels: NDArray[np.int64], key: int) -> NDArray[np.int64]:
    """Return ``labels`` int64 (n,) in an order drawn from ``key``, by sorting on mixed labels."""
    return labels[np.argsort(derive_keys(key, labels), kind="stable")]


def _shift_half(
    half: NDArray[np.uint64],
    other: NDArray[np.uint64],
    round_keys: NDArray[np.uint64],
    limits: NDArray[np.uint64],
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
