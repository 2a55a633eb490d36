"""The order of an epoch: which samples make batch ``index``, as pure arithmetic.

    lane 0: samples 0 …  ── in an order of its own (``window``) ── cut: B B B B │ leftovers
    lane 1: … the next   ── …                                   ── cut: B B B   │ leftovers
    …
    turn 0: every lane's batch 0, lanes in an order keyed by (seed, epoch, turn)
    turn 1: every lane's batch 1, … (lanes without such a batch are skipped)
    then:   the leftovers of all lanes, permuted together, cut into the last batches

The result is one order of the samples, 0 .. N - 1. It depends on B, the ``order_batch_size`` that
lanes are cut by, and on its shape (``feeder.plan.lanes``). Batches usually have that size; a job
that resumes with another world size keeps its global batch and its order, and so changes
``batch_size`` only. Batch ``index`` is always the rows from index · ``batch_size`` of that order.

Invariant: every sample is in exactly one row of exactly one batch of the epoch (padding), or in at
most one, with fewer than ``batch_size`` samples left out (dropping). All batches but the last are
full. The order depends on the arguments other than ``batch_size`` only: not on the process, the
host, the world size or numpy's version. Memory is O(lanes).
"""

import enum
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.plan.draws import DrawnLane, DrawnOrder, Draws, split_words
from feeder.plan.lane_order import LaneOrder
from feeder.plan.lanes import LANES_LIMIT, LaneLayout, OrderShape, resolve_shape
from feeder.plan.permutation import MAX_SIZE, KeyedPermutations, keyed_order
from feeder.plan.rng import Purpose, derive_key
from feeder.plan.window import Window

MAX_SHARDS: Final = 2**20
MAX_EPOCH: Final = 2**31 - 1
MAX_SEED: Final = 2**64 - 1

_LANE_ORDERS_MAX: Final = 256  # some KB each


