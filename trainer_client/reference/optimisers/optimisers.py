"""LARS, and RMSProp as TensorFlow defines it: optimisers with float32 state for any weights.

LARS is of You, Gitman and Ginsburg (2017, "Large batch training of convolutional networks"); the
formula of the trust ratio and the place of the learning rate, inside the momentum, are those of
MLPerf's ResNet-50 reference. Kumar et al. (2019, "Scale MLPerf-0.6 models on Google TPU-v3 pods")
call that "scaled momentum" and also train with "unscaled momentum", here an option. torch has no
LARS. timm's (1.0.31) and pytorch-optimizer's (4.1.0) have the trust ratio inside the momentum and
the learning rate outside, so that they agree with neither formula once the learning rate changes.

RMSProp is of Tieleman and Hinton (2012, lecture 6.5); the definition is that of
``tf.compat.v1.train.RMSPropOptimizer``, which EfficientNet (Tan and Le 2019) is trained with.
``torch.optim.RMSprop`` differs in three points, each of which makes EfficientNet's learning rates
too high: the mean square starts at 0, not 1; epsilon is outside the root; the learning rate is
outside the momentum.

Invariant: the state of a parameter depends on the float32 values of its weights and gradients only,
and a state dict restores it bit by bit. Nothing waits for the device.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import ParamsT


class _Float32Optimiser(torch.optim.Optimizer):
    """The loop over parameters; a subclass defines the update of one."""

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update each parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                weights = _widen(parameter.detach())
                self._update(weights, _widen(parameter.grad), self.state[parameter], group)
                if weights.dtype != parameter.dtype:
                    parameter.copy_(weights)

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
        # Again, as torch's loading rounds the state to the type of the weights.
        numbers = (number for group in state_dict["param_groups"] for number in group["params"])
        parameters = (each for group in self.param_groups for each in group["params"])
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                self.state[parameter][name] = value.to(parameter.device, copy=True)


class LARS(_Float32Optimiser):
    """SGD with momentum and a trust ratio; each option may be set for each parameter group.

    With g the gradient plus ``weight_decay * w``, one step is::

        trust = eta * |w| / (|gradient| + weight_decay * |w| + eps)     (1 if a norm is 0)
        velocity = momentum * velocity + lr * trust * g
        w -= velocity                     (Nesterov: lr * trust * g + momentum * velocity)

    and with ``unscaled_momentum``::

        velocity = momentum * velocity + g
        w -= lr * trust * velocity        (Nesterov: lr * trust * (g + momentum * velocity))

    Groups with ``"trust": False`` (biases, norms) have a ratio of 1, which is plain SGD.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        eta: float = 0.001,
        eps: float = 0.0,
        nesterov: bool = False,
        unscaled_momentum: bool = False,
    ) -> None:
        options: dict[str, Any] = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        options |= {"eta": eta, "eps": eps, "nesterov": nesterov}
        options |= {"unscaled_momentum": unscaled_momentum, "trust": True}
        super().__init__(params, options)

    def _update(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        state: dict[str, torch.Tensor],
        group: Mapping[str, Any],
    ) -> None:
        if not state:
            state["velocity"] = torch.zeros_like(weights)
        rate: torch.Tensor | float = group["lr"]
        if group["trust"]:
            rate = group["lr"] * _trust_ratio(weights, gradient, group)
        change = gradient.add(weights, alpha=group["weight_decay"])
        if not group["unscaled_momentum"]:
            change.mul_(rate)
        velocity = state["velocity"].mul_(group["momentum"]).add_(change)
        change = change.add_(velocity, alpha=group["momentum"]) if group["nesterov"] else velocity
        weights.sub_(change * rate if group["unscaled_momentum"] else change)


class RMSpropTF(_Float32Optimiser):
    """RMSProp with momentum; each option may be set for each parameter group.

    With g the gradient plus ``weight_decay * w``, one step is::

        mean_square = rho * mean_square + (1 - rho) * g**2        (begins as 1)
        velocity = momentum * velocity + lr * g / sqrt(mean_square + eps)
        w -= velocity

    The defaults are EfficientNet's; epsilon is that of its code.
    """

    def __init__(
        self,
        params: ParamsT,
        *,
        lr: float,
        rho: float = 0.9,
        momentum: float = 0.9,
        eps: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"lr": lr, "momentum": momentum, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**options, "rho": rho})

    def _update(
        self,
        weights: torch.Tensor,
        gradient: torch.Tensor,
        state: dict[str, torch.Tensor],
        group: Mapping[str, Any],
    ) -> None:
        if not state:
            state["mean_square"] = torch.ones_like(weights)
            state["velocity"] = torch.zeros_like(weights)
        gradient = gradient.add(weights, alpha=group["weight_decay"])
        mean_square, velocity = state["mean_square"], state["velocity"]
        mean_square.mul_(group["rho"]).addcmul_(gradient, gradient, value=1 - group["rho"])
        root = mean_square.add(group["eps"]).sqrt_()
        velocity.mul_(group["momentum"]).addcdiv_(gradient, root, value=group["lr"])
        weights.sub_(velocity)


def _trust_ratio(
    weights: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]
) -> torch.Tensor:
    weight_norm = torch.linalg.vector_norm(weights)
    gradient_norm = torch.linalg.vector_norm(gradient)
    divisor = gradient_norm + group["weight_decay"] * weight_norm + group["eps"]
    ratio = group["eta"] * weight_norm / divisor
    return torch.where((weight_norm > 0) & (gradient_norm > 0), ratio, 1.0)


def _widen(values: torch.Tensor) -> torch.Tensor:
    """Return float32 of half-precision values, and other values themselves."""
    return values.to(torch.promote_types(values.dtype, torch.float32))
