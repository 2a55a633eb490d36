"""A shuffled epoch streams: each piece is in use once, in an order known ahead; and it mixes."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.lanes import LaneLayout
from feeder.plan.recipe import Recipe
from tests.plan.fairness import chi_square_z
from tests.plan.test_epoch import IMAGE_BYTES, plan_order

IMAGENET = ShardLayout(samples=1_281_167, shards=1024, size_bytes=1_281_167 * IMAGE_BYTES)

windows = st.builds(
    plan_order,
    st.builds(ShardLayout, samples=st.integers(60, 700), shards=st.just(3)),
    lanes=st.integers(1, 4),
    batch_size=st.integers(1, 24),
    share=st.floats(0, 0.6),
    piece=st.sampled_from([1, 2, 4, 8, 16]),
    shuffle=st.booleans(),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**31 - 1),
)


def lane_batches(plan: EpochPlan, lane: int) -> list[int]:
    """The indices of a lane's batches, in order."""
    return [index for index in range(plan.batches) if plan.lane(index) == lane]


@given(plan=windows)
def test_pieces_are_read_ahead_once_and_dropped_when_no_batch_needs_them(plan: EpochPlan) -> None:
    layout = LaneLayout(
        samples=plan.layout.samples, lanes=plan.shape.lanes, order_batch_size=plan.batch_size
    )
    starts = layout.starts(np.arange(plan.shape.lanes + 1, dtype=np.int64)).tolist()
    for lane in range(plan.shape.lanes):
        indices, first = lane_batches(plan, lane), starts[lane]
        turns = np.full(starts[lane + 1] - first, len(indices))  # of each sample's batch
        held = plan.shape.working_set // plan.shape.lanes
        is_whole = plan.shape.working_set == plan.layout.samples or held >= len(turns)
        for turn, index in enumerate(indices):
            turns[plan.samples(index) - first] = turn
        read, dropped = np.zeros_like(turns), np.zeros_like(turns)
        for turn, index in enumerate(indices):
            for begin, end in plan.pieces_ahead(index):
                read[begin - first : end - first] += 1
                assert turn == 0 or turns[begin - first : end - first].min() > turn
            for begin, end in plan.pieces_behind(index):
                dropped[begin - first : end - first] += 1
            # While a batch is made, the one before it may be, too.
            assert not dropped[turns >= turn - 1].any()
            if plan.shuffle and is_whole:
                assert not read.any()
                assert not dropped.any()
            else:
                assert read[turns <= turn + 1].all()
        assert read.max() <= 1
        assert dropped.max() <= 1


@given(plan=windows, ahead=st.integers(1, 4))
def test_a_lanes_window_holds_what_its_batch_and_those_beside_it_need(
    plan: EpochPlan, ahead: int
) -> None:
    for lane in range(plan.shape.lanes):
        indices, former = lane_batches(plan, lane), (0, 0)
        samples = [plan.samples(index) for index in indices]
        for turn in range(-ahead, len(indices)):
            window = plan.lane_window(lane, turn, ahead)
            assert former <= window
            assert former[1] <= window[1], "it moves on"
            held = np.zeros(plan.layout.samples, np.int64)
            for begin, end in plan.window_ranges(lane, *window):
                held[begin:end] += 1
            assert held.max() <= 1
            for needed in samples[max(0, turn - 1) : turn + ahead + 1]:
                assert held[needed].all()
            assert turn < 0 or list(plan.turns(indices[turn])) == [(lane, turn)]
            former = window
            assert turn < 0 or plan.turns_left(lane, turn) == len(indices) - turn - 1


