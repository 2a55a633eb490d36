"""The random state of every rank, in and out of a checkpoint.

Crops, order and mixing have none: they are keyed by seed, epoch and index. Dropout and stochastic
depth draw from torch's generators, which differ between ranks.
"""

from collections.abc import Mapping

import numpy as np
import torch
import torch.distributed as dist

from trainer_client.reference.job import Place


def seed_rank(place: Place, *, seed: int, steps_done: int) -> None:
    """Begin new random numbers in torch's generators, other ones in every rank."""
    words = np.random.SeedSequence([seed, steps_done, place.rank, place.ranks])
    torch.manual_seed(int(words.generate_state(1, np.uint64)[0]))


def gather_random_states(
    place: Place, group: "dist.ProcessGroup | None"
) -> dict[str, torch.Tensor]:
    """Return the states of all ranks, uint8 (ranks, bytes), by kind of device.

    Every rank must call this; ``group`` is of CPUs, None for one rank.
    """
    states = {"cpu": torch.get_rng_state()}
    if place.device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(place.device)
    return {kind: _gather(state, place, group) for kind, state in states.items()}


def restore_random_state(
    states: Mapping[str, torch.Tensor], place: Place, *, seed: int, steps_done: int
) -> None:
    """Set this rank's state, or begin new ones if the number or kind of ranks has changed."""
    kinds = {"cpu", "cuda"} if place.device.type == "cuda" else {"cpu"}
    if set(states) != kinds or len(states["cpu"]) != place.ranks:
        seed_rank(place, seed=seed, steps_done=steps_done)
        return
    torch.set_rng_state(states["cpu"][place.rank].clone())  # of a view, torch 2.13 reads elsewhere
    if "cuda" in kinds:
        torch.cuda.set_rng_state(states["cuda"][place.rank].clone(), place.device)


def _gather(state: torch.Tensor, place: Place, group: "dist.ProcessGroup | None") -> torch.Tensor:
    if group is None:
        return state[None]
    gathered = [torch.empty_like(state) for _ in range(place.ranks)]
    dist.all_gather(gathered, state, group)
    return torch.stack(gathered)
