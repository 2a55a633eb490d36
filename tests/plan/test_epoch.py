"""Batch order: every sample exactly once, whatever the sizes."""

import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.lanes import LANES_LIMIT, LaneLayout
from tests.support.fairness import chi_square_z

layouts = st.builds(
    ShardLayout,
    samples=st.integers(1, 700) | st.sampled_from([1, 2, 3, 97, 251, 509, 1009]),
    shards=st.integers(1, 40),
)


def make_plan(
    layout: ShardLayout,
    *,
    batch_size: int = 32,
    seed: int = 0,
    epoch: int = 0,
    shuffle: bool = True,
    last_batch: LastBatch = LastBatch.DROP,
    lanes: int = 0,
) -> EpochPlan:
    return EpochPlan(
        layout,
        batch_size=batch_size,
        seed=seed,
        epoch=epoch,
        shuffle=shuffle,
        last_batch=last_batch,
        lanes=lanes,
    )


def plan_lanes(layout: ShardLayout, *, lanes: int, batch_size: int, **fields: Any) -> EpochPlan:
    """The plan with so many lanes, or as many as the samples have batches."""
    lanes = min(lanes, max(1, layout.samples // batch_size))
    return make_plan(layout, lanes=lanes, batch_size=batch_size, **fields)


plans = st.builds(
    plan_lanes,
    layouts,
    lanes=st.integers(0, 40),
    batch_size=st.integers(1, 100) | st.sampled_from([1, 2, 7, 31, 800]),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**31 - 1),
    shuffle=st.booleans(),
    last_batch=st.sampled_from(LastBatch),
)


def whole_epoch(plan: EpochPlan) -> NDArray[np.int64]:
    batches = [plan.samples(index) for index in range(plan.batches)]
    return np.concatenate([np.zeros(0, dtype=np.int64), *batches])


def rows_by_hand(layout: ShardLayout) -> list[tuple[int, int]]:
    """The (shard, row) of every sample id, by the definition in the format's documentation."""
    return [
        (shard, row)
        for shard in range(layout.shards)
        for row in range(layout.samples // layout.shards + (shard < layout.samples % layout.shards))
    ]


@settings(deadline=None)
@given(layout=layouts)
def test_locate_counts_through_the_shards_in_order(layout: ShardLayout) -> None:
    shards, rows = layout.locate(np.arange(layout.samples, dtype=np.int64))
    assert list(zip(shards.tolist(), rows.tolist(), strict=True)) == rows_by_hand(layout)


@settings(deadline=None, max_examples=200)
@given(plan=plans)
def test_every_sample_is_in_exactly_one_row_of_the_epoch(plan: EpochPlan) -> None:
    samples, batch_size = plan.layout.samples, plan.batch_size
    ids = whole_epoch(plan)
    assert ids.dtype == np.int64
    assert len(np.unique(ids)) == len(ids)
    assert ((ids >= 0) & (ids < samples)).all()
    if plan.last_batch is LastBatch.PAD:
        assert plan.batches == -(-samples // batch_size)
        assert len(ids) == samples
    else:
        assert plan.batches == samples // batch_size
        assert len(ids) == plan.batches * batch_size


@settings(deadline=None)
@given(plan=plans)
def test_all_batches_but_the_last_are_full_and_valid_counts_rows(plan: EpochPlan) -> None:
    sizes = [len(plan.samples(index)) for index in range(plan.batches)]
    assert sizes == [plan.valid(index) for index in range(plan.batches)]
    assert all(size == plan.batch_size for size in sizes[:-1])
    assert all(1 <= size <= plan.batch_size for size in sizes)


@settings(deadline=None)
@given(plan=plans, data=st.data())
def test_rows_of_a_batch_equal_those_of_the_whole_batch(
    plan: EpochPlan, data: st.DataObject
) -> None:
    if not plan.batches:
        return
    index = data.draw(st.integers(0, plan.batches - 1))
    first = data.draw(st.integers(0, plan.batch_size + 5))
    count = data.draw(st.integers(0, plan.batch_size + 5))
    whole = plan.samples(index)
    assert plan.samples(index, first, count).tolist() == whole[first : first + count].tolist()
    assert plan.samples(index, first).tolist() == whole[first:].tolist()


@settings(deadline=None)
@given(plan=plans)
def test_lane_is_the_lane_of_every_row_and_lanes_take_turns(plan: EpochPlan) -> None:
    layout = LaneLayout(
        samples=plan.layout.samples, lanes=plan.lanes, order_batch_size=plan.batch_size
    )
    starts = layout.starts(np.arange(plan.lanes + 1, dtype=np.int64))
    whole = layout.sizes() // plan.batch_size
    turns: Counter[int] = Counter()
    leftovers_begun = False
    for index in range(plan.batches):
        lane = plan.lane(index)
        if lane is None:
            leftovers_begun = True
            continue
        assert not leftovers_begun, "leftovers come last"
        ids = plan.samples(index)
        assert ((ids >= starts[lane]) & (ids < starts[lane + 1])).all()
        turns[lane] += 1
        # A lane may be two batches ahead only of lanes without whole batches left.
        behind = [other for other in range(plan.lanes) if turns[other] < turns[lane] - 1]
        assert all(turns[other] == whole[other] for other in behind)
    assert [turns[lane] for lane in range(plan.lanes)] == whole.tolist()


@settings(deadline=None)
@given(plan=plans, data=st.data())
def test_batches_do_not_depend_on_the_order_of_calls(plan: EpochPlan, data: st.DataObject) -> None:
    forward = [plan.samples(index).tolist() for index in range(plan.batches)]
    for index in data.draw(st.permutations(range(plan.batches))):
        assert plan.samples(index).tolist() == forward[index]


def test_unshuffled_order_equals_the_lanes_cut_by_hand() -> None:
    layout = ShardLayout(samples=23, shards=4)  # 4 batches of 5, and 3 samples
    plan = make_plan(layout, batch_size=5, shuffle=False, last_batch=LastBatch.PAD, lanes=2)
    lane_0, lane_1 = [*range(11)], [*range(11, 23)]
    assert [plan.samples(index).tolist() for index in range(plan.batches)] == [
        lane_0[:5],
        lane_1[:5],
        lane_0[5:10],
        lane_1[5:10],
        [*lane_0[10:], *lane_1[10:]],
    ]
    assert [plan.lane(index) for index in range(plan.batches)] == [0, 1, 0, 1, None]
    assert plan.valid(4) == 3


def test_with_one_lane_the_unshuffled_order_is_the_packed_order() -> None:
    plan = make_plan(
        ShardLayout(samples=101, shards=7), shuffle=False, last_batch=LastBatch.PAD, lanes=1
    )
    assert whole_epoch(plan).tolist() == list(range(101))


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"epoch": 1}, {"seed": 2**64 - 1}, {"epoch": 1000}]
)
def test_another_seed_or_epoch_changes_the_whole_order(change: dict[str, int]) -> None:
    layout = ShardLayout(samples=20_011, shards=16)
    first = whole_epoch(make_plan(layout, last_batch=LastBatch.PAD))
    other_plan = make_plan(layout, last_batch=LastBatch.PAD, **change)  # type: ignore[arg-type]
    other = whole_epoch(other_plan)
    assert (first == other).sum() < 20  # chance leaves about one unchanged
    assert sorted(first.tolist()) == sorted(other.tolist())


