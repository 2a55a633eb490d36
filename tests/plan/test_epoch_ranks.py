"""Ranks: equal steps for all, every index taken once, padding only at the end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.epoch import LastBatch, rank_indices, steps_per_rank

world_sizes = st.integers(1, 70) | st.sampled_from([1, 2, 3, 5, 7, 11, 13, 509])


@given(batches=st.integers(0, 2000), world_size=world_sizes, last_batch=st.sampled_from(LastBatch))
def test_all_ranks_take_equal_steps_and_cover_the_epoch(
    batches: int, world_size: int, last_batch: LastBatch
) -> None:
    steps = steps_per_rank(batches, world_size, last_batch)
    ranks = [rank_indices(batches, rank, world_size, last_batch) for rank in range(world_size)]
    assert {len(indices) for indices in ranks} == {steps}
    taken = sorted(index for indices in ranks for index in indices)
    assert taken == list(range(steps * world_size))
    if last_batch is LastBatch.DROP:
        assert batches - world_size < len(taken) <= batches
    else:
        assert batches <= len(taken) < batches + world_size


@given(batches=st.integers(0, 2000), world_size=world_sizes)
def test_one_step_of_all_ranks_is_a_contiguous_run_of_indices(
    batches: int, world_size: int
) -> None:
    ranks = [rank_indices(batches, rank, world_size, LastBatch.PAD) for rank in range(world_size)]
    for step in range(steps_per_rank(batches, world_size, LastBatch.PAD)):
        start = step * world_size
        assert [indices[step] for indices in ranks] == list(range(start, start + world_size))


def test_single_rank_takes_every_index() -> None:
    for last_batch in LastBatch:
        assert rank_indices(5, 0, 1, last_batch) == range(5)


@pytest.mark.parametrize(
    ("rank", "world_size", "complaint"),
    [
        (0, 0, "world_size must be 1 .."),
        (-1, 2, "rank must be 0 .. 1, got -1"),
        (2, 2, "rank must be 0 .. 1, got 2"),
    ],
)
def test_rank_out_of_range_is_refused(rank: int, world_size: int, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        rank_indices(10, rank, world_size, LastBatch.DROP)
