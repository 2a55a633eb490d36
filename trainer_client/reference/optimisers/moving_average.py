"""An exponential moving average of the weights, evaluated beside the raw ones.

Polyak and Juditsky (1992) average the path of the weights; the exponential form and the decay's
warm-up are those of ``tf.train.ExponentialMovingAverage`` with ``num_updates``.

Batch-norm statistics are averaged like the weights, as EfficientNet's code and the references of
torchvision and timm do: the raw model's statistics belong to activations that the averaged weights
do not give. Integer buffers, which count batches, are copied.

torch's AveragedModel is not used, for three reasons: it averages integers and rounds them down, so
that counts lag; it keeps the average in the model's type, and bfloat16 loses updates of 0.1 %; its
decay is fixed. Its arithmetic, ``get_ema_multi_avg_fn``, is used here.
"""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from feeder.errors import ConfigError
from trainer_client.reference.optimisers.float32_optimiser import check_bounds


class MovingAverage:
    """The average of a model's weights and batch-norm statistics, in float32 on its device.

    ``model`` is the average as a module in evaluation mode, without gradients. It begins equal to
    the averaged model. Updates do not wait for the device.
    """

    def __init__(
        self, model: nn.Module, decay: float, every_steps: int = 1, *, warm_up: bool = True
    ) -> None:
        """Copy ``model``, the plain one, not a wrapper of it.

        An update keeps a share ``decay`` of the average; with ``warm_up``, update n (from 0) keeps
        at most (1 + n) / (10 + n), so that the first weights are soon forgotten. Raises ConfigError
        for a decay outside 0 .. 1 or ``every_steps`` below 1.
        """
        check_bounds(0, 1, ema_decay=decay)
        if every_steps < 1:
            raise ConfigError(f"ema_every_steps must be 1 or more, got {every_steps}")
        self.model = _copy(model).float().eval().requires_grad_(False)
        self._source = model
        self._decay = decay
        self._every_steps = every_steps
        self._warm_up = warm_up
        self._updates = 0

    @torch.no_grad()
    def update(self, step: int) -> bool:
        """Average, if it is due after ``step`` (from 0); return whether it was."""
        if (step + 1) % self._every_steps:
            return False
        averages: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for average, value in zip(_tensors(self.model), _tensors(self._source), strict=True):
            if average.is_floating_point():
                averages.append(average)
                values.append(value.to(average.dtype))
            else:
                average.copy_(value)
        lerp = get_ema_multi_avg_fn(self._next_decay())  # type: ignore[no-untyped-call]
        lerp(averages, values, self._updates)
        self._updates += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the number of updates, which its decay depends on."""
        return {"model": self.model.state_dict(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, bit by bit; RuntimeError when it is of another model."""
        self.model.load_state_dict(state["model"])
        self._updates = int(state["updates"])

    def _next_decay(self) -> float:
        if not self._warm_up:
            return self._decay
        return min(self._decay, (1 + self._updates) / (10 + self._updates))


def _copy(model: nn.Module) -> nn.Module:
    """Return a copy that shares process groups, which cannot be copied, with ``model``."""
    attributes = (each for module in model.modules() for each in vars(module).values())
    groups = {id(each): each for each in attributes if isinstance(each, dist.ProcessGroup)}
    return deepcopy(model, memo=groups)


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    for parameter in model.parameters():
        yield parameter.detach()
    yield from model.buffers()
