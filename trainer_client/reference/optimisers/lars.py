"""LARS: a learning rate for each layer, from the norms of its weights and its gradient.

The method is of You, Gitman and Ginsburg (2017, "Large batch training of convolutional networks");
the formula of the trust ratio and the place of the learning rate, inside the momentum, are those of
MLPerf's ResNet-50 reference. Kumar et al. (2019, "Scale MLPerf-0.6 models on Google TPU-v3 pods")
call that "scaled momentum" and also train with "unscaled momentum", here an option.

timm's Lars (1.0.31) and pytorch-optimizer's LARS (4.1.0) have the trust ratio inside the momentum
and the learning rate outside, so that they agree with neither formula once the learning rate
changes: after six steps with the schedule of the tests, weights of about 1 differ by 1e-3 and 1e-4.
Besides, pytorch-optimizer overwrites the gradients, and its ratio of a zero gradient is not 1.

Invariant: nothing waits for the device; norms and ratios are tensors there.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from trainer_client.reference.optimisers.float32_optimiser import Float32Optimiser, check_bounds


class LARS(Float32Optimiser):
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
        """Raise ConfigError for an option out of its bounds."""
        check_bounds(0, lr=lr, momentum=momentum, weight_decay=weight_decay, eta=eta, eps=eps)
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


def _trust_ratio(
    weights: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]
) -> torch.Tensor:
    weight_norm = torch.linalg.vector_norm(weights)
    gradient_norm = torch.linalg.vector_norm(gradient)
    divisor = gradient_norm + group["weight_decay"] * weight_norm + group["eps"]
    ratio = group["eta"] * weight_norm / divisor
    return torch.where((weight_norm > 0) & (gradient_norm > 0), ratio, 1.0)
