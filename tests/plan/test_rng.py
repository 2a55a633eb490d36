"""The counter-based generator: published values, independence of streams, fair draws."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.support.fairness import chi_square_z

words = st.integers(0, 2**64 - 1)


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
    assert derive_key(Purpose.SAMPLE, 1, 2) != derive_key(Purpose.SAMPLE, 2, 1)
    assert derive_key(Purpose.SAMPLE, 1) != derive_key(Purpose.SAMPLE, 1, 0)


def test_a_purpose_keeps_its_number_because_published_orders_depend_on_it() -> None:
    assert {purpose.name: purpose.value for purpose in Purpose} == {
        "LANE_ORDER": 1,
        "TURN_ORDER": 2,
        "LEFTOVER_ORDER": 3,
        "SAMPLE": 4,
        "MIXING": 5,
    }


@settings(deadline=None)
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


def test_seed_epoch_stream_and_sample_each_change_every_draw() -> None:
    ids = np.arange(1000, dtype=np.int64)
    draws = uniforms(7, 3, ids, Stream.CROP, 8)
    for other in (
        uniforms(8, 3, ids, Stream.CROP, 8),
        uniforms(7, 4, ids, Stream.CROP, 8),
        uniforms(7, 3, ids, Stream.FLIP, 8),
        uniforms(7, 3, ids + 1000, Stream.CROP, 8),
    ):
        assert not np.isin(other, draws).any()


def test_uniforms_are_uniform_for_consecutive_samples_in_every_column() -> None:
    draws = uniforms(0, 0, np.arange(100_000, dtype=np.int64), Stream.CROP, 22)
    for column in range(22):
        counts = np.bincount((draws[:, column] * 256).astype(np.int64), minlength=256)
        assert abs(chi_square_z(counts, 100_000 / 256)) < 4


@pytest.mark.parametrize("step", ["next sample", "next draw", "next epoch", "next seed", "stream"])
def test_neighbouring_draws_are_independent(step: str) -> None:
    ids = np.arange(100_000, dtype=np.int64)
    first = uniforms(5, 9, ids, Stream.CROP, 2)
    second = {
        "next sample": uniforms(5, 9, ids + 1, Stream.CROP, 1)[:, 0],
        "next draw": first[:, 1],
        "next epoch": uniforms(5, 10, ids, Stream.CROP, 1)[:, 0],
        "next seed": uniforms(6, 9, ids, Stream.CROP, 1)[:, 0],
        "stream": uniforms(5, 9, ids, Stream.FLIP, 1)[:, 0],
    }[step]
    cells = (first[:, 0] * 16).astype(np.int64) * 16 + (second * 16).astype(np.int64)
    assert abs(chi_square_z(np.bincount(cells, minlength=256), 100_000 / 256)) < 4


def test_the_largest_draw_never_reaches_the_limit() -> None:
    limits = np.concatenate([np.arange(1, 70_000), 2.0 ** np.arange(53)]).astype(np.float64)
    largest = uniform_integers(np.full(limits.shape, 1 - 2.0**-53), limits)
    assert (largest == limits - 1).all()
    assert (uniform_integers(np.zeros(limits.shape), limits) == 0).all()


def test_uniform_integers_are_fair() -> None:
    draws = uniforms(1, 1, np.arange(100_000, dtype=np.int64), Stream.CROP, 1)[:, 0]
    for limit in (2, 7, 281):
        values = uniform_integers(draws, np.full(draws.shape, float(limit))).astype(np.int64)
        counts = np.bincount(values, minlength=limit)
        assert counts.size == limit
        assert abs(chi_square_z(counts, 100_000 / limit)) < 4
