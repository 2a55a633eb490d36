"""Ranges of samples, (first, end) in the packed order, and what is computed with them."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]
Ranges = tuple[Range, ...]


def find_runs(ids: NDArray[np.int64]) -> Ranges:
    """Return the runs of consecutive numbers in ``ids`` (n,), which ascend."""
    if not len(ids):
        return ()
    breaks = np.flatnonzero(np.diff(ids) != 1)
    firsts = ids[np.concatenate([[0], breaks + 1])]
    ends = ids[np.concatenate([breaks, [len(ids) - 1]])] + 1
    return tuple(zip(firsts.tolist(), ends.tolist(), strict=True))


def merge(ranges: Iterable[Range]) -> Ranges:
    """Return the union of ranges, ascending."""
    union: list[Range] = []
    for first, end in sorted(ranges):
        if union and first <= union[-1][1]:
            union[-1] = union[-1][0], max(end, union[-1][1])
        else:
            union.append((first, end))
    return tuple(union)


def split_pieces(ranges: Iterable[Range], piece: int) -> dict[int, list[Range]]:
    """Return the parts of ``ranges`` by piece, each of ``piece`` samples."""
    parts: dict[int, list[Range]] = {}
    for first, end in ranges:
        for number in range(first // piece, -(-end // piece)):
            part = max(first, number * piece), min(end, (number + 1) * piece)
            parts.setdefault(number, []).append(part)
    return parts
