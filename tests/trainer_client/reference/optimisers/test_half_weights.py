"""Half-precision weights: rounding without bias, small updates, resumes, loss scaling."""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from trainer_client.reference.optimisation import parameter_groups
from trainer_client.reference.optimisers.half_weights import HalfWeights, round_stochastically
from trainer_client.reference.recipes.recipe import TrainingRecipe

torch.set_num_threads(1)
COUNT = 1_000_000
half = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@half
@pytest.mark.parametrize("value", [1.0001, -1.003, 0.3, 60_000.7, 3e-5, -2.5e-7, 1e-8, -2e-42])
def test_a_million_roundings_are_unbiased(value: float, dtype: torch.dtype) -> None:
    exact = torch.tensor(value)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).double()
    low, high = every[every <= exact].max().item(), every[every >= exact].min().item()
    share = (exact.item() - low) / (high - low)
    rounded = round_stochastically(exact.expand(COUNT), dtype, seeded()).double()
    assert {*rounded.unique().tolist()} <= {low, high}
    error = abs((rounded == high).double().mean().item() - share)
    assert error <= 4 * math.sqrt(share * (1 - share) / COUNT)
    assert (rounded == high).any() == (share > 1e-3)


@half
def test_values_of_the_type_stay_and_those_beyond_it_are_rounded_to_nearest(
    dtype: torch.dtype,
) -> None:
    bits = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)
    values = bits.view(dtype).float()  # with zeros, infinities and nan
    rounded = round_stochastically(values, dtype, seeded())
    assert torch.equal(rounded.isnan(), values.isnan())
    assert torch.equal(rounded.view(torch.int16)[~values.isnan()], bits[~values.isnan()])
    largest = torch.finfo(dtype).max
    spacing = 2.0 ** math.floor(math.log2(largest)) * torch.finfo(dtype).eps
    end = largest + spacing / 2  # from here on, rounding to nearest gives infinity
    for sign in (1, -1):
        for value, expected in (((largest + end) / 2, largest), (end * (1 + 1e-6), math.inf)):
            beyond = torch.full((1000,), sign * value)
            assert (round_stochastically(beyond, dtype, seeded()) == sign * expected).all()
    tiny = round_stochastically(torch.tensor([1e-45, -1e-45]), dtype, seeded())
    assert (tiny == 0).all()
    assert tiny.signbit().tolist() == [False, True]


def wrap(model: nn.Module, dtype: torch.dtype = torch.bfloat16, **options: Any) -> HalfWeights:
    groups = parameter_groups(model, TrainingRecipe(weight_decay=0.0))
    make_sgd = partial(torch.optim.SGD, lr=1e-4, momentum=options.pop("momentum", 0.0))
    return HalfWeights(model, groups, make_sgd, dtype=dtype, seed=1, **options)


def step(model: nn.Module, weights: HalfWeights) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    weights.collect_gradients()
    weights.optimiser.step()
    weights.optimiser.zero_grad()


@half
@pytest.mark.parametrize(("is_stochastic", "expected"), [(True, 0.95), (False, 1.0)])
def test_tiny_updates_add_up_on_average_and_are_lost_by_rounding_to_nearest(
    is_stochastic: bool, expected: float, dtype: torch.dtype
) -> None:
    model = nn.Linear(100, 100, bias=False)
    nn.init.ones_(model.weight)
    weights = wrap(model, dtype, is_stochastic=is_stochastic)
    for _ in range(500):  # each far below half the spacing: 2**-10 in float16, 2**-7 in bfloat16
        step(model, weights)
    assert model.weight.dtype == dtype
    # A step's variance is at most spacing * update: 500 steps of 10,000 weights.
    tolerance = 4 * (500 * 2.0**-8 * 1e-4 / 10_000) ** 0.5
    assert model.weight.float().mean().item() == pytest.approx(expected, abs=tolerance)
    assert (model.weight == 1).all() == (not is_stochastic)


def test_between_steps_no_float32_weights_take_memory() -> None:
    model = nn.Sequential(nn.Linear(4, 32), nn.Linear(32, 1))
    weights = wrap(model, momentum=0.9)
    for _ in range(2):
        step(model, weights)
    kernels = weights.optimiser.param_groups[0]["params"]
    assert [kernel.shape for kernel in kernels] == [(32, 4), (1, 32)]
    assert [kernel.untyped_storage().nbytes() for kernel in kernels] == [4, 4]
    states = (weights.optimiser.state[each]["momentum_buffer"] for each in kernels)
    assert {state.dtype for state in states} == {torch.float32}
    assert {p.dtype for p in model.parameters() if p.ndim > 1} == {torch.bfloat16}
    assert {p.dtype for p in model.parameters() if p.ndim == 1} == {torch.float32}
