"""Packings hold the same levels, each in its own type, order and number of channels."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.plan.labels import INDEX_LABELS
from feeder.plan.packing import (
    DEFAULT_PACKING,
    Packing,
    pack_levels,
    pixel_layout_of,
    unpack_levels,
)
from feeder.plan.recipe import Recipe
from feeder.wire.slot_layout import SlotLayout

PACKINGS = get_args(Packing)


def random_levels(images: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (images, size, size, 3), np.uint8)


def packed_by_hand(levels: np.ndarray, packing: str) -> np.ndarray:
    """The packing computed from the words of its name in plain numpy."""
    kind, axes, channels = packing.split("-")
    values = levels.astype(int) - (0 if kind == "uint8" else 128)
    if channels == "rgbx":
        values = np.concatenate([values, np.zeros((*levels.shape[:3], 1), int)], axis=3)
    if axes == "chw":
        values = np.moveaxis(values, 3, 1)
    return values.astype(kind)


@given(size=st.integers(1, 33), images=st.integers(1, 3), seed=st.integers(0, 99))
@pytest.mark.parametrize("packing", PACKINGS)
def test_levels_survive_packing(packing: Packing, size: int, images: int, seed: int) -> None:
    layout = pixel_layout_of(packing)
    levels = random_levels(images, size, seed)
    packed = np.full((images, *layout.image_shape(size)), 99, layout.dtype)
    for rgb, row in zip(levels, packed, strict=True):
        pack_levels(rgb, layout, row)
    assert np.array_equal(packed, packed_by_hand(levels, packing))
    assert np.array_equal(unpack_levels(packed, layout), levels)
    assert packed[0].nbytes == layout.image_bytes(size)


@pytest.mark.parametrize("packing", PACKINGS)
def test_grey_is_level_128(packing: Packing) -> None:
    layout = pixel_layout_of(packing)
    grey = np.full((1, *layout.image_shape(4)), layout.grey, layout.dtype)
    assert (unpack_levels(grey, layout) == 128).all()


@pytest.mark.parametrize("packing", PACKINGS)
def test_slot_holds_rows_in_the_recipes_packing(packing: Packing) -> None:
    recipe = Recipe.for_split("train", batch_size=5, image_size=9, packing=packing)
    slots = SlotLayout.of_recipe(recipe, INDEX_LABELS, slots=2)
    channels = 4 if packing.endswith("x") else 3
    value_bytes = 4 if packing.startswith("float32") else 1
    assert slots.pixel_bytes == 5 * 9 * 9 * channels * value_bytes
    memory = np.zeros(slots.total_bytes, np.uint8)
    rows = slots.chunk(memory, 1, 2, 3)
    assert rows.pixels.shape == (3, *((channels, 9, 9) if "chw" in packing else (9, 9, channels)))
    assert rows.pixels.dtype == packing.split("-")[0]
    rows.pixels.view(np.uint8)[:] = 1
    assert memory.sum() == 3 * 9 * 9 * channels * value_bytes
    assert not rows.labels.any()


def test_default_packing_is_int8_hwc_rgb() -> None:
    assert Recipe.for_split("train", batch_size=1).packing == DEFAULT_PACKING == "int8-hwc-rgb"
