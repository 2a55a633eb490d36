"""The crop of each image: its box, its flip and its decoding scale. Touches no pixels.

Random-resized crops follow torchvision's RandomResizedCrop.get_params: ten tries of a uniform area
and a log-uniform aspect ratio, sides rounded half to even; the first that fits, at a uniform
position, else the largest central crop of an allowed ratio. Centre crops follow its Resize and
CenterCrop, converted to source pixels. Only the draws differ: they are a pure function of (seed,
epoch, sample id), in float64 where torchvision's are float32.

Invariant: the plan is the same on every machine. Only operations that IEEE 754 rounds exactly are
used (+ - * / sqrt floor rint). exp and log are computed here, because those of C libraries and of
numpy's SIMD paths differ in the last bit between hosts, which could move a box by a pixel.
"""

import decimal
import functools
from dataclasses import dataclass
from math import factorial
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.plan.recipe import Recipe
from feeder.plan.rng import Stream, uniform_integers, uniforms

TRIES: Final = 10  # torchvision's
_DRAWS: Final = 2 * TRIES + 2  # areas, ratios, x, y
_DECIMALS: Final = decimal.Context(prec=40)
_LN_2: Final = float(_DECIMALS.ln(decimal.Decimal(2)))
_EXP_TERMS: Final = tuple(1.0 / factorial(power) for power in range(11, -1, -1))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CropPlan:
    """The crops of n images.

    boxes: float64 (n, 4), x, y, width, height in source pixels. Each lies inside its image. Those
        of random-resized crops are whole numbers with sides of at least 1; the sides of a centre
        crop can be less than 1 in an image of one pixel.
    flips: bool (n,), whether to mirror left and right.
    scales: int64 (n,), 1, 2, 4 or 8: the divisor of both sides while decoding.
    """

    boxes: NDArray[np.float64]
    flips: NDArray[np.bool_]
    scales: NDArray[np.int64]


def plan_crops(
    recipe: Recipe,
    *,
    seed: int,
    epoch: int,
    sample_ids: NDArray[np.int64],
    widths: NDArray[np.integer],
    heights: NDArray[np.integer],
) -> CropPlan:
    """Return the crops of n samples, given their ids and true sizes in pixels (>= 1), each (n,).

    A row depends on its own sample only.
    """
    image_widths = widths.astype(np.float64)
    image_heights = heights.astype(np.float64)
    if recipe.crop == "random-resized":
        draws = uniforms(seed, epoch, sample_ids, Stream.CROP, _DRAWS)
        boxes = _draw_random_resized(recipe, draws, image_widths, image_heights)
    else:
        boxes = _centre_boxes(recipe, image_widths, image_heights)
    flip_draws = uniforms(seed, epoch, sample_ids, Stream.FLIP, 1)[:, 0]
    return CropPlan(
        boxes=boxes,
        flips=flip_draws < recipe.flip_probability,
        scales=_choose_scales(recipe, boxes),
    )


def log_uniforms(draws: NDArray[np.float64], interval: tuple[float, float]) -> NDArray[np.float64]:
    """Turn ``draws`` in [0, 1) into numbers of ``interval`` whose logarithms are uniform."""
    return exp(_spread(draws, *_log_ratios(interval)))


