"""From a decoded picture to a row of the batch, for recipes that ask for more than the default.

    resize      the crop's box, mirrored, as levels: uint8 RGB
    augment     the sample's steps on a Pillow image, then its erasure
    pack        levels into the row, as the recipe's packing has it

The default recipe has none of this: ``feeder.resize`` writes its rows in one pass.
"""

from time import perf_counter
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.augment import Augmentation, is_augmented, plan_augmentations
from feeder.augment_ops import apply_steps
from feeder.interpolation import resize_levels
from feeder.packing import DEFAULT_PACKING, Pixels, pack_levels, pixel_layout_of
from feeder.recipe import Recipe
from feeder.resize import resize_pack


class Finisher:
    """Finishes rows of one recipe; owns the levels of one image."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._is_augmented = is_augmented(recipe)
        self._layout = pixel_layout_of(recipe.packing)
        self._levels = np.empty((recipe.image_size, recipe.image_size, 3), np.uint8)

    @classmethod
    def for_recipe(cls, recipe: Recipe) -> Self | None:
        """Return a finisher, or None where ``resize_pack`` alone makes the recipe's rows."""
        is_default = recipe.packing == DEFAULT_PACKING and recipe.interpolation == "bilinear"
        return None if is_default and not is_augmented(recipe) else cls(recipe)

    def plan(
        self, *, seed: int, epoch: int, sample_ids: NDArray[np.int64]
    ) -> list[Augmentation] | list[None]:
        """Return what is done to each of n samples; None where nothing is but packing."""
        if not self._is_augmented:
            return [None] * len(sample_ids)
        return plan_augmentations(self._recipe, seed=seed, epoch=epoch, sample_ids=sample_ids)

    def finish(
        self,
        picture: NDArray[np.uint8],
        stride_bytes: int,
        width: int,
        height: int,
        box: tuple[float, float, float, float],
        *,
        mirrored: bool,
        augmentation: Augmentation | None,
        out: Pixels,
    ) -> float:
        """Write the row ``out``; return the seconds spent on augmenting.

        The picture is what ``resize_pack`` takes.
        """
        levels = self._levels
        if self._recipe.interpolation == "bilinear":
            turned = levels.view(np.int8)
            resize_pack(picture, stride_bytes, width, height, box, mirrored=mirrored, out=turned)
            levels ^= 0x80
        else:
            resize_levels(
                picture,
                stride_bytes,
                width,
                height,
                box,
                mirrored=mirrored,
                interpolation=self._recipe.interpolation,
                out=levels,
            )
        resized = perf_counter()
        if augmentation is not None:
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
