"""The order of one lane in one epoch: its pieces in an order of this epoch, mixed by a window.

Invariant: integer arithmetic on the lane's range, piece, window and key. Any range of positions is
computed directly, in memory for these positions and two windows' pieces.
"""

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.plan.permutation import KeyedPermutations
from feeder.plan.rng import derive_keys
from feeder.plan.window import Mixing, Window

_PIECES, _PLACE, _HEAD, _GROUPS = range(4)  # the uses of a lane's keys
_EMPTY: Final = np.zeros(0, np.int64)


class _Stretch(NamedTuple):
    """The pieces of the stream that places first .. stop - 1 are in."""

    first: int
    stop: int
    edges: NDArray[np.int64]
    """Where they begin in the stream, in ascending order."""
    shifts: NDArray[np.int64]
    """What to add to a place in each to get the sample id."""


class LaneOrder:
    """The samples of a lane in the order of an epoch; safe to share between threads."""

    def __init__(self, *, first: int, size: int, piece: int, window: Window, key: int) -> None:
        """The lane is samples first .. first + size - 1."""
        keys = derive_keys(key, np.arange(4, dtype=np.int64))
        self._mixing = Mixing(size, window, keys[[_HEAD, _GROUPS]])
        self.is_whole = self._mixing.is_whole
        self._first, self._size = first, size
        self._piece = piece
        # The lane as a ring that begins with its first whole piece. What lies before that and after
        # the last whole piece, at the lane's ends, is one odd piece.
        self._border = -first % piece
        self._pieces = max(0, size - self._border) // piece
        self._odd = size - self._pieces * piece
        # Where the odd piece begins in the stream; past its end if there is none.
        self._odd_at = size + 1
        if self._odd:
            self._odd_at = int(keys[_PLACE] % np.uint64(self._pieces + 1)) * piece
        self._permute_pieces = KeyedPermutations(max(1, self._pieces), keys[_PIECES : _PIECES + 1])
        self._last_stretch = _Stretch(0, 0, _EMPTY, _EMPTY)

    def samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions start .. stop - 1 of the lane's order."""
        places, begin, end = self._mixing.places(start, stop)
        if self.is_whole:
            return places + self._first
        stretch = self._last_stretch
        if begin < stretch.first or end > stretch.stop:
            stretch = self._last_stretch = self._make_stretch(begin, end)
        places += stretch.shifts[np.searchsorted(stretch.edges, places, side="right") - 1]
        # The odd piece continues at the start of the lane.
        places -= self._size * (places >= self._first + self._size)
        return places

    def count_entered(self, position: int) -> int:
        """Return how many pieces of the stream are needed up to and with a position."""
        return self._count_begun(self._mixing.count_entered(position))

    def count_used_up(self, position: int) -> int:
        """Return how many pieces of the stream are no longer needed from a position on."""
        used_up = self._mixing.count_used_up(position)
        return self._count_begun(used_up + 1) - 1 if used_up else 0

    def piece_ranges(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return first sample id and end of pieces first .. stop - 1 of the stream.

        The odd piece may be two ranges.
        """
        edges, begins = self._find_pieces(first, stop + 1)
        ends = begins[:-1] + np.diff(edges)
        lane_end = self._first + self._size
        over = np.maximum(0, ends - lane_end)
        parts = [(begins[:-1], ends - over), (0 * over + self._first, self._first + over)]
        ranges = np.concatenate([np.stack(part, axis=1) for part in parts])
        return [(at, end) for at, end in ranges.tolist() if at < end]

    def _find_pieces(self, first: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where pieces first .. stop - 1 of the stream begin in it, and their first sample
        ids; a piece past the end begins there."""
        odd = self._odd_at // self._piece
        numbers = np.arange(first, stop, dtype=np.int64)
        is_odd, regular = numbers == odd, numbers - (numbers > odd)
        edges = regular * self._piece + self._odd * (numbers > odd)
        regular[is_odd | (regular >= self._pieces)] = 0
        in_ring = self._permute_pieces(0 * regular, regular) * self._piece
        in_ring[is_odd] = self._pieces * self._piece
        return edges, (in_ring + self._border) % self._size + self._first

    def _make_stretch(self, begin: int, end: int) -> _Stretch:
        pieces = max(0, self._count_begun(begin + 1) - 1), self._count_begun(end)
        edges, begins = self._find_pieces(*pieces)
        return _Stretch(begin, end, edges, begins - edges)

    def _count_begun(self, place: int) -> int:
        """Return how many pieces begin before a place of the stream; its end counts as one."""
        if place <= self._odd_at:
            return -(-place // self._piece)
        return 1 + max(self._odd_at // self._piece, -(-(place - self._odd) // self._piece))
