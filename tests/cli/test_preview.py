"""``feeder preview``: the sheet shows the rows of a batch, in a grid, with captions and notes."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

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
from feeder.dataset.opened import Dataset
from feeder.plan.augment import plan_augmentations
from feeder.plan.crop import plan_crops
from feeder.plan.labels import LabelSpec
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from tests.support.fake_node import FakeNode
from tests.support.sources import call_feeder, error_line
from tests.support.synthetic_sets import EVERY_KIND, pack_synthetic, write_labelled

SAMPLES = 23
GAP, CAPTION, TITLE = 8, 20, 28
NOTE, SUBTITLE, BELOW_HEAD = 16, 18, 6
PAPER = (250, 249, 246)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_synthetic(tmp_path_factory.mktemp("preview"), images=SAMPLES)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[SimpleNamespace]:
    """What each sheet shows; it is drawn all the same."""
    sheets: list[SimpleNamespace] = []

    def keep(images: np.ndarray, captions: list[str], path: Path, **texts: Any) -> None:
        sheets.append(SimpleNamespace(pictures=images, captions=captions, **texts))
        draw_contact_sheet(images, captions, path, **texts)

    monkeypatch.setattr("feeder.cli.contact_sheet.draw_contact_sheet", keep)
    return sheets


def draw(*arguments: str | Path) -> None:
    result = call_feeder("preview", *arguments)
    assert result.returncode == 0, result.stderr


def test_the_sheet_shows_the_rows_of_the_batch_that_the_recipe_makes(
    dataset: Path, tmp_path: Path, drawn: list[SimpleNamespace]
) -> None:
    out = tmp_path / "sheet.png"
    options = ["--images", "5", "--batch-size", "7", "--image-size", "128"]
    options += ["--seed", "3", "--epoch", "2", "--index", "1"]
    fields: dict[str, Any] = {"auto_augment": "rand-augment", "hue": 0.5}
    options += [f"--recipe={name}={value}" for name, value in fields.items()]
    result = call_feeder("preview", dataset, "--out", out, *options)
    assert (result.returncode, result.stdout) == (0, f"5 images in {out}\n"), result.stderr

    recipe = Recipe.for_split("train", batch_size=7, image_size=128, **fields)
    pixels, labels = np.empty((7, 128, 128, 3), np.int8), np.empty(7, np.int64)
    with Dataset.open(dataset) as opened:
        ids = recipe.plan_epoch(opened.layout, seed=3, epoch=2).samples(1)
        SampleReader(opened, recipe).fill(ids, seed=3, epoch=2, pixels=pixels, labels=labels)
        records, classes = opened.read_records(ids[:5]), opened.classes
    sizes = records["width"].astype(np.int64), records["height"].astype(np.int64)
    (sheet,) = drawn
    assert (sheet.pictures == pixels[:5].astype(np.int16) + 128).all()
    assert sheet.title == f"{dataset.name}: train, seed 3, epoch 2, batch 1"
    assert sheet.captions == [classes[label] for label in labels[:5]]
    assert sheet.notes == note_samples(recipe, ids[:5], sizes, ids[:5], seed=3, epoch=2)


CROPS = '[{"count":2,"size":64,"scale":[0.4,1]},{"count":3,"size":32,"scale":[0.05,0.4]}]'


@pytest.mark.parametrize("boxes", [[], ["--boxes"]])
def test_every_crop_of_a_sample_is_shown_beside_the_others(
    dataset: Path, tmp_path: Path, drawn: list[SimpleNamespace], boxes: list[str]
) -> None:
    draw(dataset, f"--recipe=crops={CROPS}", "--images=9", "--out", tmp_path / "crops.png", *boxes)
    for size, scale in ((64, "[0.4,1]"), (32, "[0.05,0.4]")):
        one = [f"--image-size={size}", f"--recipe=scale={scale}", "--images=2"]
        draw(dataset, *one, "--out", tmp_path / "one.png", *boxes)
    several, first, _ = drawn
    assert len(several.pictures) == len(several.notes) == 10, "of two samples"
    assert several.together == 5
    assert [note.facts[0] for note in several.notes[::5]] == [n.facts[0] for n in first.notes]
    assert several.captions == [first.captions[0]] * 5 + [first.captions[1]] * 5
    assert len({tuple(note.facts) for note in several.notes[:5]}) == 5, "each has its own box"
    assert several.notes[0] == first.notes[0]
    if boxes:
        assert several.pictures.shape == (10, 128, 128, 3)
        assert (several.pictures[::5] == first.pictures).all()
        return
    assert (several.pictures[::5] == first.pictures).all()
    small = several.pictures[2:5]
    assert (small[:, :16] == 232).all(), "the margin around a small crop"
    assert (small[:, 16:48, 16:48] != 232).any(axis=(1, 2, 3)).all()
    assert (
        "random-resized crops: 2 of 40 % to 100 % of the image, aspect 0.75 to 1.33, to 64 px; "
        "3 of 5 % to 40 % of the image" in several.subtitles[0]
    )


def test_a_schedule_is_shown_at_its_epoch(
    dataset: Path, tmp_path: Path, drawn: list[SimpleNamespace]
) -> None:
    sizes = '--image-size={"0": 32, "2": 48}'
    for epoch in (1, 2, 9):
        draw(dataset, sizes, f"--epoch={epoch}", "--images=3", "--out", tmp_path / "sheet.png")
    draw(dataset, "--image-size=48", "--epoch=2", "--images=3", "--out", tmp_path / "sheet.png")
    assert [sheet.pictures.shape[1] for sheet in drawn] == [32, 48, 48, 48]
    assert (drawn[1].pictures == drawn[3].pictures).all()
    assert "to 48 px" in drawn[1].subtitles[0]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ('--image-size={"2": 48}', 'begins at epoch 2: give its value from epoch "0" on, too'),
        ("--image-size=large", "'large' is neither pixels nor JSON of sizes by epoch"),
        ("--image-size=1.5", "'1.5' is neither pixels nor JSON"),
        ("--recipe=crops=[[2,4]]", "crops[0].size must be a whole number 8 .. 2048, got 4"),
    ],
)
def test_a_bad_shape_draws_nothing(
    dataset: Path, tmp_path: Path, option: str, message: str
) -> None:
    out = tmp_path / "sheet.png"
    result = call_feeder("preview", dataset, option, "--out", out)
    assert result.returncode != 0
    assert message in result.stderr
    assert not out.exists()


def test_boxes_show_whole_images_with_the_crop_bright(
    dataset: Path, tmp_path: Path, drawn: list[SimpleNamespace]
) -> None:
    """Nothing else of the recipe was done to them, and their notes are about the crop alone."""
    options = ["--recipe=flip_probability=1", "--recipe=auto_augment=rand-augment", "--images=6"]
    for more in ([], ["--boxes"]):
        draw(dataset, *options, *more, "--out", tmp_path / "sheet.png")
    crops, boxes = drawn
    assert all(note.operations[0] == MIRRORED for note in crops.notes)
    assert boxes.notes == [Note(note.facts) for note in crops.notes]
    assert "what was done to the crop" in crops.subtitles[1]
    assert boxes.subtitles == (
        crops.subtitles[0],
        "bright: the crop; under each image: label; sample id and size of its crop in the original "
        "(mirroring and augmentation are not shown)",
    )
    assert boxes.pictures.shape == crops.pictures.shape == (6, 224, 224, 3)
    assert boxes.captions == crops.captions
    recipe = Recipe.for_split("train", batch_size=SAMPLES)
    with Dataset.open(dataset) as opened:
        ids = recipe.plan_epoch(opened.layout, seed=0, epoch=0).samples(0)[:6]
        records = opened.read_records(ids)
    widths, heights = (records[name].astype(np.int64) for name in ("width", "height"))
    plan = plan_crops(recipe, seed=0, epoch=0, sample_ids=ids, widths=widths, heights=heights)
    for picture, width, height, box in zip(
        boxes.pictures, widths.tolist(), heights.tolist(), plan.boxes.tolist(), strict=True
    ):
        shrink = 224 / max(width, height)
        left, top = (224 - round(width * shrink)) // 2, (224 - round(height * shrink)) // 2
        x, y, w, h = (round(length * shrink) for length in box)
        assert (picture[top + y, left + x : left + x + w - 1] == 255).all(), "the outline's top"
        assert (picture[top + y : top + y + h - 1, left + x] == 255).all(), "its left side"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "give a packed dataset, or --from"),
        (["{dataset}", "--index", "1"], 2, "--index 1 is not within the epoch's batches 0 .. 0"),
        (["{dataset}", "--images", "0"], 2, "--images 0 is not 1 or more"),
        (["{dataset}", "--batch-size", "24"], 2, "use a smaller --batch-size"),
        (["{dataset}", "--recipe", "hue"], 2, "'hue' is not NAME=VALUE"),
        (["{dataset}", "--out", "{dataset}/none/x.png"], 4, "cannot write the contact sheet"),
        (["{dataset}", "--from", "ipc:///x", "--dataset", "x"], 2, "and no DST"),
        (["--from", "ipc:///x"], 2, "give --dataset NAME"),
        (["--from", "ipc:///x", "--dataset", "x", "--boxes"], 2, "--boxes needs the whole images"),
    ],
)
def test_errors_are_one_line_and_leave_no_file(
    dataset: Path, arguments: list[str], status: int, message: str, tmp_path: Path
) -> None:
    if "--out" not in arguments:
        arguments = ["--out", str(tmp_path / "sheet.png"), *arguments]
    result = call_feeder("preview", *(each.format(dataset=dataset) for each in arguments))
    assert result.returncode == status
    assert result.stderr.count("\n") == 1
    assert message in error_line(result)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", [3, -100])
def test_a_label_without_a_class_is_a_protocol_error(label: int, tmp_path: Path) -> None:
    with FakeNode() as node:
        node.script = lambda _, chunks: [
            [*frames[:2], np.full(len(frames[2]) // 8, label, "<i8").tobytes(), frames[3]]
            for frames in chunks
        ]
        options = ("--batch-size=4", "--image-size=8", "--out", tmp_path / "sheet.png")
        result = call_feeder("preview", "--from", node.endpoint, "--dataset", "set", *options)
    assert result.returncode == 6
    assert (
        f"{node.endpoint} breaks the protocol: it sent the label {label} of 3 classes"
        in error_line(result)
    )
    assert not (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize("labels", EVERY_KIND, ids=lambda each: each.kind)
def test_captions_are_the_labels_of_every_kind(
    labels: LabelSpec, tmp_path: Path, drawn: list[SimpleNamespace]
) -> None:
    write_labelled(tmp_path / "set", labels, samples=8, shards=1)
    for more in ([], ["--boxes"]):
        options = ["--split", "val", "--image-size", "16", "--out", tmp_path / "x.png", *more]
        draw(tmp_path / "set", *options)
    crops, boxes = drawn
    assert boxes.captions == crops.captions
    assert [note.facts[0] for note in crops.notes] == [f"sample {number}" for number in range(8)]
    wanted = {
        "index": ["class1", "class2", "class1"],
        "multi": ["class1", "", "class5, class7"],
        "float": ["0.333333", "1.66667", "2.33333"],
        "none": [""] * 3,
    }[labels.kind]
    shown = [crops.captions[sample] for sample in (1, 5, 7)]
    if labels.kind == "float":
        assert {caption.count(", ") for caption in shown} == {labels.width - 1}
        shown = [caption.split(", ")[0] for caption in shown]
    assert shown == wanted


def test_a_caption_of_many_labels_counts_those_without_room() -> None:
    labels = LabelSpec(kind="multi", width=2000)
    rows = np.ones((1, 2000), np.uint8)
    (caption,) = name_labels(labels, rows, [str(number) for number in range(2000)])
    assert caption == "0, 1, 2, 3, 4, 5, 6, 7, 1,992 more"


def _draw(path: Path, count: int, **texts: Any) -> tuple[np.ndarray, np.ndarray]:
    """Pictures of noise, and the sheet that was drawn of them."""
    pictures = np.random.default_rng(0).integers(0, 256, (count, 224, 224, 3), np.uint8)
    captions = [f"class {number}" for number in range(count)]
    draw_contact_sheet(pictures, captions, path, title="a set", **texts)
    with Image.open(path) as sheet:
        assert sheet.format == "PNG"
        return pictures, np.asarray(sheet)


def test_pictures_are_unchanged_in_a_grid_of_the_expected_size(tmp_path: Path) -> None:
    pictures, pixels = _draw(tmp_path / "sheet.png", 7)
    step, top = 224 + CAPTION + GAP, GAP + TITLE
    columns = choose_columns(7, 232, step)
    assert columns == 3
    assert pixels.shape == (3 * step + top, 3 * 232 + GAP, 3)
    assert pixels[:top].min() < 120, "no ink in the title"
    for number, picture in enumerate(pictures):
        x, y = GAP + number % 3 * 232, top + number // 3 * step
        assert (pixels[y : y + 224, x : x + 224] == picture).all()
        caption = pixels[y + 224 : y + 224 + CAPTION, x : x + 224]
        assert caption.min() < 120, "no ink under the picture"
    assert (pixels[-1] == PAPER).all()


def test_notes_and_subtitles_are_written_below_and_above(tmp_path: Path) -> None:
    operations = [MIRRORED, "rotate +9°", "brightness x 1.20", "contrast x 0.50"]
    notes = [Note(["sample 7", "crop 30 x 20 px"], operations), Note(["sample 8"])]
    subtitles = ["a recipe", "a legend"]
    pictures, pixels = _draw(tmp_path / "sheet.png", 2, subtitles=subtitles, notes=notes)
    top = GAP + TITLE + 2 * SUBTITLE + BELOW_HEAD
    assert pixels.shape == (top + 224 + CAPTION + 3 * NOTE + GAP, 2 * 232 + GAP, 3)
    assert (pixels[top : top + 224, GAP : GAP + 224] == pictures[0]).all()
    assert (pixels[top : top + 224, GAP + 232 : GAP + 456] == pictures[1]).all()
    for line in range(2):
        y = GAP + TITLE + line * SUBTITLE
        assert pixels[y : y + SUBTITLE].min() < 150, "no ink in the subtitle"
    notes_y = top + 224 + CAPTION
    lines = [pixels[notes_y + NOTE * line : notes_y + NOTE * (line + 1)] for line in range(3)]
    assert [int(line[:, :232].min()) < 150 for line in lines] == [True] * 3
    assert [int(line[:, 232:].min()) < 150 for line in lines] == [True, False, False]
    # The mark of mirrored pictures is blue, and only the first is mirrored.
    blue = [(line[..., 2].astype(int) - line[..., 0] > 100).sum(axis=0) for line in lines]
    assert [counts.any() for counts in blue] == [False, True, False]
    assert blue[1][GAP : GAP + 13].sum() > 20


def test_texts_are_wrapped_between_their_parts_and_shortened_in_the_middle() -> None:
    parts = ["sample 12345", "crop 333 x 250 px", "decoded at 1/2"]
    name = "n02089078_black-and-tan_coonhound_of_the_very_long_name"
    bitmap = ImageFont.load_default_imagefont()
    for font in (ImageFont.load_default(13), bitmap):
        lines = wrap(parts, 128, font)
        assert len(lines) > 1
        assert " ".join(lines) == " ".join(parts)
        assert all(font.getlength(line) <= 128 for line in lines)
        (shown,) = wrap([name], 120, font)
        assert font.getlength(shown) <= 120
        assert (shown[:4], shown[-4:]) == ("n020", "name")
        assert shorten("two\nlines  é", 120, font) == "two lines é"
    assert shorten("猫 cat", 200, bitmap) == "? cat", "the bitmap font has Latin-1 only"


@pytest.mark.parametrize("policy", ["trivial-augment-wide", "auto-augment", "augmix"])
def test_notes_are_what_the_plan_does_to_a_sample(policy: str) -> None:
    ids, widths = np.arange(100, 164), np.linspace(40, 2500, 64).astype(np.int64)
    recipe = Recipe.for_split(
        "train",
        batch_size=8,
        image_size=128,
        auto_augment=policy,
        vertical_flip_probability=0.5,
        blur_probability=0.5,
        solarise_probability=0.5,
        hue=0.2,
        contrast=0.5,
        greyscale_probability=0.5,
        erasing_probability=0.5,
    )
    key: dict[str, Any] = {"seed": 3, "epoch": 2, "sample_ids": ids}
    crops = plan_crops(recipe, **key, widths=widths, heights=widths[::-1])
    plans = plan_augmentations(recipe, **key)
    assert set(crops.scales.tolist()) >= {1, 2, 4}, "the sizes make no scaled decoding"
    notes = note_samples(recipe, ids, (widths, widths[::-1]), ids, seed=3, epoch=2)
    for row, (note, plan) in enumerate(zip(notes, plans, strict=True)):
        scale, (w, h) = crops.scales[row], crops.boxes[row, 2:].astype(int)
        facts = [f"sample {ids[row]}", f"crop {w} x {h} px", f"decoded at 1/{scale}"]
        assert list(note.facts) == facts[: 3 if scale > 1 else 2]
        names = [MIRRORED] * bool(crops.flips[row]) + [step[0] for step in plan.steps]
        erased = plan.erasure
        if erased is not None:
            names.append("erase")
            assert note.operations[-1] == f"erase {erased.width} x {erased.height} px"
        assert [operation.split(" ")[0] for operation in note.operations] == names
    unsized = note_samples(recipe, ids, None, ids, seed=3, epoch=2)
    assert unsized == [Note(note.facts[:1], note.operations) for note in notes]


def test_a_recipe_is_one_sentence_and_the_fields_as_the_command_takes_them() -> None:
    plain = "recipe: random-resized crop of 8 % to 100 % of the image, aspect 0.75 to 1.33, "
    plain += "to 224 px, bilinear, 50 % mirrored"
    assert describe_recipe(Recipe.for_split("train", batch_size=8)) == plain
    fields: dict[str, Any] = {"brightness": 0.4, "auto_augment": "rand-augment"}
    recipe = Recipe.for_split("train", batch_size=8, dct_scaling=False, **fields)
    assert describe_recipe(recipe) == (
        f"{plain}, dct_scaling=false, auto_augment=rand-augment, rand_augment_ops=2, "
        "rand_augment_magnitude=9, brightness=[0.6,1.4]"
    )
