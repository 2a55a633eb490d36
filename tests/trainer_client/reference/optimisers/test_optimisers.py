"""LARS and TensorFlow's RMSProp against their formulas in NumPy, and numbers worked out by hand."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from trainer_client.reference.optimisers.optimisers import LARS, RMSpropTF

torch.set_num_threads(1)
Array = NDArray[np.float64]
RATES = (0.1, 0.2, 0.3, 0.3, 0.05, 0.01)
"""Rise and fall, because the place of the learning rate shows only when it changes."""
GENERATOR = np.random.default_rng(0)
VALUES = GENERATOR.normal(size=(1 + len(RATES), 5, 7)).astype(np.float32).astype(np.float64)
WEIGHTS, GRADIENTS = VALUES[0], VALUES[1:]  # float32 has them exactly
LARS_KEYS = {"momentum": 0.9, "weight_decay": 0.01, "eta": 0.1, "eps": 0.5}


def descend(make: Callable[..., torch.optim.Optimizer], dtype: torch.dtype) -> Iterator[Array]:
    """Yield the weights after each step of an optimiser."""
    parameter = nn.Parameter(torch.tensor(WEIGHTS, dtype=dtype))
    optimiser = make([parameter], lr=1.0)
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        optimiser.param_groups[0]["lr"] = rate
        parameter.grad = torch.tensor(gradient, dtype=dtype)
        optimiser.step()
        assert torch.equal(parameter.grad, torch.tensor(gradient, dtype=dtype)), "was changed"
        yield parameter.detach().double().numpy().copy()


def lars_path(*, nesterov: bool, unscaled: bool, trust: bool = True) -> Iterator[Array]:
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


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_lars_takes_the_steps_of_the_formula(
    nesterov: bool, unscaled: bool, dtype: torch.dtype, tolerance: float
) -> None:
    make = partial(LARS, **LARS_KEYS, nesterov=nesterov, unscaled_momentum=unscaled)
    expected = [*lars_path(nesterov=nesterov, unscaled=unscaled)]
    path = [*descend(make, dtype)]
    np.testing.assert_allclose(path, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("make", [partial(LARS, **LARS_KEYS), RMSpropTF])
def test_each_layer_is_updated_as_if_it_were_alone(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    """So each has the trust ratio of its own norms, wherever it stands in its group."""
    layers = [torch.randn(3, 2, generator=torch.Generator().manual_seed(n)) * n for n in (1, 5, 2)]
    together = [nn.Parameter(layer.clone()) for layer in layers]
    optimiser = make(together, lr=0.5)
    for parameter in together:
        parameter.grad = parameter.detach().square()
    optimiser.step()
    for layer, parameter in zip(layers, together, strict=True):
        alone = nn.Parameter(layer.clone())
        alone.grad = layer.square()
        make([alone], lr=0.5).step()
        assert torch.equal(parameter, alone)


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_group_without_trust_is_plain_sgd(unscaled: bool) -> None:
    def make(parameters: list[nn.Parameter], lr: float) -> LARS:
        groups = [{"params": parameters, "trust": False}]
        return LARS(groups, lr=lr, **LARS_KEYS, unscaled_momentum=unscaled)

    path = [*descend(make, torch.float32)]
    expected = [*lars_path(nesterov=False, unscaled=unscaled, trust=False)]
    np.testing.assert_allclose(path, expected, rtol=1e-6, atol=1e-6)
    if unscaled:  # torch has the learning rate outside, too
        sgd = descend(partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01), torch.float32)
        np.testing.assert_allclose(path, [*sgd], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("unscaled", [False, True])
def test_two_steps_of_lars_worked_out_by_hand(unscaled: bool) -> None:
    parameter = nn.Parameter(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    keys = {"momentum": 0.5, "weight_decay": 0.5, "eta": 0.25}
    optimiser = LARS([parameter], lr=2.0, **keys, unscaled_momentum=unscaled)
    # |w| = 5, |gradient| = 2.5: trust = 0.25 * 5 / (2.5 + 0.5 * 5) = 0.25
    # change = 2 * 0.25 * (1.5 + 0.5 * 3, 2 + 0.5 * 4) = (1.5, 2)
    parameter.grad = torch.tensor([[1.5, 2.0]], dtype=torch.float64)
    optimiser.step()
    assert parameter.tolist() == [[1.5, 2.0]]
    # |w| = |gradient| = 2.5: trust = 0.25 * 2.5 / 3.75 = 1/6; the learning rate is now 0.75, so
    # lr * trust = 0.125 and the scaled velocity is 0.5 * 1.5 + 0.125 * 2.25 = 1.03125; unscaled it
    # is 0.5 * 3 + 2.25 = 3.75, of which 0.125 are taken: 0.46875.
    optimiser.param_groups[0]["lr"] = 0.75
    optimiser.step()
    taken = 0.46875 if unscaled else 1.03125
    expected = [1.5 - taken, 4 / 3 * (1.5 - taken)]
    assert parameter[0].tolist() == pytest.approx(expected, abs=1e-12)


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


def test_norms_of_half_precision_gradients_do_not_overflow() -> None:
    parameter = nn.Parameter(torch.full((300,), 1000.0, dtype=torch.float16))
    parameter.grad = torch.full((300,), 60_000.0, dtype=torch.float16)
    LARS([parameter], lr=1.0, eta=0.5).step()
    assert parameter.tolist() == [500.0] * 300


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_rmsprop_takes_the_steps_of_the_formula(
    momentum: float, decay: float, dtype: torch.dtype, tolerance: float
) -> None:
    expected, weights = [], WEIGHTS
    mean_square, velocity = np.ones_like(weights), np.zeros_like(weights)
    for rate, gradient in zip(RATES, GRADIENTS, strict=True):
        total = gradient + decay * weights
        mean_square = 0.9 * mean_square + 0.1 * total**2
        velocity = momentum * velocity + rate * total / np.sqrt(mean_square + 1e-3)
        weights = weights - velocity
        expected.append(weights)
    path = [*descend(partial(RMSpropTF, momentum=momentum, weight_decay=decay), dtype)]
    np.testing.assert_allclose(path, expected, rtol=tolerance, atol=tolerance)


def test_two_steps_of_rmsprop_worked_out_by_hand() -> None:
    parameter = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimiser = RMSpropTF([parameter], lr=0.3, rho=0.75, momentum=0.5, eps=1.0, weight_decay=0.5)
    # g = 2 + 0.5 * 2 = 3; mean square 0.75 * 1 + 0.25 * 9 = 3; velocity 0.3 * 3 / sqrt(3 + 1)
    parameter.grad = torch.tensor([2.0], dtype=torch.float64)
    optimiser.step()
    assert parameter.item() == pytest.approx(2 - 0.45, abs=1e-12)
    # The velocity keeps the learning rate of its step, whatever the new one is.
    optimiser.param_groups[0]["lr"] = 0.0
    optimiser.step()
    assert parameter.item() == pytest.approx(1.55 - 0.5 * 0.45, abs=1e-12)


@pytest.mark.parametrize("make", [LARS, RMSpropTF])
def test_state_is_float32_survives_loading_and_skips_what_has_no_gradient(
    make: Callable[..., torch.optim.Optimizer],
) -> None:
    """Two steps, saved, and two more equal four steps, bit by bit and for bfloat16 weights."""

    def start(weights: torch.Tensor) -> tuple[nn.Parameter, torch.optim.Optimizer]:
        parameter, idle = nn.Parameter(weights.clone()), nn.Parameter(torch.ones(2))
        return parameter, make([parameter, idle], lr=0.1, weight_decay=0.01)

    def step(parameter: nn.Parameter, optimiser: torch.optim.Optimizer, number: int) -> None:
        parameter.grad = torch.tensor(GRADIENTS[number], dtype=torch.bfloat16)
        optimiser.step()

    first, optimiser = start(torch.tensor(WEIGHTS, dtype=torch.bfloat16))
    for number in range(2):
        step(first, optimiser, number)
    second, resumed = start(first.detach())
    resumed.load_state_dict(optimiser.state_dict())
    for number in range(2, 4):
        step(first, optimiser, number)
        step(second, resumed, number)
        assert torch.equal(first, second)
        for name, value in optimiser.state[first].items():
            assert value.dtype == torch.float32
            assert torch.equal(value, resumed.state[second][name]), name
    assert (optimiser.param_groups[0]["params"][1] == 1).all()
