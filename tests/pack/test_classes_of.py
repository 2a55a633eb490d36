"""``feeder pack --classes-of``: a validation set with the labels of its training set."""

from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.dataset.opened import Dataset
from tests.support.sources import encoded, error_line, file_tree, image, run_feeder

CLASSES = ("ant", "bee", "cat", "dog", "eel")


def make_images(root: Path, classes: tuple[str, ...], each: int = 3) -> Path:
    for name in classes:
        (root / name).mkdir(parents=True)
        for number in range(each):
            data = encoded(image(40 + number, 30), quality=90)
            (root / name / f"{number}.jpg").write_bytes(data)
    return root


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train")
    made = run_feeder("pack", make_images(folder / "images", CLASSES), folder / "packed")
    assert made.returncode == 0, made.stderr
    return folder / "packed"


def labels_by_class(dataset: Path) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    with Dataset.open(dataset) as opened:
        labels = opened.read_records(np.arange(opened.layout.samples))["label"]
        for number, label in enumerate(labels.tolist()):
            name = opened.name_of(number)
            assert name is not None
            found.setdefault(name.split("/")[0], set()).add(label)
    return found


def test_labels_are_those_of_the_other_dataset(train: Path, tmp_path: Path) -> None:
    source = make_images(tmp_path / "val", ("bee", "eel"))
    (source / "cat").mkdir()  # a known class may be empty
    packed = run_feeder("pack", source, tmp_path / "packed", "--classes-of", train)
    assert packed.returncode == 0, packed.stderr
    assert "packed 6 images of 5 classes" in packed.stdout
    assert "3 classes have no images, and keep their labels" in packed.stdout
    assert "warning" not in packed.stdout
    assert load_manifest(tmp_path / "packed").classes == CLASSES
    assert labels_by_class(tmp_path / "packed") == {"bee": {1}, "eel": {4}}


def test_the_other_commands_take_classes_without_images(train: Path, tmp_path: Path) -> None:
    source = make_images(tmp_path / "val", ("bee", "eel"))
    dataset = tmp_path / "packed"
    assert run_feeder("pack", source, dataset, "--classes-of", train).returncode == 0
    verified = run_feeder("verify", dataset)
    assert verified.returncode == 0, verified.stderr
    unpacked = run_feeder("unpack", dataset, tmp_path / "out")
    assert unpacked.returncode == 0, unpacked.stderr
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"bee", "eel"}
    preview = run_feeder("preview", dataset, "--images", "4", "--out", tmp_path / "preview.png")
    assert preview.returncode == 0, preview.stderr


def test_with_the_same_folders_it_changes_no_byte(train: Path, tmp_path: Path) -> None:
    source = make_images(tmp_path / "val", CLASSES, each=4)
    for name, more in (("plain", ()), ("same", ("--classes-of", train))):
        assert run_feeder("pack", source, tmp_path / name, *more).returncode == 0
    assert file_tree(tmp_path / "plain") == file_tree(tmp_path / "same")


@pytest.mark.parametrize(
    ("classes", "others"), [(("bee", "fox"), ""), (("bee", "fox", "gnu", "hen"), ", nor are 2 oth")]
)
def test_an_unknown_class_is_one_line_before_anything_is_written(
    train: Path, tmp_path: Path, classes: tuple[str, ...], others: str
) -> None:
    source = make_images(tmp_path / "val", classes)
    failed = run_feeder("pack", source, tmp_path / "packed", "--classes-of", train)
    line = error_line(failed)
    assert failed.returncode == 2
    assert f"class folder {source}/fox is not among the 5 classes" in line
    assert f"--classes-of names{others}" in line
    assert not (tmp_path / "packed").exists()


def test_another_dataset_that_is_none_is_one_line(tmp_path: Path) -> None:
    source = make_images(tmp_path / "val", ("bee",))
    failed = run_feeder("pack", source, tmp_path / "packed", "--classes-of", source)
    assert str(source) in error_line(failed)
    assert not (tmp_path / "packed").exists()


def test_a_source_with_known_but_empty_folders_only_is_one_line(
    train: Path, tmp_path: Path
) -> None:
    (tmp_path / "val" / "bee").mkdir(parents=True)
    failed = run_feeder("pack", tmp_path / "val", tmp_path / "packed", "--classes-of", train)
    assert "holds no images: put some into the class folders" in error_line(failed)


def test_an_interrupted_packing_resumes_with_the_same_labels_only(
    train: Path, tmp_path: Path
) -> None:
    source = make_images(tmp_path / "val", ("bee", "eel"))
    (source / "eel" / "bad.jpg").write_bytes(b"no image")
    whole, half = tmp_path / "whole", tmp_path / "half"
    assert (
        run_feeder("pack", source, whole, "--classes-of", train, "--max-bad", "50%").returncode == 0
    )
    error_line(run_feeder("pack", source, half, "--classes-of", train, "--strict"))
    assert not (half / MANIFEST_NAME).exists()
    other = error_line(run_feeder("pack", source, half))
    assert "the classes were others (class folders, or --classes-of)" in other
    assert (
        run_feeder("pack", source, half, "--classes-of", train, "--max-bad", "50%").returncode == 0
    )
    assert file_tree(half) == file_tree(whole)
