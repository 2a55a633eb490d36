"""Keyed permutations: bijections of every size, fair, different for every key, constant memory."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.plan.permutation import MAX_SIZE, KeyedPermutations, keyed_order
from feeder.plan.rng import Purpose, derive_key, derive_keys
from tests.support.fairness import chi_square_z

IMAGENET_21K = 14_197_122


def make_keys(count: int, seed: int = 0) -> NDArray[np.uint64]:
    return derive_keys(derive_key(Purpose.LANE_ORDER, seed), np.arange(count, dtype=np.int64))


def permute_all(size: int, key: int = 12345) -> NDArray[np.int64]:
    permutations = KeyedPermutations(
        np.array([size], dtype=np.int64), np.array([key], dtype=np.uint64)
    )
    return permutations(np.zeros(size, dtype=np.int64), np.arange(size, dtype=np.int64))


@pytest.mark.parametrize(
    "size",
    [0, 1, 2, 3, 4, 5, 7, 8, 16, 97, 255, 256, 257, 258, 289, 1009, 4096, 4097, 65_536, 99_991],
)
def test_every_value_appears_exactly_once(size: int) -> None:
    assert np.sort(permute_all(size)).tolist() == list(range(size))


@settings(deadline=None)
@given(size=st.integers(0, 3000), key=st.integers(0, 2**64 - 1))
def test_every_size_and_key_gives_a_bijection(size: int, key: int) -> None:
    assert np.sort(permute_all(size, key)).tolist() == list(range(size))


@settings(deadline=None, max_examples=50)
@given(sizes=st.lists(st.integers(0, 600), min_size=1, max_size=6), seed=st.integers(0, 2**32 - 1))
def test_vectorised_permutations_equal_single_ones(sizes: list[int], seed: int) -> None:
    permutations = KeyedPermutations(np.array(sizes, dtype=np.int64), make_keys(len(sizes)))
    which = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
    positions = np.concatenate([np.arange(size, dtype=np.int64) for size in sizes])
    order = np.random.default_rng(seed).permutation(len(which))
    together = np.empty(len(which), dtype=np.int64)
    together[order] = permutations(which[order], positions[order])
    for number, size in enumerate(sizes):
        alone = permutations(np.full(size, number, dtype=np.int64), np.arange(size, dtype=np.int64))
        assert (together[which == number] == alone).all()
        assert np.sort(alone).tolist() == list(range(size))


def test_fourteen_million_positions_are_a_bijection() -> None:
    permutations = KeyedPermutations(np.array([IMAGENET_21K], dtype=np.int64), make_keys(1))
    seen = np.zeros(IMAGENET_21K, dtype=bool)
    step = 1 << 15  # so that all arrays stay in the processor's cache
    for start in range(0, IMAGENET_21K, step):
        positions = np.arange(start, min(start + step, IMAGENET_21K), dtype=np.int64)
        seen[permutations(np.zeros_like(positions), positions)] = True
    assert seen.all()


@pytest.mark.parametrize("size", [IMAGENET_21K, 2**31 - 1, 2**40 + 15, MAX_SIZE])
def test_memory_does_not_grow_with_the_size(size: int) -> None:
    positions = np.linspace(0, size - 1, 32).astype(np.int64)
    tracemalloc.start()
    try:
        permutations = KeyedPermutations(np.array([size], dtype=np.int64), make_keys(1))
        values = permutations(np.zeros_like(positions), positions)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000
    assert ((values >= 0) & (values < size)).all()
    assert len(np.unique(values)) == 32


@pytest.mark.parametrize("size", [2, 3, 4, 5, 6])
def test_small_permutations_appear_equally_often(size: int) -> None:
    keys = 40_000
    permutations = KeyedPermutations(np.full(keys, size, dtype=np.int64), make_keys(keys))
    which = np.arange(keys, dtype=np.int64)
    codes = sum(
        permutations(which, np.full(keys, position, dtype=np.int64)) * size**position
        for position in range(size)
    )
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == math.factorial(size)
    assert abs(chi_square_z(counts, keys / counts.size)) < 4


@pytest.mark.parametrize("size", [257, 1009, 4096])
def test_every_position_has_every_value_equally_often(size: int) -> None:
    keys = 20_000
    permutations = KeyedPermutations(np.full(keys, size, dtype=np.int64), make_keys(keys))
    which = np.arange(keys, dtype=np.int64)
    for position in (0, 1, size // 2, size - 2, size - 1):
        values = permutations(which, np.full(keys, position, dtype=np.int64))
        assert abs(chi_square_z(np.bincount(values, minlength=size), keys / size)) < 4


@pytest.mark.parametrize("distance", [1, 2, 17])
def test_neighbouring_positions_are_independent(distance: int) -> None:
    size = IMAGENET_21K
    permutations = KeyedPermutations(np.array([size], dtype=np.int64), make_keys(1, seed=3))
    positions = np.arange(200_000, dtype=np.int64)
    values = permutations(np.zeros_like(positions), positions)
    cells = values * 16 // size
    pairs = cells[:-distance] * 16 + cells[distance:]
    assert abs(chi_square_z(np.bincount(pairs, minlength=256), pairs.size / 256)) < 4
    gaps = (values[distance:] - values[:-distance]) % size * 256 // size
    assert abs(chi_square_z(np.bincount(gaps, minlength=256), gaps.size / 256)) < 4


def test_number_of_fixed_points_is_that_of_chance() -> None:
    positions = np.arange(1009, dtype=np.int64)
    keys = 400
    permutations = KeyedPermutations(np.full(keys, 1009, dtype=np.int64), make_keys(keys))
    fixed = [
        int((permutations(np.full_like(positions, key), positions) == positions).sum())
        for key in range(keys)
    ]
    assert abs(sum(fixed) / keys - 1) < 4 / math.sqrt(keys)  # Poisson with mean 1


def test_keys_that_differ_by_one_bit_give_unrelated_permutations() -> None:
    size = 10_007
    orders = [permute_all(size, 12345 ^ (1 << bit)) for bit in (0, 1, 31, 32, 63)]
    for number, order in enumerate(orders):
        for other in orders[:number]:
            assert (order == other).sum() < 10


@given(labels=st.lists(st.integers(0, 2**40), unique=True, max_size=50))
def test_keyed_order_keeps_every_label(labels: list[int]) -> None:
    ordered = keyed_order(np.array(labels, dtype=np.int64), 99)
    assert sorted(ordered.tolist()) == sorted(labels)


def test_keyed_order_is_fair() -> None:
    labels = np.arange(5, dtype=np.int64)
    keys = [derive_key(Purpose.TURN_ORDER, number) for number in range(12_000)]
    codes = [int((keyed_order(labels, key) * 5**labels).sum()) for key in keys]
    _, counts = np.unique(codes, return_counts=True)
    assert counts.size == 120
    assert abs(chi_square_z(counts, 100)) < 4
