"""Rows of augmenting recipes and other packings are the default's rows, changed as planned."""

import itertools
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from feeder.dataset.opened import Dataset
from feeder.plan.augment import plan_augmentations
from feeder.plan.packing import Packing, pixel_layout_of, unpack_levels
from feeder.plan.recipe import AutoAugment, Recipe
from feeder.sample import finish
from feeder.sample.augment_ops import apply_steps
from feeder.sample.finish import Finisher
from feeder.sample.reader import SampleReader
from tests.support.rows import make_rows
from tests.support.synthetic_sets import pack_synthetic

SAMPLES = 23
SIZE = 32
FULL: dict[str, Any] = {
    "auto_augment": "rand-augment",
    "brightness": 0.4,
    "hue": 0.1,
    "vertical_flip_probability": 0.5,
    "greyscale_probability": 0.3,
    "blur_probability": 0.5,
    "solarise_probability": 0.2,
    "erasing_probability": 0.6,
    "erasing_value": "noise",
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return Dataset.open(pack_synthetic(tmp_path_factory.mktemp("finish"), images=SAMPLES))


def recipe_of(**fields: Any) -> Recipe:
    return Recipe.for_split("train", batch_size=8, image_size=SIZE, **fields)


def fill(
    dataset: Dataset, recipe: Recipe, ids: Any = None, *, reader: SampleReader | None = None
) -> np.ndarray:
    """Return the rows, packed."""
    ids = np.arange(SAMPLES) if ids is None else np.asarray(ids)
    return make_rows(reader or SampleReader(dataset, recipe), ids, seed=9, epoch=1)[0]


def levels_of(dataset: Dataset, recipe: Recipe) -> np.ndarray:
    return unpack_levels(fill(dataset, recipe), pixel_layout_of(recipe.packing))


@pytest.mark.parametrize(
    "fields", [{}, {"interpolation": "bicubic"}, {"interpolation": "bilinear-no-antialias"}, FULL]
)
def test_every_packing_holds_the_same_levels(dataset: Dataset, fields: dict[str, Any]) -> None:
    expected = levels_of(dataset, recipe_of(**fields))
    for packing in get_args(Packing):
        assert np.array_equal(levels_of(dataset, recipe_of(packing=packing, **fields)), expected)


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"contrast": 2},
        *(
            {"auto_augment": policy}
            for policy in ("trivial-augment-wide", "auto-augment", "augmix")
        ),
    ],
)
def test_an_augmented_row_is_the_default_row_changed_as_planned(
    dataset: Dataset, extra: dict[str, Any]
) -> None:
    recipe = recipe_of(**FULL | extra)
    plain = levels_of(dataset, recipe_of())
    planned = plan_augmentations(recipe, seed=9, epoch=1, sample_ids=np.arange(SAMPLES))
    for row, default, each in zip(levels_of(dataset, recipe), plain, planned, strict=True):
        expected = np.array(apply_steps(Image.fromarray(default), each.steps))
        if each.erasure is not None:
            box = each.erasure
            expected[box.y : box.y + box.height, box.x : box.x + box.width] = box.levels
        assert np.array_equal(row, expected)
    assert sum(each.erasure is not None for each in planned) > 5


@settings(max_examples=25)
@given(
    order=st.permutations(range(SAMPLES)),
    cuts=st.lists(st.integers(0, SAMPLES), max_size=5),
    fields=st.fixed_dictionaries(
        {},
        optional={
            "packing": st.sampled_from(get_args(Packing)),
            "interpolation": st.sampled_from(["bicubic", "box", "bilinear-no-antialias"]),
            "auto_augment": st.sampled_from(get_args(AutoAugment)),
            "blur_probability": st.just(0.5),
            "saturation": st.just(0.5),
            "erasing_probability": st.just(0.5),
        },
    ),
)
def test_rows_are_the_same_however_they_are_cut_into_chunks(
    dataset: Dataset, order: list[int], cuts: list[int], fields: dict[str, Any]
) -> None:
    recipe = recipe_of(**fields)
    whole = fill(dataset, recipe)
    readers = [SampleReader(dataset, recipe) for _ in range(2)]  # as two workers
    bounds = [0, *sorted(cuts), SAMPLES]
    for turn, (first, end) in enumerate(itertools.pairwise(bounds)):
        if first < end:
            chunk = order[first:end]
            assert np.array_equal(
                fill(dataset, recipe, chunk, reader=readers[turn % 2]), whole[chunk]
            )


def test_default_recipe_writes_directly_into_the_slot(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Finisher.for_recipe(recipe_of()) is None
    assert Finisher.for_recipe(recipe_of(dct_scaling=False, flip_probability=1.0)) is None
    assert Finisher.for_recipe(recipe_of(packing="uint8-chw-rgbx", interpolation="box")) is None
    assert Finisher.for_recipe(recipe_of(interpolation="bilinear-no-antialias")) is not None
    assert Finisher.for_recipe(recipe_of(hue=0.1)) is not None

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("the default needs none of this")

    for name in ("resize_pack", "resize_plainly", "apply_steps", "pack_levels"):
        monkeypatch.setattr(finish, name, fail)
    fill(dataset, recipe_of())
