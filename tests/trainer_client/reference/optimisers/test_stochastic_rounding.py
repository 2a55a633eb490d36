"""Stochastic rounding: right on average, right at the edges."""

import math

import pytest
import torch

from trainer_client.reference.optimisers.stochastic_rounding import (
    HALF_DTYPES,
    round_stochastically,
)

torch.set_num_threads(1)
COUNT = 1_000_000
half = pytest.mark.parametrize("dtype", HALF_DTYPES)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def neighbours(value: float, dtype: torch.dtype) -> tuple[float, float]:
    """Return the values of ``dtype`` just below and above, found among all of them."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).double()
    return every[every <= value].max().item(), every[every >= value].min().item()


@half
@pytest.mark.parametrize(
    "value", [1.0001, -1.003, math.pi, 0.3, -123.456, 60_000.7, 3e-5, -2.5e-7, 1e-8, -2e-42]
)
def test_a_million_roundings_are_unbiased(value: float, dtype: torch.dtype) -> None:
    exact = torch.tensor(value)
    low, high = neighbours(exact.item(), dtype)
    share = (exact.item() - low) / (high - low)
    rounded = round_stochastically(exact.expand(COUNT), dtype, seeded()).double()
    assert {*rounded.unique().tolist()} <= {low, high}
    error = abs((rounded == high).double().mean().item() - share)
    assert error <= 4 * math.sqrt(share * (1 - share) / COUNT)
    assert (rounded == high).any() == (share > 1e-3)


@half
def test_a_million_different_values_have_no_bias_together(dtype: torch.dtype) -> None:
    values = torch.randn(COUNT, generator=seeded(1))
    errors = round_stochastically(values, dtype, seeded(2)).double() - values.double()
    exponents = torch.floor(torch.log2(values.double().abs()))
    spacing = torch.finfo(dtype).eps * (2.0**exponents).clamp(min=torch.finfo(dtype).tiny)
    shares = errors.abs() / spacing  # each is p or 1 - p, or 0
    assert (shares < 1).all()
    spread = (shares * (1 - shares)).mean().sqrt().item()
    assert abs((errors / spacing).mean().item()) <= 4 * spread / math.sqrt(COUNT)


@half
def test_every_value_of_the_type_stays_bit_by_bit(dtype: torch.dtype) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(dtype).float()
    rounded = round_stochastically(values, dtype, seeded())
    assert torch.equal(rounded.isnan(), values.isnan())
    assert torch.equal(rounded.view(torch.int16)[~values.isnan()], bits[~values.isnan()])


@half
def test_values_beyond_the_largest_become_what_rounding_to_nearest_gives(
    dtype: torch.dtype,
) -> None:
    largest = torch.finfo(dtype).max
    spacing = 2.0 ** math.floor(math.log2(largest)) * torch.finfo(dtype).eps
    end = largest + spacing / 2  # from here on, rounding to nearest gives infinity
    finite = torch.tensor([largest, (largest + end) / 2], dtype=torch.float32)
    infinite = torch.tensor([end * (1 + 1e-6), math.inf], dtype=torch.float32)
    for sign in (1, -1):
        rounded = round_stochastically((sign * finite).repeat(1000), dtype, seeded())
        assert (rounded == sign * largest).all()
        rounded = round_stochastically((sign * infinite).repeat(1000), dtype, seeded())
        assert (rounded == sign * math.inf).all()
    assert round_stochastically(torch.tensor([math.nan]), dtype, seeded()).isnan().all()


@half
def test_zeros_and_what_becomes_zero_keep_their_sign(dtype: torch.dtype) -> None:
    values = torch.tensor([0.0, -0.0, 1e-45, -1e-45])
    rounded = round_stochastically(values, dtype, seeded())
    assert (rounded == 0).all()
    assert rounded.signbit().tolist() == [False, True, False, True]


@half
def test_one_seed_gives_one_result_in_any_shape_and_the_input_stays(dtype: torch.dtype) -> None:
    values = torch.randn(6, 4, 3, 3, generator=seeded()).to(memory_format=torch.channels_last)
    before = values.clone()
    first, second = (round_stochastically(values, dtype, seeded(5)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, round_stochastically(values, dtype, seeded(6)))
    assert torch.equal(values, before)
    assert (first.shape, first.dtype) == (values.shape, dtype)
