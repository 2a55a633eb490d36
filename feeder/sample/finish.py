"""From a decoded picture to a row of the batch, where ``resize_pack`` alone is not enough.

    resize      the crop's box, mirrored, as levels: uint8 RGB
    augment     the sample's steps on a Pillow image, then its erasure
    pack        levels into the row, in the recipe's packing

Used by recipes that augment, resize without antialiasing or pack floats.
"""

from time import perf_counter
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.jpeg.plain_bilinear import resize_plainly
from feeder.jpeg.resize import resize_pack
from feeder.plan.augment import Augmentation, is_augmented, plan_augmentations
from feeder.plan.packing import Pixels, pack_levels, pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.sample.augment_ops import apply_steps


class Finisher:
    """Finishes rows of one recipe; owns the levels of one image."""

    def __init__(self, recipe: Recipe, resize_version: str | None = None) -> None:
        """``resize_version`` is ``resize_pack``'s."""
        self._recipe = recipe
        self._resize_version = resize_version
        self._layout = pixel_layout_of(recipe.packing)
        self._levels = np.empty((recipe.image_size, recipe.image_size, 3), np.uint8)

    @classmethod
    def for_recipe(cls, recipe: Recipe, resize_version: str | None = None) -> Self | None:
        """Return a finisher, or None where ``resize_pack`` alone makes the recipe's rows."""
        is_float = pixel_layout_of(recipe.packing).is_float
        if recipe.interpolation == "bilinear-no-antialias" or is_augmented(recipe) or is_float:
            return cls(recipe, resize_version)
        return None

    def plan(self, *, seed: int, epoch: int, sample_ids: NDArray[np.int64]) -> list[Augmentation]:
        """Return the augmentation of each of n samples."""
        return plan_augmentations(self._recipe, seed=seed, epoch=epoch, sample_ids=sample_ids)

    def finish(
        self,
        picture: NDArray[np.uint8],
        stride_bytes: int,
        width: int,
        height: int,
        box: tuple[float, float, float, float],
        *,
        origin: tuple[int, int],
        mirrored: bool,
        augmentation: Augmentation,
        out: Pixels,
    ) -> float:
        """Write the row ``out``; return the seconds spent on augmenting.

        Picture, box and origin are as ``resize_pack`` takes them.
        """
        shown = (picture, stride_bytes, width, height, box)
        levels, interpolation = self._levels, self._recipe.interpolation
        if interpolation == "bilinear-no-antialias":
            resize_plainly(*shown, origin=origin, mirrored=mirrored, out=levels)
        else:
            resize_pack(
                *shown,
                origin=origin,
                mirrored=mirrored,
                out=levels,
                resampling=interpolation,
                version=self._resize_version,
            )
        resized = perf_counter()
        _augment(levels, augmentation)
        augmented = perf_counter()
        pack_levels(levels, self._layout, out)
        return augmented - resized


def _augment(levels: NDArray[np.uint8], augmentation: Augmentation) -> None:
    """Augment levels (size, size, 3) in place."""
    if augmentation.steps:
        image = apply_steps(Image.fromarray(levels), augmentation.steps)
        levels[:] = np.asarray(image)
    erased = augmentation.erasure
    if erased is not None:
        rows = slice(erased.y, erased.y + erased.height)
        levels[rows, erased.x : erased.x + erased.width] = erased.levels
