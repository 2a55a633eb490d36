"""Random erasing: which box of an image is erased, and what it is filled with.

torchvision's RandomErasing works on the normalised image, where its default value 0 is the mean
colour and its "random" is normal noise of deviation 1. Here levels are erased, before packing: the
mean colour is rounded to whole levels, which normalise to within 0.01 of 0, and noise to 256
quantiles, clipped to the range of levels. A job that normalises with another mean than ImageNet's
sets ``erasing_value`` to that colour.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.plan.crop import TRIES, log_uniforms
from feeder.plan.recipe import Recipe
from feeder.plan.rng import Stream, random_bytes, uniforms

NOISE_MEAN: Final = (0.485, 0.456, 0.406)  # ImageNet's
NOISE_STD: Final = (0.229, 0.224, 0.225)


@dataclass(frozen=True, slots=True, eq=False)
class Erasure:
    """A box of the output, in pixels, and its new levels."""

    x: int
    y: int
    width: int
    height: int
    levels: NDArray[np.uint8]
    """(3,) or (height, width, 3)."""


def plan_erasures(
    recipe: Recipe, seed: int, epoch: int, sample_ids: NDArray[np.int64]
) -> Iterator[Erasure | None]:
    """Yield the erasure of each sample, or None, as RandomErasing.get_params draws it.

    Of ten tries with a uniform area and a log-uniform ratio, the first box that is lower and
    narrower than the image is taken, at a uniform position. If there is none, nothing is erased.
    """
    size = recipe.image_size
    draws = uniforms(seed, epoch, sample_ids, Stream.ERASING, 2 * TRIES + 3)
    low, high = recipe.erasing_scale
    areas = (draws[:, 1 : TRIES + 1] * (high - low) + low) * (size * size)
    ratios = log_uniforms(draws[:, TRIES + 1 : 2 * TRIES + 1], recipe.erasing_ratio)
    heights, widths = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
    fits = (heights < size) & (widths < size)
    first = np.argmax(fits, axis=1)
    for row, sample_id in enumerate(sample_ids.tolist()):
        height, width = int(heights[row, first[row]]), int(widths[row, first[row]])
        if not (
            draws[row, 0] < recipe.erasing_probability
            and fits[row, first[row]]
            and height
            and width
        ):
            yield None
            continue
        if recipe.erasing_value == "noise":
            count = height * width * 3
            noise = random_bytes(seed, epoch, sample_id, Stream.ERASING_NOISE, count)
            levels = _noise_levels()[noise.reshape(height, width, 3), np.arange(3)]
        else:
            levels = np.array(recipe.erasing_value, np.uint8)
        yield Erasure(
            x=int(draws[row, -1] * (size - width + 1)),
            y=int(draws[row, -2] * (size - height + 1)),
            width=width,
            height=height,
            levels=levels,
        )


@cache
def _noise_levels() -> NDArray[np.uint8]:
    """Return the level of each byte of noise, (256, 3): quantiles of a normal distribution.

    Normalised, they have mean 0 and standard deviation 1 in every channel, as torchvision's noise,
    except that levels are clipped to 0 .. 255, about two deviations out.
    """
    normal = statistics.NormalDist()
    quantiles = np.array([normal.inv_cdf((byte + 0.5) / 256) for byte in range(256)])
    levels = 255 * (np.array(NOISE_MEAN) + quantiles[:, np.newaxis] * np.array(NOISE_STD))
    rounded: NDArray[np.uint8] = np.rint(np.clip(levels, 0, 255)).astype(np.uint8)
    return rounded
