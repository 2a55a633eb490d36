"""Weights and mixes: an epoch that draws each sample as often as its weight says.

An epoch is N draws, in batches. A component, which is a range of samples, has a share of each
batch (``shares``), so a fixed number n of the draws. It is sampled systematically (Madow, 1949):

    weights        │ a ││ b  ││c││    d    ││ e │ …    laid end to end, S in all
    draws            ↑     ↑     ↑     ↑     ↑         u, u + S/n, u + 2 S/n, … with one start u

So a sample of weight w is drawn ⌊n w / S⌋ times or once more, and w n / S times on average. In a
fixed order, samples that lie side by side would never be drawn in one epoch, or always together:
each epoch has an order of its own. A lane is a range of the draws, so of the line. Samples between
its borders are permuted in it, by blocks of pieces as they are read; those that a border cuts stay
there, in both lanes. Then the lane's draws are mixed as any lane (``window``).

    lane        cut │ piece 7: block, block … │ piece 2: block, block … │ … │ cut
    block       its samples in an order of their own

Invariant: integers only, so all is the same on every machine; n · w and n · n stay below 2**63.
"""

import functools
import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from feeder.plan.lanes import LANES_MAX, OrderShape
from feeder.plan.rng import GAMMA_U64, Purpose, derive_key, derive_keys, mix64
from feeder.plan.shares import Shares
from feeder.plan.window import Mixing, Window

DRAWS_MAX: Final = 2**31 - 1
"""Most draws of an epoch."""

WEIGHTED_SAMPLES_MAX: Final = 2**30

WEIGHT_MAX: Final = 2**32 - 1

DRAW_SHIFT: Final = 48
"""A row of a batch is a word: sample id + (draw << DRAW_SHIFT), draw being how many draws of the
sample came before in this epoch. The plain order has draw 0."""

DENSE: Final = 0.5
"""Where a smaller share of a range is needed, reading it all ahead is more work than it saves."""

_DRAWS_TOLD_APART: Final = 2**15  # a word has no more bits; later draws repeat the first ones'
_ID_MASK: Final = 2**DRAW_SHIFT - 1

_BLOCK: Final = 64  # samples that are permuted together, at most a piece

_START, _PIECES, _SAMPLES = range(3)  # the uses of a component's keys


class Component(NamedTuple):
    """The samples first .. end - 1, and their share of each batch: a part of the sum of shares."""

    first: int
    end: int
    share: int = 1


class Draws:
    """What decides how often an epoch draws each sample; immutable."""

    def __init__(
        self,
        *,
        weights: Sequence[NDArray[np.uint32]],
        epochs: Sequence[int] = (0,),
        components: Sequence[Component],
        piece: int,
    ) -> None:
        """Each of ``weights`` (samples,) holds from one of ``epochs`` on, which ascend from 0; its
        sum over each of the ``components``, which have all samples in turn, is positive. ``piece``
        is the unit in which samples are read, a power of two."""
        self.weights = weights
        self.samples = len(weights[0])
        self.epochs = epochs
        self.components = components
        self.piece = piece
        self.lines = [
            [WeightLine(column[part.first : part.end], part.first) for part in components]
            for column in weights
        ]
        """By weights and component."""

    def lines_at(self, epoch: int) -> "list[WeightLine]":
        """Return the line of each component in an epoch."""
        column = sum(first <= epoch for first in self.epochs) - 1
        return self.lines[column]


