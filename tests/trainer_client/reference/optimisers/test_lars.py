"""LARS against the papers' formulas in NumPy, and against numbers worked out by hand."""

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
from trainer_client.reference.optimisers.lars import LARS

torch.set_num_threads(1)
MOMENTUM, WEIGHT_DECAY, ETA = 0.9, 0.01, 0.1


def expected_path(*, nesterov: bool, unscaled: bool, eps: float, trust: bool = True) -> list[Array]:
    weights, gradients = make_gradients()
    velocity = np.zeros_like(weights)
    path: list[Array] = []
    for rate, gradient in zip(RATES, gradients, strict=True):
        weight_norm, gradient_norm = np.sqrt((weights**2).sum()), np.sqrt((gradient**2).sum())
        ratio = ETA * weight_norm / (gradient_norm + WEIGHT_DECAY * weight_norm + eps)
        scaled = rate * (ratio if trust else 1.0)
        total = gradient + WEIGHT_DECAY * weights
        if unscaled:
            velocity = MOMENTUM * velocity + total
            change = scaled * (total + MOMENTUM * velocity if nesterov else velocity)
        else:
            velocity = MOMENTUM * velocity + scaled * total
            change = scaled * total + MOMENTUM * velocity if nesterov else velocity
        weights = weights - change
        path.append(weights)
    return path


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("unscaled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_steps_are_those_of_the_formula(nesterov: bool, unscaled: bool, dtype: torch.dtype) -> None:
    path = descend(
        lambda parameters: LARS(
            parameters,
            lr=1.0,
            momentum=MOMENTUM,
            weight_decay=WEIGHT_DECAY,
            eta=ETA,
            eps=0.5,
            nesterov=nesterov,
            unscaled_momentum=unscaled,
        ),
        dtype,
    )
    expected = expected_path(nesterov=nesterov, unscaled=unscaled, eps=0.5)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(path, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("unscaled", [False, True])
def test_a_group_without_trust_is_plain_sgd(unscaled: bool) -> None:
    options = {"lr": 1.0, "momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY}
    path = descend(
        lambda parameters: LARS(
            [{"params": parameters, "trust": False}], **options, unscaled_momentum=unscaled
        )
    )
    expected = expected_path(nesterov=False, unscaled=unscaled, eps=0.0, trust=False)
    np.testing.assert_allclose(path, expected, rtol=1e-6, atol=1e-6)
    if unscaled:  # torch has the learning rate outside, too
        sgd = descend(lambda parameters: torch.optim.SGD(parameters, **options))
        np.testing.assert_allclose(path, sgd, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("unscaled", [False, True])
def test_two_steps_worked_out_by_hand(unscaled: bool) -> None:
    parameter = nn.Parameter(torch.tensor([[3.0, 4.0]], dtype=torch.float64))
    optimiser = LARS(
        [parameter],
        lr=2.0,
        momentum=0.5,
        weight_decay=0.5,
        eta=0.25,
        unscaled_momentum=unscaled,
    )
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
    assert parameter[0, 0].item() == pytest.approx(1.5 - taken, abs=1e-12)
    assert parameter[0, 1].item() == pytest.approx(4 / 3 * (1.5 - taken), abs=1e-12)


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


def test_half_precision_weights_have_float32_state_that_survives_loading() -> None:
    check_resume(lambda parameters: LARS(parameters, lr=1.0, weight_decay=0.01, eta=0.1))


def test_norms_of_half_precision_gradients_do_not_overflow() -> None:
    parameter = nn.Parameter(torch.full((300,), 1000.0, dtype=torch.float16))
    parameter.grad = torch.full((300,), 60_000.0, dtype=torch.float16)
    LARS([parameter], lr=1.0, eta=0.5).step()
    assert parameter.tolist() == [500.0] * 300


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay", "eta", "eps"])
def test_a_negative_option_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must be a finite number, 0 or more, got -1"):
        LARS([nn.Parameter(torch.ones(1))], **{"lr": 1.0, name: -1.0})
