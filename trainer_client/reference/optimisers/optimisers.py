"""LARS, and RMSProp as TensorFlow defines it.

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

Both are for float32 weights; ``HalfWeights`` gives them stand-ins of others. Nothing waits for the
device.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import ParamsT


class LARS(torch.optim.Optimizer):
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
        super().__init__(params, {**options, "unscaled_momentum": unscaled_momentum, "trust": True})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for weights, gradient, group in _with_gradients(self):
            state = self.state[weights]
            if not state:
                state["velocity"] = torch.zeros_like(weights)
            rate = group["lr"]
            if group["trust"]:
                rate = rate * _trust_ratio(weights, gradient, group)
            change = gradient.add(weights, alpha=group["weight_decay"])
            if not group["unscaled_momentum"]:
                change.mul_(rate)
            velocity = state["velocity"].mul_(group["momentum"]).add_(change)
            if group["nesterov"]:
                change.add_(velocity, alpha=group["momentum"])
            else:
                change = velocity
            weights.sub_(change * rate if group["unscaled_momentum"] else change)


class RMSpropTF(torch.optim.Optimizer):
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

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for weights, gradient, group in _with_gradients(self):
            state = self.state[weights]
            if not state:
                state["mean_square"] = torch.ones_like(weights)
                state["velocity"] = torch.zeros_like(weights)
            change = gradient.add(weights, alpha=group["weight_decay"])
            mean_square = state["mean_square"].mul_(group["rho"])
            mean_square.addcmul_(change, change, value=1 - group["rho"])
            root = mean_square.add(group["eps"]).sqrt_()
            velocity = state["velocity"].mul_(group["momentum"])
            weights.sub_(velocity.addcdiv_(change, root, value=group["lr"]))


def _with_gradients(
    optimiser: torch.optim.Optimizer,
) -> Iterator[tuple[torch.Tensor, torch.Tensor, Mapping[str, Any]]]:
    for group in optimiser.param_groups:
        for weights in group["params"]:
            if weights.grad is not None:
                yield weights, weights.grad, group


def _trust_ratio(
    weights: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]
) -> torch.Tensor:
    weight_norm = torch.linalg.vector_norm(weights)
    gradient_norm = torch.linalg.vector_norm(gradient)
    divisor = gradient_norm + group["weight_decay"] * weight_norm + group["eps"]
    ratio = group["eta"] * weight_norm / divisor
    return torch.where((weight_norm > 0) & (gradient_norm > 0), ratio, 1.0)
