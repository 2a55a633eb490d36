"""How the gradients of all ranks are averaged: DistributedDataParallel and its communication hooks.

DDP reduces gradients in buckets while the backward pass goes on. ``flat`` is one all-reduce of each
bucket over all ranks. ``two-level`` has the three steps of the 2D-torus all-reduce (Mikami et al.
2018): a reduce-scatter within each host, which leaves each rank the sums of its share of the
bucket; an all-reduce of these shares between the hosts, over the ranks with the same place in their
hosts; an all-gather of the shares within each host. So a rank exchanges 1 / (ranks of a host) of
the bucket with other hosts.

Both return the average of the same gradients. They differ by rounding, as they add in another order
and floating-point addition is not associative. Compression is torch's: buckets are cast to half
precision, divided by the number of ranks, and reduced.

Invariant: every rank issues the collectives of all buckets in the same order, that of the buckets.
So none is issued from a future's callback, which may run after the next bucket's hook.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    bf16_compress_wrapper,
    fp16_compress_wrapper,
)
from torch.nn.parallel import DistributedDataParallel

from feeder.errors import ConfigError

Reduction = Literal["flat", "two-level"]
Compression = Literal["none", "float16", "bfloat16"]

_Future = torch.futures.Future[torch.Tensor]
_Hook = Callable[[Any, Any], _Future]

_RANKS_PER_HOST: Final = "LOCAL_WORLD_SIZE"  # as torchrun sets it

# torch 2.13 has renamed both, and warns of the names that torch 2.5 has.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def wrap(
    model: nn.Module,
    *,
    device: torch.device,
    bucket_mb: float,
    reduction: Reduction,
    compress: Compression,
    ranks_per_host: int | None,
) -> DistributedDataParallel:
    """Return ``model`` in DistributedDataParallel, which averages gradients as the options name.

    Call it in every rank. ``bucket_mb`` is the size of a bucket in MiB. ``ranks_per_host`` is that
    of the two-level reduction, by default torchrun's LOCAL_WORLD_SIZE; with one host, or one rank
    on each, the reduction is flat.

    ConfigError where ``bucket_mb`` is no number above 0, the ranks cannot be divided into hosts, or
    ``compress`` is bfloat16 on a CPU, where torch refuses it.
    """
    if not 0 < bucket_mb < math.inf:
        raise ConfigError(f"bucket_mb must be a number above 0, got {bucket_mb:g}")
    if compress == "bfloat16" and device.type != "cuda":
        raise ConfigError(
            f"compression bfloat16 is for CUDA devices, this job runs on {device}: use float16 or "
            "none"
        )
    state = None
    if reduction == "two-level":
        local = _agree_on_ranks_per_host(ranks_per_host, device)
        if 1 < local < dist.get_world_size():
            state = TwoLevel.of_hosts(local, device)
    wrapped = DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=bucket_mb,
    )
    hook: _Hook = _flat if state is None else _two_level
    if compress == "float16":
        hook = fp16_compress_wrapper(hook)
    elif compress == "bfloat16":
        hook = bf16_compress_wrapper(hook)
    if hook is not _flat:  # which is what DDP does without a hook
        wrapped.register_comm_hook(state, hook)
    return wrapped


def check_ranks_per_host(ranks_per_host: int, world_size: int) -> None:
    """Raise ConfigError unless hosts of ``ranks_per_host`` ranks divide ``world_size``."""
    if ranks_per_host < 1 or world_size % ranks_per_host:
        raise ConfigError(
            f"ranks_per_host {ranks_per_host} does not divide the {world_size} ranks: start as "
            "many ranks on each host, or use the reduction flat"
        )


@dataclass(frozen=True, slots=True)
class TwoLevel:
    """The two process groups of a rank in the two-level reduction."""

    host: dist.ProcessGroup
    """The ranks of this rank's host."""
    between: dist.ProcessGroup
    """The ranks with this rank's place in their hosts, one of each host."""
    stream: torch.cuda.Stream | None = field(default=None)
    """On CUDA: where buckets are reduced while the backward pass goes on."""

    @classmethod
    def of_hosts(cls, ranks_per_host: int, device: torch.device) -> "TwoLevel":
        """Make the groups; hosts have consecutive ranks. Call it in every rank."""
        ranks = range(dist.get_world_size())
        host, _ = dist.new_subgroups(  # type: ignore[no-untyped-call]
            group_size=ranks_per_host
        )
        places = [[*ranks[place::ranks_per_host]] for place in range(ranks_per_host)]
        between, _ = dist.new_subgroups_by_enumeration(places)  # type: ignore[no-untyped-call]
        stream = None
        if device.type == "cuda":
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return cls(host, between, stream)

    def average(self, bucket: torch.Tensor) -> None:
        """Replace a vector by its mean over all ranks."""
        bucket.div_(dist.get_world_size())  # before adding up: half precision would overflow
        parts = self.host.size()
        whole = bucket
        if bucket.numel() % parts:
            whole = bucket.new_zeros(-(-bucket.numel() // parts) * parts)
            whole[: bucket.numel()] = bucket
        share = whole.new_empty(whole.numel() // parts)
        _reduce_scatter(share, whole, group=self.host)
        dist.all_reduce(share, group=self.between)
        _all_gather(whole, share, group=self.host)
        if whole is not bucket:
            bucket.copy_(whole[: bucket.numel()])


def _two_level(
    state: TwoLevel | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> _Future:
    """Average a bucket in two levels: on the CPU before returning, on CUDA on a side stream."""
    assert state is not None
    buffer = bucket.buffer()
    if state.stream is None:
        done: _Future = torch.futures.Future()
        state.average(buffer)
        done.set_result(buffer)
        return done
    done = torch.futures.Future(devices=[buffer.device])
    state.stream.wait_stream(torch.cuda.current_stream(buffer.device))
    with torch.cuda.stream(state.stream):
        buffer.record_stream(state.stream)
        state.average(buffer)
        done.set_result(buffer)  # records this stream: waiting for the result waits for it
    return done


def _flat(
    _state: TwoLevel | None,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> _Future:
    world = dist.group.WORLD
    assert world is not None
    return allreduce_hook(world, bucket)


def _agree_on_ranks_per_host(asked: int | None, device: torch.device) -> int:
    """Return the number of ranks of each host; ConfigError in all ranks, or in none."""
    text = os.environ.get(_RANKS_PER_HOST, "")
    here = asked if asked is not None else int(text) if text.isdecimal() else 0
    bounds = torch.tensor([here, -here], device=device)
    dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
    most, least = int(bounds[0]), -int(bounds[1])
    if least != most:
        raise ConfigError(
            f"the two-level reduction needs as many ranks on each host, these have {least} to "
            f"{most}: start equally many, or use the reduction flat"
        )
    if asked is None and least == 0:
        raise ConfigError(
            f"the two-level reduction needs {_RANKS_PER_HOST}, the number of ranks of a host: "
            "start the ranks with torchrun, or set ranks_per_host"
        )
    check_ranks_per_host(least, dist.get_world_size())
    return least
