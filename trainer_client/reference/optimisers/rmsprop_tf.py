"""RMSProp as TensorFlow defines it, which EfficientNet is trained with.

The method is of Tieleman and Hinton (2012, lecture 6.5); the definition is that of
``tf.compat.v1.train.RMSPropOptimizer`` (ApplyRMSProp). EfficientNet (Tan and Le 2019) has decay
0.9, momentum 0.9 and, in its code, epsilon 0.001: the defaults here. ``torch.optim.RMSprop``
differs in three points, each of which makes EfficientNet's learning rates too high: the mean
square starts at 0, not 1; epsilon is outside the root; the learning rate is outside the momentum.

timm's RMSpropTF (1.0.31) agrees with the formula to 1e-15 in float64; it is not used because
timm cannot be imported without torchvision, and because it keeps the state of half-precision
weights in half precision. pytorch-optimizer (4.1.0) has no such optimiser.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from trainer_client.reference.optimisers.float32_optimiser import Float32Optimiser, check_bounds


class RMSpropTF(Float32Optimiser):
    """RMSProp with momentum; each option may be set for each parameter group.

    With g the gradient plus ``weight_decay * w``, one step is::

        mean_square = rho * mean_square + (1 - rho) * g**2        (begins as 1)
        velocity = momentum * velocity + lr * g / sqrt(mean_square + eps)
        w -= velocity
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
        """Raise ConfigError for an option out of its bounds."""
        check_bounds(0, lr=lr, momentum=momentum, eps=eps, weight_decay=weight_decay)
        check_bounds(0, 1, rho=rho)
        options = {"lr": lr, "rho": rho, "momentum": momentum, "eps": eps}
        super().__init__(params, {**options, "weight_decay": weight_decay})

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
