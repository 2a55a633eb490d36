"""The policies of ``auto_augment``: torchvision's RandAugment, TrivialAugmentWide, AutoAugment with
the policy of ImageNet, and AugMix.

All use the nearest pixel, fill with black, and apply the operations that torchvision applies to
Pillow images; its AugMix applies those on tensors, which round otherwise and interpolate.

Magnitudes are float32, as in torch.linspace, because torchvision truncates some of them to whole
pixels. The last bit of torch's result depends on the CPU, which on some makes bin 15 of
TrivialAugmentWide's translations 15 pixels; here it is always the formula's 16.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.plan.batch_shape import MAGNITUDE_BINS
from feeder.plan.operations import Mixture, Operation, Step
from feeder.plan.recipe import Recipe
from feeder.plan.rng import Stream, uniform_integers, uniforms

OPERATIONS: Final[tuple[Operation, ...]] = (
    *("identity", "shear-x", "shear-y", "translate-x", "translate-y", "rotate", "brightness"),
    *("saturation", "contrast", "sharpness", "posterise", "solarise", "autocontrast", "equalise"),
)
"""What RandAugment and TrivialAugmentWide draw from, in torchvision's order.

A draw is an index into this list, so its length and order decide every augmented image.
"""

AUGMIX_OPERATIONS: Final[tuple[Operation, ...]] = (
    *("shear-x", "shear-y", "translate-x", "translate-y", "rotate", "posterise", "solarise"),
    *("autocontrast", "equalise", "brightness", "saturation", "contrast", "sharpness"),
)
"""What AugMix draws from, with all_ops, likewise."""

_ENHANCING: Final[frozenset[Operation]] = frozenset(  # 1 + magnitude is the factor
    ("brightness", "saturation", "contrast", "sharpness")
)
_TRANSLATING: Final[frozenset[Operation]] = frozenset(("translate-x", "translate-y"))
"""By whole pixels."""
_SIGNED: Final[frozenset[Operation]] = _ENHANCING | _TRANSLATING | {"shear-x", "shear-y", "rotate"}

_FEW_BINS: Final = 10  # of AutoAugment and AugMix
_AUGMIX_DEPTH_MAX: Final = 3  # of a chain whose depth is drawn

_Part = tuple[Operation, float, int]
_IMAGENET_POLICY: Final[tuple[tuple[_Part, _Part], ...]] = (
    (("posterise", 0.4, 8), ("rotate", 0.6, 9)),
    (("solarise", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("equalise", 0.8, 0), ("equalise", 0.6, 0)),
    (("posterise", 0.6, 7), ("posterise", 0.6, 6)),
    (("equalise", 0.4, 0), ("solarise", 0.2, 4)),
    (("equalise", 0.4, 0), ("rotate", 0.8, 8)),
    (("solarise", 0.6, 3), ("equalise", 0.6, 0)),
    (("posterise", 0.8, 5), ("equalise", 1.0, 0)),
    (("rotate", 0.2, 3), ("solarise", 0.6, 8)),
    (("equalise", 0.6, 0), ("posterise", 0.4, 6)),
    (("rotate", 0.8, 8), ("saturation", 0.4, 0)),
    (("rotate", 0.4, 9), ("equalise", 0.6, 0)),
    (("equalise", 0.0, 0), ("equalise", 0.8, 0)),
    (("invert", 0.6, 0), ("equalise", 1.0, 0)),
    (("saturation", 0.6, 4), ("contrast", 1.0, 8)),
    (("rotate", 0.8, 8), ("saturation", 1.0, 2)),
    (("saturation", 0.8, 8), ("solarise", 0.8, 7)),
    (("sharpness", 0.4, 7), ("invert", 0.6, 0)),
    (("shear-x", 0.6, 5), ("equalise", 1.0, 0)),
    (("saturation", 0.4, 0), ("equalise", 0.6, 0)),
    (("equalise", 0.4, 0), ("solarise", 0.2, 4)),
    (("solarise", 0.6, 5), ("autocontrast", 0.6, 0)),
    (("invert", 0.6, 0), ("equalise", 1.0, 0)),
    (("saturation", 0.6, 4), ("contrast", 1.0, 8)),
    (("equalise", 0.8, 0), ("equalise", 0.6, 0)),
)
"""Operation, probability and bin of both steps of each sub-policy, in torchvision's order."""

Magnitudes = dict[Operation, NDArray[np.float32]]


