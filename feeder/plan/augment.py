"""The augmentations of each image after its crop: the operations, their strength, the erased box.

All definitions are torchvision's for Pillow images: ColorJitter, RandomGrayscale, RandAugment,
TrivialAugmentWide (and RandomErasing, in ``erasing``). Only the draws differ: they are a pure
function of (seed, epoch, sample id, stream). Each augmentation has its own stream and draws its
numbers from fixed positions in it, so no option changes the draws of another.

Magnitudes are float32, as in torch.linspace, because torchvision truncates some of them to whole
pixels. The last bit of torch's result depends on the CPU, which on some makes bin 15 of
TrivialAugmentWide's translations 15 pixels; here it is always the formula's 16.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feeder.plan.batch_shape import MAGNITUDE_BINS
from feeder.plan.erasing import Erasure, plan_erasures
from feeder.plan.recipe import Recipe
from feeder.plan.rng import Stream, uniform_integers, uniforms

_Drawn = Literal[
    "identity",
    "shear-x",
    "shear-y",
    "translate-x",
    "translate-y",
    "rotate",
    "brightness",
    "saturation",
    "contrast",
    "sharpness",
    "posterise",
    "solarise",
    "autocontrast",
    "equalise",
]
Operation = _Drawn | Literal["hue", "greyscale"]
OPERATIONS: Final[tuple[Operation, ...]] = get_args(_Drawn)
"""What RandAugment and TrivialAugmentWide draw from, in torchvision's order.

A draw is an index into this list, so its length and order decide every augmented image.
"""

_ENHANCING: Final[frozenset[Operation]] = frozenset(  # 1 + magnitude is the factor
    ("brightness", "saturation", "contrast", "sharpness")
)
_TRANSLATING: Final[frozenset[Operation]] = frozenset(("translate-x", "translate-y"))
"""By whole pixels."""
_SIGNED: Final[frozenset[Operation]] = _ENHANCING | _TRANSLATING | {"shear-x", "shear-y", "rotate"}
_JITTERS: Final[tuple[Operation, ...]] = ("brightness", "contrast", "saturation", "hue")
_ORDERS: Final = tuple(itertools.permutations(range(4)))

Step = tuple[Operation, float]
"""An operation and its amount: pixels, degrees, bits, level, factor, turns or source per pixel."""
Magnitudes = dict[Operation, NDArray[np.float32]]


@dataclass(frozen=True, slots=True, eq=False)
class Augmentation:
    """The augmentation of one image: the steps in order, then the erasure."""

    steps: tuple[Step, ...]
    erasure: Erasure | None


def is_augmented(recipe: Recipe) -> bool:
    """Return whether the recipe asks for any augmentation beyond crop and mirror."""
    return bool(
        recipe.auto_augment != "none"
        or _jitters(recipe)
        or recipe.greyscale_probability
        or recipe.erasing_probability
    )


def plan_augmentations(
    recipe: Recipe, *, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> list[Augmentation]:
    """Return the augmentations of n samples, given their ids; each depends on its sample only."""
    steps: list[list[Step]] = [[] for _ in sample_ids]
    key = (seed, epoch, sample_ids)
    for planned in (_plan_auto(recipe, *key), _plan_jitter(recipe, *key), _plan_grey(recipe, *key)):
        for mine, more in zip(steps, planned, strict=False):  # what is off plans nothing
            mine += more
    erasures: list[Erasure | None] = [None] * len(sample_ids)
    if recipe.erasing_probability:
        erasures = list(plan_erasures(recipe, *key))
    return [Augmentation(tuple(mine), box) for mine, box in zip(steps, erasures, strict=True)]


def rand_augment_magnitudes(image_size: int) -> Magnitudes:
    """Return RandAugment's magnitudes by bin, float32 (31,), of each operation that has any."""
    return _magnitudes(0.3, 150.0 / 331.0 * image_size, 30.0, 0.9, 4)


