"""The policies of auto_augment: AutoAugment's table and AugMix's mixtures, as torchvision has them.

With torchvision's own code they are compared in tests/frameworks/check_augmentations.py.
"""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.plan.augment import Augmentation, plan_augmentations
from feeder.plan.auto_augment import AUGMIX_OPERATIONS, augmix_magnitudes, auto_augment_magnitudes
from feeder.plan.operations import Mixture
from feeder.plan.recipe import Recipe
from feeder.plan.rng import Stream, uniforms
from tests.plan.fairness import chi_square_z, ks_statistic


def plan(samples: int, *, seed: int = 1, **fields: Any) -> list[Augmentation]:
    recipe = Recipe.for_split("train", batch_size=1, **fields)
    return plan_augmentations(recipe, seed=seed, epoch=0, sample_ids=np.arange(samples))


def mixtures(samples: int, **fields: Any) -> list[Mixture]:
    planned = plan(samples, auto_augment="augmix", **fields)
    assert {tuple(name for name, _ in each.steps) for each in planned} == {("augmix",)}
    return [each.steps[0][1] for each in planned]  # type: ignore[misc]


def test_auto_augment_has_the_amounts_of_the_imagenet_policy() -> None:
    """Computed by hand from the paper's table, with torchvision's 10 bins."""
    amounts: dict[str, set[float]] = {}
    for operation, amount in {
        step for each in plan(4000, auto_augment="auto-augment") for step in each.steps
    }:
        amounts.setdefault(operation, set()).add(round(amount, 3))
    assert amounts == {
        "posterise": {4.0, 5.0, 6.0},  # bins 8; 7 and 6; 5
        "rotate": {10.0, -10.0, 26.667, -26.667, 30.0, -30.0},
        "solarise": {170.0, 141.667, 113.333, 56.667, 28.333},
        "saturation": {1.0, 1.2, 0.8, 1.4, 0.6, 1.8, 0.2},
        "contrast": {1.8, 0.2},
        "sharpness": {1.7, 0.3},
        "shear-x": {round(0.3 * 5 / 9, 3), -round(0.3 * 5 / 9, 3)},
        "autocontrast": {0.0},
        "equalise": {0.0},
        "invert": {0.0},
    }


def test_auto_augment_draws_sub_policies_uniformly_and_each_step_with_its_probability() -> None:
    samples = 40_000
    names = Counter(
        " ".join(s[0] for s in each.steps) for each in plan(samples, auto_augment="auto-augment")
    )
    share = {name: count / samples for name, count in names.items()}
    # shear-x (0.6) then equalise (1.0); sharpness (0.4) then invert (0.6), each of one sub-policy.
    assert abs(share["shear-x equalise"] - 0.6 / 25) < 0.004
    assert abs(share["sharpness invert"] - 0.24 / 25) < 0.003
    assert abs(share["sharpness"] - 0.16 / 25) < 0.003
    # Two sub-policies of invert (0.6), equalise (1.0).
    assert abs(share["invert equalise"] - 2 * 0.6 / 25) < 0.005
    draws = uniforms(1, 0, np.arange(samples), Stream.AUTO_AUGMENT, 5)
    policies = np.bincount((draws[:, 0] * 25).astype(int), minlength=25)
    assert abs(chi_square_z(policies, samples / 25)) < 4
    both = names["saturation contrast"]  # the only one with contrast, and twice in the table
    assert abs(both / samples - 2 * 0.6 / 25) < 0.005


@pytest.mark.parametrize("size", [8, 96, 224, 2048])
def test_magnitudes_of_ten_bins_are_torchvisions(size: int) -> None:
    import torch  # takes as long as collecting all pure tests

    shared = {
        "shear-x": torch.linspace(0.0, 0.3, 10),
        "shear-y": torch.linspace(0.0, 0.3, 10),
        "rotate": torch.linspace(0.0, 30.0, 10),
        **dict.fromkeys(
            ("brightness", "saturation", "contrast", "sharpness"), torch.linspace(0.0, 0.9, 10)
        ),
        "solarise": torch.linspace(255.0, 0.0, 10),
    }
    taken = (torch.arange(10) / (9 / 4)).round().int()
    for ours, move, bits in (
        (auto_augment_magnitudes(size), 150.0 / 331.0 * size, 8),
        (augmix_magnitudes(size), size / 3.0, 4),
    ):
        moves = torch.linspace(0.0, move, 10)
        theirs = shared | {"translate-x": moves, "translate-y": moves, "posterise": bits - taken}
        assert set(ours) == set(theirs)
        for operation, magnitudes in theirs.items():
            expected = magnitudes.numpy().astype(np.float32)
            assert np.abs(ours[operation] - expected).max() <= np.spacing(expected.max()), operation


