"""A loader's defaults: torch's device, and torch.distributed's rank."""

import operator

import torch
import torch.distributed

from feeder.errors import ConfigError


def resolve_device(device: torch.device | str | None) -> torch.device:
    """Return the device with its index; None is CUDA's current device, else the CPU."""
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    resolved = torch.device(device)
    if resolved == torch.device("cuda"):  # names no index
        return torch.device("cuda", torch.cuda.current_device())
    return resolved


def resolve_rank(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Return rank and world size, which may be integers of any type; ConfigError if invalid."""
    if (rank is None) != (world_size is None):
        raise ConfigError("rank and world_size belong together: give both or neither")
    if rank is None or world_size is None:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            return torch.distributed.get_rank(), torch.distributed.get_world_size()
        return 0, 1
    try:
        rank, world_size = operator.index(rank), operator.index(world_size)
    except TypeError:
        raise ConfigError(
            f"rank and world_size must be whole numbers, got {rank!r} of {world_size!r}"
        ) from None
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank must be 0 .. world_size - 1, got {rank} of {world_size}")
    return rank, world_size
