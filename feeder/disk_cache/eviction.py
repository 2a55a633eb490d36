"""Which pieces to evict: the least useful first. Pure.

    a dataset that no daemon serves           pieces that free most first
    served, but not owned by this host        highest hash first
    owned, in no window                       highest hash first
    in a window: read now, or to be soon      added last first

A piece's hash is the same for ever, so a cache that is smaller than what the host owns keeps the
same part of it from epoch to epoch, and each epoch finds that share of its bytes on disk. Were it
the piece used longest ago, each would be evicted shortly before its next use. What batches wait
for, and what was just given to one, is held and never chosen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from feeder.plan.rng import derive_keys

_UNSERVED, _NOT_OWNED, _OWNED, _IN_WINDOW = range(4)


@dataclass(slots=True, kw_only=True)
class Holding:
    """What a dataset has on disk, by piece; all arrays (pieces,)."""

    there_bytes: NDArray[np.int64]
    is_served: bool = True
    owned: NDArray[np.bool_] | None = None
    """None: all."""
    window: NDArray[np.int64] | None = None
    """When it was added to its first window, counted up; 0: it is in none."""
    held: NDArray[np.bool_] | None = None


def eviction_order(
    holdings: Sequence[Holding], *, with_windows: bool
) -> Iterator[tuple[int, int, int]]:
    """Yield holding, piece and its bytes, in the order to evict them."""
    columns = [_rank(number, holding) for number, holding in enumerate(holdings)]
    if not columns:
        return
    number, piece, size, grade, key = (np.concatenate(part) for part in zip(*columns, strict=True))
    order = np.lexsort((piece, ~key, grade))  # by grade, then the highest key
    if not with_windows:
        order = order[grade[order] < _IN_WINDOW]
    for at in order.tolist():
        yield int(number[at]), int(piece[at]), int(size[at])


def _rank(number: int, holding: Holding) -> tuple[NDArray[np.generic], ...]:
    choice = holding.there_bytes > 0
    if holding.held is not None:
        choice &= ~holding.held
    pieces = np.flatnonzero(choice)
    there = holding.there_bytes[pieces]
    grade = np.full(len(pieces), _OWNED if holding.is_served else _UNSERVED)
    key = derive_keys(0, pieces)
    if not holding.is_served:
        key = there.astype(np.uint64)
    elif holding.owned is not None:
        grade[~holding.owned[pieces]] = _NOT_OWNED
    if holding.window is not None:
        added = holding.window[pieces]
        grade[added > 0] = _IN_WINDOW
        key = np.where(added > 0, added.astype(np.uint64), key)
    return np.full(len(pieces), number), pieces, there, grade, key
