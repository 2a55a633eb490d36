"""Optimisers against their formulas, half-precision weights, averages, and rates by step."""

import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import nn

from trainer_client.reference.optimisation import (
    lr_factor,
    make_optimiser,
    parameter_groups,
    peak_lr,
)
from trainer_client.reference.optimisers.half_weights import HalfWeights, round_stochastically
from trainer_client.reference.optimisers.moving_average import MovingAverage
from trainer_client.reference.optimisers.optimisers import LARS, RMSpropTF
from trainer_client.reference.recipes.recipe import TrainingRecipe, compose_recipe
from trainer_client.reference.resnet import resnet_small

torch.set_num_threads(1)  # more threads only slow down models this small


# --- Rates and groups -----------------------------------------------------------------------------

POLYNOMIAL = {"schedule": "polynomial", "warmup_epochs": 2, "epochs": 12}


def factor(step: int, keys: dict[str, object], steps_per_epoch: int = 1, lr: float = 1.0) -> float:
    return lr_factor(TrainingRecipe().changed(keys), lr, steps_per_epoch, step)


@pytest.mark.parametrize(
    ("keys", "steps_per_epoch", "lr", "expected"),
    [
        (
            {"warmup_epochs": 2, "epochs": 10},
            2,
            1.0,
            {0: 0.2, 3: 0.8, 4: 1.0, 8: (2 + math.sqrt(2)) / 4, 12: 0.5, 20: 0, 25: 0},
        ),
        (
            {**POLYNOMIAL, "end_lr": 1.0},
            1,
            5.0,
            {0: 1 / 3, 2: 1.0, 3: 0.81 * 0.8 + 0.2, 7: 0.25 * 0.8 + 0.2, 12: 0.2, 13: 0.2},
        ),
        ({**POLYNOMIAL, "schedule_power": 1.0}, 1, 5.0, {7: 0.5}),
        (  # given epochs count from the first step
            {"schedule": "steps", "warmup_epochs": 0.2, "step_epochs": [3, 6, 8.05], "epochs": 9},
            10,
            1.0,
            {0: 1 / 3, 29: 1.0, 30: 0.1, 80: 0.01, 81: 0.001, 1000: 0.001},
        ),
        (  # EfficientNet's 0.97 every 2.4 epochs: two boundaries are within the warm-up
            {"schedule": "steps", "step_every_epochs": 2.4, "step_factor": 0.97, "epochs": 350},
            10,
            1.0,
            {49: 50 / 51, 50: 0.97**2, 71: 0.97**2, 72: 0.97**3},
        ),
    ],
)
def test_schedules_have_golden_values(
    keys: dict[str, object], steps_per_epoch: int, lr: float, expected: dict[int, float]
) -> None:
    found = {step: factor(step, keys, steps_per_epoch, lr) for step in expected}
    assert found == pytest.approx(expected)


@given(
    keys=st.fixed_dictionaries(
        {
            "schedule": st.sampled_from(["cosine", "polynomial", "steps"]),
            "schedule_power": st.floats(0.5, 4),
            "end_lr": st.floats(0, 1),
            "step_every_epochs": st.floats(0.5, 100),
            "step_factor": st.floats(0, 1),
            "epochs": st.integers(0, 300),
            "warmup_epochs": st.floats(0, 250),
        }
    )
)
@example(keys={"schedule": "cosine", "epochs": 9, "warmup_epochs": 4.0})
def test_every_schedule_rises_to_its_warm_ups_end_and_never_after(keys: dict[str, float]) -> None:
    recipe = TrainingRecipe().changed(keys)
    found = [lr_factor(recipe, 1.0, 1, step) for step in range(320)]
    assert all(0 <= each <= 1 for each in found)
    warmup = keys["warmup_epochs"]
    peak = math.ceil(warmup)
    assert found[:peak] == [(step + 1) / (warmup + 1) for step in range(peak)]
    assert all(now >= later for now, later in itertools.pairwise(found[peak:]))
    if keys["schedule"] != "steps":
        assert found[-1] == pytest.approx(keys.get("end_lr", 0.0), abs=1e-12)
        if warmup == peak:
            assert found[peak] == 1.0, "the warm-up meets the decay without a jump"


def test_the_learning_rate_grows_with_the_global_batch_unless_it_is_given() -> None:
    assert peak_lr(TrainingRecipe(), 1024) == pytest.approx(0.4)
    assert peak_lr(TrainingRecipe(base_batch=0), 1024) == 0.1
    assert peak_lr(TrainingRecipe(lr=10.5), 3264) == 10.5


