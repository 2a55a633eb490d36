"""Optimisers that compute in float32 and keep float32 state, whatever the weights are in.

Invariant: the state of a parameter depends on the float32 values of its weights and gradients
only, and a state dict restores it bit by bit. torch's loading would round it to the weights' type.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from feeder.errors import ConfigError


class Float32Optimiser(torch.optim.Optimizer):
    """The loop over parameters; a subclass defines the update of one."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update each parameter that has a gradient; return the closure's loss, if there is one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                weights = _widen(parameter.detach())
                self._update(weights, _widen(parameter.grad), self.state[parameter], group)
                if weights.dtype != parameter.dtype:
                    parameter.copy_(weights)
        return loss

    @abstractmethod
    def _update(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        state: dict[str, torch.Tensor],
        group: Mapping[str, Any],
    ) -> None:
        """Change float32 ``weights`` and ``state`` in place; leave ``gradient`` as it is."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict()`` returned; ValueError when it is of other groups."""
        super().load_state_dict(state_dict)
        numbers = (number for group in state_dict["param_groups"] for number in group["params"])
        parameters = (each for group in self.param_groups for each in group["params"])
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                self.state[parameter][name] = value.to(parameter.device, copy=True)


def check_bounds(low: float, high: float | None = None, **options: float) -> None:
    """Raise ConfigError if one of ``options`` is no finite number from ``low`` to ``high``."""
    for name, value in options.items():
        if not math.isfinite(value) or value < low or (high is not None and value > high):
            wanted = (
                f"finite number, {low:g} or more" if high is None else f"number {low:g} .. {high:g}"
            )
            raise ConfigError(f"{name} must be a {wanted}, got {value}")


def _widen(values: torch.Tensor) -> torch.Tensor:
    """Return float32 of half-precision values, and other values themselves."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