@settings(max_examples=40)
@given(
    severity=st.integers(1, 10),
    width=st.integers(1, 10),
    depth=st.integers(0, 10),
    alpha=st.integers(1, 10),
    seed=st.integers(0, 2**64 - 1),
)
def test_augmix_has_the_chains_and_weights_that_the_recipe_asks_for(
    severity: int, width: int, depth: int, alpha: int, seed: int
) -> None:
    fields = {"augmix_severity": severity, "augmix_width": width, "augmix_depth": depth}
    for mixture in mixtures(20, seed=seed, augmix_alpha=alpha, image_size=224, **fields):
        assert len(mixture.chains) == width
        weights = [mixture.own_weight, *(weight for weight, _ in mixture.chains)]
        assert math.isclose(sum(weights), 1.0, abs_tol=1e-5)
        for weight in weights:
            assert 0.0 <= weight <= 1.0
            assert weight == float(np.float32(weight))
        for _, steps in mixture.chains:
            assert len(steps) == depth or (not depth and 1 <= len(steps) <= 3)
            for operation, amount in steps:
                assert operation in AUGMIX_OPERATIONS
                if operation == "rotate":
                    assert abs(amount) < 30 * (severity - 1) / 9 + 1e-4  # type: ignore[arg-type]


def test_augmix_draws_depths_operations_and_signs_uniformly() -> None:
    chains = [chain for mixture in mixtures(6500) for _, chain in mixture.chains]
    depths = np.bincount([len(chain) for chain in chains], minlength=4)
    assert depths[0] == 0
    assert abs(chi_square_z(depths[1:], len(chains) / 3)) < 4
    names = Counter(name for chain in chains for name, _ in chain)
    counts = np.array([names[name] for name in AUGMIX_OPERATIONS])
    assert abs(chi_square_z(counts, counts.sum() / len(AUGMIX_OPERATIONS))) < 4
    turns = np.array([amount for chain in chains for name, amount in chain if name == "rotate"])
    strengths = np.rint(np.abs(turns.astype(float)) / (30 / 9)).astype(int)
    assert abs(chi_square_z(np.bincount(strengths, minlength=3), len(turns) / 3)) < 4
    moved = turns[strengths > 0] > 0
    assert abs(moved.mean() - 0.5) < 2 / math.sqrt(len(moved))


@pytest.mark.parametrize("alpha", [1, 2, 5])
def test_the_weights_are_of_dirichlet_distributions(alpha: int) -> None:
    """Against the gamma variates by which numpy draws them."""
    drawn = mixtures(8000, augmix_width=3, augmix_alpha=alpha)
    rng = np.random.default_rng(0)
    shares = np.array([mixture.own_weight for mixture in drawn])
    assert ks_statistic(shares, rng.beta(alpha, alpha, 8000)) < 1.95
    weights = np.array([[weight for weight, _ in mixture.chains] for mixture in drawn])
    weights /= weights.sum(axis=1, keepdims=True)
    theirs = rng.dirichlet([alpha] * 3, 8000)
    for part in range(3):
        assert ks_statistic(weights[:, part], theirs[:, part]) < 1.95
    covariances = [np.cov(each.T) for each in (weights, theirs)]
    assert np.abs(covariances[0] - covariances[1]).max() < 0.006


def test_a_sample_has_another_mixture_in_each_epoch_and_the_same_when_asked_again() -> None:
    recipe = Recipe.for_split("train", batch_size=1, auto_augment="augmix")
    ids = np.arange(30)
    first, again, other = (
        plan_augmentations(recipe, seed=3, epoch=epoch, sample_ids=ids) for epoch in (0, 0, 1)
    )
    assert [each.steps for each in first] == [each.steps for each in again]
    assert not any(a.steps == b.steps for a, b in itertools.product(first, other))