def test_kernels_decay_and_have_trust_and_biases_and_norms_do_not() -> None:
    model = resnet_small(3)
    kernels, vectors = parameter_groups(model, TrainingRecipe(weight_decay=0.1))
    assert (kernels["weight_decay"], kernels["trust"]) == (0.1, True)
    assert (vectors["weight_decay"], vectors["trust"]) == (0.0, False)
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    assert {id(p) for p in (*norms, model.fc.bias)} == {id(p) for p in vectors["params"]}
    assert len(kernels["params"]) + len(vectors["params"]) == len(list(model.parameters()))
    recipe = TrainingRecipe(weight_decay=0.1, decay_vectors=True)
    vectors = parameter_groups(model, recipe)[1]
    assert (vectors["weight_decay"], vectors["trust"]) == (0.1, False)


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("imagenet-90", torch.optim.SGD, {"momentum": 0.9, "nesterov": False}),
        ("mlperf-lars", LARS, {"momentum": 0.9, "eta": 0.001, "eps": 0.0}),
        ("efficientnet-b0", RMSpropTF, {"momentum": 0.9, "rho": 0.9, "eps": 1e-3}),
    ],
)
def test_a_recipe_has_its_optimiser_with_its_groups(
    name: str, kind: type[torch.optim.Optimizer], options: dict[str, object]
) -> None:
    recipe = compose_recipe(name, {})[0]
    optimiser = make_optimiser(recipe, 0.5, parameter_groups(nn.Linear(3, 2), recipe))
    assert type(optimiser) is kind
    for group, is_kernel in zip(optimiser.param_groups, (True, False), strict=True):
        assert {key: group[key] for key in options} == options
        assert (group["lr"], group["trust"]) == (0.5, is_kernel)
        assert group["weight_decay"] == (recipe.weight_decay if is_kernel else 0.0)


# --- LARS and TensorFlow's RMSProp: their formulas in NumPy, and numbers worked out by hand -------

Array = NDArray[np.float64]
RATES = (0.1, 0.2, 0.3, 0.3, 0.05, 0.01)
"""Rise and fall, because the place of the learning rate shows only when it changes."""
GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.normal(size=(1 + len(RATES), 5, 7)).astype(np.float32).astype(np.float64)
WEIGHTS, GRADIENTS = VALUES[0], VALUES[1:]  # float32 has them exactly
LARS_KEYS = {"momentum": 0.9, "weight_decay": 0.01, "eta": 0.1, "eps": 0.5}


def descend(
    make: Callable[..., torch.optim.Optimizer], shape: tuple[int, ...] = WEIGHTS.shape
) -> Iterator[Array]:
    """Yield the weights after each step of an optimiser that has them in ``shape``."""
    parameter = nn.Parameter(torch.tensor(WEIGHTS, dtype=torch.float64).reshape(shape))
    optimiser = make([parameter], lr=1.0)
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        optimiser.param_groups[0]["lr"] = rate
        given = torch.tensor(gradient, dtype=torch.float64).reshape(shape)
        parameter.grad = given.clone()
        optimiser.step()
        assert torch.equal(parameter.grad, given), "was changed"
        yield parameter.detach().double().numpy().reshape(WEIGHTS.shape).copy()


def lars_path(*, nesterov: bool, unscaled: bool, trust: bool) -> Iterator[Array]:
    momentum, decay, eta, eps = LARS_KEYS.values()
    weights, velocity = WEIGHTS, np.zeros_like(WEIGHTS)
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        weight_norm, gradient_norm = np.sqrt((weights**2).sum()), np.sqrt((gradient**2).sum())
        ratio = eta * weight_norm / (gradient_norm + decay * weight_norm + eps)
        scaled = rate * (ratio if trust else 1.0)
        total = gradient + decay * weights
        if unscaled:
            velocity = momentum * velocity + total
            change = scaled * (total + momentum * velocity if nesterov else velocity)
        else:
            velocity = momentum * velocity + scaled * total
            change = scaled * total + momentum * velocity if nesterov else velocity
        weights = weights - change
        yield weights


