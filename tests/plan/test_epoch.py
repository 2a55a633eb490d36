"""Batch order: every sample exactly once, whatever the sizes, the lanes, the ranks and the CPU."""

import hashlib
import os
import re
import subprocess
import sys
import tracemalloc
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.plan.crop import plan_crops
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout, rank_indices, steps_per_rank
from feeder.plan.lanes import (
    BATCHES_A_LANE,
    GLOBAL_SAMPLES,
    LANES_LIMIT,
    LANES_MAX,
    UNSHUFFLED_BATCHES_A_LANE,
    LaneLayout,
    resolve_shape,
)
from feeder.plan.permutation import MAX_SIZE
from feeder.plan.recipe import MAX_BATCH_SIZE, Recipe
from tests.plan.fairness import chi_square_z

# If these change, running jobs cannot resume, and old and new nodes make different batches: raise
# PROTOCOL_VERSION and add a changelog entry.
ORDER = "d5f2e31bc238b91f2f7b6c1c5af2f016"
CROPS = "2d6f18f1553ea5eac06c505f39f711c1"

IMAGE_BYTES = 110_000  # ImageNet's, packed

layouts = st.builds(
    ShardLayout,
    samples=st.integers(1, 700) | st.sampled_from([1, 2, 3, 53, 97, 251, 509, 1009]),
    shards=st.integers(1, 40),
)
sizes = st.integers(1, 100) | st.sampled_from([1, 2, 7, 31, 64, 1100])


def make_plan(layout: ShardLayout, **fields: Any) -> EpochPlan:
    defaults: dict[str, Any] = {
        "batch_size": 32,
        "seed": 0,
        "epoch": 0,
        "shuffle": True,
        "last_batch": "drop",
    }
    return EpochPlan(layout, **defaults | fields)


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
        lanes=plan.shape.lanes,
        working_set=(plan.shape.working_set, plan.shape.piece),
    )


