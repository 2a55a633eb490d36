"""An exponential moving average of the weights, evaluated beside the raw ones.

Polyak and Juditsky (1992) average the path of the weights; the exponential form and the decay's
warm-up are those of ``tf.train.ExponentialMovingAverage`` with ``num_updates``.

Batch-norm statistics are averaged like the weights, as EfficientNet's code and the references of
torchvision and timm do: the raw model's statistics belong to activations that the averaged weights
do not give. Integer buffers, which count batches, are copied.

The arithmetic is torch's, ``get_ema_multi_avg_fn``. torch's AveragedModel around it has other
results: it averages integers and rounds them down, so that counts lag; it keeps the average in the
model's type, and bfloat16 loses updates of 0.1 %; its decay is fixed.
"""

from copy import deepcopy
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class MovingAverage:
    """The average of a model's weights and batch-norm statistics, in float32 on its device.

    ``model`` is the average as a module in evaluation mode, without gradients. It begins equal to
    the averaged model, the plain one, not a wrapper of it.
    """

    def __init__(self, model: nn.Module, decay: float, every_steps: int = 1) -> None:
        attributes = (each for module in model.modules() for each in vars(module).values())
        # Process groups of distributed batch norm cannot be copied: the copy shares them.
        shared = {id(each): each for each in attributes if isinstance(each, dist.ProcessGroup)}
        self.model = deepcopy(model, memo=shared).float().eval().requires_grad_(False)
        self._source = model
        self._decay = decay
        self._every_steps = every_steps
        self._updates = 0

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Average, if it is due after ``step`` (from 0). Does not wait for the device."""
        if (step + 1) % self._every_steps:
            return
        averages, values = [], []
        ours = chain(self.model.parameters(), self.model.buffers())
        theirs = chain(self._source.parameters(), self._source.buffers())
        for average, value in zip(ours, theirs, strict=True):
            if average.is_floating_point():
                averages.append(average)
                values.append(value.to(average.dtype))
            else:
                average.copy_(value)
        # At first much less is kept, so that the first weights are soon forgotten.
        decay = min(self._decay, (1 + self._updates) / (10 + self._updates))
        get_ema_multi_avg_fn(decay)(averages, values, self._updates)  # type: ignore[no-untyped-call]
        self._updates += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the average and the number of updates, which its decay depends on."""
        return {"model": self.model.state_dict(), "updates": self._updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state``, bit by bit; RuntimeError when it is of another model."""
        self.model.load_state_dict(state["model"])
        self._updates = int(state["updates"])