@given(plan=windows)
def test_the_working_set_holds_all_pieces_in_use_and_the_next_batchs(plan: EpochPlan) -> None:
    piece, held = plan.shape.piece, plan.shape.working_set // plan.shape.lanes
    is_whole = not plan.shuffle or plan.shape.working_set == plan.layout.samples
    for lane in range(0 if is_whole else plan.shape.lanes):
        batches = [plan.samples(index) // piece for index in lane_batches(plan, lane)]
        pieces, numbers, sizes = np.unique(
            np.concatenate(batches), return_inverse=True, return_counts=True
        )
        turns = np.repeat(np.arange(len(batches)), plan.batch_size)
        first, last = np.full(len(pieces), len(turns)), np.zeros(len(pieces), np.int64)
        np.minimum.at(first, numbers, turns)
        np.maximum.at(last, numbers, turns)
        for turn in range(len(batches)):
            assert sizes[(first <= turn + 1) & (last >= turn)].sum() <= held


def test_a_piece_is_in_use_in_consecutive_batches_and_pieces_come_in_another_order_each_epoch() -> (
    None
):
    recipe = Recipe.for_split("train", batch_size=256)
    orders = []
    for epoch in range(2):
        plan = recipe.plan_epoch(IMAGENET, seed=3, epoch=epoch)
        assert plan.shape == (64, 156_180, 64)
        batches = [plan.samples(index) // 64 for index in lane_batches(plan, 17)]
        pieces = np.unique(np.concatenate(batches))
        uses = {each: np.flatnonzero([each in batch for batch in batches]) for each in pieces}
        spans = np.array([use[-1] - use[0] + 1 for use in uses.values()])
        assert spans.max() <= 9, "26 draws of 64, and a batch is 4"
        assert np.mean([len(use) for use in uses.values()]) > 6.5, "spread evenly"
        orders.append([use[0] for use in uses.values()])
    assert abs(np.corrcoef(*orders)[0, 1]) < 0.2


@pytest.mark.parametrize("batch_size", [64, 256, 1024, 2048])
def test_a_first_batch_needs_at_most_a_gigabyte(batch_size: int) -> None:
    plan = Recipe.for_split("train", batch_size=batch_size).plan_epoch(IMAGENET, seed=1, epoch=0)
    for index in range(8):  # of different lanes
        pieces = np.unique(plan.samples(index) // plan.shape.piece)
        assert len(pieces) * plan.shape.piece * IMAGE_BYTES <= 1e9


def mixing(
    plan_epoch: Any, lanes: int, epochs: int, probes: int = 397
) -> tuple[float, NDArray[np.int64]]:
    """The distinct others that images of some lanes meet, as a part of what a global shuffle gives
    them; and the batches."""
    met: dict[int, set[int]] = {}
    batches = []
    for epoch in range(epochs):
        plan = plan_epoch(epoch)
        for index in range(plan.batches):
            if plan.lane(index) in range(lanes):
                batch = plan.samples(index)
                batches.append(batch)
                for sample in batch[batch % probes == 0].tolist():
                    met.setdefault(sample, set()).update(batch.tolist())
    samples, size = plan.layout.samples, plan.batch_size
    expected = (samples - 1) * (1 - (1 - (size - 1) / (samples - 1)) ** epochs)
    distinct = np.mean([len(others) - 1 for others in met.values()])
    return float(distinct) / expected, np.array(batches)


def test_an_image_meets_nearly_as_many_others_as_in_a_global_shuffle() -> None:
    """ImageNet, the default recipe, batches of 256, eight epochs; ``feeder-bench order`` has
    more."""
    recipe = Recipe.for_split("train", batch_size=256)
    share, _ = mixing(lambda epoch: recipe.plan_epoch(IMAGENET, seed=5, epoch=epoch), 2, 8)
    assert share >= 0.94


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_classes_in_batches_are_as_in_draws_without_replacement(seed: int) -> None:
    """How often a batch has 0, 1, 2 or more images of a class, against the hypergeometric
    distribution: chi-square with 3 degrees of freedom, p > 0.01."""
    recipe, size = Recipe.for_split("train", batch_size=256), 256
    of_class = np.full(1000, 1281)
    of_class[:167] += 1
    labels = np.repeat(np.arange(1000), of_class)
    np.random.default_rng(seed).shuffle(labels)  # as packing does
    _, batches = mixing(lambda epoch: recipe.plan_epoch(IMAGENET, seed=seed, epoch=epoch), 8, 1)
    counts = np.array([np.bincount(labels[batch], minlength=1000) for batch in batches])
    observed = np.bincount(np.minimum(counts, 3).ravel(), minlength=4)
    chances = np.zeros(4)
    samples = IMAGENET.samples
    for members, classes in ((1281, 833), (1282, 167)):
        chance = np.prod((samples - members - np.arange(size)) / (samples - np.arange(size)))
        for drawn in range(3):
            chances[drawn] += chance * classes / 1000
            ratio = (members - drawn) * (size - drawn) / (drawn + 1)
            chance *= ratio / (samples - members - size + drawn + 1)
    chances[3] = 1 - chances.sum()
    expected = chances * counts.size
    assert ((observed - expected) ** 2 / expected).sum() < 11.34


def test_a_small_dataset_is_shuffled_as_a_whole() -> None:
    layout = ShardLayout(samples=4_794, shards=8, size_bytes=4_794 * IMAGE_BYTES)
    recipe = Recipe.for_split("train", batch_size=32)
    share, batches = mixing(lambda epoch: recipe.plan_epoch(layout, seed=2, epoch=epoch), 1, 8, 7)
    assert share == pytest.approx(1, abs=0.01)
    spread = batches.max(axis=1) - batches.min(axis=1)
    assert spread.min() > 3_000, "each batch is of the whole packed order"


def test_positions_are_fair_over_epochs_in_a_window_too() -> None:
    counts = np.zeros((96, 12), dtype=np.int64)
    epochs = 1500
    for epoch in range(epochs):
        plan = EpochPlan(
            ShardLayout(samples=96, shards=1),
            batch_size=8,
            seed=0,
            epoch=epoch,
            shuffle=True,
            last_batch=LastBatch.DROP,
            lanes=1,
            working_set=(72, 8),
        )
        for index in range(plan.batches):
            counts[plan.samples(index), index] += 1
    assert abs(chi_square_z(counts.ravel(), epochs / 12)) < 6
