"""A path of weights under given gradients and learning rates, for comparison with NumPy."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

Array = NDArray[np.float64]
RATES = (0.1, 0.2, 0.3, 0.3, 0.05, 0.01)
"""Rise and fall, because the place of the learning rate shows only when it changes."""


def make_gradients() -> tuple[Array, list[Array]]:
    """Return weights (5, 7) and a gradient for each of RATES, which float32 has exactly."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(1 + len(RATES), 5, 7)).astype(np.float32).astype(np.float64)
    return values[0], [*values[1:]]


def descend(
    make_optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    dtype: torch.dtype = torch.float32,
) -> list[Array]:
    """Return the weights after each step of an optimiser."""
    weights, gradients = make_gradients()
    parameter = nn.Parameter(torch.tensor(weights, dtype=dtype))
    optimiser = make_optimiser([parameter])
    path: list[Array] = []
    for rate, gradient in zip(RATES, gradients, strict=True):
        optimiser.param_groups[0]["lr"] = rate
        parameter.grad = torch.tensor(gradient, dtype=dtype)
        optimiser.step()
        assert torch.equal(parameter.grad, torch.tensor(gradient, dtype=dtype)), "was changed"
        path.append(parameter.detach().double().numpy().copy())
    return path


def check_resume(make_optimiser: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> None:
    """Two steps, saved, and two more equal four steps, bit by bit and for bfloat16 weights."""
    weights, gradients = make_gradients()
    parameter = nn.Parameter(torch.tensor(weights, dtype=torch.bfloat16))
    optimiser = make_optimiser([parameter])
    for number, gradient in enumerate(gradients[:4]):
        if number == 2:
            saved, weights_then = optimiser.state_dict(), parameter.detach().clone()
            parameter = nn.Parameter(weights_then.clone())
            resumed = make_optimiser([parameter])
            resumed.load_state_dict(saved)
            other, optimiser = optimiser, resumed
        parameter.grad = torch.tensor(gradient, dtype=torch.bfloat16)
        optimiser.step()
        if number >= 2:
            original = other.param_groups[0]["params"][0]
            original.grad = parameter.grad.clone()
            other.step()
            assert torch.equal(original, parameter)
            for name, value in other.state[original].items():
                assert value.dtype == torch.float32
                assert torch.equal(value, optimiser.state[parameter][name]), name
