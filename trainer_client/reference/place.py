"""Where a rank of a job runs: its device, the other ranks, what they agree on, its random numbers.

Crops, order and mixing have no random state: they are keyed by seed, epoch and index. Dropout and
stochastic depth draw from torch's generators, which differ between ranks.

Ranks wait for each other's gradients, so one that stops a step early leaves the others hanging: on
SIGTERM, or when the time is up, they vote while they compute, and all end after the same step.
"""

import contextlib
import enum
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist

from feeder.errors import ConfigError, FeederError, PeerError
from trainer_client._device import resolve_device
from trainer_client._ranks import check_alone, has_rendezvous

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The device of a rank, and its place among the ranks."""

    device: torch.device
    rank: int = 0
    ranks: int = 1
    group: "dist.ProcessGroup | None" = None
    """All ranks, on their CPUs, so that nothing in it waits for the device; None for one rank."""


def join(device_name: str | None, stack: contextlib.ExitStack) -> Place:
    """Choose the device and join the other ranks, until ``stack`` is closed.

    Raises ConfigError for a device that cannot be used, and if there are other ranks and no way to
    find them.
    """
    device = choose_device(device_name)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not has_rendezvous():
        check_alone(
            "start the job with torchrun, which sets the rank, or unset the variable for a single "
            "process"
        )
        return Place(device=device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    stack.callback(dist.destroy_process_group)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if ranks == 1:
        return Place(device=device)
    stack.enter_context(_explain_lost_ranks(rank))
    return Place(device=device, rank=rank, ranks=ranks, group=dist.new_group(backend="gloo"))


def choose_device(name: str | None) -> torch.device:
    """Return a usable device, by default this rank's; ConfigError when it is not usable."""
    try:
        device = resolve_device(name)
        if device.type not in ("cpu", "cuda"):
            raise RuntimeError(f"this job runs on cpu and cuda, not on {device.type}")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # the latter when torch lacks CUDA
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(
            f"device {name!r} cannot be used here ({reason}): pass --device cpu, or leave it out"
        ) from None
    return device


@contextlib.contextmanager
def _explain_lost_ranks(rank: int) -> Iterator[None]:
    """Raise torch's error about a rank that has ended as a PeerError of one line."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        if not isinstance(error, dist.DistError) and "gloo" not in text and "NCCL" not in text:
            raise
        raise PeerError(
            f"rank {rank} has lost another rank, which has ended: see that rank's own line "
            f"({text.partition(chr(10))[0][:200]})"
        ) from error


def in_rank_0(place: Place, work: Callable[[], Result]) -> Result:
    """Do ``work`` in rank 0 and return its result in all ranks, each of which must call this.

    If it fails, rank 0 raises its error and the others a PeerError with the same text.
    """
    result: Any = None
    problem: FeederError | None = None
    if place.rank == 0:
        try:
            result = work()
        except FeederError as error:
            problem = error
    if place.group is not None:
        shared = [result, problem and str(problem)]
        dist.broadcast_object_list(shared, 0, place.group)
        result, text = shared
        if text is not None and place.rank:
            problem = PeerError(f"rank 0 cannot go on: {text}")
    if problem is not None:
        raise problem
    return cast(Result, result)


def seed_rank(place: Place, *, seed: int, steps_done: int) -> None:
    """Begin new random numbers in torch's generators, other ones in every rank."""
    words = np.random.SeedSequence([seed, steps_done, place.rank, place.ranks])
    torch.manual_seed(int(words.generate_state(1, np.uint64)[0]))


def gather_random_states(place: Place) -> dict[str, torch.Tensor]:
    """Return the states of all ranks, uint8 (ranks, bytes), by kind of device.

    Every rank must call this.
    """
    states = {"cpu": torch.get_rng_state()}
    if place.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(place.device)
    for kind, state in states.items():
        parts = [torch.empty_like(state) for _ in range(place.ranks)] if place.group else [state]
        if place.group is not None:
            dist.all_gather(parts, state, place.group)
        states[kind] = torch.stack(parts)
    return states


def restore_random_state(
    states: Mapping[str, torch.Tensor], place: Place, *, seed: int, steps_done: int
) -> None:
    """Set this rank's state, or begin new ones if the number or kind of ranks has changed."""
    if {*states} != {"cpu", place.device.type} or len(states["cpu"]) != place.ranks:
        seed_rank(place, seed=seed, steps_done=steps_done)
        return
    torch.set_rng_state(states["cpu"][place.rank].clone())  # of a view, torch 2.13 reads elsewhere
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"][place.rank].clone(), place.device)


class Stop(enum.IntEnum):
    """Why to stop; of several requests the largest counts."""

    NO = 0
    TIME = 1
    SIGTERM = 2


class StopVote:
    """The vote of all ranks; a request before a step's vote takes effect after that step."""

    def __init__(self, group: "dist.ProcessGroup | None") -> None:
        """Vote within ``group``, which is of CPUs; None for a single rank."""
        self._group = group
        self._requested = Stop.NO
        self._votes = torch.zeros(1, dtype=torch.int32)
        self._vote: Any = None  # a dist.Work, while one is in flight

    @contextlib.contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """Have SIGTERM request a stop; in the main thread only."""
        previous = signal.signal(signal.SIGTERM, lambda *_: self.request(Stop.SIGTERM))
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)

    def request(self, why: Stop) -> None:
        """Ask for a stop after the step of the next vote."""
        self._requested = max(self._requested, why)

    def begin(self) -> None:
        """Vote; every rank must do so in every step."""
        self._votes.fill_(int(self._requested))
        if self._group is not None:
            self._vote = dist.all_reduce(self._votes, dist.ReduceOp.MAX, self._group, async_op=True)

    def end(self) -> Stop:
        """Return whether to stop and why, the same in every rank."""
        if self._vote is not None:
            self._vote.wait()
            self._vote = None
        return Stop(int(self._votes.item()))
