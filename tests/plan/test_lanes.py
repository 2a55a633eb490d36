"""Lanes tile the packed order in equal shares, at any size and number."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.lanes import (
    BATCHES_A_LANE,
    LANES_LIMIT,
    LANES_MAX,
    LaneLayout,
    choose_lanes,
    resolve_lanes,
)
from feeder.plan.permutation import MAX_SIZE
from feeder.plan.recipe import MAX_BATCH_SIZE

sizes = st.integers(1, MAX_SIZE) | st.integers(1, 5000)
batch_sizes = st.integers(1, MAX_BATCH_SIZE) | st.integers(1, 50)


def lay_out(samples: int, lanes: int, order_batch_size: int) -> LaneLayout:
    return LaneLayout(samples=samples, lanes=lanes, order_batch_size=order_batch_size)


@given(samples=sizes, batch_size=batch_sizes, data=st.data())
def test_lanes_hold_every_sample_once_in_nearly_equal_shares(
    samples: int, batch_size: int, data: st.DataObject
) -> None:
    batches = samples // batch_size
    lanes = data.draw(st.integers(1, min(LANES_LIMIT, max(1, batches))))
    layout = lay_out(samples, lanes, batch_size)
    starts = layout.starts(np.arange(lanes + 1, dtype=np.int64))
    assert starts.dtype == np.int64
    assert (int(starts[0]), int(starts[-1])) == (0, samples)
    lane_sizes = layout.sizes()
    assert np.array_equal(lane_sizes, np.diff(starts))
    assert int(lane_sizes.min()) >= min(batch_size, samples), "a lane has no whole batch"
    assert int(lane_sizes.max() - lane_sizes.min()) <= batch_size + 1
    whole = lane_sizes // batch_size
    assert int(whole.max() - whole.min()) <= 1
    assert int(lane_sizes.sum() - whole.sum() * batch_size) == samples % batch_size


@given(samples=sizes, batch_size=batch_sizes)
def test_the_number_chosen_is_a_power_of_two_that_batches_fill(
    samples: int, batch_size: int
) -> None:
    lanes = choose_lanes(samples, batch_size)
    assert 1 <= lanes <= LANES_MAX
    assert lanes.bit_count() == 1
    batches = samples // batch_size
    assert lanes == 1 or batches // lanes >= BATCHES_A_LANE
    assert lanes == LANES_MAX or batches // (2 * lanes) < BATCHES_A_LANE, "more would fit"
    assert resolve_lanes(0, samples, batch_size) == lanes


def test_numbers_and_starts_of_known_datasets() -> None:
    assert choose_lanes(1_281_167, 256) == 512
    assert choose_lanes(1_281_167, 1024) == 128
    assert choose_lanes(14_197_122, 1024) == 1024
    assert choose_lanes(97, 8) == 1
    assert choose_lanes(128, 8) == 2
    layout = lay_out(23, 2, 5)  # 4 batches and 3 samples
    assert layout.starts(np.arange(3, dtype=np.int64)).tolist() == [0, 11, 23]
    assert layout.sizes().tolist() == [11, 12]


def test_few_samples_of_imagenet_are_left_over() -> None:
    for batch_size in (32, 256, 1024):
        lanes = choose_lanes(1_281_167, batch_size)
        lane_sizes = lay_out(1_281_167, lanes, batch_size).sizes()
        assert int((lane_sizes % batch_size).sum()) == 1_281_167 % batch_size
        assert (lane_sizes % batch_size).sum() / 1_281_167 < 0.03


@pytest.mark.parametrize("batch_size", [1, 7, MAX_BATCH_SIZE])
def test_the_largest_dataset_in_most_lanes_overflows_nothing(batch_size: int) -> None:
    layout = lay_out(MAX_SIZE, LANES_LIMIT, batch_size)
    batches, rest = divmod(MAX_SIZE, batch_size)
    expected = [
        lane * batches // LANES_LIMIT * batch_size + lane * rest // LANES_LIMIT
        for lane in range(LANES_LIMIT + 1)  # Python's numbers, which have no limit
    ]
    assert layout.starts(np.arange(LANES_LIMIT + 1, dtype=np.int64)).tolist() == expected
    assert expected[-1] == MAX_SIZE


@pytest.mark.parametrize("lanes", [1, 2, 12])
def test_a_recipes_number_is_taken_where_every_lane_has_a_batch(lanes: int) -> None:
    assert resolve_lanes(lanes, 97, 8) == lanes


@pytest.mark.parametrize(
    ("lanes", "samples", "batches", "most"), [(13, 97, 12, 12), (2, 7, 0, 1), (9, 8, 1, 1)]
)
def test_more_lanes_than_batches_are_refused_in_one_line(
    lanes: int, samples: int, batches: int, most: int
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_lanes(lanes, samples, 8)
    assert str(caught.value) == (
        f"recipe: lanes {lanes} is more than the {batches} whole batches of 8 in {samples} "
        f"samples: use at most {most}, or 0 to choose by size"
    )


def test_one_lane_is_allowed_where_no_batch_is_whole() -> None:
    assert resolve_lanes(1, 7, 8) == resolve_lanes(0, 7, 8) == 1
    assert lay_out(7, 1, 8).sizes().tolist() == [7]