def plan_order(
    layout: ShardLayout, *, lanes: int, batch_size: int, share: float, piece: int, **fields: Any
) -> EpochPlan:
    """The plan with so many lanes, or as many as the samples have batches, which hold this share of
    them besides what two batches need."""
    lanes = min(lanes, max(1, layout.samples // batch_size))
    least = (lanes or 1) * (2 * batch_size + 5 * piece)
    held = min(layout.samples, int(layout.samples * share) + least)
    fields |= {"lanes": lanes, "working_set": (held, piece)}
    return make_plan(layout, batch_size=batch_size, last_batch="pad", **fields)


seeds = {"seed": st.integers(0, 2**64 - 1), "epoch": st.integers(0, 2**31 - 1)}
orders = st.builds(
    plan_order,
    layouts,
    lanes=st.integers(0, 40) | st.integers(1, 3),
    batch_size=sizes | st.integers(1, 9),
    share=st.floats(0, 0.5) | st.just(1.0),
    piece=st.sampled_from([1, 2, 4, 8, 64]),
    shuffle=st.booleans(),
    **seeds,
)


def whole_epoch(plan: EpochPlan) -> list[int]:
    return [sample for index in range(plan.batches) for sample in plan.samples(index).tolist()]


@given(layout=layouts)
def test_locate_counts_through_the_shards_in_order(layout: ShardLayout) -> None:
    short, long_shards = divmod(layout.samples, layout.shards)
    by_hand = [
        (shard, row)
        for shard in range(layout.shards)
        for row in range(short + (shard < long_shards))  # the definition in the format's README
    ]
    shards, rows = layout.locate(np.arange(layout.samples, dtype=np.int64))
    assert list(zip(shards.tolist(), rows.tolist(), strict=True)) == by_hand


@given(order=orders, batch_size=sizes, last_batch=st.sampled_from(LastBatch), data=st.data())
def test_batches_of_any_size_cut_one_order_that_has_every_sample_once(
    order: EpochPlan, batch_size: int, last_batch: LastBatch, data: st.DataObject
) -> None:
    """Whichever batch is asked for first, and whole or in parts."""
    rows = whole_epoch(order)
    assert sorted(rows) == list(range(order.layout.samples))
    plan = resize(order, batch_size, last_batch)
    is_padded = last_batch is LastBatch.PAD
    assert plan.batches == (-(-len(rows) // batch_size) if is_padded else len(rows) // batch_size)
    for index in data.draw(st.permutations(range(plan.batches))):
        expected = rows[index * batch_size : (index + 1) * batch_size]
        ids = plan.samples(index)
        assert ids.dtype == np.int64
        assert ids.tolist() == expected
        assert plan.valid(index) == len(expected)
        first, count = (index * 7) % (batch_size + 5), (index * 3) % (batch_size + 5)
        assert plan.samples(index, first, count).tolist() == expected[first : first + count]
        assert plan.samples(index, first).tolist() == expected[first:]


@given(order=orders, batch_size=sizes)
def test_lanes_take_turns_and_the_lane_is_that_of_the_first_sample(
    order: EpochPlan, batch_size: int
) -> None:
    layout = LaneLayout(
        samples=order.layout.samples, lanes=order.shape.lanes, order_batch_size=order.batch_size
    )
    starts = layout.starts(np.arange(order.shape.lanes + 1, dtype=np.int64))
    whole = layout.sizes() // order.batch_size
    lanes = [order.lane(index) for index in range(order.batches)]
    turns: Counter[int] = Counter()
    for index, lane in enumerate(lanes):
        if lane is None:
            assert not any(each is not None for each in lanes[index:]), "leftovers come last"
            break
        ids = order.samples(index)
        assert ((ids >= starts[lane]) & (ids < starts[lane + 1])).all()
        turns[lane] += 1
        # A lane may be two batches ahead only of lanes without whole batches left.
        behind = [other for other in range(order.shape.lanes) if turns[other] < turns[lane] - 1]
        assert all(turns[other] == whole[other] for other in behind)
    assert [turns[lane] for lane in range(order.shape.lanes)] == whole.tolist()
    plan = resize(order, batch_size)
    for index in range(plan.batches):
        assert plan.lane(index) == lanes[index * batch_size // order.batch_size]


@given(order=orders, world_size=st.integers(1, 7) | st.just(509), batch_size=sizes)
def test_ranks_drop_and_pad_the_same_rows_in_equal_steps(
    order: EpochPlan, world_size: int, batch_size: int
) -> None:
    """So a job that resumes with other ranks and the same global batch continues its order."""
    rows = whole_epoch(order)
    step_rows = world_size * batch_size
    for last_batch in LastBatch:
        plan, whole = (resize(order, size, last_batch) for size in (batch_size, step_rows))
        ranks = [rank_indices(plan.batches, r, world_size, last_batch) for r in range(world_size)]
        assert {len(indices) for indices in ranks} == {whole.batches}
        assert steps_per_rank(plan.batches, world_size, last_batch) == whole.batches
        taken = [index for step in zip(*ranks, strict=True) for index in step]
        assert taken == list(range(whole.batches * world_size))
        dropped = len(rows) % step_rows if last_batch is LastBatch.DROP else 0
        of_ranks = [plan.samples(index).tolist() for index in taken if index < plan.batches]
        assert [row for batch in of_ranks for row in batch] == rows[: len(rows) - dropped]


def test_unshuffled_order_equals_the_lanes_cut_by_hand() -> None:
    layout = ShardLayout(samples=23, shards=4)  # 4 batches of 5, and 3 samples
    plan = make_plan(layout, batch_size=5, shuffle=False, last_batch="pad", lanes=2)
    lane_0, lane_1 = [*range(11)], [*range(11, 23)]
    rows = [*lane_0[:5], *lane_1[:5], *lane_0[5:10], *lane_1[5:10], *lane_0[10:], *lane_1[10:]]
    for each, lanes in ((plan, [0, 1, 0, 1, None]), (resize(plan, 8), [0, 1, 1])):
        assert whole_epoch(each) == rows
        assert [each.lane(index) for index in range(each.batches)] == lanes
    assert plan.valid(4) == 3
    one_lane = make_plan(
        ShardLayout(samples=101, shards=7), shuffle=False, last_batch="pad", lanes=1
    )
    assert whole_epoch(one_lane) == list(range(101))


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"epoch": 1}, {"seed": 2**64 - 1}, {"epoch": 1000}]
)
def test_another_seed_or_epoch_changes_the_whole_order(change: dict[str, int]) -> None:
    layout = ShardLayout(samples=20_011, shards=16)
    first, other = (
        np.array(whole_epoch(make_plan(layout, last_batch="pad", **fields)))
        for fields in ({}, change)
    )
    assert (first == other).sum() < 20  # chance leaves about one unchanged
    assert np.array_equal(np.sort(first), np.sort(other))


def test_every_turn_has_its_own_lane_order() -> None:
    plan = make_plan(ShardLayout(samples=6400, shards=8), batch_size=10, lanes=8)
    orders = {tuple(plan.lane(turn * 8 + position) for position in range(8)) for turn in range(80)}
    assert all({*order} == {*range(8)} for order in orders)
    assert len(orders) > 70


def test_positions_are_fair_over_epochs() -> None:
    layout = ShardLayout(samples=69, shards=6)  # 3 batches of 7 and 2 samples a lane
    counts = np.zeros((69, 69), dtype=np.int64)
    epochs = 2000
    for epoch in range(epochs):
        plan = make_plan(layout, batch_size=7, epoch=epoch, last_batch="pad", lanes=3)
        counts[np.arange(69), whole_epoch(plan)] += 1
    # A row of a lane's batch can hold any sample, since the order of lanes is random too.
    assert abs(chi_square_z(counts[:63].ravel(), epochs / 69)) < 6
    assert counts.min() > 0


@pytest.mark.parametrize(("size_bytes", "lanes"), [(0, 128), (14_197_122 * IMAGE_BYTES, 32)])
def test_an_epoch_of_imagenet_21k_needs_little_memory(size_bytes: int, lanes: int) -> None:
    layout = ShardLayout(samples=14_197_122, shards=10_000, size_bytes=size_bytes)
    tracemalloc.start()
    try:
        plan = make_plan(layout, batch_size=1024)
        for index in (0, 12_345, plan.batches - 1):
            assert len(np.unique(plan.samples(index, 64, 32))) == 32
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (plan.batches, plan.shape.lanes) == (13_864, lanes)
    assert peak_bytes < 400_000


def test_wrong_rows_and_samples_are_index_errors() -> None:
    layout = ShardLayout(samples=100, shards=4)
    plan = make_plan(layout)
    for index in (-1, 3, 4, 2**63):
        for ask in (plan.samples, plan.valid, plan.lane):
            with pytest.raises(IndexError, match=r"epoch 0, which has 3 batches"):
                ask(index)
    for rows in ((-1,), (0, -1)):
        with pytest.raises(IndexError, match="negative"):
            plan.samples(0, *rows)
    for sample_id in (-1, 100, 2**62):
        with pytest.raises(IndexError, match=f"sample {sample_id} is outside"):
            layout.locate(np.array([5, sample_id], dtype=np.int64))


@pytest.mark.parametrize(
    ("make", "field", "complaint"),
    [
        (ShardLayout, {"samples": 0}, "samples must be 1 .. 281474976710656"),
        (ShardLayout, {"shards": 0}, "shards must be 1 .. 1048576"),
        (make_plan, {"batch_size": 0}, "batch_size must be 1 .."),
        (make_plan, {"seed": -1}, "seed must be 0 .."),
        (make_plan, {"seed": 2**64}, "seed must be 0 .."),
        (make_plan, {"epoch": -1}, "epoch must be 0 .."),
        (make_plan, {"epoch": 2**31}, "epoch must be 0 .."),
        (make_plan, {"lanes": -1}, "lanes must be 0 .."),
        (make_plan, {"lanes": LANES_LIMIT + 1}, "lanes must be 0 .."),
        (make_plan, {"order_batch_size": -1}, "order_batch_size must be 0 .."),
        (make_plan, {"order_batch_size": 2**48 + 1}, "order_batch_size must be 0 .."),
        (rank_indices, {"world_size": 0}, "world_size must be 1 .."),
        (rank_indices, {"rank": -1}, "rank must be 0 .. 1"),
        (rank_indices, {"rank": 2}, "rank must be 0 .. 1"),
    ],
)
def test_numbers_out_of_range_are_refused(make: Any, field: dict[str, int], complaint: str) -> None:
    plain: dict[Any, dict[str, Any]] = {
        ShardLayout: {"samples": 10, "shards": 1},
        make_plan: {"layout": ShardLayout(samples=10, shards=1)},
        rank_indices: {"batches": 10, "rank": 0, "world_size": 2, "last_batch": LastBatch.DROP},
    }
    (value,) = field.values()
    with pytest.raises(ConfigError, match=rf"{complaint}.*, got {value}$"):
        make(**plain[make] | field)


lane_sizes = st.integers(1, MAX_SIZE) | st.integers(1, 5000)
batch_sizes = st.integers(1, MAX_BATCH_SIZE) | st.integers(1, 50)


@given(samples=lane_sizes, batch_size=batch_sizes, data=st.data())
def test_lanes_hold_every_sample_once_in_nearly_equal_shares(
    samples: int, batch_size: int, data: st.DataObject
) -> None:
    batches, rest = divmod(samples, batch_size)
    most = min(LANES_LIMIT, max(1, batches))
    lanes = data.draw(st.just(most) | st.integers(1, most))
    layout = LaneLayout(samples=samples, lanes=lanes, order_batch_size=batch_size)
    by_hand = [  # in Python's numbers, which have no limit
        lane * batches // lanes * batch_size + lane * rest // lanes for lane in range(lanes + 1)
    ]
    assert by_hand[-1] == samples
    assert layout.starts(np.arange(lanes + 1, dtype=np.int64)).tolist() == by_hand
    shares = layout.sizes()
    assert np.array_equal(shares, np.diff(by_hand))
    assert shares.min() >= min(batch_size, samples), "a lane has no whole batch"
    whole = shares // batch_size
    assert int(whole.max() - whole.min()) <= 1
    assert int(shares.sum() - whole.sum() * batch_size) == rest


@given(samples=lane_sizes, batch_size=batch_sizes, shuffle=st.booleans())
def test_the_number_chosen_is_a_power_of_two_that_batches_fill(
    samples: int, batch_size: int, shuffle: bool
) -> None:
    lanes, working_set, _ = resolve_shape(samples, order_batch_size=batch_size, shuffle=shuffle)
    assert working_set == samples
    assert 1 <= lanes <= LANES_MAX
    assert lanes.bit_count() == 1
    batches, least = samples // batch_size, UNSHUFFLED_BATCHES_A_LANE
    if shuffle:
        least = BATCHES_A_LANE
        assert lanes == 1 or samples >= GLOBAL_SAMPLES
    assert lanes == 1 or batches // lanes >= least
    if not shuffle or samples >= GLOBAL_SAMPLES:
        assert lanes == LANES_MAX or batches // (2 * lanes) < least, "more would fit"


@given(
    samples=lane_sizes,
    image_bytes=st.integers(100, 2**27),
    batch_size=batch_sizes,
    lanes=st.just(0) | st.integers(1, 300),
    working_set=st.just(0) | st.integers(1, 2**50),
)
def test_a_shape_resolves_to_itself_and_fits_what_was_asked_for(
    samples: int, image_bytes: int, batch_size: int, lanes: int, working_set: int
) -> None:
    fields: dict[str, Any] = {"order_batch_size": batch_size, "shuffle": True}
    size_bytes = samples * image_bytes
    lanes = min(lanes, max(1, samples // batch_size))
    try:
        shape = resolve_shape(
            samples, lanes=lanes, working_set=working_set, size_bytes=size_bytes, **fields
        )
    except ConfigError as error:
        assert working_set, "the default fits always"
        needed = int(re.search(r"use at least (\d+) bytes", str(error))[1])  # type: ignore[index]
        assert needed > working_set
        resolve_shape(samples, lanes=lanes, working_set=needed, size_bytes=size_bytes, **fields)
        return
    again = resolve_shape(samples, lanes=lanes, working_set=shape[1:], **fields)
    assert again == shape, "so a client knows the lanes from the other two"
    assert resolve_shape(samples, lanes=shape.lanes, working_set=shape[1:], **fields) == shape
    if working_set:
        assert shape.working_set * image_bytes <= working_set
    assert shape.piece == 1 or shape.piece * image_bytes <= 8 << 20


@pytest.mark.parametrize(
    ("samples", "batch_size", "shuffled", "unshuffled"),
    [
        (1_281_167, 256, (64, 156_180, 64), (512, 1_281_167, 64)),
        (1_281_167, 1024, (16, 156_180, 64), (128, 1_281_167, 64)),
        (14_197_122, 1024, (32, 156_180, 64), (1024, 14_197_122, 64)),
        (50_000, 256, (2, 50_000, 64), (16, 50_000, 64)),
        (19_999, 8, (1, 19_999, 64), (256, 19_999, 64)),
        (97, 8, (1, 97, 64), (1, 97, 64)),
    ],
)
def test_the_shape_of_known_datasets(
    samples: int, batch_size: int, shuffled: tuple[int, ...], unshuffled: tuple[int, ...]
) -> None:
    for shuffle, expected in ((True, shuffled), (False, unshuffled)):
        shape = resolve_shape(
            samples,
            order_batch_size=batch_size,
            shuffle=shuffle,
            size_bytes=samples * IMAGE_BYTES,
        )
        assert shape == expected


def test_more_lanes_bring_a_larger_working_set_of_their_own() -> None:
    for lanes, samples in ((64, 156_180), (128, 312_361), (256, 624_722)):
        shape = resolve_shape(
            1_281_167,
            order_batch_size=256,
            shuffle=True,
            lanes=lanes,
            size_bytes=1_281_167 * IMAGE_BYTES,
        )
        assert shape == (lanes, samples, 64)


@pytest.mark.parametrize(
    ("lanes", "samples", "batches", "most"), [(13, 97, 12, 12), (2, 7, 0, 1), (9, 8, 1, 1)]
)
def test_more_lanes_than_batches_are_refused_in_one_line(
    lanes: int, samples: int, batches: int, most: int
) -> None:
    fields: dict[str, Any] = {"order_batch_size": 8, "shuffle": True}
    assert resolve_shape(samples, lanes=most, **fields).lanes == most
    with pytest.raises(ConfigError) as caught:
        resolve_shape(samples, lanes=lanes, **fields)
    assert str(caught.value) == (
        f"recipe: lanes {lanes} is more than the {batches} whole batches of 8 in {samples} "
        f"samples: use at most {most}, or 0 to choose by size"
    )


def test_a_working_set_that_is_too_small_is_refused_in_one_line() -> None:
    fields: dict[str, Any] = {"order_batch_size": 256, "shuffle": True, "size_bytes": 10**11}
    with pytest.raises(ConfigError) as caught:
        resolve_shape(10**6, lanes=64, working_set=10**9, **fields)
    assert str(caught.value) == (
        "recipe: working_set 1000000000 holds 10000 samples, too few for 64 lanes with batches of "
        "256: use at least 5324800000 bytes, fewer lanes or smaller batches"
    )
    with pytest.raises(
        ConfigError, match=r" \(800, 64\) holds 800 .* use at least 832 samples or "
    ):
        resolve_shape(10**6, working_set=(800, 64), **fields)


def digest_order_and_crops() -> list[str]:
    shapes: list[tuple[int, int, int | tuple[int, int]]]
    order, crops = (hashlib.blake2b(digest_size=16) for _ in range(2))
    shapes = [(1, 0, 0), (97, 3, 0), (10_007, 0, 0), (10_007, 4, 0), (14_197_122, 0, 0)]
    shapes += [(10_007, 4, (2_000, 16)), (14_197_122, 0, (156_180, 64)), (10**6, 1, (10**5, 8))]
    for samples, lanes, working_set in shapes:
        for seed, epoch in ((0, 0), (2**64 - 1, 2**31 - 1)):
            for shuffle in (True, False):
                plan = make_plan(
                    ShardLayout(samples=samples, shards=1),
                    seed=seed,
                    epoch=epoch,
                    shuffle=shuffle,
                    last_batch="pad",
                    lanes=lanes,
                    working_set=working_set,
                )
                for index in [*range(plan.batches)][:200] + [*range(plan.batches)][-20:]:
                    order.update(plan.samples(index).astype("<i8").tobytes())
    ids: NDArray[np.int64] = np.arange(30_000, dtype=np.int64) * 467
    for split in ("train", "val"):
        for ratio in ((3 / 4, 4 / 3), (0.02, 55.0)):
            recipe = Recipe.for_split(split, batch_size=1, ratio=ratio, dct_scaling=True)  # type: ignore[arg-type]
            seeds = {"seed": 2**63 + 1, "epoch": 5}
            image_sizes = {"widths": ids % 1999 + 1, "heights": ids % 1499 + 1}
            drawn = plan_crops(recipe, sample_ids=ids, **seeds, **image_sizes)  # type: ignore[arg-type]
            crops.update(drawn.boxes.astype("<f8").tobytes())
            crops.update(drawn.flips.tobytes() + drawn.scales.astype("<i8").tobytes())
    return [order.hexdigest(), crops.hexdigest()]


def test_order_and_crops_do_not_depend_on_hash_seed_and_vector_instructions() -> None:
    assert digest_order_and_crops() == [ORDER, CROPS]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # show_config may miss an optional package
        features = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    other = {"NPY_DISABLE_CPU_FEATURES": " ".join(features), "PYTHONHASHSEED": "12345"}
    code = f"import {__name__} as golden; print(*golden.digest_order_and_crops())"
    finished = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **other},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.stdout.split() == [ORDER, CROPS], finished.stderr
