"""Contact sheets: size, pixels and captions; and notes that are what the sample path does."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFont

from feeder.cli.contact_sheet import (
    MIRRORED,
    Note,
    choose_columns,
    draw_contact_sheet,
    name_labels,
    note_samples,
    shorten,
    wrap,
)
from feeder.cli.preview import describe_recipe
from feeder.plan.augment import plan_augmentations
from feeder.plan.crop import plan_crops
from feeder.plan.labels import LabelSpec
from feeder.plan.recipe import Recipe

GAP, CAPTION, TITLE = 8, 20, 28
NOTE, SUBTITLE, BELOW_HEAD = 16, 18, 6
PAPER = (250, 249, 246)
IDS = np.arange(100, 164)
WIDTHS = np.linspace(40, 2500, len(IDS)).astype(np.int64)
HEIGHTS = WIDTHS[::-1].copy()
BITMAP, SIZED = ImageFont.load_default_imagefont(), ImageFont.load_default(13)


def _pictures(count: int, side: int = 224) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)


def _read(path: Path) -> np.ndarray:
    with Image.open(path) as sheet:
        assert sheet.format == "PNG"
        return np.asarray(sheet)


def test_pictures_are_unchanged_in_a_grid_of_the_expected_size(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    pictures = _pictures(7)
    draw_contact_sheet(pictures, [f"class {number}" for number in range(7)], path, title="a set")
    columns = choose_columns(7, 232, 224 + CAPTION + GAP)
    rows = -(-7 // columns)
    top = GAP + TITLE
    pixels = _read(path)
    assert pixels.shape == (rows * (224 + CAPTION + GAP) + top, columns * 232 + GAP, 3)
    assert pixels[:top].min() < 120, "no ink in the title"
    for number, picture in enumerate(pictures):
        row, column = divmod(number, columns)
        x, y = GAP + column * 232, top + row * (224 + CAPTION + GAP)
        assert (pixels[y : y + 224, x : x + 224] == picture).all()
        caption = pixels[y + 224 : y + 224 + CAPTION, x : x + 224]
        assert caption.min() < 120, "no ink under the picture"
    assert (pixels[-1] == PAPER).all()


def test_notes_and_subtitles_are_written_below_and_above(tmp_path: Path) -> None:
    path = tmp_path / "sheet.png"
    pictures = _pictures(2)
    notes = [Note(["sample 7", "crop 30 x 20 px"], [MIRRORED, "rotate +9°"]), Note(["sample 8"])]
    draw_contact_sheet(
        pictures, ["a", "b"], path, title="a set", subtitles=["a recipe", "a legend"], notes=notes
    )
    pixels = _read(path)
    top = GAP + TITLE + 2 * SUBTITLE + BELOW_HEAD
    assert pixels.shape == (top + 224 + CAPTION + 2 * NOTE + GAP, 2 * 232 + GAP, 3)
    assert (pixels[top : top + 224, GAP : GAP + 224] == pictures[0]).all()
    assert (pixels[top : top + 224, GAP + 232 : GAP + 456] == pictures[1]).all()
    for line in range(2):
        y = GAP + TITLE + line * SUBTITLE
        assert pixels[y : y + SUBTITLE].min() < 150, "no ink in the subtitle"
    facts, done = (top + 224 + CAPTION + line * NOTE for line in range(2))
    left, right = pixels[:, :232], pixels[:, 232:]
    assert left[facts : facts + NOTE].min() < 150
    assert right[facts : facts + NOTE].min() < 150
    # The mark of mirrored pictures is blue, and only the first is mirrored.
    mark = left[done : done + NOTE, GAP : GAP + 13].astype(int)
    assert ((mark[..., 2] - mark[..., 0]) > 100).sum() > 20
    assert (right[done : done + NOTE] == PAPER).all()


@pytest.mark.parametrize("font", [SIZED, BITMAP], ids=["sized", "bitmap"])
def test_texts_are_wrapped_between_their_parts_and_shortened_in_the_middle(
    font: ImageFont.ImageFont | ImageFont.FreeTypeFont,
) -> None:
    parts = ["sample 12345", "crop 333 x 250 px", "decoded at 1/2"]
    lines = wrap(parts, 128, font)
    assert len(lines) > 1
    assert " ".join(lines) == " ".join(parts)
    assert all(font.getlength(line) <= 128 for line in lines)
    assert wrap(parts, 10_000, font) == [" ".join(parts)]
    assert wrap([], 128, font) == []
    name = "n02089078_black-and-tan_coonhound_of_the_very_long_name"
    (shown,) = wrap([name], 120, font)
    assert shown == shorten(name, 120, font)
    assert font.getlength(shown) <= 120
    assert (shown[:4], shown[-4:]) == ("n020", "name")
    assert shorten("two\nlines  é", 120, font) == "two lines é"
    assert shorten("猫 cat", 200, BITMAP) == "? cat", "the bitmap font has Latin-1 only"


def test_a_caption_of_many_labels_counts_those_without_room() -> None:
    labels = LabelSpec(kind="multi", width=2000)
    rows = np.ones((1, 2000), np.uint8)
    (caption,) = name_labels(labels, rows, [str(number) for number in range(2000)])
    assert caption == "0, 1, 2, 3, 4, 5, 6, 7, 1,992 more"


def _notes(recipe: Recipe, *, seed: int = 3, epoch: int = 2, sized: bool = True) -> list[Note]:
    sizes = (WIDTHS, HEIGHTS) if sized else None
    return note_samples(recipe, IDS, sizes, seed=seed, epoch=epoch)


def test_facts_are_id_size_of_the_crop_and_its_decoding() -> None:
    recipe = Recipe.for_split("train", batch_size=8, image_size=128)
    crops = plan_crops(recipe, seed=3, epoch=2, sample_ids=IDS, widths=WIDTHS, heights=HEIGHTS)
    notes = _notes(recipe)
    assert [note.operations == [MIRRORED] for note in notes] == crops.flips.tolist()
    for note, sample_id, box, scale in zip(
        notes, IDS.tolist(), crops.boxes.astype(int).tolist(), crops.scales.tolist(), strict=True
    ):
        wanted = [f"sample {sample_id}", f"crop {box[2]} x {box[3]} px"]
        assert list(note.facts) == wanted + [f"decoded at 1/{scale}"] * (scale > 1)
    assert set(crops.scales.tolist()) >= {1, 2, 4}, "the sizes make no scaled decoding"


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
        names = [name for name in note.operations if name == MIRRORED]
        names += [step[0] for step in plan.steps] + ["erase"] * (plan.erasure is not None)
        assert [operation.split(" ")[0] for operation in note.operations] == names
        if plan.erasure is not None:
            size = f"erase {plan.erasure.width} x {plan.erasure.height} px"
            assert note.operations[-1] == size
    assert _notes(recipe, epoch=3) != _notes(recipe)
    assert _notes(recipe, seed=4) != _notes(recipe)


@pytest.mark.parametrize(
    ("recipe", "text"),
    [
        (
            Recipe.for_split("train", batch_size=8),
            "recipe: random-resized crop of 8 % to 100 % of the image, aspect 0.75 to 1.33, "
            "to 224 px, bilinear, 50 % mirrored",
        ),
        (
            Recipe.for_split(
                "train",
                batch_size=8,
                brightness=0.4,
                auto_augment="rand-augment",
                dct_scaling=False,
            ),
            "recipe: random-resized crop of 8 % to 100 % of the image, aspect 0.75 to 1.33, "
            "to 224 px, bilinear, 50 % mirrored, "
            "dct_scaling=false, auto_augment=rand-augment, rand_augment_ops=2, "
            "rand_augment_magnitude=9, brightness=[0.6,1.4]",
        ),
    ],
)
def test_a_recipe_is_one_sentence_and_the_fields_as_the_command_takes_them(
    recipe: Recipe, text: str
) -> None:
    assert describe_recipe(recipe) == text