def _draw_random_resized(
    recipe: Recipe,
    draws: NDArray[np.float64],
    image_widths: NDArray[np.float64],
    image_heights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return boxes (n, 4) from uniform ``draws`` (n, _DRAWS): tries' areas, tries' ratios, x, y."""
    areas = _spread(draws[:, :TRIES], *recipe.scale)
    areas *= (image_widths * image_heights)[:, np.newaxis]
    ratios = log_uniforms(draws[:, TRIES : 2 * TRIES], recipe.ratio)
    tried_widths = np.rint(np.sqrt(areas * ratios))
    tried_heights = np.rint(np.sqrt(areas / ratios))
    fits = (tried_widths >= 1) & (tried_widths <= image_widths[:, np.newaxis])
    fits &= (tried_heights >= 1) & (tried_heights <= image_heights[:, np.newaxis])

    rows = np.arange(len(draws))
    first = np.argmax(fits, axis=1)
    widths = tried_widths[rows, first]
    heights = tried_heights[rows, first]
    unfit = np.flatnonzero(~fits[rows, first])
    if unfit.size:
        widths[unfit], heights[unfit] = _fit_ratio(
            recipe.ratio, image_widths[unfit], image_heights[unfit]
        )
    spare_widths = image_widths - widths
    spare_heights = image_heights - heights
    x = uniform_integers(draws[:, -2], spare_widths + 1)
    y = uniform_integers(draws[:, -1], spare_heights + 1)
    if unfit.size:
        x[unfit] = spare_widths[unfit] // 2
        y[unfit] = spare_heights[unfit] // 2
    return np.stack((x, y, widths, heights), axis=1)


def _fit_ratio(
    ratio: tuple[float, float],
    image_widths: NDArray[np.float64],
    image_heights: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sides of the largest box of an allowed ratio, torchvision's fallback.

    Unlike torchvision's, no side is rounded to 0 where the ratio is far from 1 and the image thin.
    """
    image_ratios = image_widths / image_heights
    heights = np.where(image_ratios < ratio[0], np.rint(image_widths / ratio[0]), image_heights)
    widths = np.where(image_ratios > ratio[1], np.rint(image_heights * ratio[1]), image_widths)
    return np.maximum(widths, 1), np.maximum(heights, 1)


def _centre_boxes(
    recipe: Recipe, image_widths: NDArray[np.float64], image_heights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the boxes (n, 4) of Resize(resize_size) and CenterCrop(image_size)."""
    short_sides = np.minimum(image_widths, image_heights)
    starts: list[NDArray[np.float64]] = []
    lengths: list[NDArray[np.float64]] = []
    for sides in (image_widths, image_heights):
        # The short side becomes resize_size exactly; the long one is truncated, not rounded.
        resized_sides = np.floor(recipe.resize_size * sides / short_sides)
        start = np.rint((resized_sides - recipe.image_size) / 2) * sides / resized_sides
        starts.append(start)
        # The rounded sum may pass the image's edge by one bit, which resizing would refuse.
        lengths.append(np.minimum(recipe.image_size * sides / resized_sides, sides - start))
    return np.stack((*starts, *lengths), axis=1)


def _choose_scales(recipe: Recipe, boxes: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the largest of 1, 2, 4, 8 that keeps both sides of a box at least image_size."""
    scales = np.ones(len(boxes), dtype=np.int64)
    if recipe.dct_scaling:
        shortest = np.minimum(boxes[:, 2], boxes[:, 3])
        for scale in (2, 4, 8):
            scales[shortest >= scale * recipe.image_size] = scale
    return scales


def _spread(draws: NDArray[np.float64], low: float, high: float) -> NDArray[np.float64]:
    """Map ``draws`` from [0, 1) to [low, high)."""
    return draws * (high - low) + low


@functools.lru_cache(maxsize=16)
def _log_ratios(ratio: tuple[float, float]) -> tuple[float, float]:
    """Return the natural logarithms, correctly rounded, as libm's may not be."""
    low, high = (float(_DECIMALS.ln(decimal.Decimal(bound))) for bound in ratio)
    return low, high


def exp(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return e to the power of ``values`` (|value| < 100), to 1e-14 and the same on every machine.

    value = k ln 2 + r with |r| <= 0.35. The Taylor series of e**r to r**11 has a relative error of
    7e-15; the scaling by 2**k is exact.
    """
    powers = np.rint(values * (1.0 / _LN_2))
    rest = values - powers * _LN_2
    result = rest * _EXP_TERMS[0]
    for term in _EXP_TERMS[1:-1]:
        result += term
        result *= rest
    result += _EXP_TERMS[-1]
    return np.ldexp(result, powers.astype(np.int32))
