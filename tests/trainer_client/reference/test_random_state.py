"""Every rank's random numbers go on after a resume, and begin anew with other ranks."""

import pytest
import torch

from trainer_client.reference.job import Place
from trainer_client.reference.random_state import (
    gather_random_states,
    restore_random_state,
    seed_rank,
)

CPU = torch.device("cpu")


def draw() -> list[float]:
    return torch.rand(5).tolist()


def states_of_two_ranks() -> tuple[dict[str, torch.Tensor], list[list[float]]]:
    """Return what two ranks gather, and what each of them draws next."""
    states, drawn = [], []
    for rank in range(2):
        seed_rank(Place(device=CPU, rank=rank, ranks=2), seed=3, steps_done=0)
        states.append(torch.get_rng_state())
        drawn.append(draw())
    return {"cpu": torch.stack(states)}, drawn


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_goes_on_with_its_own_numbers(rank: int) -> None:
    states, drawn = states_of_two_ranks()
    assert drawn[0] != drawn[1]
    place = Place(device=CPU, rank=rank, ranks=2)
    restore_random_state(states, place, seed=3, steps_done=9)
    assert draw() == drawn[rank]


def test_another_number_of_ranks_begins_anew_from_seed_and_step() -> None:
    states, drawn = states_of_two_ranks()
    seen = []
    for steps in (9, 9, 10):
        restore_random_state(states, Place(device=CPU), seed=3, steps_done=steps)
        seen.append(draw())
    assert seen[0] == seen[1] != seen[2]
    assert seen[0] not in drawn


def test_one_rank_gathers_its_own_state() -> None:
    place = Place(device=CPU)
    seed_rank(place, seed=3, steps_done=0)
    states = gather_random_states(place, None)
    first = draw()
    restore_random_state(states, place, seed=3, steps_done=0)
    assert draw() == first