def test_every_turn_has_its_own_lane_order() -> None:
    plan = make_plan(ShardLayout(samples=6400, shards=8), batch_size=10, lanes=8)
    orders = {tuple(plan.lane(turn * 8 + position) for position in range(8)) for turn in range(80)}
    assert all(
        sorted(lane for lane in order if lane is not None) == list(range(8)) for order in orders
    )
    assert len(orders) > 70


def test_positions_are_fair_over_epochs() -> None:
    layout = ShardLayout(samples=69, shards=6)  # 3 batches of 7 and 2 samples a lane
    counts = np.zeros((69, 69), dtype=np.int64)
    epochs = 2000
    for epoch in range(epochs):
        plan = make_plan(layout, batch_size=7, epoch=epoch, last_batch=LastBatch.PAD, lanes=3)
        counts[np.arange(69), whole_epoch(plan)] += 1
    # A row of a lane's batch can hold any sample, since the order of lanes is random too.
    assert abs(chi_square_z(counts[:63].ravel(), epochs / 69)) < 6
    assert counts.min() > 0


def test_neighbouring_seeds_share_no_batches() -> None:
    layout = ShardLayout(samples=1009, shards=4)
    batches = [
        tuple(sorted(make_plan(layout, seed=seed, epoch=epoch, lanes=2).samples(index).tolist()))
        for seed in range(5)
        for epoch in range(5)
        for index in range(31)
    ]
    assert len(set(batches)) == len(batches)


