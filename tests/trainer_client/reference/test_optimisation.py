"""Learning rates by step, parameter groups, and the optimiser of each recipe."""

import itertools
import math

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from trainer_client.reference.optimisation import (
    lr_factor,
    make_optimiser,
    parameter_groups,
    peak_lr,
)
from trainer_client.reference.optimisers.optimisers import LARS, RMSpropTF
from trainer_client.reference.recipes.recipe import TrainingRecipe, compose_recipe
from trainer_client.reference.resnet import resnet_small

POLYNOMIAL = {"schedule": "polynomial", "warmup_epochs": 2, "epochs": 12}


def factor(step: int, keys: dict[str, object], steps_per_epoch: int = 1, lr: float = 1.0) -> float:
    return lr_factor(TrainingRecipe().changed(keys), lr, steps_per_epoch, step)


@pytest.mark.parametrize(
    ("keys", "steps_per_epoch", "lr", "expected"),
    [
        (
            {"warmup_epochs": 2, "epochs": 10},
            2,
            1.0,
            {0: 0.2, 3: 0.8, 4: 1.0, 8: (2 + math.sqrt(2)) / 4, 12: 0.5, 20: 0, 25: 0},
        ),
        (
            {**POLYNOMIAL, "end_lr": 1.0},
            1,
            5.0,
            {0: 1 / 3, 2: 1.0, 3: 0.81 * 0.8 + 0.2, 7: 0.25 * 0.8 + 0.2, 12: 0.2, 13: 0.2},
        ),
        ({**POLYNOMIAL, "schedule_power": 1.0}, 1, 5.0, {7: 0.5}),
        (  # given epochs count from the first step
            {"schedule": "steps", "warmup_epochs": 0.2, "step_epochs": [3, 6, 8.05], "epochs": 9},
            10,
            1.0,
            {0: 1 / 3, 29: 1.0, 30: 0.1, 80: 0.01, 81: 0.001, 1000: 0.001},
        ),
        (  # EfficientNet's 0.97 every 2.4 epochs: two boundaries are within the warm-up
            {"schedule": "steps", "step_every_epochs": 2.4, "step_factor": 0.97, "epochs": 350},
            10,
            1.0,
            {49: 50 / 51, 50: 0.97**2, 71: 0.97**2, 72: 0.97**3},
        ),
    ],
)
def test_schedules_have_golden_values(
    keys: dict[str, object], steps_per_epoch: int, lr: float, expected: dict[int, float]
) -> None:
    found = {step: factor(step, keys, steps_per_epoch, lr) for step in expected}
    assert found == pytest.approx(expected)


@given(
    keys=st.fixed_dictionaries(
        {
            "schedule": st.sampled_from(["cosine", "polynomial", "steps"]),
            "schedule_power": st.floats(0.5, 4),
            "end_lr": st.floats(0, 1),
            "step_every_epochs": st.floats(0.5, 100),
            "step_factor": st.floats(0, 1),
            "epochs": st.integers(0, 300),
            "warmup_epochs": st.floats(0, 250),
        }
    )
)
@example(keys={"schedule": "cosine", "epochs": 9, "warmup_epochs": 4.0})
def test_every_schedule_rises_to_its_warm_ups_end_and_never_after(keys: dict[str, float]) -> None:
    recipe = TrainingRecipe().changed(keys)
    found = [lr_factor(recipe, 1.0, 1, step) for step in range(320)]
    assert all(0 <= each <= 1 for each in found)
    warmup = keys["warmup_epochs"]
    peak = math.ceil(warmup)
    assert found[:peak] == [(step + 1) / (warmup + 1) for step in range(peak)]
    assert all(now >= later for now, later in itertools.pairwise(found[peak:]))
    if keys["schedule"] != "steps":
        assert found[-1] == pytest.approx(keys.get("end_lr", 0.0), abs=1e-12)
        if warmup == peak:
            assert found[peak] == 1.0, "the warm-up meets the decay without a jump"


def test_the_learning_rate_grows_with_the_global_batch_unless_it_is_given() -> None:
    assert peak_lr(TrainingRecipe(), 1024) == pytest.approx(0.4)
    assert peak_lr(TrainingRecipe(base_batch=0), 1024) == 0.1
    assert peak_lr(TrainingRecipe(lr=10.5), 3264) == 10.5


def test_kernels_decay_and_have_trust_and_biases_and_norms_do_not() -> None:
    model = resnet_small(3)
    kernels, vectors = parameter_groups(model, TrainingRecipe(weight_decay=0.1))
    assert (kernels["weight_decay"], kernels["trust"]) == (0.1, True)
    assert (vectors["weight_decay"], vectors["trust"]) == (0.0, False)
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    assert {id(p) for p in (*norms, model.fc.bias)} == {id(p) for p in vectors["params"]}
    assert len(kernels["params"]) + len(vectors["params"]) == len(list(model.parameters()))
    recipe = TrainingRecipe(weight_decay=0.1, decay_vectors=True)
    vectors = parameter_groups(model, recipe)[1]
    assert (vectors["weight_decay"], vectors["trust"]) == (0.1, False)


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("imagenet-90", torch.optim.SGD, {"momentum": 0.9, "nesterov": False}),
        ("mlperf-lars", LARS, {"momentum": 0.9, "eta": 0.001, "eps": 0.0}),
        ("efficientnet-b0", RMSpropTF, {"momentum": 0.9, "rho": 0.9, "eps": 1e-3}),
    ],
)
def test_a_recipe_has_its_optimiser_with_its_groups(
    name: str, kind: type[torch.optim.Optimizer], options: dict[str, object]
) -> None:
    recipe = compose_recipe(name, {})[0]
    optimiser = make_optimiser(recipe, 0.5, parameter_groups(nn.Linear(3, 2), recipe))
    assert type(optimiser) is kind
    for group, is_kernel in zip(optimiser.param_groups, (True, False), strict=True):
        assert {key: group[key] for key in options} == options
        assert (group["lr"], group["trust"]) == (0.5, is_kernel)
        assert group["weight_decay"] == (recipe.weight_decay if is_kernel else 0.0)
