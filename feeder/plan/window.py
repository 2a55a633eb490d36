"""The order of one lane in one epoch: a rolling window of its pieces, mixed.

    stream   the lane's pieces in an order of this epoch, samples within them in packed order
    groups   │ head │ 0 │ 1 │ 2 │ 3 │ …  of equal size, after the head, which is what remains;
             each permuted: in a window of w groups, every w-th sample belongs to the same *part*
    draws    0: part 0 of group 0
             1: part 0 of group 1, part 1 of group 0
             2: part 0 of group 2, part 1 of group 1, part 2 of group 0, …

The permuted head and then the draws, in which parts take turns, are the lane's order. So a draw
takes an equal share of each of the last w groups. A group is in use for w draws, then it is used
up. The first draws are small and need few groups. Where the window is large, groups are of several
pieces, so that few take part. A lane that is permuted as a whole is all head.

Invariant: integer arithmetic on the lane's range, piece, window and key. Any range of positions is
computed directly, in memory for these positions and two windows' groups.
"""

from bisect import bisect_right
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from feeder.plan.lanes import OrderShape, reserved_samples
from feeder.plan.permutation import KeyedPermutations
from feeder.plan.rng import derive_keys

GROUPS_MAX: Final = 48  # in a window

_FIRST_PIECES: Final = 112  # under 1 GB; a first batch that is much smaller needs at most these

_AHEAD: Final = 16  # groups of a stretch besides those needed now, so that it is used again

_PIECES, _PLACE, _HEAD, _GROUPS = range(4)  # the uses of a lane's keys


