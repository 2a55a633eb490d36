"""How the gradients of all ranks are averaged: DistributedDataParallel and its communication hooks.

DDP reduces gradients in buckets while the backward pass goes on. ``flat`` is one all-reduce of each
bucket over all ranks. ``two-level`` has the three steps of the 2D-torus all-reduce (Mikami et al.
2018), which torch has no hook for: a reduce-scatter within each host, which leaves each rank the
sums of its share of the bucket; an all-reduce of these shares between the hosts, over the ranks
with the same place in their hosts; an all-gather of the shares within each host. So a rank
exchanges 1 / (ranks of a host) of the bucket with other hosts.

Both return the average of the same gradients. They differ by rounding, as they add in another order
and floating-point addition is not associative. Compression is torch's: buckets are cast to half
precision, divided by the number of ranks, and reduced.

Invariant: every rank issues the collectives of all buckets in the same order, that of the buckets.
So none is issued from a future's callback, which may run after the next bucket's hook.
"""

import os
from collections.abc import Callable
from typing import Any

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

_Future = torch.futures.Future[torch.Tensor]

# torch 2.13 has renamed both, and warns of the names that torch 2.5 has.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def wrap(
    model: nn.Module, *, device: torch.device, bucket_mb: float, reduction: str, compression: str
) -> DistributedDataParallel:
    """Return ``model`` in DistributedDataParallel, which averages gradients as a recipe asks for.

    Call it in every rank. The two-level reduction takes the ranks of a host from LOCAL_WORLD_SIZE;
    with one host, or one rank on each, the reduction is flat. ConfigError where the ranks cannot be
    divided into hosts, or where ``compression`` is bfloat16 on a CPU, where torch refuses it.
    """
    if compression == "bfloat16" and device.type != "cuda":
        raise ConfigError(
            f"compression bfloat16 is for CUDA devices, this job runs on {device}: use float16 or "
            "none"
        )
    state: TwoLevel | None = None  # for torch's hook: all ranks
    hook: Callable[[Any, Any], _Future] = allreduce_hook
    if reduction == "two-level":
        local = _agree_on_ranks_per_host(device)
        if 1 < local < dist.get_world_size():
            state, hook = TwoLevel(local, device), _two_level
    devices = [device] if device.type == "cuda" else None
    wrapped = DistributedDataParallel(model, device_ids=devices, bucket_cap_mb=bucket_mb)
    if compression != "none":
        compress = fp16_compress_wrapper if compression == "float16" else bf16_compress_wrapper
        hook = compress(hook)
    if hook is not allreduce_hook:  # which is what DDP does without a hook
        wrapped.register_comm_hook(state, hook)
    return wrapped


class TwoLevel:
    """The process groups of a rank: its host's ranks, and the ranks with its place in each host."""

    def __init__(self, ranks_per_host: int, device: torch.device) -> None:
        """Make the groups; hosts have consecutive ranks. Call it in every rank."""
        ranks = range(dist.get_world_size())
        places = [[*ranks[place::ranks_per_host]] for place in range(ranks_per_host)]
        self.host, _ = dist.new_subgroups(group_size=ranks_per_host)  # type: ignore[no-untyped-call]
        self.between, _ = dist.new_subgroups_by_enumeration(places)  # type: ignore[no-untyped-call]
        # Where buckets are reduced while the backward pass goes on.
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def average(self, bucket: torch.Tensor) -> None:
        """Replace a vector by its mean over all ranks."""
        bucket.div_(dist.get_world_size())  # before adding up: half precision would overflow
        parts = self.host.size()
        rest = -bucket.numel() % parts
        whole = nn.functional.pad(bucket, (0, rest)) if rest else bucket
        share = whole.new_empty(whole.numel() // parts)
        _reduce_scatter(share, whole, group=self.host)
        dist.all_reduce(share, group=self.between)
        _all_gather(whole, share, group=self.host)
        if rest:
            bucket.copy_(whole[: bucket.numel()])


def _two_level(
    state: TwoLevel,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> _Future:
    """Average a bucket in two levels: on the CPU before returning, on CUDA on a side stream."""
    buffer = bucket.buffer()
    done: _Future = torch.futures.Future(devices=[buffer.device] if state.stream else [])
    if state.stream is not None:
        state.stream.wait_stream(torch.cuda.current_stream(buffer.device))
        buffer.record_stream(state.stream)
    with torch.cuda.stream(state.stream):  # which does nothing for None
        state.average(buffer)
        done.set_result(buffer)  # records this stream: waiting for the result waits for it
    return done


def _agree_on_ranks_per_host(device: torch.device) -> int:
    """Return the number of ranks of each host; ConfigError in all ranks, or in none."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "")  # as torchrun sets it
    here = int(text) if text.isdecimal() else 0
    bounds = torch.tensor([here, -here], device=device)
    dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
    most, least = int(bounds[0]), -int(bounds[1])
    if least != most or not least or dist.get_world_size() % least:
        raise ConfigError(
            f"the two-level reduction needs as many ranks on each host, and LOCAL_WORLD_SIZE is "
            f"{least} to {most} for {dist.get_world_size()} ranks: start the ranks with torchrun, "
            "equally many on each host, or use the reduction flat"
        )
    return least
