"""The counter-based generator, and the permutations by its keys: fair, independent, bijective."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.plan.permutation import MAX_SIZE, KeyedPermutations, keyed_order
from feeder.plan.rng import (
    GAMMA,
    Purpose,
    Stream,
    derive_key,
    derive_keys,
    mix64,
    uniform_integers,
    uniforms,
)
from tests.plan.fairness import chi_square_z

words = st.integers(0, 2**64 - 1)
IMAGENET_21K = 14_197_122


def test_mix64_gives_the_published_splitmix64_outputs() -> None:
    # Rosetta Code, "Pseudo-random numbers/Splitmix64", seed 1234567
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * np.uint64(GAMMA)
    assert mix64(states).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@given(purpose=st.sampled_from(Purpose), head=words, tail=st.lists(words, min_size=1, max_size=5))
def test_derive_keys_adds_one_word_to_derive_key(
    purpose: Purpose, head: int, tail: list[int]
) -> None:
    vectorised = derive_keys(
        derive_key(purpose, head), np.array(tail, dtype=np.uint64).view(np.int64)
    )
    assert vectorised.tolist() == [derive_key(purpose, head, word) for word in tail]


def test_keys_of_neighbouring_words_and_of_all_purposes_differ() -> None:
    keys = {
        derive_key(purpose, seed, epoch)
        for purpose in Purpose
        for seed in (0, 1, 2, 2**63, 2**64 - 1)
        for epoch in range(50)
    }
    assert len(keys) == len(Purpose) * 5 * 50
    assert derive_key(Purpose.SAMPLE, 1) != derive_key(Purpose.SAMPLE, 1, 0)
    # Published orders depend on the numbers.
    names = ("LANE_ORDER", "TURN_ORDER", "LEFTOVER_ORDER", "SAMPLE", "MIXING", "CROP", "DRAWS")
    assert [(each.name, each.value) for each in Purpose] == [*zip(names, range(1, 8), strict=True)]


@given(
    seed=words,
    epoch=st.integers(0, 2**31 - 1),
    sample_ids=st.lists(st.integers(0, 2**48), min_size=1, max_size=20),
    count=st.integers(0, 30),
)
def test_uniforms_depend_on_sample_and_counter_only(
    seed: int, epoch: int, sample_ids: list[int], count: int
) -> None:
    ids = np.array(sample_ids, dtype=np.int64)
    draws = uniforms(seed, epoch, ids, Stream.CROP, count)
    assert draws.shape == (len(ids), count)
    assert draws.dtype == np.float64
    assert ((draws >= 0) & (draws < 1)).all()
    assert (draws * 2**53 == np.floor(draws * 2**53)).all()
    longer = uniforms(seed, epoch, ids[::-1].copy(), Stream.CROP, count + 3)[::-1]
    assert (longer[:, :count] == draws).all()
    assert (uniforms(seed, epoch, ids[-1:], Stream.CROP, count) == draws[-1:]).all()


def test_uniforms_are_uniform_for_consecutive_samples_in_every_column() -> None:
    draws = uniforms(0, 0, np.arange(100_000, dtype=np.int64), Stream.CROP, 22)
    for column in range(22):
        counts = np.bincount((draws[:, column] * 256).astype(np.int64), minlength=256)
        assert abs(chi_square_z(counts, 100_000 / 256)) < 4


@pytest.mark.parametrize("step", ["sample", "draw", "epoch", "seed", "stream"])
def test_neighbouring_draws_differ_and_are_independent(step: str) -> None:
    ids = np.arange(100_000, dtype=np.int64)
    first = uniforms(5, 9, ids, Stream.CROP, 2)
    second = {
        "sample": uniforms(5, 9, ids + 1, Stream.CROP, 1)[:, 0],
        "draw": first[:, 1],
        "epoch": uniforms(5, 10, ids, Stream.CROP, 1)[:, 0],
        "seed": uniforms(6, 9, ids, Stream.CROP, 1)[:, 0],
        "stream": uniforms(5, 9, ids, Stream.FLIP, 1)[:, 0],
    }[step]
    assert step == "sample" or not np.isin(first[:, 0], second).any()
    cells = (first[:, 0] * 16).astype(np.int64) * 16 + (second * 16).astype(np.int64)
    assert abs(chi_square_z(np.bincount(cells, minlength=256), 100_000 / 256)) < 4


def test_uniform_integers_are_fair_and_never_reach_the_limit() -> None:
    limits = np.concatenate([np.arange(1, 70_000), 2.0 ** np.arange(53)]).astype(np.float64)
    largest = uniform_integers(np.full(limits.shape, 1 - 2.0**-53), limits)
    assert (largest == limits - 1).all()
    assert (uniform_integers(np.zeros(limits.shape), limits) == 0).all()
    draws = uniforms(1, 1, np.arange(100_000, dtype=np.int64), Stream.CROP, 1)[:, 0]
    for limit in (2, 7, 281):
        values = uniform_integers(draws, np.full(draws.shape, float(limit))).astype(np.int64)
        counts = np.bincount(values, minlength=limit)
        assert counts.size == limit
        assert abs(chi_square_z(counts, 100_000 / limit)) < 4


def permute(
    size: int, which: NDArray[np.int64], positions: NDArray[np.int64], keys: int = 1
) -> NDArray[np.int64]:
    """Permute ``positions`` by the permutations ``which`` of a size, each with its own key."""
    numbers = np.arange(keys, dtype=np.int64)
    permutations = derive_keys(derive_key(Purpose.LANE_ORDER, 0), numbers)
    return KeyedPermutations(size, permutations)(which, positions)


@settings(max_examples=150)
@example(64, 3, 0)
@example(65, 3, 0)
@example(99_991, 1, 0)
@given(size=st.integers(1, 3000), keys=st.integers(1, 6), seed=st.integers(0, 2**32))
def test_every_size_and_key_gives_a_bijection_however_they_are_asked_together(
    size: int, keys: int, seed: int
) -> None:
    which = np.repeat(np.arange(keys, dtype=np.int64), size)
    positions = np.tile(np.arange(size, dtype=np.int64), keys)
    order = np.random.default_rng(seed).permutation(len(which))
    together = np.empty(len(which), dtype=np.int64)
    together[order] = permute(size, which[order], positions[order], keys)
    assert (together == permute(size, which, positions, keys)).all()
    for number in range(keys):
        assert np.array_equal(np.sort(together[which == number]), np.arange(size))


@pytest.mark.parametrize("size", [IMAGENET_21K, 2**31 - 1, 2**40 + 15, MAX_SIZE])
def test_memory_does_not_grow_with_the_size(size: int) -> None:
    positions = np.linspace(0, size - 1, 32).astype(np.int64)
    tracemalloc.start()
    try:
        values = permute(size, np.zeros_like(positions), positions)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000
    assert ((values >= 0) & (values < size)).all()
    assert len(np.unique(values)) == 32


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_small_permutations_appear_equally_often(size: int) -> None:
    keys = 40_000
    which = np.arange(keys, dtype=np.int64)
    codes = sum(
        permute(size, which, np.full(keys, position), keys) * size**position
        for position in range(size)
    )
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == math.factorial(size)
    assert abs(chi_square_z(counts, keys / counts.size)) < 4


@pytest.mark.parametrize("distance", [1, 2, 17])
def test_neighbouring_positions_are_independent(distance: int) -> None:
    size = IMAGENET_21K
    positions = np.arange(200_000, dtype=np.int64)
    values = permute(size, np.zeros_like(positions), positions)
    cells = values * 16 // size
    pairs = cells[:-distance] * 16 + cells[distance:]
    assert abs(chi_square_z(np.bincount(pairs, minlength=256), pairs.size / 256)) < 4
    gaps = (values[distance:] - values[:-distance]) % size * 256 // size
    assert abs(chi_square_z(np.bincount(gaps, minlength=256), gaps.size / 256)) < 4


def test_keyed_order_is_fair() -> None:
    labels = np.arange(5, dtype=np.int64)
    keys = [derive_key(Purpose.TURN_ORDER, number) for number in range(12_000)]
    codes = [int((keyed_order(labels, key) * 5**labels).sum()) for key in keys]
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == 120
    assert abs(chi_square_z(counts, 100)) < 4
