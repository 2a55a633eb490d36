"""One order for any split of the global batch: no sample is lost or repeated when ranks change."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout, rank_indices, steps_per_rank
from feeder.plan.lanes import LaneLayout
from tests.plan.test_epoch import make_plan, plan_lanes, whole_epoch

PRIMES = (53, 97, 1009)

layouts = st.builds(
    ShardLayout,
    samples=st.sampled_from(PRIMES) | st.integers(1, 300),
    shards=st.integers(1, 40),
)
sizes = st.integers(1, 70) | st.sampled_from([1, 2, 7, 31, 64, 1100])


def resize(plan: EpochPlan, batch_size: int, last_batch: LastBatch = LastBatch.PAD) -> EpochPlan:
    """The same order in batches of another size."""
    return EpochPlan(
        plan.layout,
        batch_size=batch_size,
        seed=plan.seed,
        epoch=plan.epoch,
        shuffle=plan.shuffle,
        last_batch=last_batch,
        order_batch_size=plan.order_batch_size,
        lanes=plan.lanes,
    )


orders = st.builds(
    plan_lanes,
    layouts,
    lanes=st.integers(0, 40),
    batch_size=sizes,
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**31 - 1),
    shuffle=st.booleans(),
    last_batch=st.just(LastBatch.PAD),
)


@settings(deadline=None)
@given(order=orders, batch_size=sizes)
def test_batches_of_any_size_are_the_same_rows_of_one_order(
    order: EpochPlan, batch_size: int
) -> None:
    rows = whole_epoch(order)
    other = resize(order, batch_size)
    assert other.batches == -(-order.layout.samples // batch_size)
    for index in range(other.batches):
        expected = rows[index * batch_size : (index + 1) * batch_size]
        assert other.samples(index).tolist() == expected.tolist()
        assert other.valid(index) == len(expected)


@settings(deadline=None)
@given(order=orders, batch_size=sizes, data=st.data())
def test_rows_of_a_resized_batch_equal_those_of_the_whole_batch(
    order: EpochPlan, batch_size: int, data: st.DataObject
) -> None:
    plan = resize(order, batch_size)
    index = data.draw(st.integers(0, plan.batches - 1))
    first, count = data.draw(st.tuples(*[st.integers(0, batch_size + 5)] * 2))
    whole = plan.samples(index)
    assert plan.samples(index, first, count).tolist() == whole[first : first + count].tolist()


@settings(deadline=None)
@given(order=orders, batch_size=sizes)
def test_the_lane_is_that_of_the_first_sample(order: EpochPlan, batch_size: int) -> None:
    plan = resize(order, batch_size)
    layout = LaneLayout(
        samples=plan.layout.samples, lanes=plan.lanes, order_batch_size=plan.order_batch_size
    )
    starts = layout.starts(np.arange(plan.lanes, dtype=np.int64))
    for index in range(plan.batches):
        lane = plan.lane(index)
        if lane is not None:
            assert np.searchsorted(starts, plan.samples(index, 0, 1), side="right") - 1 == lane
        else:
            order_index = index * batch_size // order.batch_size
            assert order.lane(order_index) is None, "the row is not a leftover"


@settings(deadline=None, max_examples=150)
@given(order=orders, world_size=st.integers(1, 7), batch_size=sizes)
def test_ranks_drop_and_pad_the_same_rows_in_equal_steps(
    order: EpochPlan, world_size: int, batch_size: int
) -> None:
    rows = whole_epoch(order).tolist()
    step_rows = world_size * batch_size
    for last_batch in LastBatch:
        plan = resize(order, batch_size, last_batch)
        ranks = [rank_indices(plan.batches, r, world_size, last_batch) for r in range(world_size)]
        assert len({len(indices) for indices in ranks}) == 1
        taken = [
            plan.samples(index).tolist()
            for step in zip(*ranks, strict=True)
            for index in step
            if index < plan.batches  # further indices are padding
        ]
        dropped = len(rows) % step_rows if last_batch is LastBatch.DROP else 0
        assert [row for batch in taken for row in batch] == rows[: len(rows) - dropped]


@given(
    samples=st.integers(1, 3000),
    batch_size=st.integers(1, 40),
    world_size=st.integers(1, 40),
    last_batch=st.sampled_from(LastBatch),
)
def test_the_number_of_steps_depends_on_the_global_batch_alone(
    samples: int, batch_size: int, world_size: int, last_batch: LastBatch
) -> None:
    global_batch = batch_size * world_size
    layout = ShardLayout(samples=samples, shards=1)
    split = make_plan(layout, batch_size=batch_size, last_batch=last_batch)
    whole = make_plan(layout, batch_size=global_batch, last_batch=last_batch)
    assert steps_per_rank(split.batches, world_size, last_batch) == whole.batches


@settings(deadline=None)
@given(order=orders, data=st.data())
def test_resume_with_another_world_size_continues_the_order(
    order: EpochPlan, data: st.DataObject
) -> None:
    global_batch = data.draw(st.sampled_from([12, 24, 60]))
    divisors = [n for n in range(1, global_batch + 1) if global_batch % n == 0]
    steps = -(-order.layout.samples // global_batch)
    at = data.draw(st.integers(0, steps))
    seen: list[int] = []
    for world_size, until in (
        (data.draw(st.sampled_from(divisors)), range(at)),
        (data.draw(st.sampled_from(divisors)), range(at, steps)),
    ):
        plan = resize(order, global_batch // world_size)
        for step in until:
            for rank in range(world_size):
                index = step * world_size + rank
                seen += plan.samples(index).tolist() if index < plan.batches else []
    assert seen == whole_epoch(order).tolist()


@pytest.mark.parametrize("order_batch_size", [-1, 2**48 + 1])
def test_order_batch_size_out_of_range_is_refused(order_batch_size: int) -> None:
    with pytest.raises(ConfigError, match=r"order_batch_size must be 0 \.\."):
        EpochPlan(
            ShardLayout(samples=10, shards=1),
            batch_size=2,
            seed=0,
            epoch=0,
            shuffle=True,
            last_batch=LastBatch.PAD,
            order_batch_size=order_batch_size,
        )


def test_batches_across_lanes_and_leftovers_equal_a_handmade_order() -> None:
    layout = ShardLayout(samples=23, shards=4)
    order = make_plan(layout, batch_size=5, shuffle=False, last_batch=LastBatch.PAD, lanes=2)
    plan = resize(order, 8)
    lane_0, lane_1 = [*range(11)], [*range(11, 23)]
    rows = [*lane_0[:5], *lane_1[:5], *lane_0[5:10], *lane_1[5:10], *lane_0[10:], *lane_1[10:]]
    assert [plan.samples(index).tolist() for index in range(3)] == [
        rows[:8],
        rows[8:16],
        rows[16:],
    ]
    assert [plan.lane(index) for index in range(3)] == [0, 1, 1]
    assert np.array_equal(whole_epoch(plan), rows)
