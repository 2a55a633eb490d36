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
def test_lars_takes_the_steps_of_the_formula(nesterov: bool, unscaled: bool) -> None:
    make = partial(LARS, **LARS_KEYS, nesterov=nesterov, unscaled_momentum=unscaled)
    expected = [*lars_path(nesterov=nesterov, unscaled=unscaled)]
    path = [*descend(make)]
    np.testing.assert_allclose(path, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [(35,), (5, 7, 1, 1)])
def test_lars_trusts_parameters_of_any_shape_as_their_group_says(shape: tuple[int, ...]) -> None:
    for trust in (True, False):

        def make(parameters: list[nn.Parameter], lr: float, *, trust: bool = trust) -> LARS:
            groups = [{"params": parameters, "trust": trust}]
            return LARS(groups, lr=lr, **LARS_KEYS)

        expected = [*lars_path(nesterov=False, unscaled=False, trust=trust)]
        path = [*descend(make, shape)]
        np.testing.assert_allclose(path, expected, rtol=1e-12, atol=1e-12)


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
