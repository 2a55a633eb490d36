"""The augmentations of each image after its crop: the operations, their strength, the erased box.

All definitions are torchvision's for Pillow images: RandomVerticalFlip, the policies in
``auto_augment``, ColorJitter, RandomGrayscale, GaussianBlur, RandomSolarize (and RandomErasing, in
``erasing``). Only the draws differ: they are a pure function of (seed, epoch, sample id, stream).
Each augmentation has its own stream and draws its numbers from fixed positions in it, so no option
changes the draws of another.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.plan.auto_augment import plan_auto_augment
from feeder.plan.crop import exp
from feeder.plan.erasing import Erasure, plan_erasures
from feeder.plan.operations import Blur, Operation, Step
from feeder.plan.recipe import Recipe
from feeder.plan.rng import Stream, uniform_integers, uniforms

_JITTERS: Final[tuple[Operation, ...]] = ("brightness", "contrast", "saturation", "hue")
_ORDERS: Final = tuple(itertools.permutations(range(4)))
_LEAST_WEIGHT: Final = 2.0**-26
"""Of a blur's kernel: lower ones are lost in float32, and cost as much time as others."""


@dataclass(frozen=True, slots=True, eq=False)
class Augmentation:
    """The augmentation of one image: the steps in order, then the erasure."""

    steps: tuple[Step, ...]
    erasure: Erasure | None


def is_augmented(recipe: Recipe) -> bool:
    """Return whether the recipe asks for any augmentation beyond crop and mirror."""
    return bool(
        recipe.vertical_flip_probability
        or recipe.auto_augment != "none"
        or _jitters(recipe)
        or recipe.greyscale_probability
        or recipe.blur_probability
        or recipe.solarise_probability
        or recipe.erasing_probability
    )


def plan_augmentations(
    recipe: Recipe, *, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> list[Augmentation]:
    """Return the augmentations of n samples, given their ids; each depends on its sample only."""
    steps: list[list[Step]] = [[] for _ in sample_ids]
    key = (seed, epoch, sample_ids)
    solarise: Step = ("solarise", float(recipe.solarise_threshold))
    for planned in (
        _plan_coin(
            recipe.vertical_flip_probability, ("vertical-flip", 0.0), Stream.VERTICAL_FLIP, *key
        ),
        plan_auto_augment(recipe, *key),
        _plan_jitter(recipe, *key),
        _plan_coin(recipe.greyscale_probability, ("greyscale", 0.0), Stream.GREYSCALE, *key),
        _plan_blur(recipe, *key),
        _plan_coin(recipe.solarise_probability, solarise, Stream.SOLARISE, *key),
    ):
        for mine, more in zip(steps, planned, strict=False):  # what is off plans nothing
            mine += more
    erasures: list[Erasure | None] = [None] * len(sample_ids)
    if recipe.erasing_probability:
        erasures = list(plan_erasures(recipe, *key))
    return [Augmentation(tuple(mine), box) for mine, box in zip(steps, erasures, strict=True)]


def blur_weights(sigmas: NDArray[np.float64], radius: int) -> NDArray[np.float32]:
    """Return Gaussian weights (radius + 1, n) from the centres outwards, the same on every machine.

    With those but the first counted twice, a column adds up to 1.
    """
    distances = np.arange(radius + 1.0)[:, np.newaxis] / sigmas
    weights = exp(np.maximum(-0.5 * distances * distances, -99.0))
    total = weights[0].copy()
    for row in weights[1:]:  # np.sum's order depends on numpy's version and the CPU
        total += 2.0 * row
    weights /= total
    return weights.astype(np.float32)


def _jitters(recipe: Recipe) -> list[tuple[float, float] | None]:
    """Return the interval of each of _JITTERS, None where it is off; an empty list if all are."""
    factors = (recipe.brightness, recipe.contrast, recipe.saturation)
    intervals = [None if interval == (1.0, 1.0) else interval for interval in factors]
    intervals.append(None if recipe.hue == (0.0, 0.0) else recipe.hue)
    return intervals if any(intervals) else []


def _plan_jitter(
    recipe: Recipe, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> Iterator[list[Step]]:
    intervals = _jitters(recipe)
    if not intervals:
        return
    draws = uniforms(seed, epoch, sample_ids, Stream.JITTER, 6)
    orders = uniform_integers(draws[:, 4], len(_ORDERS)).astype(np.int64)
    for row, order in zip(draws.tolist(), orders.tolist(), strict=True):
        steps: list[Step] = []
        if row[5] >= recipe.jitter_probability:
            yield steps
            continue
        for which in _ORDERS[order]:
            interval = intervals[which]
            if interval is not None:
                low, high = interval
                steps.append((_JITTERS[which], row[which] * (high - low) + low))
        yield steps


def _plan_blur(
    recipe: Recipe, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> Iterator[list[Step]]:
    if not recipe.blur_probability:
        return
    draws = uniforms(seed, epoch, sample_ids, Stream.BLUR, 2)
    low, high = recipe.blur_sigma
    sigmas = draws[:, 1] * (high - low) + low
    weights = blur_weights(sigmas, recipe.blur_radius)
    kept = (weights >= _LEAST_WEIGHT).sum(axis=0)
    rows = zip(
        draws[:, 0].tolist(), sigmas.tolist(), weights.T.tolist(), kept.tolist(), strict=True
    )
    for draw, sigma, row, count in rows:
        blurred = draw < recipe.blur_probability
        yield [("blur", Blur(sigma, tuple(row[:count])))] if blurred else []


def _plan_coin(
    probability: float,
    step: Step,
    stream: Stream,
    seed: int,
    epoch: int,
    sample_ids: NDArray[np.int64],
) -> Iterator[list[Step]]:
    """Yield the step with a probability."""
    if not probability:
        return
    for draw in uniforms(seed, epoch, sample_ids, stream, 1)[:, 0].tolist():
        yield [step] if draw < probability else []
