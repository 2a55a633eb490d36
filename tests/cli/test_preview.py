"""``feeder preview`` through the command line: the sheet shows the rows of a batch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feeder.cli.contact_sheet import (
    MIRRORED,
    Note,
    choose_columns,
    draw_contact_sheet,
    show_samples,
)
from feeder.dataset.opened import Dataset
from feeder.plan.crop import plan_crops
from feeder.plan.labels import LabelSpec
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from tests.support.fake_node import FakeNode
from tests.support.sources import call_feeder, error_line
from tests.support.synthetic_sets import EVERY_KIND, pack_synthetic, write_labelled

SAMPLES = 23


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_synthetic(tmp_path_factory.mktemp("preview"), images=SAMPLES)


@dataclass
class Drawn:
    """What the command had drawn last."""

    pictures: np.ndarray
    labels: list[str]
    title: str
    subtitles: tuple[str, ...]
    notes: list[Note]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Drawn]:
    """The arguments of each sheet, which is drawn all the same."""
    sheets: list[Drawn] = []

    def keep(
        images: np.ndarray,
        captions: list[str],
        path: Path,
        *,
        title: str,
        subtitles: tuple[str, ...],
        notes: list[Note],
    ) -> None:
        sheets.append(Drawn(images, captions, title, subtitles, notes))
        draw_contact_sheet(images, captions, path, title=title, subtitles=subtitles, notes=notes)

    monkeypatch.setattr("feeder.cli.contact_sheet.draw_contact_sheet", keep)
    return sheets


def _read(sheet: Path) -> np.ndarray:
    with Image.open(sheet) as opened:
        return np.asarray(opened)


def draw(*arguments: str | Path) -> None:
    result = call_feeder("preview", *arguments)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("fields", [{}, {"auto_augment": "rand-augment", "hue": 0.5}])
def test_the_sheet_shows_the_rows_of_the_batch_that_the_recipe_makes(
    dataset: Path, tmp_path: Path, drawn: list[Drawn], fields: dict[str, Any]
) -> None:
    out = tmp_path / "sheet.png"
    options = ["--images", "5", "--batch-size", "7", "--image-size", "128"]
    options += ["--seed", "3", "--epoch", "2", "--index", "1"]
    options += [f"--recipe={name}={value}" for name, value in fields.items()]
    result = call_feeder("preview", dataset, "--out", out, *options)
    assert (result.returncode, result.stdout) == (0, f"5 images in {out}\n"), result.stderr

    recipe = Recipe.for_split("train", batch_size=7, image_size=128, **fields)
    pixels, labels = np.empty((7, 128, 128, 3), np.int8), np.empty(7, np.int64)
    with Dataset.open(dataset) as opened:
        ids = recipe.plan_epoch(opened.layout, seed=3, epoch=2).samples(1)
        SampleReader(opened, recipe).fill(ids, seed=3, epoch=2, pixels=pixels, labels=labels)
        wanted = show_samples(opened, recipe, ids[:5], seed=3, epoch=2)
    (sheet,) = drawn
    assert (sheet.pictures == pixels[:5].astype(np.int16) + 128).all()
    assert sheet.title == f"{dataset.name}: train, seed 3, epoch 2, batch 1"
    assert (sheet.labels, sheet.notes) == (wanted.captions, wanted.notes)
    if not fields:  # operations take more room
        assert _read(out).shape[1] == choose_columns(5, 136, 156) * 136 + 8


def test_boxes_show_whole_images_with_the_crop_bright(
    dataset: Path, tmp_path: Path, drawn: list[Drawn]
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
    assert boxes.labels == crops.labels
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


@pytest.mark.parametrize("label", [3, -100, 1 << 40])
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
    labels: LabelSpec, tmp_path: Path, drawn: list[Drawn]
) -> None:
    write_labelled(tmp_path / "set", labels, samples=8, shards=1)
    recipe = Recipe.for_split("train", batch_size=4, image_size=16)
    wanted = {
        "index": ["class1", "class2", "class1"],
        "multi": ["class1", "", "class5, class7"],
        "float": ["0.333333", "1.66667", "2.33333"],
        "none": [""] * 3,
    }[labels.kind]
    with Dataset.open(tmp_path / "set") as opened:
        shown = show_samples(opened, recipe, np.array([1, 5, 7]), seed=0, epoch=0)
    if labels.kind == "float":
        assert {caption.count(", ") for caption in shown.captions} == {labels.width - 1}
        assert [caption.split(", ")[0] for caption in shown.captions] == wanted
    else:
        assert shown.captions == wanted
    for more in ([], ["--boxes"]):
        draw(tmp_path / "set", "--image-size", "16", "--out", tmp_path / "x.png", *more)
    crops, boxes = drawn
    assert boxes.labels == crops.labels
    assert len(crops.labels) == 8