def split_words(words: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sample ids and draws of ``words``, int64 (n,) each."""
    return words & _ID_MASK, words >> DRAW_SHIFT


class WeightLine:
    """The weights of a component, laid end to end in the order of their samples."""

    def __init__(self, weights: NDArray[np.uint32], first: int) -> None:
        """``weights`` (n,) are those of samples first, first + 1, …."""
        self.weights = weights
        self.first, self.end = first, first + len(weights)
        edges = np.arange(0, len(weights), _BLOCK)
        self._ends = np.cumsum(np.add.reduceat(weights, edges, dtype=np.int64))  # by block
        self.total = int(self._ends[-1])

    def find(self, at: int) -> tuple[int, int]:
        """Return the sample that a point 0 .. total of the line lies in, and where that begins; for
        ``total`` the end of samples."""
        if at == self.total:
            return self.end, at
        block = int(np.searchsorted(self._ends, at, side="right"))
        begin = int(self._ends[block - 1]) if block else 0
        weights = self.weights[block * _BLOCK : (block + 1) * _BLOCK]
        ends = begin + np.cumsum(weights, dtype=np.int64)
        row = int(np.searchsorted(ends, at, side="right"))
        return self.first + block * _BLOCK + row, int(ends[row]) - int(weights[row])


class _Sampling(NamedTuple):
    """A component in an epoch: its draw d is at (start + d · total) / draws of its line."""

    line: WeightLine
    draws: int
    start: int
    pieces_key: int
    samples_key: int

    @classmethod
    def of(cls, line: WeightLine, draws: int, key: int) -> Self:
        keys = [int(each) for each in derive_keys(key, np.arange(3, dtype=np.int64))]
        # Below the total, each value within 2**-64 as probable as the others.
        start = keys[_START] * line.total >> 64
        return cls(line, draws, start, keys[_PIECES], keys[_SAMPLES])


class _Stream:
    """The draws first .. first + size - 1 of a component, in the order in which they are read."""

    def __init__(self, sampling: _Sampling, first: int, size: int, piece: int) -> None:
        self._sampling = sampling
        line, draws, *_ = sampling
        # The lane's borders on the line, and the samples that they cut.
        self._border, self._border_part = divmod(first * line.total, draws)
        low, low_at = line.find(self._border)
        stop, stop_part = divmod((first + size) * line.total, draws)
        high, high_at = line.find(stop)
        self._cut = self._border - low_at  # of the first sample, which is the lane's before
        is_cut = low < high and (high_at < stop or stop_part > 0)
        firsts, ends, sums = self._permute_blocks(low + 1, high, min(_BLOCK, piece), piece)
        begin = low_at + int(line.weights[low - line.first]) - self._border
        cut = np.array([high], np.int64)[:is_cut]
        self._firsts = np.concatenate([[low], firsts, cut])
        self._ends = np.concatenate([[low + 1], ends, cut + 1])
        begins = np.cumsum(np.concatenate([[0, begin], sums]))[: len(self._firsts)]
        self._begins = begins  # where each block begins, from the lane's border
        self.progress: NDArray[np.float64] = begins / (stop + 1 - self._border)
        """Where each block begins, as a part of the lane."""
        drawn = np.diff(begins, append=stop - self._border) * (draws / line.total)
        self.is_dense: NDArray[np.bool_] = drawn >= DENSE * (self._ends - self._firsts)
        """Whether there are about as many draws of each block as it has samples."""

    def words(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the words of the draws at ``places`` (n,), from the lane's first one."""
        line, draws, *_ = self._sampling
        points, parts = self._find_points(places)
        found = np.searchsorted(self._begins, points, side="right") - 1
        points -= self._begins[found]
        points += self._cut * (found == 0)
        # Within a block, samples are in an order of their own.
        blocks, which = np.unique(found, return_inverse=True)
        rows = np.arange(_BLOCK, dtype=np.int64)
        samples = self._firsts[blocks, np.newaxis] + rows
        weights = line.weights[np.minimum(samples, line.end - 1) - line.first].astype(np.int64)
        weights *= samples < self._ends[blocks, np.newaxis]
        keys = derive_keys(self._sampling.samples_key, self._firsts[blocks])[:, np.newaxis]
        order = np.argsort(mix64(keys + (rows + 1).astype(np.uint64) * GAMMA_U64), axis=1)
        weights = np.take_along_axis(weights, order, axis=1)
        ends = np.cumsum(weights, axis=1)
        row = (ends[which] <= points[:, np.newaxis]).sum(axis=1)
        points -= ends[which, row] - weights[which, row]
        numbers = (points * draws + parts) // line.total % _DRAWS_TOLD_APART
        words: NDArray[np.int64] = self._firsts[found] + order[which, row]
        return words + (numbers << DRAW_SHIFT)

    def count_begun(self, places: int) -> int:
        """Return how many blocks the first draws need."""
        if not places:
            return 0
        point = self._find_points(np.array([places - 1]))[0]
        return int(np.searchsorted(self._begins, point[0], side="right"))

    @property
    def ranges(self) -> NDArray[np.int64]:
        """First sample and end of each block, (n, 2)."""
        return np.stack([self._firsts, self._ends], axis=1)

    def _find_points(
        self, places: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return how far behind the border of the lane draws are: whole, and 1 / draws parts."""
        line, draws, start, *_ = self._sampling
        step, step_part = divmod(line.total, draws)
        whole, part = divmod(start, draws)
        parts = places * step_part + (part + self._border_part)
        return places * step + whole + parts // draws, parts % draws

    def _permute_blocks(
        self, first: int, end: int, block: int, piece: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the blocks of samples first .. end - 1 in the epoch's order: their first samples,
        ends and weights, without those that weigh nothing."""
        line = self._sampling.line
        numbers = np.arange(first // block, -(-end // block) if first < end else 0, dtype=np.int64)
        firsts, ends = numbers * block, numbers * block + block
        firsts, ends = np.maximum(firsts, first), np.minimum(ends, end)
        inside = line.weights[first - line.first : end - line.first]
        sums = np.zeros(0, np.int64)
        if len(firsts):
            sums = np.add.reduceat(inside, firsts - first, dtype=np.int64)
        piece_keys = derive_keys(self._sampling.pieces_key, numbers * block // piece)
        block_keys = derive_keys(self._sampling.samples_key, numbers)
        order = np.lexsort((block_keys, piece_keys))
        order = order[sums[order] > 0]
        return firsts[order], ends[order], sums[order]


class _Part(NamedTuple):
    """A component's draws in a lane, mixed."""

    first: int
    """Among all draws of the component."""
    size: int
    mixing: Mixing
    stream: _Stream

    def words(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the words at positions start .. stop - 1 of the part."""
        return self.stream.words(self.mixing.places(start, stop).places)


class DrawnLane:
    """The draws of a lane in the order of an epoch; safe to share between threads."""

    def __init__(self, shares: Shares, batches: range, parts: Sequence[_Part | None]) -> None:
        """``batches`` are the numbers of the lane's batches among all of the order."""
        self._shares, self._batches = shares, batches
        self._there = [(which, part) for which, part in enumerate(parts) if part is not None]
        self.is_whole = all(part.mixing.is_whole for _, part in self._there)
        blocks = [len(part.stream.progress) for _, part in self._there]
        progress = np.concatenate([part.stream.progress for _, part in self._there])
        self._order = np.argsort(progress, kind="stable")  # the blocks of all, as they are read
        ranks = np.empty_like(self._order)
        ranks[self._order] = np.arange(len(ranks))
        self._ranks = np.split(ranks, np.cumsum(blocks)[:-1])

    def samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the words of the draws at positions start .. stop - 1 of the lane's order."""
        size = self._shares.batch_size
        words = np.empty(stop - start, np.int64)
        at = start
        while at < stop:
            turn, row = divmod(at, size)
            end = min(stop, (turn + 1) * size)
            batch = self._batches[turn]
            rows = self._shares.components(batch)
            before = self._shares.rows_before(batch)
            for which, part in self._there:
                mine = rows[row : row + end - at] == which
                if count := int(mine.sum()):
                    first = before[which] - part.first + int((rows[:row] == which).sum())
                    words[at - start : end - start][mine] = part.words(first, first + count)
            at = end
        return words

    def count_entered(self, position: int) -> int:
        """Return how many blocks are needed up to and with the batch that has a position."""
        batch = self._batches[position // self._shares.batch_size]
        before, rows = self._shares.rows_before(batch), self._shares.rows_of(batch)
        entered = 0
        for (which, part), ranks in zip(self._there, self._ranks, strict=True):
            last = min(before[which] + rows[which] - part.first, part.size)
            if last and (blocks := part.stream.count_begun(part.mixing.count_entered(last - 1))):
                entered = max(entered, int(ranks[blocks - 1]) + 1)
        return entered

    def count_used_up(self, position: int) -> int:
        """Return how many blocks are no longer needed from the batch that begins at a position."""
        turn = position // self._shares.batch_size
        used_up = len(self._order)
        if turn < len(self._batches):
            before = self._shares.rows_before(self._batches[turn])
            for (which, part), ranks in zip(self._there, self._ranks, strict=True):
                if (at := before[which] - part.first) < part.size:
                    places = part.mixing.count_used_up(at)
                    if places < part.size:
                        used_up = min(used_up, int(ranks[part.stream.count_begun(places + 1) - 1]))
        return used_up

    def piece_ranges(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return first sample id and end of blocks first .. stop - 1, in the order in which they
        are read."""
        ranges = np.concatenate([part.stream.ranges for _, part in self._there])
        return [(at, end) for at, end in ranges[self._order[first:stop]].tolist()]

    def dense_ranges(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Return the same without blocks of which so few samples are drawn that it is less work to
        read these alone."""
        is_dense = np.concatenate([part.stream.is_dense for _, part in self._there])
        kept = is_dense[self._order[first:stop]].tolist()
        return list(itertools.compress(self.piece_ranges(first, stop), kept))

    def extents(self) -> list[tuple[int, int]]:
        """Return first sample id and end of what the lane is drawn from."""
        return [
            (int(ranges[:, 0].min()), int(ranges[:, 1].max()))
            for ranges in (part.stream.ranges for _, part in self._there)
        ]


class DrawnOrder:
    """The lanes of an epoch that draws by weight."""

    def __init__(
        self,
        draws: Draws,
        *,
        batches: NDArray[np.int64],
        rest: int,
        order_batch_size: int,
        shape: OrderShape,
        seed: int,
        epoch: int,
    ) -> None:
        """``batches`` (lanes,) are the whole batches of each; the last lane has ``rest`` more
        draws."""
        self._draws, self._shape = draws, shape
        self.lane = functools.lru_cache(LANES_MAX)(self._make_lane)
        self._key = functools.partial(derive_key, Purpose.DRAWS, seed, epoch)
        self._shares = Shares([part.share for part in draws.components], order_batch_size)
        self._firsts = [0, *np.cumsum(batches).tolist()]
        self._rest = rest
        self._total = int(batches.sum()) * order_batch_size + rest
        self._samplings = [
            _Sampling.of(line, count, self._key(which, 0)) if count else None
            for which, (line, count) in enumerate(
                zip(draws.lines_at(epoch), self._count_before(len(batches)), strict=True)
            )
        ]

    def _make_lane(self, lane: int) -> DrawnLane:
        """Return the order of a lane."""
        first, stop = self._count_before(lane), self._count_before(lane + 1)
        is_last = lane == len(self._firsts) - 2
        batches = range(self._firsts[lane], self._firsts[lane + 1] + (is_last and self._rest > 0))
        return DrawnLane(
            self._shares,
            batches,
            [self._make_part(lane, *part) for part in enumerate(zip(first, stop, strict=True))],
        )

    def _count_before(self, lane: int) -> list[int]:
        """Return how many draws of each component are in the lanes before one."""
        batch = self._firsts[lane]
        before = self._shares.rows_before(batch)
        if lane == len(self._firsts) - 1 and self._rest:
            rest = self._shares.components(batch)[: self._rest]
            counts = np.bincount(rest, minlength=len(before)).tolist()
            before = [one + more for one, more in zip(before, counts, strict=True)]
        return before

    def _make_part(self, lane: int, which: int, draws: tuple[int, int]) -> _Part | None:
        sampling, size = self._samplings[which], draws[1] - draws[0]
        if sampling is None or not size:
            return None
        all_draws, lanes = sampling.draws, self._shape.lanes
        shape = OrderShape(
            lanes, self._shape.working_set * all_draws // self._total, self._shape.piece
        )
        rows = -(-self._shares.batch_size * all_draws // self._total)
        window = Window.for_lane(size, shape, all_draws, rows)
        keys = derive_keys(self._key(which, 1 + lane), np.arange(2, dtype=np.int64))
        return _Part(
            draws[0],
            size,
            Mixing(size, window, keys),
            _Stream(sampling, draws[0], size, self._draws.piece),
        )