class Window(NamedTuple):
    """How many groups are in use at a time, and the samples of each."""

    groups: int
    group: int

    @classmethod
    def for_lane(cls, size: int, shape: OrderShape, samples: int, order_batch_size: int) -> Self:
        """Return the window of a lane of ``size`` of the dataset's ``samples``.

        Draws grow linearly, so the first batch needs the root of twice the batch times the window.
        """
        held = shape.working_set // shape.lanes
        if shape.working_set >= samples or held >= size:
            return cls(1, size)
        room = held - reserved_samples(order_batch_size, shape.piece)
        steepest = (_FIRST_PIECES * shape.piece) ** 2 // (2 * order_batch_size)
        pieces = min(room, steepest) // shape.piece
        pieces_a_group = max(1, -(-pieces // GROUPS_MAX))
        # Less one, as batches begin and end within draws.
        return cls(max(1, pieces // pieces_a_group - 1), pieces_a_group * shape.piece)


class _Stretch(NamedTuple):
    """A part of the stream: groups first .. stop - 1, and the head before group 0."""

    first: int
    stop: int
    permute: KeyedPermutations
    """The groups."""
    edges: NDArray[np.int64]
    """Where its pieces begin in the stream, in ascending order."""
    shifts: NDArray[np.int64]
    """What to add to a place in each piece to get the sample id."""


class LaneOrder:
    """The samples of a lane in the order of an epoch; safe to share between threads."""

    def __init__(self, *, first: int, size: int, piece: int, window: Window, key: int) -> None:
        """The lane is samples first .. first + size - 1."""
        self.is_whole = window.group >= size
        """Whether the lane is permuted as a whole, so that it needs all its pieces all the time."""
        self._first, self._size = first, size
        self._window = window
        self._groups, self._head = (0, size) if self.is_whole else divmod(size, window.group)
        keys = derive_keys(key, np.arange(4, dtype=np.int64))
        self._first_full = self._draw_start(window.groups)
        self._groups_key = int(keys[_GROUPS])
        self._permute_head = KeyedPermutations(max(1, self._head), keys[_HEAD : _HEAD + 1])
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
        # Chunks and the lane's next batches use the last one again.
        self._last_stretch = self._make_stretch(0, 0)

    def samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions start .. stop - 1 of the lane's order."""
        split = max(start, min(self._head, stop))
        places = np.arange(start, stop, dtype=np.int64)  # becomes those in the stream
        if start < split:
            head = places[: split - start]
            head[:] = self._permute_head(0 * head, head)
        if self.is_whole:
            return places + self._first
        stretch = self._last_stretch
        if split < stop:
            stretch = self._draw(places[split - start :])
        elif stretch.first:
            stretch = self._make_stretch(0, 0)
        places += stretch.shifts[np.searchsorted(stretch.edges, places, side="right") - 1]
        # The odd piece continues at the start of the lane.
        places -= self._size * (places >= self._first + self._size)
        return places

    def count_entered(self, position: int) -> int:
        """Return how many pieces of the stream are needed up to and with a position."""
        entered = self._head
        if position >= self._head:
            entered += min(self._find_draw(position) + 1, self._groups) * self._window.group
        return self._count_begun(entered)

    def count_used_up(self, position: int) -> int:
        """Return how many pieces of the stream are no longer needed from a position on."""
        if position < self._head:
            return 0
        groups = max(0, self._find_draw(position) + 1 - self._window.groups)
        return self._count_begun(self._head + groups * self._window.group + 1) - 1

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

    def _make_stretch(self, first: int, stop: int) -> _Stretch:
        begin = self._head + first * self._window.group if first else 0
        end = self._head + stop * self._window.group
        pieces = max(0, self._count_begun(begin + 1) - 1), self._count_begun(end)
        edges, begins = self._find_pieces(*pieces)
        keys = derive_keys(self._groups_key, np.arange(first, stop, dtype=np.int64))
        permute = KeyedPermutations(self._window.group, keys)
        return _Stretch(first, stop, permute, edges, begins - edges)

    def _draw(self, positions: NDArray[np.int64]) -> _Stretch:
        """Turn consecutive positions, all after the head, into places of the stream; return the
        stretch that they are in."""
        start, stop = int(positions[0]), int(positions[-1]) + 1
        groups, group = self._window
        draw = self._find_draw(start)
        begins = [self._draw_start(draw)]
        while (begin := self._draw_start(draw + len(begins))) < stop:
            begins.append(begin)
        first, last = max(0, draw + 1 - groups), min(draw + len(begins), self._groups)
        stretch = self._last_stretch
        if first < stretch.first or last > stretch.stop:
            further = min(last + max(groups, _AHEAD), self._groups)
            stretch = self._last_stretch = self._make_stretch(first, further)
        draws = np.arange(draw, draw + len(begins), dtype=np.int64)
        which = np.repeat(draws - draw, np.diff(np.clip([*begins, stop], start, stop)))
        positions -= np.array(begins)[which]
        # Draw d has parts of groups d, d - 1, …; only groups 0 .. _groups - 1 exist.
        first_part = np.maximum(0, draws + 1 - self._groups)
        parts = np.minimum(draws + 1, groups) - first_part
        rounds, turns = np.divmod(positions, parts[which])
        part = first_part[which] + turns
        number = draws[which] - part
        positions[:] = stretch.permute(number - stretch.first, rounds * groups + part)
        positions += number * group + self._head
        return stretch

    def _find_draw(self, position: int) -> int:
        """Return the draw of a position after the head."""
        groups, group = self._window
        full = (position - self._first_full) // group  # draws of a whole group each before it
        if 0 <= full < self._groups - groups:
            return groups + full
        draws = range(1, self._groups + groups)
        return bisect_right(draws, position, key=self._draw_start)

    def _draw_start(self, draw: int) -> int:
        """Return the position that a draw begins with."""
        return self._head + self._sum_ramp(draw) - self._sum_ramp(draw - self._groups)

    def _sum_ramp(self, draws: int) -> int:
        """Return the samples of the first draws if there was no last group."""
        groups, group = self._window
        ramped = min(max(draws, 0), groups)
        each, longer = divmod(group, groups)  # of a part; the first ``longer`` have one more
        extra = min(ramped, longer)
        in_ramp = each * ramped * (ramped + 1) // 2 + extra * (extra + 1) // 2
        return in_ramp + (ramped - extra) * longer + max(0, draws - groups) * group

    def _count_begun(self, place: int) -> int:
        """Return how many pieces begin before a place of the stream; its end counts as one."""
        if place <= self._odd_at:
            return -(-place // self._piece)
        return 1 + max(self._odd_at // self._piece, -(-(place - self._odd) // self._piece))
