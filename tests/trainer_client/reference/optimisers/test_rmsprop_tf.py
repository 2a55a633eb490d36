"""RMSProp against TensorFlow's formula in NumPy, and against numbers worked out by hand."""

import numpy as np
import pytest
import torch
from torch import nn

from feeder.errors import ConfigError
from tests.trainer_client.reference.optimisers.golden import (
    RATES,
    Array,
    check_resume,
    descend,
    make_gradients,
)
from trainer_client.reference.optimisers.rmsprop_tf import RMSpropTF

torch.set_num_threads(1)


def expected_path(rho: float, momentum: float, eps: float, weight_decay: float) -> list[Array]:
    weights, gradients = make_gradients()
    mean_square, velocity = np.ones_like(weights), np.zeros_like(weights)
    path: list[Array] = []
    for rate, gradient in zip(RATES, gradients, strict=True):
        total = gradient + weight_decay * weights
        mean_square = rho * mean_square + (1 - rho) * total**2
        velocity = momentum * velocity + rate * total / np.sqrt(mean_square + eps)
        weights = weights - velocity
        path.append(weights)
    return path


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_the_formula(
    momentum: float, weight_decay: float, dtype: torch.dtype
) -> None:
    options = {"rho": 0.9, "momentum": momentum, "eps": 1e-3, "weight_decay": weight_decay}
    path = descend(lambda parameters: RMSpropTF(parameters, lr=1.0, **options), dtype)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(path, expected_path(**options), rtol=tolerance, atol=tolerance)


def test_two_steps_worked_out_by_hand() -> None:
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


def test_the_first_step_is_many_times_smaller_than_that_of_torchs_rmsprop() -> None:
    def first_change(make_optimiser: type[torch.optim.Optimizer], **options: float) -> float:
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.full((1,), 0.1)
        make_optimiser([parameter], lr=1.0, eps=1e-3, momentum=0.9, **options).step()
        return -parameter.item()

    ours = first_change(RMSpropTF, rho=0.9)
    assert ours == pytest.approx(0.1 / np.sqrt(0.9 + 0.1 * 0.01 + 1e-3), rel=1e-5)
    assert first_change(torch.optim.RMSprop, alpha=0.9) > 20 * ours


def test_half_precision_weights_have_float32_state_that_survives_loading() -> None:
    check_resume(lambda parameters: RMSpropTF(parameters, lr=0.1))


def test_a_parameter_without_gradient_stays_and_a_closure_gives_the_loss() -> None:
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimiser = RMSpropTF([used, unused], lr=0.1, weight_decay=0.1)

    def closure() -> float:
        loss = used.square().sum()
        loss.backward()
        return float(loss.detach())

    assert optimiser.step(closure) == 2.0
    assert (used < 1).all()
    assert (unused == 1).all()
    assert optimiser.step() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr must be a finite number, 0 or more, got -1.0"),
        ({"lr": float("nan")}, "lr must be a finite number, 0 or more, got nan"),
        ({"lr": 0.1, "eps": -1.0}, "eps must be a finite number, 0 or more, got -1.0"),
        ({"lr": 0.1, "rho": 1.5}, r"rho must be a number 0 \.\. 1, got 1.5"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RMSpropTF([nn.Parameter(torch.ones(1))], **options)