class LastBatch(enum.StrEnum):
    """What happens to the samples that do not fill a last batch."""

    DROP = "drop"
    PAD = "pad"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLayout:
    """How samples are spread over shards; sample ids go through shard 0, then 1, ….

    Shard s holds samples // shards + (s < samples % shards) rows.
    """

    samples: int
    shards: int
    size_bytes: int = 0
    """Of all shards; 0 where it does not matter."""
    draws: Draws | None = None
    """Where an epoch draws samples by weight: ``samples`` is the number of its draws then, and all
    that is said of samples in an order holds for draws."""

    def __post_init__(self) -> None:
        _check_range("layout", "samples", self.samples, 1, MAX_SIZE)
        _check_range("layout", "shards", self.shards, 1, MAX_SHARDS)

    @property
    def ids(self) -> int:
        """The end of the sample ids: ``samples``, unless these are draws."""
        return self.samples if self.draws is None else self.draws.samples

    def locate(self, sample_ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the shard and the row in it of each of ``sample_ids``, both int64 (n,).

        Raises IndexError for an id outside 0 .. samples - 1.
        """
        outside = (sample_ids < 0) | (sample_ids >= self.samples)
        if outside.any():
            first = int(sample_ids[outside][0])
            raise IndexError(f"sample {first} is outside this dataset's 0 .. {self.samples - 1}")
        short_rows, long_shards = divmod(self.samples, self.shards)
        # Long shards, with one more row, come first. Inside them the first quotient is right and
        # the second no larger; past them the second is right and the first no larger. max(…, 1)
        # only avoids a division by 0: short shards that are empty hold no sample.
        shards = np.maximum(
            sample_ids // (short_rows + 1), (sample_ids - long_shards) // max(short_rows, 1)
        )
        return shards, sample_ids - shards * short_rows - np.minimum(shards, long_shards)

    def rows(self, shard: int) -> slice:
        """Return the ids of a shard's samples."""
        short_rows, long_shards = divmod(self.samples, self.shards)
        first = shard * short_rows + min(shard, long_shards)
        return slice(first, first + short_rows + (shard < long_shards))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """A run of turns in which the same lanes have a batch."""

    first_index: int
    first_turn: int
    lanes: NDArray[np.int64]


class EpochPlan:
    """The batches of one epoch; cheap to make, safe to share between threads."""

    def __init__(
        self,
        layout: ShardLayout,
        *,
        batch_size: int,
        seed: int,
        epoch: int,
        shuffle: bool,
        last_batch: LastBatch,
        order_batch_size: int = 0,
        lanes: int = 0,
        working_set: int | tuple[int, int] = 0,
    ) -> None:
        """Plan the epoch; ConfigError when a number is out of its range.

        ``order_batch_size`` 0 means ``batch_size``; for ``lanes`` and ``working_set`` see
        ``resolve_shape``. A dataset smaller than one batch has 0 batches when the last batch is
        dropped.
        """
        _check_range("plan", "batch_size", batch_size, 1, MAX_SIZE)
        _check_range("plan", "order_batch_size", order_batch_size, 0, MAX_SIZE)
        _check_range("plan", "seed", seed, 0, MAX_SEED)
        _check_range("plan", "epoch", epoch, 0, MAX_EPOCH)
        _check_range("plan", "lanes", lanes, 0, LANES_LIMIT)
        self.layout = layout
        self.batch_size = batch_size
        self.order_batch_size = order_batch_size or batch_size
        self.seed = seed
        self.epoch = epoch
        self.shuffle = shuffle
        self.last_batch = last_batch
        padding = batch_size - 1 if last_batch == LastBatch.PAD else 0
        self.batches = (layout.samples + padding) // batch_size

        self.shape: OrderShape = resolve_shape(
            layout.samples,
            order_batch_size=self.order_batch_size,
            shuffle=shuffle,
            lanes=lanes,
            working_set=working_set,
            size_bytes=layout.size_bytes,
        )
        lane_layout = LaneLayout(
            samples=layout.samples, lanes=self.shape.lanes, order_batch_size=self.order_batch_size
        )
        lane_numbers = np.arange(self.shape.lanes, dtype=np.int64)
        self._starts = lane_layout.starts(lane_numbers)
        self._sizes = lane_layout.sizes()
        self._whole_batches = self._sizes // self.order_batch_size  # (lanes,), those of the order
        self._drawn = self._plan_draws()
        self._stages = _plan_stages(self._whole_batches)
        # Cache of one turn's lane order, which chunks and neighbouring batches use again.
        self._last_turn: tuple[int, NDArray[np.int64]] = (-1, np.zeros(0, dtype=np.int64))
        # The leftovers begin at this position of the epoch's order.
        self._lane_rows = int(self._whole_batches.sum()) * self.order_batch_size
        leftovers = self._sizes - self._whole_batches * self.order_batch_size
        self._leftover_starts = np.cumsum(leftovers) - leftovers  # (lanes,), among all leftovers
        # Chunks and neighbouring turns use the same ones again.
        self._lane_order: Callable[[int], LaneOrder | DrawnLane]
        self._lane_order = functools.lru_cache(_LANE_ORDERS_MAX)(self._make_lane_order)
        if self._drawn is not None:
            self._lane_order = self._drawn.lane  # all lanes take a byte a sample
        self._permute_leftovers = KeyedPermutations(
            max(1, int(leftovers.sum())),
            np.array([derive_key(Purpose.LEFTOVER_ORDER, seed, epoch)], dtype=np.uint64),
        )

    @property
    def working_set_bytes(self) -> int:
        """The working set's part of the dataset's bytes."""
        return self.shape.working_set * self.layout.size_bytes // self.layout.samples

    @property
    def draws_whole_lanes(self) -> bool:
        """Whether batches are drawn from all of their lane, not from a window of it."""
        return self.shuffle and self._lane_order(0).is_whole

    def lane_ranges(self, lane: int) -> list[tuple[int, int]]:
        """Return what a lane is drawn from, as first sample ids and ends."""
        if self._drawn is not None:
            return self._drawn.lane(lane).extents()
        first = int(self._starts[lane])
        return [(first, first + int(self._sizes[lane]))]

    def lane(self, index: int) -> int | None:
        """Return the lane of the batch's first sample, None if that sample is a leftover.

        A batch of ``order_batch_size`` rows lies in that lane entirely.
        """
        self._check_index(index)
        row = index * self.batch_size
        return self._find_turn(row // self.order_batch_size)[0] if row < self._lane_rows else None

    def valid(self, index: int) -> int:
        """Return how many rows of the batch are real samples: fewer in a padded last batch only."""
        self._check_index(index)
        return min(self.batch_size, self.layout.samples - index * self.batch_size)

    def samples(self, index: int, first: int = 0, count: int | None = None) -> NDArray[np.int64]:
        """Return the sample ids of rows first .. first + count - 1 of a batch, int64.

        The result ends at the last real row, so it may be shorter than ``count`` or empty. Raises
        IndexError for an index outside 0 .. batches - 1 and for negative rows.
        """
        words = self.words(index, first, count)
        return words if self._drawn is None else split_words(words)[0]

    def words(self, index: int, first: int = 0, count: int | None = None) -> NDArray[np.int64]:
        """Return ``samples`` with the number of the draw of each: sample id + (draw << DRAW_SHIFT).

        It is 0 unless the epoch has drawn the sample before.
        """
        valid = self.valid(index)
        if first < 0 or (count is not None and count < 0):
            raise IndexError(f"rows from {first}, {count} of them: neither may be negative")
        stop = valid if count is None else min(valid, first + count)
        before = index * self.batch_size
        return self._find_samples(before + first, before + max(first, stop))

    def pieces_ahead(self, index: int) -> list[tuple[int, int]]:
        """Return the pieces, as first sample id and end, that the next batch of this batch's lane
        needs and the lane has not needed so far; from its first batch on, that one's too.

        Whoever makes a batch may have them read meanwhile. None where a lane is permuted as a
        whole, nor those of which only few samples are drawn. A batch that is not of
        ``order_batch_size`` counts for those of the order that begin in it.
        """
        ranges = []
        for lane, turn in self.turns(index):
            size = int(self._sizes[lane])
            begin = min((turn + 1) * self.order_batch_size, size) if turn else 0
            end = min((turn + 2) * self.order_batch_size, size)
            if not self.shuffle:
                ranges += self._unshuffled(lane, begin, end)
            elif not (order := self._lane_order(lane)).is_whole:
                entered = order.count_entered(begin - 1) if begin else 0
                find = order.dense_ranges if isinstance(order, DrawnLane) else order.piece_ranges
                ranges += find(entered, order.count_entered(end - 1))
        return ranges

    def pieces_behind(self, index: int) -> list[tuple[int, int]]:
        """Return the pieces, as first sample id and end, that were used up by the last batch but
        one of this batch's lane, and not by an earlier one.

        No later batch of the epoch needs them. None where a lane is permuted as a whole.
        """
        ranges = []
        for lane, turn in self.turns(index):
            begin, end = (max(0, turn - before) * self.order_batch_size for before in (2, 1))
            if not self.shuffle:
                ranges += self._unshuffled(lane, begin, end)
            elif not (order := self._lane_order(lane)).is_whole:
                ranges += order.piece_ranges(order.count_used_up(begin), order.count_used_up(end))
        return ranges

    def turns(self, index: int) -> Iterator[tuple[int, int]]:
        """Yield lane and turn of the batches of the order that begin in a batch."""
        self._check_index(index)
        first, size = index * self.batch_size, self.order_batch_size
        stop = min(first + self.batch_size, self._lane_rows)
        for order_index in range(-(-first // size), -(-stop // size)):
            yield self._find_turn(order_index)

    def turns_left(self, lane: int, turn: int) -> int:
        """Return how many whole batches a lane has after this turn."""
        return max(0, int(self._whole_batches[lane]) - turn - 1)

    def lane_window(self, lane: int, turn: int, ahead: int = 1) -> tuple[int, int]:
        """Return what a lane's batches need at a turn, the one before and ``ahead`` after it: first
        and end, counted in its pieces in the order in which they are read, or in its samples where
        it is not shuffled or is permuted as a whole. Turns below 0 are of the epoch before.
        """
        size = int(self._sizes[lane])
        begin = max(0, turn - 1) * self.order_batch_size
        end = min(max(0, turn + 1 + ahead) * self.order_batch_size, size)
        if self.shuffle:
            order = self._lane_order(lane)
            if order.is_whole and self._drawn is None:
                return 0, size
            return order.count_used_up(begin), order.count_entered(end - 1) if end else 0
        return min(begin, size), end

    def window_ranges(self, lane: int, first: int, end: int) -> list[tuple[int, int]]:
        """Return a part of a lane, counted as in ``lane_window``, as first sample ids and ends."""
        if first >= end:
            return []
        if self.shuffle:
            order = self._lane_order(lane)
            if self._drawn is not None or not order.is_whole:
                return order.piece_ranges(first, end)
        return self._unshuffled(lane, first, end)

    def _unshuffled(self, lane: int, begin: int, end: int) -> list[tuple[int, int]]:
        start = int(self._starts[lane])
        return [(start + begin, start + end)] if begin < end else []

    def _plan_draws(self) -> DrawnOrder | None:
        """Return the order of drawing by weight. Its leftovers are all of the last lane."""
        draws = self.layout.draws
        if draws is None:
            return None
        if not self.shuffle:
            raise ConfigError(
                "recipe: shuffle must be true for a selection with weights or a mix: to evaluate, "
                "serve one without them, which has every sample once"
            )
        rest = self.layout.samples % self.order_batch_size
        self._sizes = self._whole_batches * self.order_batch_size
        self._sizes[-1] += rest
        return DrawnOrder(
            draws,
            batches=self._whole_batches,
            rest=rest,
            order_batch_size=self.order_batch_size,
            shape=self.shape,
            seed=self.seed,
            epoch=self.epoch,
        )

    def _make_lane_order(self, lane: int) -> LaneOrder:
        size = int(self._sizes[lane])
        return LaneOrder(
            first=int(self._starts[lane]),
            size=size,
            piece=self.shape.piece,
            window=Window.for_lane(size, self.shape, self.layout.samples, self.order_batch_size),
            key=derive_key(Purpose.LANE_ORDER, self.seed, self.epoch, lane),
        )

    def _find_samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at start .. stop - 1 of the epoch's order."""
        ids = np.empty(stop - start, dtype=np.int64)
        at, end = start, min(stop, self._lane_rows)
        while at < end:  # one whole batch of a lane after the other
            order_index, row = divmod(at, self.order_batch_size)
            rows = min(end - at, self.order_batch_size - row)
            lane, turn = self._find_turn(order_index)
            first = turn * self.order_batch_size + row
            ids[at - start : at - start + rows] = self._in_lane(lane, first, first + rows)
            at += rows
        if at < stop:
            offsets = np.arange(at - self._lane_rows, stop - self._lane_rows, dtype=np.int64)
            ids[at - start :] = self._find_leftovers(offsets)
        return ids

    def _in_lane(self, lane: int, first: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions first .. stop - 1 of a lane."""
        if self.shuffle:
            return self._lane_order(lane).samples(first, stop)
        start = int(self._starts[lane])
        return np.arange(start + first, start + stop, dtype=np.int64)

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self.batches:
            raise IndexError(
                f"batch {index} is outside epoch {self.epoch}, which has {self.batches} batches"
            )

    def _find_turn(self, order_index: int) -> tuple[int, int]:
        """Return lane and turn (batch within the lane) of batch ``order_index`` of the order."""
        stage = next(stage for stage in reversed(self._stages) if stage.first_index <= order_index)
        turns, position = divmod(order_index - stage.first_index, len(stage.lanes))
        turn = stage.first_turn + turns
        if not self.shuffle:
            return int(stage.lanes[position]), turn
        known_turn, lanes = self._last_turn
        if known_turn != turn:
            key = derive_key(Purpose.TURN_ORDER, self.seed, self.epoch, turn)
            lanes = keyed_order(stage.lanes, key)
            self._last_turn = (turn, lanes)  # one assignment: threads may share the plan
        return int(lanes[position]), turn

    def _find_leftovers(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the sample ids of the leftovers at ``offsets``."""
        if self._drawn is not None:
            first = int(self._whole_batches[-1]) * self.order_batch_size + int(offsets[0])
            return self._in_lane(len(self._sizes) - 1, first, first + len(offsets))
        if self.shuffle:
            offsets = self._permute_leftovers(np.zeros_like(offsets), offsets)
        lanes = np.searchsorted(self._leftover_starts, offsets, side="right") - 1
        ids = np.empty_like(offsets)
        for lane in np.unique(lanes).tolist():
            here = lanes == lane
            first = int(self._whole_batches[lane]) * self.order_batch_size
            rest = self._in_lane(lane, first, int(self._sizes[lane]))
            ids[here] = rest[offsets[here] - self._leftover_starts[lane]]
        return ids


def steps_per_rank(batches: int, world_size: int, last_batch: LastBatch) -> int:
    """Return the number of steps in an epoch, the same for every rank.

    Dropping rounds down, leaving out fewer than world_size batches. Padding rounds up: indices at
    and past ``batches`` stand for batches without any real row.
    """
    _check_range("ranks", "world_size", world_size, 1, MAX_SIZE)
    padding = world_size - 1 if last_batch == LastBatch.PAD else 0
    return (batches + padding) // world_size


def rank_indices(batches: int, rank: int, world_size: int, last_batch: LastBatch) -> range:
    """Return the indices of ``rank`` of ``world_size`` in an epoch: rank, rank + world_size, …."""
    steps = steps_per_rank(batches, world_size, last_batch)
    _check_range("ranks", "rank", rank, 0, world_size - 1)
    return range(rank, steps * world_size, world_size)


def _plan_stages(whole_batches: NDArray[np.int64]) -> tuple[_Stage, ...]:
    """Split the turns where lanes run out of whole batches.

    Lanes differ by at most one batch, so there are two stages at most, however many lanes.
    """
    stages: list[_Stage] = []
    index = turn = 0
    for until in np.unique(whole_batches).tolist():
        if until > turn:
            lanes = np.flatnonzero(whole_batches >= until)
            stages.append(_Stage(first_index=index, first_turn=turn, lanes=lanes))
            index += (until - turn) * len(lanes)
            turn = until
    return tuple(stages)


def _check_range(where: str, name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise ConfigError(f"{where}: {name} must be {low} .. {high}, got {value!r}")
