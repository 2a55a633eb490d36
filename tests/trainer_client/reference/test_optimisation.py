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
from trainer_client.reference.recipes.recipe import TrainingRecipe
from trainer_client.reference.recipes.recipe_file import EffectiveRecipe
from trainer_client.reference.resnet import resnet_small


def factors(steps: int, steps_per_epoch: int = 1, lr: float = 1.0, **keys: object) -> list[float]:
    recipe = TrainingRecipe().changed(keys)
    return [lr_factor(recipe, lr, steps_per_epoch, step) for step in range(steps)]


def test_a_cosine_with_warm_up_has_golden_values() -> None:
    found = factors(26, 2, warmup_epochs=2, epochs=10)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[8] == pytest.approx((2 + math.sqrt(2)) / 4)
    assert found[12] == pytest.approx(0.5)
    assert 0 < found[19] < 0.02
    assert found[20] == found[25] == 0.0


def test_a_polynomial_has_golden_values() -> None:
    keys = {"schedule": "polynomial", "warmup_epochs": 2, "epochs": 12}
    found = factors(14, lr=5.0, end_lr=1.0, **keys)
    assert found[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert found[3] == pytest.approx(0.81 * 0.8 + 0.2)
    assert found[7] == pytest.approx(0.25 * 0.8 + 0.2)
    assert found[12:] == [0.2, 0.2]
    assert factors(14, schedule_power=1.0, **keys)[7] == pytest.approx(0.5)


def test_steps_at_given_epochs_count_from_the_first_step() -> None:
    keys = {"schedule": "steps", "warmup_epochs": 0.2, "step_epochs": [3, 6, 8.05]}
    found = factors(1001, 10, epochs=9, **keys)
    assert found[0] == pytest.approx(1 / 3)
    assert found[29] == 1.0
    assert found[30] == pytest.approx(0.1)
    assert found[80] == pytest.approx(0.01)
    assert found[81] == found[1000] == pytest.approx(0.001)


def test_steps_every_so_often_are_those_of_efficientnet() -> None:
    # 0.97 every 2.4 epochs of 10 steps, 5 epochs of warm-up: two boundaries are then behind it.
    keys = {"schedule": "steps", "step_every_epochs": 2.4, "step_factor": 0.97}
    found = factors(73, 10, warmup_epochs=5, epochs=350, **keys)
    assert found[49] == pytest.approx(50 / 51)
    assert found[50] == found[71] == pytest.approx(0.97**2)
    assert found[72] == pytest.approx(0.97**3)


@given(
    keys=st.one_of(
        st.fixed_dictionaries(
            {
                "schedule": st.sampled_from(["cosine", "polynomial"]),
                "schedule_power": st.floats(0.5, 4),
                "end_lr": st.floats(0, 1),
            }
        ),
        st.fixed_dictionaries(
            {
                "schedule": st.just("steps"),
                "step_every_epochs": st.floats(0.5, 100),
                "step_factor": st.floats(0, 1),
            }
        ),
    ),
    epochs=st.integers(0, 300),
    warmup=st.floats(0, 250),
)
@example(keys={"schedule": "cosine"}, epochs=9, warmup=4.0)
def test_every_schedule_rises_to_its_warm_ups_end_and_never_after(
    keys: dict[str, object], epochs: int, warmup: float
) -> None:
    found = factors(320, epochs=epochs, warmup_epochs=warmup, **keys)
    assert all(0 <= each <= 1 for each in found)
    peak = math.ceil(warmup)
    assert found[:peak] == [(step + 1) / (warmup + 1) for step in range(peak)]
    assert all(now >= later for now, later in itertools.pairwise(found[peak:]))
    if keys["schedule"] != "steps":
        assert found[-1] == pytest.approx(keys.get("end_lr", 0.0), abs=1e-12)
        if warmup == peak:
            assert found[peak] == 1.0, "the warm-up meets the decay without a jump"


def test_the_learning_rate_grows_with_the_global_batch_unless_it_is_given() -> None:
    assert peak_lr(TrainingRecipe(), 1024) == pytest.approx(0.4)
    assert peak_lr(TrainingRecipe(), 32) == pytest.approx(0.0125)
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
    recipe = EffectiveRecipe.make(name, {}).recipe
    groups = parameter_groups(nn.Linear(3, 2), recipe)
    optimiser = make_optimiser(recipe, 0.5, groups)
    assert type(optimiser) is kind
    for group, is_kernel in zip(optimiser.param_groups, (True, False), strict=True):
        assert {key: group[key] for key in options} == options
        assert (group["lr"], group["trust"]) == (0.5, is_kernel)
        assert group["weight_decay"] == (recipe.weight_decay if is_kernel else 0.0)
