"""``feeder preview`` through the command line: the sheet shows the rows of a batch."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from feeder.cli.captions import name_labels
from feeder.cli.contact_sheet import Note, choose_columns, draw_contact_sheet
from feeder.cli.crop_preview import draw_boxes, draw_crops, note_crops
from feeder.cli.main import main
from feeder.dataset.opened import Dataset
from feeder.plan.epoch import EpochPlan
from feeder.plan.labels import LabelSpec
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from tests.support.fake_node import FakeNode
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


def test_the_sheet_shows_the_rows_of_the_batch_that_the_recipe_makes(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], drawn: list[Drawn]
) -> None:
    out = tmp_path / "sheet.png"
    options = ["--images", "5", "--batch-size", "7", "--image-size", "128"]
    options += ["--seed", "3", "--epoch", "2", "--index", "1"]
    assert main(["preview", str(dataset), "--out", str(out), *options]) == 0
    assert f"5 images in {out}" in capsys.readouterr().out

    recipe = Recipe.for_split("train", batch_size=7, image_size=128)
    pixels, labels = np.empty((7, 128, 128, 3), np.int8), np.empty(7, np.int64)
    with Dataset.open(dataset) as opened:
        plan = EpochPlan(
            opened.layout,
            batch_size=7,
            seed=3,
            epoch=2,
            shuffle=True,
            last_batch=recipe.last_batch,
        )
        reader = SampleReader(opened, recipe)
        reader.fill(plan.samples(1), seed=3, epoch=2, pixels=pixels, labels=labels)
        wanted = note_crops(opened, recipe, plan.samples(1)[:5], seed=3, epoch=2)
    (sheet,) = drawn
    assert (sheet.pictures == pixels[:5].astype(np.int16) + 128).all()
    assert sheet.title == f"{dataset.name}: train, seed 3, epoch 2, batch 1"
    assert sheet.notes == wanted
    assert _read(out).shape[1] == choose_columns(5, 128, 128) * 136 + 8


def test_the_sheet_shows_an_augmented_batch(
    dataset: Path, tmp_path: Path, drawn: list[Drawn]
) -> None:
    fields = ["auto_augment=rand-augment", "greyscale_probability=1", "packing=uint8-chw-rgbx"]
    options = [f"--recipe={field}" for field in fields]
    options += ["--images", "5", "--image-size", "128", "--batch-size", "7", "--seed", "3"]
    out = tmp_path / "sheet.png"
    assert main(["preview", str(dataset), "--out", str(out), *options]) == 0
    recipe = Recipe.for_split(
        "train",
        batch_size=7,
        image_size=128,
        auto_augment="rand-augment",
        greyscale_probability=1,
    )
    with Dataset.open(dataset) as opened:
        plan = EpochPlan(
            opened.layout, batch_size=7, seed=3, epoch=0, shuffle=True, last_batch=recipe.last_batch
        )
        levels, _ = draw_crops(opened, recipe, plan.samples(0), seed=3, epoch=0)
    (sheet,) = drawn
    assert (sheet.pictures == levels[:5]).all()
    assert (sheet.pictures == sheet.pictures[..., :1]).all(), "not grey"
    assert all(note.operations[-1] == "greyscale" for note in sheet.notes)
    assert "auto_augment=rand-augment, rand_augment_ops=2" in sheet.subtitles[0]


def test_defaults_take_one_batch_of_a_small_dataset(dataset: Path, tmp_path: Path) -> None:
    for split in ("train", "val"):
        out = tmp_path / f"{split}.png"
        assert main(["preview", str(dataset), "--out", str(out), "--split", split]) == 0
        columns = choose_columns(SAMPLES, 224, 224)
        assert abs(_read(out).shape[1] - (columns * 232 + 8)) <= 232, "captions make it higher"


def test_notes_of_boxes_are_about_the_crop_alone(
    dataset: Path, tmp_path: Path, drawn: list[Drawn]
) -> None:
    """The pictures are whole images, to which nothing of the recipe was done."""
    options = ["--recipe=flip_probability=1", "--recipe=auto_augment=rand-augment", "--images=6"]
    for more in ([], ["--boxes"]):
        out = ["--out", str(tmp_path / "sheet.png")]
        assert main(["preview", str(dataset), *options, *more, *out]) == 0
    crops, boxes = drawn
    assert all(note.is_mirrored and note.operations for note in crops.notes)
    assert boxes.notes == [Note(facts=note.facts) for note in crops.notes]
    assert "what was done to the crop" in crops.subtitles[1]
    assert boxes.subtitles == (
        crops.subtitles[0],
        "bright: the crop; under each image: label; sample id and size of its crop in the original "
        "(mirroring and augmentation are not shown)",
    )


def test_boxes_show_whole_images_with_the_crop_bright(dataset: Path, tmp_path: Path) -> None:
    out = tmp_path / "boxes.png"
    assert main(["preview", str(dataset), "--out", str(out), "--images", "4", "--boxes"]) == 0
    recipe = Recipe.for_split("train", batch_size=SAMPLES, flip_probability=1.0)
    with Dataset.open(dataset) as opened:
        sample_ids = np.arange(4)
        boxes, labels = draw_boxes(opened, recipe, sample_ids, seed=0, epoch=0)
        crops, names = draw_crops(opened, recipe, sample_ids, seed=0, epoch=0)
    assert boxes.shape == crops.shape == (4, 224, 224, 3)
    assert labels == names
    assert ((boxes == 255).all(axis=3).sum(axis=(1, 2)) > 100).all(), "no outline"


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ([], 2, "give a packed dataset, or --from"),
        (["nowhere"], 3, "nowhere"),
        (["{dataset}", "--index", "1"], 2, "--index 1 is not within the epoch's batches 0 .. 0"),
        (["{dataset}", "--images", "0"], 2, "--images 0 is not 1 or more"),
        (["{dataset}", "--epoch", "-1"], 2, "--epoch -1"),
        (["{dataset}", "--batch-size", "24"], 2, "use a smaller --batch-size"),
        (["{dataset}", "--image-size", "4"], 2, "image_size"),
        (["{dataset}", "--recipe", "hue"], 2, "'hue' is not NAME=VALUE"),
        (["{dataset}", "--recipe", "hue=1"], 2, "hue must be a number 0 .. 0.5"),
        (["{dataset}", "--recipe", "image_size=96"], 2, "use --image-size for that"),
        (["{dataset}", "--out", "{dataset}/none/x.png"], 4, "cannot write the contact sheet"),
        (["{dataset}", "--dataset", "x"], 2, "--dataset goes with --from"),
        (["{dataset}", "--from", "ipc:///x", "--dataset", "x"], 2, "and no DST"),
        (["--from", "ipc:///x"], 2, "give --dataset NAME"),
        (["--from", "ipc:///x", "--dataset", "x", "--boxes"], 2, "--boxes needs the whole images"),
        (["--from", "nonsense", "--dataset", "x"], 2, "cannot be dialled"),
    ],
)
def test_errors_are_one_line_and_leave_no_file(
    dataset: Path,
    arguments: list[str],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["preview", *(each.format(dataset=dataset) for each in arguments)]) == status
    error = capsys.readouterr().err
    assert error.startswith("feeder: error: ")
    assert error.count("\n") == 1
    assert message in error
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("label", [3, -100, 1 << 40])
def test_a_label_without_a_class_is_a_protocol_error(
    label: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeNode() as node:
        node.script = lambda _, chunks: [
            [*frames[:2], np.full(len(frames[2]) // 8, label, "<i8").tobytes(), frames[3]]
            for frames in chunks
        ]
        arguments = ["preview", "--from", node.endpoint, "--dataset", "set", "--batch-size", "4"]
        assert main([*arguments, "--image-size", "8", "--out", str(tmp_path / "sheet.png")]) == 6
    error = capsys.readouterr().err
    assert f"{node.endpoint} breaks the protocol: it sent the label {label} of 3 classes" in error
    assert not (tmp_path / "sheet.png").exists()


@pytest.mark.parametrize("labels", EVERY_KIND, ids=lambda each: each.kind)
def test_captions_are_the_labels_of_every_kind(
    labels: LabelSpec, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_labelled(tmp_path / "set", labels, samples=8, shards=1)
    recipe = Recipe.for_split("train", batch_size=4, image_size=16)
    ids = np.array([1, 5, 7])
    wanted = {
        "index": ["class1", "class2", "class1"],
        "multi": ["class1", "", "class5, class7"],
        "float": ["0.333333", "1.66667", "2.33333"],
        "none": [""] * 3,
    }[labels.kind]
    with Dataset.open(tmp_path / "set") as opened:
        _, crops = draw_crops(opened, recipe, ids, seed=0, epoch=0)
        _, boxes = draw_boxes(opened, recipe, ids, seed=0, epoch=0)
    if labels.kind == "float":
        assert {crop.count(", ") for crop in crops} == {labels.width - 1}
        assert [crop.split(", ")[0] for crop in crops] == wanted
    else:
        assert crops == wanted
    assert boxes == crops
    for more in ([], ["--boxes"]):
        out = ["--image-size", "16", "--out", str(tmp_path / "x.png")]
        assert main(["preview", str(tmp_path / "set"), *out, *more]) == 0
    assert "8 images" in capsys.readouterr().out


def test_a_caption_of_many_labels_counts_those_without_room() -> None:
    labels = LabelSpec(kind="multi", width=2000)
    rows = np.ones((1, 2000), np.uint8)
    (caption,) = name_labels(labels, rows, [str(number) for number in range(2000)])
    assert caption == "0, 1, 2, 3, 4, 5, 6, 7, 1,992 more"
