"""A rank's device, random numbers and votes, and how a step's images are divided over the ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from trainer_client.reference.options import BatchPlan
from trainer_client.reference.place import (
    Place,
    Stop,
    StopVote,
    gather_random_states,
    restore_random_state,
    seed_rank,
)
from trainer_client.reference.recipes.recipe import TrainingRecipe

CPU = torch.device("cpu")
SIZES = st.integers(0, 512)


def draw() -> list[float]:
    return torch.rand(5).tolist()


def test_each_rank_resumes_its_own_random_numbers_and_other_ranks_begin_anew() -> None:
    states, drawn = [], []
    for rank in range(2):
        seed_rank(Place(device=CPU, rank=rank, ranks=2), seed=3, steps_done=0)
        states.append(torch.get_rng_state())
        drawn.append(draw())
    assert drawn[0] != drawn[1]
    gathered = {"cpu": torch.stack(states)}
    for rank in range(2):
        place = Place(device=CPU, rank=rank, ranks=2)
        restore_random_state(gathered, place, seed=3, steps_done=9)
        assert draw() == drawn[rank]
    alone, seen = Place(device=CPU), []
    for steps in (9, 9, 10):
        restore_random_state(gathered, alone, seed=3, steps_done=steps)
        seen.append(draw())
    assert seen[0] == seen[1] != seen[2]
    assert seen[0] not in drawn
    own = gather_random_states(alone)
    first = draw()
    restore_random_state(own, alone, seed=3, steps_done=0)
    assert draw() == first


class OtherRank:
    """Another rank in an all_reduce with MAX."""

    def __init__(self, *values: int) -> None:
        self.values = torch.tensor(values)
        self.is_over = False

    def all_reduce(self, tensor: torch.Tensor, *_: object, **__: object) -> "OtherRank":
        tensor.copy_(torch.maximum(tensor, self.values))
        return self

    def wait(self) -> None:
        self.is_over = True


def test_another_ranks_vote_stops_this_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for vote_of_other in (Stop.NO, Stop.SIGTERM):
        other = OtherRank(vote_of_other)
        monkeypatch.setattr("torch.distributed.all_reduce", other.all_reduce)
        vote = StopVote(object())  # type: ignore[arg-type]
        vote.begin()
        assert not other.is_over, "the vote must not wait before the step is computed"
        assert vote.end() is vote_of_other
        assert other.is_over


def make_plan(*, total: int = 0, parts: int = 0, size: int = 0, ranks: int = 1) -> BatchPlan:
    return BatchPlan.make(TrainingRecipe(global_batch=total, accumulation=parts), size, ranks)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, (256, 256, 1)),
        ({"ranks": 8}, (2048, 256, 1)),
        ({"size": 64, "ranks": 2, "parts": 4}, (512, 64, 4)),
        ({"total": 1024, "ranks": 8}, (1024, 128, 1)),
        ({"total": 1024, "parts": 4}, (1024, 256, 4)),
        ({"total": 1024, "size": 128, "ranks": 2}, (1024, 128, 4)),
        (
            {"total": 32, "parts": 3},
            "a global batch of 32 is not 1 rank x accumulation 3 x batch_size 10: set two of",
        ),
    ],
)
def test_two_of_the_numbers_give_the_third_or_one_line_says_why_not(
    sizes: dict[str, int], expected: tuple[int, int, int] | str
) -> None:
    if isinstance(expected, str):
        with pytest.raises(ConfigError, match=expected) as caught:
            make_plan(**sizes)
        assert "\n" not in str(caught.value)
    else:
        plan = make_plan(**sizes)
        assert (plan.global_batch, plan.batch_size, plan.accumulation) == expected


@given(total=SIZES, parts=st.integers(0, 9), size=SIZES, ranks=st.integers(1, 9))
def test_the_parts_are_the_whole(total: int, parts: int, size: int, ranks: int) -> None:
    try:
        plan = make_plan(total=total, parts=parts, size=size, ranks=ranks)
    except ConfigError:
        return
    assert plan.ranks * plan.accumulation * plan.batch_size == plan.global_batch > 0
    assert plan.global_batch == (total or plan.global_batch)
    assert plan.accumulation == (parts or plan.accumulation)
    assert plan.batch_size == (size or plan.batch_size)