def plan_auto_augment(
    recipe: Recipe, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> Iterator[list[Step]]:
    """Yield the steps of each sample by the recipe's policy; nothing where it is "none"."""
    if recipe.auto_augment == "auto-augment":
        yield from _plan_imagenet_policy(recipe, seed, epoch, sample_ids)
        return
    if recipe.auto_augment == "augmix":
        yield from _plan_augmix(recipe, seed, epoch, sample_ids)
        return
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


def _plan_imagenet_policy(
    recipe: Recipe, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> Iterator[list[Step]]:
    """The draws are the sub-policy, then for each of its steps whether it is taken, and a sign."""
    table = auto_augment_magnitudes(recipe.image_size)
    draws = uniforms(seed, epoch, sample_ids, Stream.AUTO_AUGMENT, 5)
    policies = uniform_integers(draws[:, 0], len(_IMAGENET_POLICY)).astype(np.int64)
    for policy, (_, *row) in zip(policies.tolist(), draws.tolist(), strict=True):
        taken, signs = row[::2], row[1::2]
        yield [
            _step(operation, table, magnitude_bin, sign < 0.5)
            for (operation, probability, magnitude_bin), draw, sign in zip(
                _IMAGENET_POLICY[policy], taken, signs, strict=True
            )
            if draw <= probability
        ]


def _plan_augmix(
    recipe: Recipe, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> Iterator[list[Step]]:
    """The draws are those of the weights, then of each chain its depth, and of each of its steps
    operation, bin and sign.
    """
    width, alpha = recipe.augmix_width, recipe.augmix_alpha
    longest = recipe.augmix_depth or _AUGMIX_DEPTH_MAX
    first, end = 2 * alpha - 1, (2 + width) * alpha - 2
    count = end + width * (1 + 3 * longest)
    draws = uniforms(seed, epoch, sample_ids, Stream.AUGMIX, count)
    table = augmix_magnitudes(recipe.image_size)
    shares = _dirichlet(draws[:, :first], alpha)
    weights = _dirichlet(draws[:, first:end], alpha) * shares[:, 1:]
    chains = draws[:, end:].reshape(len(draws), width, 1 + 3 * longest)
    depths = uniform_integers(chains[..., 0], longest) + 1
    if recipe.augmix_depth:
        depths[:] = longest
    limits = np.array([len(AUGMIX_OPERATIONS), recipe.augmix_severity, 2.0])
    steps = uniform_integers(chains[..., 1:].reshape(len(draws), width, longest, 3), limits)
    columns = (weights, depths.astype(np.int64), steps.astype(np.int64))
    rows = zip(shares[:, 0].tolist(), *(column.tolist() for column in columns), strict=True)
    for own_weight, *parts in rows:
        mixed = tuple(
            (
                weight,
                tuple(
                    _step(AUGMIX_OPERATIONS[choice], table, magnitude_bin, not positive)
                    for choice, magnitude_bin, positive in chain[:depth]
                ),
            )
            for weight, depth, chain in zip(*parts, strict=True)
        )
        yield [("augmix", Mixture(own_weight, mixed))]


def _dirichlet(draws: NDArray[np.float64], alpha: int) -> NDArray[np.float32]:
    """Turn uniform draws (n, parts * alpha - 1) into (n, parts) of Dirichlet(alpha, …, alpha).

    Sorted, they cut 0 .. 1 into lengths of Dirichlet(1, …, 1), of which ``alpha`` neighbours
    together are one part. Sorting and subtracting are exact, unlike drawing from a gamma
    distribution.
    """
    cuts = np.sort(draws, axis=1)[:, alpha - 1 :: alpha]
    return np.diff(cuts, axis=1, prepend=0.0, append=1.0).astype(np.float32)


def rand_augment_magnitudes(image_size: int) -> Magnitudes:
    """Return RandAugment's magnitudes by bin, float32 (31,), of each operation that has any."""
    return _magnitudes(0.3, 150.0 / 331.0 * image_size, 30.0, 0.9)


def trivial_augment_magnitudes() -> Magnitudes:
    """Return TrivialAugmentWide's magnitudes, which do not depend on the image size."""
    return _magnitudes(0.99, 32.0, 135.0, 0.99, posterise=6)


def auto_augment_magnitudes(image_size: int) -> Magnitudes:
    """Return AutoAugment's magnitudes, of 10 bins."""
    return _magnitudes(0.3, 150.0 / 331.0 * image_size, 30.0, 0.9, bins=_FEW_BINS)


def augmix_magnitudes(image_size: int) -> Magnitudes:
    """Return AugMix's magnitudes, of 10 bins, of which the severity is how many are drawn from."""
    return _magnitudes(0.3, image_size / 3.0, 30.0, 0.9, bins=_FEW_BINS, bits=4)


def _magnitudes(
    shear: float,
    translate: float,
    rotate: float,
    enhance: float,
    *,
    posterise: int = 4,
    bins: int = MAGNITUDE_BINS,
    bits: int = 8,
) -> Magnitudes:
    """Return the magnitudes up to the given ones; ``posterise`` takes so many of ``bits`` away."""
    table: Magnitudes = {}
    table["shear-x"] = table["shear-y"] = _linspace(0.0, shear, bins)
    table["translate-x"] = table["translate-y"] = _linspace(0.0, translate, bins)
    table["rotate"] = _linspace(0.0, rotate, bins)
    for operation in _ENHANCING:
        table[operation] = _linspace(0.0, enhance, bins)
    steps = np.arange(bins, dtype=np.float32) / np.float32((bins - 1) / posterise)
    table["posterise"] = np.float32(bits) - np.rint(steps)
    table["solarise"] = _linspace(255.0, 0.0, bins)
    return table


def _linspace(start: float, end: float, count: int) -> NDArray[np.float32]:
    """Return torch.linspace in float32, which is computed from both ends."""
    low, high = np.float32(start), np.float32(end)
    step = np.float32((high - low) / np.float32(count - 1))
    bins = np.arange(count, dtype=np.float32)
    return np.where(bins < count // 2, low + step * bins, high - step * bins[::-1])


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
