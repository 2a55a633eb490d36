"""Which rank of how many a loader is: known at the latest when its first iterator is made.

Training scripts make their loaders before or after the process group, and frameworks start the
other ranks in between. A rank that is taken too early is 0 of 1, and then every rank trains on the
same samples without an error. So nothing is fixed before the first iterator, and a process that a
launcher has started as one of several must know its rank by then.
"""

import operator
import os
import sys
from typing import Any, Final, NamedTuple

from feeder.errors import ConfigError

_LAUNCHERS: Final = {
    "WORLD_SIZE": "torchrun",
    "SLURM_NTASKS": "Slurm",
    "OMPI_COMM_WORLD_SIZE": "Open MPI",
    "PMI_SIZE": "MPI",
}
"""Environment variables with the number of processes, by the launcher that sets them."""

_RENDEZVOUS: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""What torch.distributed needs in the environment."""


class Ranks(NamedTuple):
    """One rank of a job."""

    rank: int
    world_size: int


class RankSource:
    """The ranks as the user gave them, or those of torch.distributed, or 0 of 1."""

    def __init__(self, rank: int | None, world_size: int | None) -> None:
        """Take integers of any type, or None for both; ConfigError if they are invalid."""
        self._given = None if rank is None and world_size is None else _check(rank, world_size)
        self.fixed = self._given
        """The ranks once they can no longer change."""

    @property
    def known(self) -> Ranks | None:
        """The ranks if they are given or torch.distributed's."""
        return self.fixed or _group_ranks()

    def peek(self) -> Ranks:
        """The ranks as they are known now, 0 of 1 for a process that is alone; else ConfigError."""
        if (ranks := self.known) is not None:
            return ranks
        check_alone(
            "call torch.distributed.init_process_group() before the first iter(loader), or pass "
            "rank= and world_size= (rank=0, world_size=1 for a single process under salloc)"
        )
        return Ranks(0, 1)

    def fix(self) -> Ranks:
        """The ranks, which must not change from now on; ConfigError if they have."""
        ranks = self.peek()
        group = None if self._given else _group_ranks()
        if group is not None and group != ranks:
            raise ConfigError(
                f"this loader has been rank {ranks.rank} of {ranks.world_size}, in the process "
                f"group it is {group.rank} of {group.world_size}: call init_process_group() before "
                "the first iter(loader), or pass rank and world_size"
            )
        self.fixed = ranks
        return ranks


def check_process() -> None:
    """Raise ConfigError in a worker process of a torch DataLoader, which would not be alone."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        raise ConfigError(
            "a feeder's loader was used in a worker process of a DataLoader, where each worker "
            "would get the same batches: iterate over the loader itself, it needs no DataLoader"
        )


def has_rendezvous() -> bool:
    """Whether the launcher has set how processes find each other, as torchrun does."""
    return all(name in os.environ for name in _RENDEZVOUS)


def check_alone(remedy: str) -> None:
    """Raise ConfigError, with the remedy, if a launcher has started several processes."""
    for variable, launcher in _LAUNCHERS.items():
        count = os.environ.get(variable, "")
        if count.isdecimal() and int(count) > 1:
            raise ConfigError(
                f"{launcher} has started {count} processes ({variable}={count}), but it is not "
                f"known which one this is: {remedy}"
            )


def _check(rank: int | None, world_size: int | None) -> Ranks:
    if rank is None or world_size is None:
        raise ConfigError("rank and world_size belong together: give both or neither")
    try:
        rank, world_size = operator.index(rank), operator.index(world_size)
    except TypeError:
        raise ConfigError(
            f"rank and world_size must be whole numbers, got {rank!r} of {world_size!r}"
        ) from None
    if not 0 <= rank < world_size:
        raise ConfigError(f"rank must be 0 .. world_size - 1, got {rank} of {world_size}")
    return Ranks(rank, world_size)


def _group_ranks() -> Ranks | None:
    """The ranks of torch's process group, None without one; does not import torch."""
    group: Any = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return Ranks(group.get_rank(), group.get_world_size())
