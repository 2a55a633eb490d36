"""How a step's images are divided over ranks and micro-batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from trainer_client.reference.batch_plan import BatchPlan
from trainer_client.reference.recipes.recipe import TrainingRecipe

SIZES = st.integers(0, 512)


def make_plan(*, total: int = 0, parts: int = 0, size: int = 0, ranks: int = 1) -> BatchPlan:
    return BatchPlan.make(TrainingRecipe(global_batch=total, accumulation=parts), size, ranks)


@pytest.mark.parametrize(
    ("given_sizes", "expected"),
    [
        ({}, (256, 256, 1)),
        ({"ranks": 8}, (2048, 256, 1)),
        ({"size": 64, "ranks": 2}, (128, 64, 1)),
        ({"size": 64, "ranks": 2, "parts": 4}, (512, 64, 4)),
        ({"total": 1024, "ranks": 8}, (1024, 128, 1)),
        ({"total": 1024, "size": 64, "ranks": 2}, (1024, 64, 8)),
        ({"total": 1024, "parts": 4}, (1024, 256, 4)),
    ],
)
def test_two_of_the_numbers_give_the_third(
    given_sizes: dict[str, int], expected: tuple[int, int, int]
) -> None:
    plan = make_plan(**given_sizes)
    assert (plan.global_batch, plan.batch_size, plan.accumulation) == expected


@pytest.mark.parametrize(
    ("given_sizes", "message"),
    [
        (
            {"total": 32, "parts": 3},
            "accumulation 3 on 1 rank does not divide the global batch of 32: make --global-batch "
            "a multiple of 3, or change --accumulation",
        ),
        ({"total": 32, "parts": 4, "ranks": 3}, "accumulation 4 on 3 ranks does not divide"),
        ({"total": 30, "size": 16}, "batch_size 16 on 1 rank does not divide the global batch of"),
        ({"total": 30, "size": 60}, "batch_size 60 on 1 rank does not divide the global batch of"),
        ({"total": 64, "size": 16, "parts": 2}, "has micro-batches of 32, not of batch_size 16"),
        ({"total": 2, "ranks": 4}, "accumulation 1 on 4 ranks does not divide the global batch of"),
    ],
)
def test_numbers_that_do_not_divide_are_one_line(given_sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make_plan(**given_sizes)
    assert "\n" not in str(caught.value)


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
