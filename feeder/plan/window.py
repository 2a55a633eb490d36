"""The mixing of a lane's stream in one epoch: by a rolling window.

    stream   what the lane reads, in the order in which it is read: its pieces (``lane_order``), or
             what was drawn by weight (``draws``)
    groups   │ head │ 0 │ 1 │ 2 │ 3 │ …  of equal size, after the head, which is what remains;
             each permuted: in a window of w groups, every w-th sample belongs to the same *part*
    layers   0: part 0 of group 0
             1: part 0 of group 1, part 1 of group 0
             2: part 0 of group 2, part 1 of group 1, part 2 of group 0, …

The permuted head and then the layers, in which parts take turns, are the lane's order. So a layer
takes an equal share of each of the last w groups. A group is in use for w layers, then it is used
up. The first layers are small and need few groups. Where the window is large, groups are of several
pieces, so that few take part. A lane that is permuted as a whole is all head.

Invariant: integer arithmetic on the stream's size, window and keys. Any range of positions is
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


class Window(NamedTuple):
    """How many groups are in use at a time, and the samples of each."""

    groups: int
    group: int

    @classmethod
    def for_lane(cls, size: int, shape: OrderShape, samples: int, order_batch_size: int) -> Self:
        """Return the window of a lane of ``size`` of the dataset's ``samples``.

        Layers grow linearly, so the first batch needs the root of twice the batch times the window.
        """
        held = shape.working_set // shape.lanes
        if shape.working_set >= samples or held >= size:
            return cls(1, size)
        room = held - reserved_samples(order_batch_size, shape.piece)
        steepest = (_FIRST_PIECES * shape.piece) ** 2 // (2 * order_batch_size)
        pieces = min(room, steepest) // shape.piece
        pieces_a_group = max(1, -(-pieces // GROUPS_MAX))
        # Less one, as batches begin and end within layers.
        return cls(max(1, pieces // pieces_a_group - 1), pieces_a_group * shape.piece)


class Places(NamedTuple):
    """Places of a stream, and the part of it that they are in."""

    places: NDArray[np.int64]
    first: int
    stop: int
    """The same for requests that follow one another, so that what was made for it is used again."""


class Mixing:
    """Which place of a stream each position of a lane's order has; safe to share between threads.

    ``is_whole``: the stream is permuted as a whole, so all of it is needed all the time.
    """

    def __init__(self, size: int, window: Window, keys: NDArray[np.uint64]) -> None:
        """The stream has ``size`` places; ``keys`` (2,) are those of the head and the groups."""
        self.is_whole = window.group >= size
        self._window = window
        self._groups, self._head = (0, size) if self.is_whole else divmod(size, window.group)
        self._first_full = self._layer_start(window.groups)
        self._permute_head = KeyedPermutations(max(1, self._head), keys[:1])
        self._groups_key = int(keys[1])
        # Groups first .. stop - 1; chunks and the lane's next batches use the last ones again.
        self._last_groups = 0, 0, self._permute_groups(0, 0)

    def places(self, start: int, stop: int) -> Places:
        """Return the places at positions start .. stop - 1."""
        split = max(start, min(self._head, stop))
        places = np.arange(start, stop, dtype=np.int64)
        if start < split:
            head = places[: split - start]
            head[:] = self._permute_head(0 * head, head)
        if split == stop:
            return Places(places, 0, self._head)
        first, last = self._mix_groups(places[split - start :])
        begin = self._head + first * self._window.group if first else 0
        return Places(places, begin, self._head + last * self._window.group)

    def count_entered(self, position: int) -> int:
        """Return how many places of the stream are needed up to and with a position."""
        if position < self._head:
            return self._head
        groups = min(self._find_layer(position) + 1, self._groups)
        return self._head + groups * self._window.group

    def count_used_up(self, position: int) -> int:
        """Return how many places of the stream are no longer needed from a position on."""
        if position < self._head:
            return 0
        groups = max(0, self._find_layer(position) + 1 - self._window.groups)
        return self._head + groups * self._window.group

    def _permute_groups(self, first: int, stop: int) -> KeyedPermutations:
        keys = derive_keys(self._groups_key, np.arange(first, stop, dtype=np.int64))
        return KeyedPermutations(self._window.group, keys)

    def _mix_groups(self, positions: NDArray[np.int64]) -> tuple[int, int]:
        """Turn consecutive positions, all after the head, into places; return the groups that they
        are in, as first and end, and some that are needed next."""
        start, stop = int(positions[0]), int(positions[-1]) + 1
        groups, group = self._window
        layer = self._find_layer(start)
        begins = [self._layer_start(layer)]
        while (begin := self._layer_start(layer + len(begins))) < stop:
            begins.append(begin)
        first, end = max(0, layer + 1 - groups), min(layer + len(begins), self._groups)
        known_first, known_end, permute = self._last_groups
        if first < known_first or end > known_end:
            known_first, known_end = first, min(end + max(groups, _AHEAD), self._groups)
            permute = self._permute_groups(known_first, known_end)
            self._last_groups = known_first, known_end, permute
        layers = np.arange(layer, layer + len(begins), dtype=np.int64)
        which = np.repeat(layers - layer, np.diff(np.clip([*begins, stop], start, stop)))
        positions -= np.array(begins)[which]
        # Layer d has parts of groups d, d - 1, …; only groups 0 .. _groups - 1 exist.
        first_part = np.maximum(0, layers + 1 - self._groups)
        parts = np.minimum(layers + 1, groups) - first_part
        rounds, turns = np.divmod(positions, parts[which])
        part = first_part[which] + turns
        number = layers[which] - part
        positions[:] = permute(number - known_first, rounds * groups + part)
        positions += number * group + self._head
        return known_first, known_end

    def _find_layer(self, position: int) -> int:
        """Return the layer of a position after the head."""
        groups, group = self._window
        full = (position - self._first_full) // group  # layers of a whole group each before it
        if 0 <= full < self._groups - groups:
            return groups + full
        layers = range(1, self._groups + groups)
        return bisect_right(layers, position, key=self._layer_start)

    def _layer_start(self, layer: int) -> int:
        """Return the position that a layer begins with."""
        return self._head + self._sum_ramp(layer) - self._sum_ramp(layer - self._groups)

    def _sum_ramp(self, layers: int) -> int:
        """Return the samples of the first layers if there was no last group."""
        groups, group = self._window
        ramped = min(max(layers, 0), groups)
        each, longer = divmod(group, groups)  # of a part; the first ``longer`` have one more
        extra = min(ramped, longer)
        in_ramp = each * ramped * (ramped + 1) // 2 + extra * (extra + 1) // 2
        return in_ramp + (ramped - extra) * longer + max(0, layers - groups) * group