@pytest.mark.parametrize("shape", [(5, 7), (35,), (5, 7, 1, 1)])
@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
def test_lars_takes_the_steps_of_the_formula_and_trusts_parameters_as_their_group_says(
    nesterov: bool, unscaled: bool, trust: bool, shape: tuple[int, ...]
) -> None:
    def make(parameters: list[nn.Parameter], lr: float) -> LARS:
        groups = [{"params": parameters, "trust": trust}]
        options = {"nesterov": nesterov, "unscaled_momentum": unscaled}
        return LARS(groups, lr=lr, **LARS_KEYS, **options)

    expected = [*lars_path(nesterov=nesterov, unscaled=unscaled, trust=trust)]
    np.testing.assert_allclose([*descend(make, shape)], expected, rtol=1e-12, atol=1e-12)


def test_a_norm_of_zero_gives_a_ratio_of_one() -> None:
    weights, zeros = torch.full((2, 2), 2.0), torch.zeros(2, 2)
    for start, gradient, expected in (
        (zeros, weights, -0.5 * 2.0),  # begins at zero, as the last gain of each block
        (weights, zeros, 2.0 - 0.5 * 0.25 * 2.0),  # only decays
        (zeros, zeros, 0.0),
    ):
        parameter = nn.Parameter(start.clone())
        parameter.grad = gradient.clone()
        LARS([parameter], lr=0.5, weight_decay=0.25).step()
        assert (parameter == expected).all()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_rmsprop_takes_the_steps_of_the_formula(momentum: float, decay: float) -> None:
    expected, weights = [], WEIGHTS
    mean_square, velocity = np.ones_like(weights), np.zeros_like(weights)
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        total = gradient + decay * weights
        mean_square = 0.9 * mean_square + 0.1 * total**2
        velocity = momentum * velocity + rate * total / np.sqrt(mean_square + 1e-3)
        weights = weights - velocity
        expected.append(weights)
    path = [*descend(partial(RMSpropTF, momentum=momentum, weight_decay=decay))]
    np.testing.assert_allclose(path, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("make", [LARS, RMSpropTF])
def test_state_survives_loading_and_a_weight_without_gradient_stays(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    """Two steps, saved, and two more equal four steps, bit by bit."""
    paths, idle = [], nn.Parameter(torch.ones(2))
    state: dict[str, object] = {}
    for saved_at in (None, 2):
        parameter = nn.Parameter(torch.tensor(WEIGHTS, dtype=torch.float32))
        optimiser = make([parameter, idle], lr=0.1, weight_decay=0.01)
        for number in range(4):
            if number == saved_at:
                state = optimiser.state_dict()
                optimiser = make([parameter, idle], lr=0.1, weight_decay=0.01)
                optimiser.load_state_dict(state)
            parameter.grad = torch.tensor(GRADIENTS[number], dtype=torch.float32)
            optimiser.step()
        paths.append(parameter.detach())
    assert torch.equal(*paths)
    assert (idle == 1).all()


# --- Half-precision weights -----------------------------------------------------------------------

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


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    model = nn.Linear(4, 32)
    weights = wrap(model)
    for value in (1.0, 2.0**-10):  # their sum in bfloat16 is 1
        model.weight.grad = torch.full_like(model.weight, value)
        weights.collect_gradients()
    (kernel,) = weights.optimiser.param_groups[0]["params"]
    assert (kernel.grad == 1 + 2.0**-10).all()


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


# --- The average of the weights -------------------------------------------------------------------


def train_step(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model.train()
    images = torch.rand(4, 4, 32, 32, generator=generator)
    images[:, 3] = 0
    model(images).square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.01 * parameter.grad
            parameter.grad = None


@pytest.mark.parametrize("every", [1, 2])
def test_weights_and_batch_norm_statistics_are_averaged_by_the_formula(every: int) -> None:
    torch.manual_seed(3)
    model = resnet_small(3)
    average = MovingAverage(model, 0.2, every_steps=every)
    expected = {name: value.double() for name, value in model.state_dict().items()}
    images = torch.rand(2, 4, 32, 32)
    assert torch.equal(average.model(images), model.eval()(images)), "begins equal to the model"
    for step in range(6):
        train_step(model, step)
        average.update(step)
        if (step + 1) % every:
            continue
        number = step // every
        decay = min(0.2, (1 + number) / (10 + number))  # reaches 0.2
        for name, value in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                expected[name] = value.double()
            else:
                expected[name] = decay * expected[name] + (1 - decay) * value.double()
    found = average.model.state_dict()
    assert found["bn1.num_batches_tracked"] == 6
    assert not torch.equal(found["bn1.running_mean"], model.bn1.running_mean)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-6, atol=1e-7)
    assert not average.model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    assert not found["conv1.weight"][:, 3].any(), "the fourth channel stays zero"
