"""Distributed batch norm: the statistics of a batch that is spread over k consecutive ranks.

Batch norm (Ioffe and Szegedy 2015) normalises with the mean and the variance of one rank's samples,
which are few where the global batch is spread over many ranks. Ying et al. (2018) compute them over
groups of ranks instead: the group's size, not the rank's share, then decides how noisy they are.

Invariant: k ranks compute what one process does with their batches in one: outputs, gradients and
running statistics. A rank's loss is the mean over its own samples, and DistributedDataParallel
averages the gradients of weights, as usual.

On CUDA this is ``torch.nn.SyncBatchNorm``. It refuses the CPU, which has ``GroupBatchNorm2d``.
"""

from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

from feeder.errors import ConfigError

_OVER_SAMPLES: Final = (0, 2, 3)  # of (N, C, H, W): all that share a channel


def check_batch_norm_ranks(ranks: int, world_size: int) -> None:
    """Raise ConfigError unless groups of ``ranks`` ranks divide ``world_size``."""
    if world_size % ranks:
        sizes = [str(size) for size in range(1, world_size + 1) if world_size % size == 0]
        raise ConfigError(
            f"batch_norm_ranks {ranks} does not divide the {world_size} rank"
            f"{'s' * (world_size > 1)}: use {' or '.join(sizes)}"
        )


def distribute_batch_norm(model: nn.Module, ranks: int, device: torch.device) -> nn.Module:
    """Return ``model`` with the statistics of its batch norms taken over ``ranks`` ranks.

    The groups are ranks 0 … ranks - 1 and so on. Call it in every rank, in the same order as other
    calls that make process groups, before ``recompute_at`` and before the model is wrapped. Names
    in the state dict stay the same. ConfigError where the model has a batch norm of another class
    than ``nn.BatchNorm2d``.
    """
    if ranks == 1:
        return model
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) and type(module) is not nn.BatchNorm2d:
            raise ConfigError(
                f"batch_norm_ranks {ranks} is for nn.BatchNorm2d, and {name or 'the model'} is "
                f"{type(module).__name__}: use batch_norm_ranks 1"
            )
    # A group of its own even if it holds all ranks: DDP's reductions are queued in the world's.
    group, _ = dist.new_subgroups(group_size=ranks)  # type: ignore[no-untyped-call]
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model, group)  # type: ignore[no-any-return, no-untyped-call]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__ = GroupBatchNorm2d  # the same parameters, buffers and hooks
            module.group = group
    return model


class GroupBatchNorm2d(nn.BatchNorm2d):
    """Batch norm over the samples of all ranks of ``group``; an ``nn.BatchNorm2d`` in evaluation.

    Statistics have at least float32. The number of samples may differ between the ranks. Every rank
    of the group must run the same passes forward and backward, which wait for each other.
    """

    group: dist.ProcessGroup

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 -- torch's name
        """Return (N, C, H, W) of the type of ``input``, normalised and scaled by channel."""
        if not self.training:
            return super().forward(input)
        values = input.to(torch.promote_types(input.dtype, torch.float32))
        count = values.new_tensor([values.numel() // values.shape[1]])
        sums = torch.cat([values.sum(_OVER_SAMPLES), count])
        totals = _SumOver.apply(self.group, sums)  # type: ignore[no-untyped-call]
        count = totals[-1].detach()
        mean = totals[:-1] / count
        # In two passes: the mean of squares less the square of the mean would cancel.
        centred = values - mean[:, None, None]
        squares = _SumOver.apply(self.group, centred.square().sum(_OVER_SAMPLES))  # type: ignore[no-untyped-call]
        variance = squares / count
        self._track(mean.detach(), variance.detach(), count)
        scale = torch.rsqrt(variance + self.eps) * self.weight
        output = torch.addcmul(
            self.bias.to(scale.dtype)[:, None, None], centred, scale[:, None, None]
        )
        return output.to(input.dtype)

    def _track(self, mean: torch.Tensor, variance: torch.Tensor, count: torch.Tensor) -> None:
        """Update the running statistics, with the unbiased variance."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.mul_(1 - self.momentum).add_(mean, alpha=self.momentum)
        unbiased = variance * (count / (count - 1))
        self.running_var.mul_(1 - self.momentum).add_(unbiased, alpha=self.momentum)


class _SumOver(torch.autograd.Function):
    """A sum over ranks. Each rank's addend is part of every rank's sum, so gradients add up too.

    torch.distributed.nn has such a function, deprecated in favour of a private one.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, group: dist.ProcessGroup, addend: torch.Tensor) -> torch.Tensor:
        ctx.group = group  # type: ignore[attr-defined]
        total = addend.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, _SumOver.forward(ctx, ctx.group, gradient)