def test_an_epoch_of_imagenet_21k_needs_little_memory() -> None:
    tracemalloc.start()
    try:
        plan = make_plan(ShardLayout(samples=14_197_122, shards=10_000), batch_size=1024)
        for index in (0, 12_345, plan.batches - 1):
            assert len(np.unique(plan.samples(index, 64, 32))) == 32
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert plan.batches == 13_864
    assert plan.lanes == 1024
    assert peak_bytes < 400_000


def test_a_dataset_smaller_than_a_batch_has_one_padded_batch_or_none() -> None:
    layout = ShardLayout(samples=3, shards=2)
    assert make_plan(layout, batch_size=4).batches == 0
    padded = make_plan(layout, batch_size=4, last_batch=LastBatch.PAD)
    assert padded.batches == 1
    assert padded.valid(0) == 3
    assert sorted(padded.samples(0).tolist()) == [0, 1, 2]


@pytest.mark.parametrize("index", [-1, 3, 4, 2**63])
def test_an_index_outside_the_epoch_is_an_index_error(index: int) -> None:
    plan = make_plan(ShardLayout(samples=100, shards=4))
    for ask in (plan.samples, plan.valid, plan.lane):
        with pytest.raises(IndexError, match=r"epoch 0, which has 3 batches"):
            ask(index)


def test_negative_rows_are_an_index_error() -> None:
    plan = make_plan(ShardLayout(samples=100, shards=4))
    with pytest.raises(IndexError, match="negative"):
        plan.samples(0, -1)
    with pytest.raises(IndexError, match="negative"):
        plan.samples(0, 0, -1)


@pytest.mark.parametrize("sample_id", [-1, 100, 2**62])
def test_locating_an_unknown_sample_is_an_index_error(sample_id: int) -> None:
    layout = ShardLayout(samples=100, shards=4)
    with pytest.raises(IndexError, match=f"sample {sample_id} is outside"):
        layout.locate(np.array([5, sample_id], dtype=np.int64))


@pytest.mark.parametrize(
    ("numbers", "complaint"),
    [
        ((0, 1), "samples must be 1 .. 281474976710656, got 0"),
        ((10, 0), "shards must be 1 .. 1048576, got 0"),
    ],
)
def test_impossible_layout_is_refused(numbers: tuple[int, int], complaint: str) -> None:
    samples, shards = numbers
    with pytest.raises(ConfigError, match=complaint):
        ShardLayout(samples=samples, shards=shards)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("seed", -1),
        ("seed", 2**64),
        ("epoch", -1),
        ("epoch", 2**31),
        ("lanes", -1),
        ("lanes", LANES_LIMIT + 1),
    ],
)
def test_plan_numbers_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=rf"{name} must be .*, got {value}"):
        make_plan(ShardLayout(samples=10, shards=1), **{name: value})  # type: ignore[arg-type]
