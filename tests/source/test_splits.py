"""Splits: what looks like one, and that none is taken for a class, nor mixed with another."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ConfigError
from feeder.source.location.splits import is_split, match_split, pair_splits, split_of
from feeder.source.recognise import recognise
from tests.source.listings import JPEG, Listed, list_container, put
from tests.source.tar_writer import tar_bytes
from tests.support.sources import write_parquet


def list_source(folder: Path, **options: Any) -> Listed:
    return list_container(recognise(str(folder), **options), folder.with_name("work"))


def test_words_that_stand_alone_name_a_split() -> None:
    names = {
        "train": "train Training train1 train2017 TRAIN_2014 seg_train train_images images_train "
        "trainA trainset ILSVRC2012_img_train.tar",
        "val": "val valid validation val_2017 imagenet-val-3",
        "test": "test testing test1 PublicTest test.tfrecord",
        "eval": "eval evaluation-00000-of-00002",
        "trainval": "trainval train_val",
        "dev": "dev",
        "extra": "extra",
        None: "trainer valley latest contest devkit invalid cat 0 n01440764 ILSVRC2012_devkit.tar",
    }
    found = {
        split: " ".join(n for n in text.split() if split_of(n) == split)
        for split, text in names.items()
    }
    assert found == names
    assert (split_of("Training Set"), split_of("")) == ("train", None)
    assert all(map(is_split, ("train", "val_2017", "Training Set", "test_images")))
    assert not any(map(is_split, ("bullet_train", "test tube", "seg_test", "cat")))


def test_names_that_differ_in_the_split_only_are_pairs() -> None:
    assert pair_splits(["train", "Validation", "test", "cars", "cars-val", "trainval"]) == {
        "Validation": "train",
        "test": "train",
    }
    names = ["a1-train", "a1-dev", "b-training", "b_valid", "b-eval", "a2-val", "retrain", "reval"]
    assert pair_splits(names) == {"a1-dev": "a1-train", "b-eval": "b-training"}
    assert pair_splits(["train", "training", "val"]) == {}, "either could be meant"


_SPLITS = (
    *("train val", "train", "training evaluation", "seg_train seg_test seg_pred", "train1 train2"),
    *("images_train images_val", "trainA trainB testA", "Train Valid Test", "train val extra cat"),
    *("train test_stage2", "train test unlabelled"),
)
_CIFAR = " ".join(("train", "bus", "tractor", *(f"class{number}" for number in range(97))))
_CLASSES = (_CIFAR, "bus car train", "cat test", "valid invalid", "bullet_train steam_train", "0 1")


@pytest.mark.parametrize("names", _SPLITS)
def test_folders_of_splits_are_never_classes(tmp_path: Path, names: str) -> None:
    for number, below in enumerate(("x.jpg", "cat/x.jpg")):
        source = put(tmp_path / f"{number}/src", " ".join(f"{n}/{below}" for n in names.split()))
        for kind in (None, "class-folder"):
            with pytest.raises(ConfigError, match="has folders that are splits by name, ") as e:
                recognise(str(source), kind=kind)
            assert "\n" not in str(e.value)
        spec = recognise(str(source), all_splits=True)
        assert set(list_container(spec, tmp_path / "work").facts.texts) == {*names.split()}
        assert "are packed together: " in spec.notes[0]


@pytest.mark.parametrize("names", _CLASSES)
def test_classes_that_are_called_like_a_split_are_classes(tmp_path: Path, names: str) -> None:
    source = put(tmp_path / "src", " ".join(f"{name}/x.jpg" for name in names.split()))
    listed = list_source(source)
    assert listed.facts.texts == tuple(sorted(names.split()))
    assert recognise(str(source)).notes == ()


def test_a_test_set_that_is_alone_is_taken_with_its_classes(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "test/cat/x.jpg test/dog/x.jpg")
    assert list_source(source).facts.texts == ("cat", "dog")
    assert "src/test, the only one there" in recognise(str(source)).notes[0]
    assert list_source(source / "test").facts.notes == ()  # it may itself be called like a split
    with pytest.raises(ConfigError, match="has folders that are splits by name"):
        recognise(str(put(tmp_path / "flat", "test/x.jpg")))


@pytest.mark.parametrize(
    ("names", "wanted", "folder"),
    [
        ("train1 test1", "train", "train1"),
        ("seg_train seg_test seg_pred", "test", "seg_test"),
        ("trainA trainB testA", "trainA", "trainA"),
    ],
)
def test_a_chosen_folder_is_the_source(
    tmp_path: Path, names: str, wanted: str, folder: str
) -> None:
    put(tmp_path / "src", " ".join(f"{n}/{a}/x.jpg" for n in names.split() for a in "ab"))
    spec = recognise(str(tmp_path / "src"), split=wanted)
    assert spec.containers == (str(tmp_path / "src" / folder),)
    assert list_container(spec, tmp_path / "work").facts.texts == ("a", "b")
    assert spec.notes[0].startswith(f"the split {folder} is packed, of ")


def test_a_choice_that_does_not_fit_says_what_there_is(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "trainA/x.jpg trainB/x.jpg test/x.jpg")
    for wanted in ("train", "val", "dogs"):
        with pytest.raises(ConfigError, match=r"choose one of test, trainA and trainB$"):
            recognise(str(source), split=wanted)
    cats = put(tmp_path / "cats", "a/x.jpg train/x.jpg")
    with pytest.raises(ConfigError, match=r"cats has no splits, .* make a split with --val-frac"):
        recognise(str(cats), split="train")
    assert match_split("train", ["train1", "train"]) == "train"


def test_images_without_labels_have_splits_too(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "own.jpg train/x.jpg val/x.jpg")
    for kind in (None, "labelled-folder"):
        with pytest.raises(ConfigError, match="has folders that are splits by name, train and val"):
            list_source(source, label_kind="none", kind=kind)
    put(source, "train/y.png")
    assert set(list_source(source, label_kind="none", split="train").items) == {"x.jpg", "y.png"}
    assert len(list_source(source, label_kind="none", all_splits=True).items) == 4
    with pytest.raises(ConfigError, match="train has no splits"):
        recognise(str(source / "train"), label_kind="none", split="train")


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        ("A/cat/x A/dog/x B/cat/x B/dog/x", "cat and dog are in every folder: give .*/src/A if "),
        ("data/cat/x data/dog/x", "two levels down, and cat and dog .* give .*/src/data if"),
        ("jar/train/x jar/test/x cable/x", "src/jar holds the splits test and train: put the "),
    ],
)
def test_folders_in_class_folders_that_seem_the_classes_are_an_error(
    tmp_path: Path, names: str, problem: str
) -> None:
    source = put(tmp_path / "src", names)
    with pytest.raises(ConfigError, match=problem):
        list_source(source)
    above = {name.partition("/")[0] for name in names.split()}
    assert set(list_source(source, all_splits=True).facts.texts) == above


def test_classes_with_folders_are_one_class_each_and_said_to_be(tmp_path: Path) -> None:
    listed = list_source(put(tmp_path / "src", "cat/a/x cat/b/x dog/c/d/x bird/x"))
    assert set(listed.labels.values()) == {"cat", "dog", "bird"}
    note = "images of 2 class folders lie in folders below, and are one class each"
    assert listed.facts.notes == (note,)
    source = put(tmp_path / "tiny", "n01/images/x n02/images/x")  # Tiny ImageNet
    assert list_source(source).facts.texts == ("n01", "n02")


_TAR = tar_bytes({"a.jpg": JPEG, "a.cls": b"1"})


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        ("train-0 val-0 other", "train", "train-0"),
        ("training-0 evaluation-0 training-1", "train", "training-0 training-1"),
        ("train2014-0 train2017-0 val2014-0", "train2017", "train2017-0"),
        ("train/0 val/0", "val", "val/0"),
    ],
)
def test_files_of_several_splits_are_never_merged(
    tmp_path: Path, names: str, wanted: str, chosen: str
) -> None:
    source = put(tmp_path / "src", {f"{name}.tar": _TAR for name in names.split()})
    location = str(source / ("*/*.tar" if "/" in names else "*.tar"))
    for where in [location] if "/" in names else [location, str(source)]:
        with pytest.raises(ConfigError, match="has files of several splits, ") as caught:
            recognise(where)
        assert "\n" not in str(caught.value)
        spec = recognise(where, split=wanted)
        assert spec.containers == tuple(str(source / f"{name}.tar") for name in chosen.split())
        assert spec.notes[0].startswith(f"the split {wanted} is packed, of ")
        assert len(recognise(where, all_splits=True).containers) == len(names.split())
        with pytest.raises(ConfigError, match=r"not one of the splits of .*: choose one of .* \("):
            recognise(where, split="dev")


_ROWS = (("a.jpg", 0, 0), ("b.jpg", 1, 0), ("c.jpg", 1, 1), ("gone.jpg", 7, 1))
"""File, label, and which of two splits."""


def _csv(column: str, *values: str) -> str:
    lines = (f"{file},{label},{values[split]}" for file, label, split in _ROWS)
    return "\n".join((f"file,label,{column}", *lines))


def _objects() -> list[dict[str, Any]]:
    names = ("train", "test")
    return [{"file": file, "label": label, "set": names[split]} for file, label, split in _ROWS]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.csv", _csv("usage", "Training", "PublicTest")),
        ("x.csv", _csv("split", "train", "")),
        ("x.csv", _csv("is_train", "1", "0")),
        ("x.csv", _csv("what it is for", "train1", "test1")),
        ("x.jsonl", "\n".join(map(json.dumps, _objects()))),
        ("x.json", json.dumps({each.pop("file"): each for each in _objects()})),
    ],
)
def test_rows_of_several_splits_are_never_mixed(tmp_path: Path, name: str, text: str) -> None:
    source = put(put(tmp_path / "src", "a.jpg b.jpg c.jpg unlisted.jpg"), {name: text})
    with pytest.raises(ConfigError, match=f"{name}, by its column .*, has rows of several splits"):
        list_source(source)
    listed = list_source(source, split="train")
    assert listed.labels == {"a.jpg": 0, "b.jpg": 1}
    assert listed.rejected == {"unlisted.jpg": ("no-label", f"{name} has no row for it")}
    assert re.search(r"the split (\w+) is packed, of \1 \(2\) and ", listed.facts.notes[0])
    listed = list_source(source, all_splits=True)
    assert listed.labels == {"a.jpg": 0, "b.jpg": 1, "c.jpg": 1}
    assert "rows of several splits are packed together" in listed.facts.notes[0]
    assert set(listed.rejected) == {"unlisted.jpg", "gone.jpg"}
    with pytest.raises(ConfigError, match="is not one of the splits of x"):
        list_source(source, split="dev")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ("file,label,split\na.jpg,0,train\nb.jpg,1,train\n", "has rows of one split: train (2)"),
        ("file,label,set\na.jpg,0,A\nb.jpg,1,B\n", ""),
        ("file,label,vehicle\na.jpg,0,train\nb.jpg,1,bus\n", ""),
        ("file,vehicle\na.jpg,train\nb.jpg,bus\n", ""),
    ],
)
def test_rows_without_several_splits_are_not_asked_about(
    tmp_path: Path, text: str, note: str
) -> None:
    listed = list_source(put(put(tmp_path / "src", "a.jpg b.jpg"), {"labels.csv": text}))
    assert len(listed.labels) == 2
    assert [line.partition("split, ")[2] for line in listed.facts.notes] == [note] * bool(note)


def test_a_column_of_splits_is_no_label(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "a.jpg b.jpg")
    put(source, {"labels.csv": "file,split\na.jpg,train\nb.jpg,test\n"})
    with pytest.raises(ConfigError, match="has no column of labels: split looks like a split"):
        list_source(source)
    assert set(list_source(source, label="split").labels.values()) == {"train", "test"}
    put(source, {"labels.csv": "file,split,kind\na.jpg,train,3\nb.jpg,test,4\n"})
    assert list_source(source, split="test").labels == {"b.jpg": 4}
    put(source, {"labels.csv": "file,kind\na.jpg,3\nb.jpg,4\n"})
    with pytest.raises(ConfigError, match=r"labels.csv has no splits, neither a column of it nor"):
        list_source(source, split="test")


def test_rows_may_have_their_split_by_the_folder_of_their_file(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "train/a.jpg val/b.jpg val/unlisted.jpg")
    rows = "train/a.jpg,0\nval/b.jpg,1\nval/gone.jpg,2\n/gone/x.jpg,1\n"
    put(source, {"m.csv": f"file,label\n{rows}"})
    with pytest.raises(ConfigError, match=r"by the folders of its files, .*in \(1\) and val \(2"):
        list_source(source)
    listed = list_source(source, split="train")
    assert (listed.labels, set(listed.rejected)) == ({"train/a.jpg": 0}, {"/gone/x.jpg"})
    listed = list_source(source, split="val")
    assert listed.labels == {"val/b.jpg": 1}
    assert set(listed.rejected) == {"val/gone.jpg", "val/unlisted.jpg", "/gone/x.jpg"}
    assert len(list_source(source, all_splits=True).labels) == 2


@pytest.mark.parametrize(
    ("files", "column"),
    [
        ([["train", "test", "train"]], "split"),
        ([[True, True], [False]], "is_train"),
    ],
)
def test_rows_of_parquet_files_have_splits_too(
    tmp_path: Path, files: list[list[Any]], column: str
) -> None:
    (tmp_path / "src").mkdir()
    for number, splits in enumerate(files):
        columns = {"image": [JPEG] * len(splits), "label": [0] * len(splits), column: splits}
        # Of several columns that may hold splits, the one called split counts.
        columns |= {"set": ["train"] * len(splits)} if column == "split" else {}
        write_parquet(tmp_path / f"src/{number}.parquet", columns)
    source = str(tmp_path / "src")
    with pytest.raises(ConfigError, match=rf"src, by its column {column}, has rows of several spl"):
        recognise(source)
    with pytest.raises(ConfigError, match=rf"src, by its column {column}: choose one of train "):
        recognise(source, split="dev")
    spec = recognise(source, split="train")
    lists = [list_container(spec, tmp_path / "w", number) for number in range(len(files))]
    assert sum(len(listed.items) for listed in lists) == 2
    assert "the split train is packed, of train (2) and " in spec.notes[0]
    assert recognise(source, all_splits=True).split == ""


def test_files_and_their_rows_may_both_have_splits(tmp_path: Path) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for name in ("train", "val"):
        columns = {"image": [JPEG], "label": [0], "split": [name]}
        write_parquet(source / f"{name}.parquet", columns)
    spec = recognise(str(source), split="train")
    assert (spec.containers, spec.split) == ((str(source / "train.parquet"),), "")
    assert spec.notes[1].endswith("has rows of one split: train (1)")
    alone = (source / "train.parquet").rename(tmp_path / "x.parquet")
    with pytest.raises(ConfigError, match=r"val is not one of the splits of .*choose one of train"):
        recognise(str(alone), split="val")
    alone.rename(source / "train.parquet")
    write_parquet(source / "train_2.parquet", {"image": [JPEG], "label": [0]})
    spec = recognise(str(source), split="train")
    assert spec.notes[1] == "the split train is packed, of train (1) and no split (1)"
    tar = put(tmp_path, {"x.tar": _TAR}) / "x.tar"
    with pytest.raises(ConfigError, match="has no splits, none of its files is called so"):
        recognise(str(tar), split="train")