def trivial_augment_magnitudes() -> Magnitudes:
    """Return TrivialAugmentWide's magnitudes, which do not depend on the image size."""
    return _magnitudes(0.99, 32.0, 135.0, 0.99, 6)


def _magnitudes(
    shear: float, translate: float, rotate: float, enhance: float, posterise: int
) -> Magnitudes:
    table: Magnitudes = {}
    table["shear-x"] = table["shear-y"] = _linspace(0.0, shear)
    table["translate-x"] = table["translate-y"] = _linspace(0.0, translate)
    table["rotate"] = _linspace(0.0, rotate)
    for operation in _ENHANCING:
        table[operation] = _linspace(0.0, enhance)
    bins = np.arange(MAGNITUDE_BINS, dtype=np.float32)
    table["posterise"] = 8 - np.rint(bins / np.float32((MAGNITUDE_BINS - 1) / posterise))
    table["solarise"] = _linspace(255.0, 0.0)
    return table


def _linspace(start: float, end: float) -> NDArray[np.float32]:
    """Return torch.linspace in float32, which is computed from both ends."""
    low, high = np.float32(start), np.float32(end)
    step = np.float32((high - low) / np.float32(MAGNITUDE_BINS - 1))
    bins = np.arange(MAGNITUDE_BINS, dtype=np.float32)
    return np.where(bins < MAGNITUDE_BINS // 2, low + step * bins, high - step * bins[::-1])


def _plan_auto(
    recipe: Recipe, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> Iterator[list[Step]]:
    if recipe.auto_augment == "rand-augment":
        draws = uniforms(seed, epoch, sample_ids, Stream.RAND_AUGMENT, 2 * recipe.rand_augment_ops)
        table = rand_augment_magnitudes(recipe.image_size)
        bins = np.full(len(sample_ids), recipe.rand_augment_magnitude)
        pairs = [
            (draws[:, at], bins, draws[:, at + 1])
            for at in range(0, 2 * recipe.rand_augment_ops, 2)
        ]
    elif recipe.auto_augment == "trivial-augment-wide":
        draws = uniforms(seed, epoch, sample_ids, Stream.TRIVIAL_AUGMENT, 3)
        table = trivial_augment_magnitudes()
        bins = uniform_integers(draws[:, 1], MAGNITUDE_BINS).astype(np.int64)
        pairs = [(draws[:, 0], bins, draws[:, 2])]
    else:
        return
    columns = [
        (uniform_integers(choice, len(OPERATIONS)).astype(np.int64), bins, sign < 0.5)
        for choice, bins, sign in pairs
    ]
    for row in range(len(sample_ids)):
        steps = (
            _step(OPERATIONS[choices[row]], table, int(bins[row]), bool(negative[row]))
            for choices, bins, negative in columns
        )
        yield [step for step in steps if step[0] != "identity"]


def _step(operation: Operation, table: Magnitudes, magnitude_bin: int, negative: bool) -> Step:
    if operation not in table:
        return operation, 0.0
    amount = float(table[operation][magnitude_bin])
    if negative and operation in _SIGNED:
        amount = -amount
    if operation in _ENHANCING:
        amount += 1.0
    elif operation in _TRANSLATING:
        amount = float(int(amount))
    return operation, amount


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
    draws = uniforms(seed, epoch, sample_ids, Stream.JITTER, 5)
    orders = uniform_integers(draws[:, 4], len(_ORDERS)).astype(np.int64)
    for row, order in zip(draws[:, :4].tolist(), orders.tolist(), strict=True):
        steps: list[Step] = []
        for which in _ORDERS[order]:
            interval = intervals[which]
            if interval is not None:
                low, high = interval
                steps.append((_JITTERS[which], row[which] * (high - low) + low))
        yield steps


def _plan_grey(
    recipe: Recipe, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> Iterator[list[Step]]:
    if not recipe.greyscale_probability:
        return
    draws = uniforms(seed, epoch, sample_ids, Stream.GREYSCALE, 1)[:, 0]
    for draw in draws.tolist():
        yield [("greyscale", 0.0)] if draw < recipe.greyscale_probability else []
