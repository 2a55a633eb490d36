"""What a sheet writes about samples is what the sample path does to them."""

from typing import get_args

import numpy as np
import pytest

from feeder.cli.contact_sheet import Note
from feeder.cli.sample_notes import describe_recipe, note_samples
from feeder.plan.augment import Operation, plan_augmentations
from feeder.plan.crop import plan_crops
from feeder.plan.recipe import Recipe, Split

IDS = np.arange(100, 164)
WIDTHS = np.linspace(40, 2500, len(IDS)).astype(np.int64)
HEIGHTS = WIDTHS[::-1].copy()


def _notes(recipe: Recipe, *, seed: int = 3, epoch: int = 2, sized: bool = True) -> list[Note]:
    return note_samples(
        recipe,
        seed=seed,
        epoch=epoch,
        sample_ids=IDS,
        widths=WIDTHS if sized else None,
        heights=HEIGHTS if sized else None,
    )


def test_facts_are_id_size_of_the_crop_and_its_decoding() -> None:
    recipe = Recipe.for_split("train", batch_size=8, image_size=128)
    crops = plan_crops(recipe, seed=3, epoch=2, sample_ids=IDS, widths=WIDTHS, heights=HEIGHTS)
    notes = _notes(recipe)
    assert [note.is_mirrored for note in notes] == crops.flips.tolist()
    for note, sample_id, box, scale in zip(
        notes, IDS.tolist(), crops.boxes.astype(int).tolist(), crops.scales.tolist(), strict=True
    ):
        wanted = [f"sample {sample_id}", f"crop {box[2]} x {box[3]} px"]
        assert list(note.facts) == wanted + [f"decoded at 1/{scale}"] * (scale > 1)
        assert note.operations == ()
    assert set(crops.scales.tolist()) >= {1, 2, 4}, "the sizes make no scaled decoding"


@pytest.mark.parametrize("split", ["train", "val"])
def test_without_sizes_only_those_of_the_crops_are_missing(split: Split) -> None:
    recipe = Recipe.for_split(split, batch_size=8, auto_augment="rand-augment")
    for known, unknown in zip(_notes(recipe), _notes(recipe, sized=False), strict=True):
        assert unknown.facts == known.facts[:1]
        assert unknown.is_mirrored == known.is_mirrored
        assert unknown.operations == known.operations


def test_operations_are_those_of_the_plan_in_its_order() -> None:
    recipe = Recipe.for_split(
        "train",
        batch_size=8,
        auto_augment="trivial-augment-wide",
        hue=0.2,
        contrast=0.5,
        greyscale_probability=0.5,
        erasing_probability=0.5,
    )
    plans = plan_augmentations(recipe, seed=3, epoch=2, sample_ids=IDS)
    for note, plan in zip(_notes(recipe), plans, strict=True):
        names = [step[0] for step in plan.steps] + ["erase"] * (plan.erasure is not None)
        assert [operation.split(" ")[0] for operation in note.operations] == names
        if plan.erasure is not None:
            size = f"erase {plan.erasure.width} x {plan.erasure.height} px"
            assert note.operations[-1] == size
    assert _notes(recipe, epoch=3) != _notes(recipe)
    assert _notes(recipe, seed=4) != _notes(recipe)


def test_every_operation_that_has_an_amount_shows_it() -> None:
    operations = set()
    for auto_augment in ("trivial-augment-wide", "rand-augment"):
        recipe = Recipe.for_split(
            "train", batch_size=8, auto_augment=auto_augment, hue=0.1, greyscale_probability=0.5
        )
        for note in _notes(recipe):
            operations |= set(note.operations)
    without = {"autocontrast", "equalise", "greyscale"}
    assert {each for each in operations if not any(map(str.isdigit, each))} == without
    assert {each.split(" ")[0] for each in operations} == set(get_args(Operation)) - {"identity"}
    # All fonts of Pillow have these characters; its TrueType font has no multiplication sign.
    assert set("".join(operations)) - {"°"} <= {chr(code) for code in range(32, 127)}


def test_the_recipe_of_a_split_is_one_sentence() -> None:
    assert describe_recipe(Recipe.for_split("train", batch_size=8)) == (
        "recipe: random-resized crop of 8 % to 100 % of the image, aspect 0.75 to 1.33, "
        "to 224 px, bilinear, 50 % mirrored"
    )
    assert describe_recipe(Recipe.for_split("val", batch_size=9, image_size=96)) == (
        "recipe: short side to 256 px, centre crop of 96 px, bilinear, 0 % mirrored"
    )


def test_other_fields_are_shown_as_the_command_takes_them() -> None:
    recipe = Recipe.for_split(
        "train", batch_size=8, brightness=0.4, auto_augment="rand-augment", dct_scaling=False
    )
    assert describe_recipe(recipe).endswith(
        "50 % mirrored, dct_scaling=false, auto_augment=rand-augment, rand_augment_ops=2, "
        "rand_augment_magnitude=9, brightness=[0.6,1.4]"
    )
