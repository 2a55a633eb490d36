"""Epochs that draw by weight: how often, with which others, and the same wherever it is asked."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.draws import DRAW_SHIFT, Component, Draws, split_words
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.shares import Shares

PIECE = 16


def make_plan(
    draws: Draws, count: int, *, batch_size: int = 8, epoch: int = 0, **more: object
) -> EpochPlan:
    layout = ShardLayout(samples=count, shards=1, size_bytes=count * 1000, draws=draws)
    arguments = {"seed": 3, "shuffle": True, "last_batch": LastBatch.PAD} | more
    return EpochPlan(layout, batch_size=batch_size, epoch=epoch, **arguments)  # type: ignore[arg-type]


def weighted(*weights: int, parts: tuple[Component, ...] = ()) -> Draws:
    column = np.array([weights], np.uint32)
    parts = parts or (Component(0, len(weights)),)
    return Draws(weights=column, components=parts, piece=PIECE)


def all_words(plan: EpochPlan) -> list[int]:
    return [word for index in range(plan.batches) for word in plan.words(index).tolist()]


def count_samples(plan: EpochPlan) -> Counter[int]:
    return Counter(i for index in range(plan.batches) for i in plan.samples(index).tolist())


uneven = st.lists(st.integers(0, 9) | st.integers(0, 2**32 - 1), min_size=1, max_size=300).filter(
    any
)
shapes = st.sampled_from([{}, {"lanes": 1}, {"lanes": 3}, {"lanes": 2, "working_set": (64, 4)}])


@given(uneven, st.integers(1, 300), shapes, st.integers(0, 5))
@settings(max_examples=80)
def test_a_sample_is_drawn_as_often_as_its_weight_says_or_once_more(
    weights: list[int], count: int, shape: dict[str, object], epoch: int
) -> None:
    try:
        plan = make_plan(weighted(*weights), count, epoch=epoch, **shape)
    except ConfigError:  # more lanes than batches, or too small a working set
        return
    drawn = count_samples(plan)
    assert sum(drawn.values()) == count
    for sample, weight in enumerate(weights):
        exact = Fraction(count * weight, sum(weights))
        assert drawn[sample] in (int(exact), -int(-exact // 1)), (sample, exact)


@given(uneven, st.integers(1, 300), shapes)
@settings(max_examples=40)
def test_the_draws_of_a_sample_are_numbered_from_0(
    weights: list[int], count: int, shape: dict[str, object]
) -> None:
    try:
        plan = make_plan(weighted(*weights), count, **shape)
    except ConfigError:
        return
    samples, draws = split_words(np.array(all_words(plan)))
    for sample in np.unique(samples):
        numbers = np.sort(draws[samples == sample])
        assert numbers.tolist() == list(range(len(numbers)))


@given(uneven, st.integers(1, 300), st.integers(2, 40), st.data())
@settings(max_examples=40)
def test_rows_are_the_same_in_chunks_and_with_another_batch_size(
    weights: list[int], count: int, batch_size: int, data: st.DataObject
) -> None:
    parts = (Component(0, len(weights)),)
    draws = weighted(*weights, parts=parts)
    whole = all_words(make_plan(draws, count, batch_size=batch_size))
    other = data.draw(st.integers(1, count))
    plan = make_plan(draws, count, batch_size=other, order_batch_size=batch_size)
    assert all_words(plan) == whole
    index = data.draw(st.integers(0, plan.batches - 1))
    first = data.draw(st.integers(0, plan.valid(index)))
    rows = data.draw(st.integers(0, other))
    assert plan.words(index, first, rows).tolist() == plan.words(index).tolist()[first:][:rows]


def test_mean_frequencies_are_the_weights() -> None:
    weights = np.random.default_rng(0).integers(0, 50, 97)
    draws, epochs, count = weighted(*weights.tolist()), 300, 61
    drawn = Counter[int]()
    for epoch in range(epochs):
        drawn += count_samples(make_plan(draws, count, epoch=epoch))
    expected = epochs * count * weights / weights.sum()
    counts = np.array([drawn[sample] for sample in range(len(weights))])
    # Each epoch adds 0 or 1 to a whole part: a variance of at most a quarter.
    assert np.all(np.abs(counts - expected) <= 5 * np.sqrt(epochs) / 2)


def test_pairs_of_all_samples_meet_in_some_epoch() -> None:
    """In a fixed order those that lie side by side would be drawn together always, or never."""
    count = 60
    met = np.zeros((2 * count, 2 * count), np.int64)
    draws = weighted(*[1] * (2 * count))
    for epoch in range(200):
        chosen = [*count_samples(make_plan(draws, count, epoch=epoch))]
        met[np.ix_(chosen, chosen)] += 1
    pairs = met[~np.eye(2 * count, dtype=bool)]
    assert pairs.min() > 15  # a quarter of the epochs on average
    assert pairs.max() < 90


def test_epochs_and_seeds_draw_differently() -> None:
    draws = weighted(*[1] * 128)
    orders = [
        all_words(make_plan(draws, 64, epoch=epoch, seed=seed))
        for epoch, seed in [(0, 1), (1, 1), (0, 2)]
    ]
    assert len({frozenset(order) for order in orders}) == 3


shares = st.lists(st.integers(1, 50), min_size=1, max_size=5)


@given(shares, st.integers(1, 64), st.integers(0, 10_000), st.integers(1, 64))
@settings(max_examples=50)
def test_each_batch_of_a_mix_has_its_shares(
    parts: list[int], batch_size: int, first: int, batches: int
) -> None:
    mix, total = Shares(parts, batch_size), sum(parts)
    before = mix.rows_before(first)
    for batch in range(first, first + batches):
        rows = np.bincount(mix.components(batch), minlength=len(parts)).tolist()
        after = mix.rows_before(batch + 1)
        assert rows == [b - a for a, b in zip(mix.rows_before(batch), after, strict=True)]
        assert sum(rows) == batch_size
        for count, part in zip(rows, parts, strict=True):
            assert batch_size * part // total <= count <= batch_size * part // total + 1
    for start, end, part in zip(before, mix.rows_before(first + batches), parts, strict=True):
        assert abs(end - start - Fraction(batches * batch_size * part, total)) <= 4 < 64


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=2, max_size=4),
    st.integers(1, 150),
    st.sampled_from([1, 2, 3]),
    st.integers(2, 16),
)
@settings(max_examples=60)
def test_a_mix_draws_from_each_component_by_its_share_and_weights(
    sizes: list[tuple[int, int]], count: int, lanes: int, batch_size: int
) -> None:
    parts, first = [], 0
    for size, share in sizes:
        parts.append(Component(first, first + size, share))
        first += size
    weights = np.random.default_rng(count).integers(0, 5, first) + 1
    draws = weighted(*weights.tolist(), parts=tuple(parts))
    try:
        plan = make_plan(draws, count, batch_size=batch_size, lanes=lanes)
    except ConfigError:
        return
    counts = count_samples(plan)
    drawn = np.array([counts[sample] for sample in range(first)])
    total = sum(share for _, share in sizes)
    for index in range(count // batch_size):
        for part in parts:
            ids = plan.samples(index)
            rows = int(((ids >= part.first) & (ids < part.end)).sum())
            assert rows - batch_size * part.share // total in (0, 1)
    for part in parts:
        mine, mass = drawn[part.first : part.end], weights[part.first : part.end]
        exact = mine.sum() * mass / mass.sum()
        assert np.all(mine >= np.floor(exact - 1e-9)), "fewer than its weight says"
        assert np.all(mine <= np.ceil(exact + 1e-9)), "more than its weight says"


def test_columns_hold_from_their_epochs() -> None:
    columns = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1]], np.uint32)
    draws = Draws(weights=columns, epochs=(0, 2, 5), components=(Component(0, 3),), piece=4)
    kinds = [set(count_samples(make_plan(draws, 20, epoch=epoch))) for epoch in range(7)]
    assert kinds == [{0}, {0}, {1}, {1}, {1}, {2}, {2}]


def test_the_lane_of_a_batch_is_known_without_the_weights() -> None:
    count = 1003
    draws = weighted(*range(1, 500))
    plain = ShardLayout(samples=count, shards=1, size_bytes=count * 1000)
    arguments = {"batch_size": 8, "seed": 3, "epoch": 4, "shuffle": True, "lanes": 5}
    known = EpochPlan(plain, last_batch=LastBatch.PAD, **arguments)  # type: ignore[arg-type]
    plan = make_plan(draws, count, epoch=4, lanes=5)
    assert plan.batches == known.batches
    assert [plan.lane(i) for i in range(plan.batches)] == [
        known.lane(i) for i in range(plan.batches)
    ]


@pytest.mark.parametrize("parts", [((0, 4000, 1),), ((0, 1000, 3), (1000, 4000, 1))])
def test_a_lane_needs_only_what_is_announced_before_and_not_taken_back(
    parts: tuple[tuple[int, int, int], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.plan.draws.DENSE", 0.0)  # those of few draws, too
    weights = np.random.default_rng(1).integers(0, 7, 4000)
    draws = weighted(*weights.tolist(), parts=tuple(Component(*part) for part in parts))
    plan = make_plan(draws, 6000, lanes=3, working_set=(1500, PIECE), last_batch=LastBatch.DROP)
    assert not plan.draws_whole_lanes
    open_ranges: dict[int, Counter[tuple[int, int]]] = {lane: Counter() for lane in range(3)}
    largest = 0
    for index in range(plan.batches):
        lane = plan.lane(index)
        if lane is None:
            continue
        behind, ahead = Counter(plan.pieces_behind(index)), Counter(plan.pieces_ahead(index))
        assert not behind - open_ranges[lane], "taken back without being announced"
        open_ranges[lane] = open_ranges[lane] - behind + ahead
        needed = set(plan.samples(index).tolist())
        held = {i for first, end in open_ranges[lane] for i in range(first, end)}
        assert needed <= held
        assert all(plan.lane_ranges(lane)[0][0] <= i for i in needed)
        largest = max(largest, sum(len(ranges) for ranges in open_ranges.values()))
    assert largest > 3
    held = sum(end - first for ranges in open_ranges.values() for first, end in ranges)
    assert held < 4000, "nothing was taken back"


def test_pieces_of_which_few_samples_are_drawn_are_not_read_ahead() -> None:
    """The second half of the samples is drawn in full, of the first one in ten."""
    draws = weighted(*[1] * 2000, *[10] * 2000)
    plan = make_plan(draws, 2200, lanes=1, working_set=(600, PIECE))
    ahead = Counter(at for index in range(plan.batches) for at in plan.pieces_ahead(index))
    assert {at for at, _ in ahead} == set(range(2000, 4000, PIECE))
    assert set(ahead.values()) == {1}
    for index in range(plan.batches):
        lane_window = plan.lane_window(0, index)
        held = {i for at, end in plan.window_ranges(0, *lane_window) for i in range(at, end)}
        assert {*plan.samples(index).tolist()} <= held, "whatever is needed is fetched"


def test_a_lane_that_is_drawn_whole_announces_samples_not_draws() -> None:
    plan = make_plan(weighted(*[1] * 1000), 100, lanes=2)
    assert plan.draws_whole_lanes
    for lane in range(2):
        ranges = plan.window_ranges(lane, *plan.lane_window(lane, 0))
        announced = {i for first, end in ranges for i in range(first, end)}
        mine = [i for i in range(plan.batches) if plan.lane(i) == lane]
        assert {s for i in mine for s in plan.samples(i).tolist()} <= announced


def test_an_evaluation_refuses_weights() -> None:
    with pytest.raises(ConfigError, match="shuffle must be true for a selection with weights"):
        make_plan(weighted(1, 2), 10, shuffle=False)


def test_the_order_of_draws_is_the_published_one() -> None:
    """States hold a position in it."""
    parts = (Component(0, 300, 7), Component(300, 500, 3))
    weights = [1 + sample % 5 for sample in range(500)]
    plan = make_plan(weighted(*weights, parts=parts), 700, lanes=2, working_set=(200, PIECE))
    digest = sum((place + 1) * word for place, word in enumerate(all_words(plan))) % (2**61 - 1)
    assert digest == 1_652_821_063_300_955_278
    assert max(all_words(plan)) >> DRAW_SHIFT > 0
