"""Splits: what looks like one, and that none is taken for a class, nor mixed with another."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from feeder.errors import ConfigError
from feeder.process.path_text import path_from_text
from feeder.source.location.splits import is_split, match_split, pair_splits, split_of
from feeder.source.recognise import recognise
from tests.source.listings import Listed, list_container
from tests.support.sources import encoded, image, write_parquet

_JPEG = encoded(image())


def put(root: Path, *names: str, data: bytes = _JPEG) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@pytest.mark.parametrize(
    ("name", "split"),
    [
        *((name, "train") for name in ("train", "Training", "train1", "train2017", "TRAIN_2014")),
        *((name, "train") for name in ("seg_train", "train_images", "images_train", "trainA")),
        *((name, "train") for name in ("trainset", "Training Set", "ILSVRC2012_img_train.tar")),
        *((name, "val") for name in ("val", "valid", "validation", "val_2017", "imagenet-val-3")),
        *((name, "test") for name in ("test", "testing", "test1", "PublicTest", "test.tfrecord")),
        *((name, "eval") for name in ("eval", "evaluation-00000-of-00002")),
        *((name, "trainval") for name in ("trainval", "train_val")),
        ("dev", "dev"),
        ("extra", "extra"),
        *((name, None) for name in ("trainer", "valley", "latest", "contest", "devkit", "invalid")),
        *((name, None) for name in ("cat", "0", "", "n01440764", "ILSVRC2012_devkit_t12.tar.gz")),
    ],
)
def test_words_that_stand_alone_name_a_split(name: str, split: str | None) -> None:
    assert split_of(name) == split


def test_names_that_differ_in_the_split_only_are_pairs() -> None:
    assert pair_splits(["train", "Validation", "test", "cars", "cars-val", "trainval"]) == {
        "Validation": "train",
        "test": "train",
    }
    names = ["a1-train", "a1-dev", "b-training", "b_valid", "b-eval", "a2-val", "retrain", "reval"]
    assert pair_splits(names) == {"a1-dev": "a1-train", "b-eval": "b-training"}
    assert pair_splits(["train", "training", "val"]) == {}, "either could be meant"


def test_a_split_alone_is_told_from_a_name_that_mentions_one() -> None:
    assert all(map(is_split, ("train", "val_2017", "Training Set", "test_images")))
    assert not any(map(is_split, ("bullet_train", "test tube", "seg_test", "cat")))


_SPLITS = [
    "train val",
    "train val extra",
    "train",
    "train eval",
    "training evaluation",
    "seg_train seg_test",
    "train1 test1",
    "train1 train2",
    "train_images test_images",
    "images_train images_val",
    "trainA trainB testA testB",
    "Train Valid Test",
    "train test_stage2",
    "train dev",
]
_MIXED = ["train val other", "seg_train seg_test seg_pred", "train test unlabelled cat"]
_CIFAR = " ".join(("train", "bus", "tractor", *(f"class{number}" for number in range(97))))
_CLASSES = [_CIFAR, "bus car train", "cat test", "valid invalid", "bullet_train steam_train", "0 1"]


@pytest.mark.parametrize("names", [*_SPLITS, *_MIXED])
@pytest.mark.parametrize("below", ["x.jpg", "cat/x.jpg"])
def test_folders_of_splits_are_never_classes(tmp_path: Path, names: str, below: str) -> None:
    put(tmp_path / "src", *(f"{name}/{below}" for name in names.split()))
    for kind in (None, "class-folder"):
        with pytest.raises(
            ConfigError, match="by name no classes but splits: give one, as"
        ) as info:
            recognise(str(tmp_path / "src"), kind=kind)
        assert "\n" not in str(info.value)
    spec = recognise(str(tmp_path / "src"), all_splits=True)
    assert set(list_container(spec, tmp_path / "work").facts.texts) == {*names.split()}
    assert "are classes here (--all-splits)" in spec.notes[0]


@pytest.mark.parametrize("names", _CLASSES)
def test_classes_that_are_called_like_a_split_are_classes(tmp_path: Path, names: str) -> None:
    put(tmp_path / "src", *(f"{name}/x.jpg" for name in names.split()))
    spec = recognise(str(tmp_path / "src"))
    listed = list_container(spec, tmp_path / "work")
    assert (listed.facts.texts, spec.notes) == (tuple(sorted(names.split())), ())


def test_a_test_set_that_is_alone_is_taken_with_its_classes(tmp_path: Path) -> None:
    put(tmp_path / "src", "test/cat/x.jpg", "test/dog/x.jpg")
    spec = recognise(str(tmp_path / "src"))
    assert list_container(spec, tmp_path / "work").facts.texts == ("cat", "dog")
    assert "src/test, the only one there" in spec.notes[0]
    put(tmp_path / "flat", "test/x.jpg")
    with pytest.raises(ConfigError, match="by name no classes but splits"):
        recognise(str(tmp_path / "flat"))


@pytest.mark.parametrize("name", ["test", "train"])
def test_a_source_may_itself_be_called_like_a_split(tmp_path: Path, name: str) -> None:
    put(tmp_path / name, "cat/x.jpg", "dog/x.jpg")
    listed = list_container(recognise(str(tmp_path / name)), tmp_path / "work")
    assert (listed.facts.texts, listed.facts.notes) == (("cat", "dog"), ())


@pytest.mark.parametrize(
    ("names", "wanted", "folder"),
    [
        ("train val", "train", "train"),
        ("train1 test1", "train", "train1"),
        ("seg_train seg_test seg_pred", "test", "seg_test"),
        ("seg_train seg_test seg_pred", "seg_pred", "seg_pred"),
        ("training evaluation", "eval", "evaluation"),
        ("train", "training", "train"),
        ("trainA trainB testA", "trainA", "trainA"),
    ],
)
def test_a_chosen_folder_is_the_source(
    tmp_path: Path, names: str, wanted: str, folder: str
) -> None:
    put(tmp_path / "src", *(f"{name}/{animal}/x.jpg" for name in names.split() for animal in "ab"))
    spec = recognise(str(tmp_path / "src"), split=wanted)
    assert spec.containers == (str(tmp_path / "src" / folder),)
    assert list_container(spec, tmp_path / "work").facts.texts == ("a", "b")
    assert spec.notes[0].startswith(f"the split {folder} is packed, of ")


def test_the_chosen_folder_may_be_of_any_kind(tmp_path: Path) -> None:
    put(tmp_path / "src", "train/x.jpg", "val/y.jpg")
    put(tmp_path / "src", "train/labels.csv", data=b"file,label\nx.jpg,4\n")
    spec = recognise(str(tmp_path / "src"), split="train")
    assert spec.kind == "labelled-folder"
    assert list_container(spec, tmp_path / "work").labels == {"x.jpg": 4}


def test_a_choice_that_does_not_fit_says_what_there_is(tmp_path: Path) -> None:
    put(tmp_path / "src", "trainA/x.jpg", "trainB/x.jpg", "test/x.jpg")
    for wanted in ("train", "val", "dogs"):
        with pytest.raises(ConfigError, match=r"choose of test, trainA and trainB$"):
            recognise(str(tmp_path / "src"), split=wanted)
    put(tmp_path / "cats", "a/x.jpg", "train/x.jpg")
    with pytest.raises(
        ConfigError, match=r"cats has no splits, .* or make a split with --val-frac"
    ):
        recognise(str(tmp_path / "cats"), split="train")
    assert match_split("train", ["train1", "train"]) == "train"


def test_images_without_labels_have_splits_too(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "own.jpg", "train/x.jpg", "val/x.jpg")
    with pytest.raises(ConfigError, match="holds train and val, by name no classes but splits"):
        _list(source, label_kind="none")
    with pytest.raises(ConfigError, match="holds train and val, by name no classes but splits"):
        _list(source, label_kind="none", kind="labelled-folder")
    put(source, "train/y.png")
    assert set(_list(source, label_kind="none", split="train").items) == {"x.jpg", "y.png"}
    assert len(_list(source, label_kind="none", all_splits=True).items) == 4
    with pytest.raises(ConfigError, match="train has no splits"):
        recognise(str(source / "train"), label_kind="none", split="train")


def _list(folder: Path, **options: object) -> Listed:
    return list_container(recognise(str(folder), **options), folder.with_name("work"))  # type: ignore[arg-type]


def test_folders_that_hold_the_same_folders_are_an_error(tmp_path: Path) -> None:
    names = [f"{site}/{animal}/x.jpg" for site in ("siteA", "siteB") for animal in ("cat", "dog")]
    source = put(tmp_path / "src", *names)
    with pytest.raises(
        ConfigError, match=r"cat and dog are in every folder: give .*/src/siteA if "
    ):
        _list(source)
    listed = _list(source, all_splits=True)
    assert listed.facts.texts == ("siteA", "siteB")
    source = put(tmp_path / "one", "data/cat/x.jpg", "data/dog/x.jpg")
    with pytest.raises(
        ConfigError, match=r"two levels down, and cat and dog .* give .*/one/data if"
    ):
        _list(source)


def test_classes_with_folders_are_one_class_each_and_said_to_be(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "cat/a/x.jpg", "cat/b/x.jpg", "dog/c/d/x.jpg", "bird/x.jpg")
    listed = _list(source)
    assert set(listed.labels.values()) == {"cat", "dog", "bird"}
    note = "images of 2 class folders lie in folders below, and are one class each"
    assert listed.facts.notes == (note,)
    source = put(tmp_path / "tiny", "n01/images/x.jpg", "n02/images/x.jpg")  # Tiny ImageNet
    assert _list(source).facts.texts == ("n01", "n02")


def test_splits_within_classes_are_an_error(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "bottle/train/x.jpg", "bottle/test/x.jpg", "cable/x.jpg")
    with pytest.raises(ConfigError, match="src/bottle holds the splits test and train: put the "):
        _list(source)
    assert len(_list(source, all_splits=True).items) == 3


def _tar(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for name, data in (("a.jpg", _JPEG), ("a.cls", b"1")):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


@pytest.mark.parametrize(
    ("names", "wanted", "chosen"),
    [
        ("train-0 val-0 other", "train", "train-0"),
        ("train-0 other", "train", "train-0"),
        ("train-0 eval-0", "eval", "eval-0"),
        ("training-0 evaluation-0 training-1", "train", "training-0 training-1"),
        ("train2014-0 train2017-0 val2014-0", "train2017", "train2017-0"),
        ("imagenet_train_0 imagenet_val_0", "validation", "imagenet_val_0"),
        ("train/0 val/0", "val", "val/0"),
    ],
)
def test_files_of_several_splits_are_never_merged(
    tmp_path: Path, names: str, wanted: str, chosen: str
) -> None:
    for name in names.split():
        _tar(tmp_path / "src" / f"{name}.tar")
    location = str(tmp_path / "src" / ("*/*.tar" if "/" in names else "*.tar"))
    for where in [location] if "/" in names else [location, str(tmp_path / "src")]:
        with pytest.raises(ConfigError, match="files of several splits, or of none: ") as info:
            recognise(where)
        assert "\n" not in str(info.value)
        spec = recognise(where, split=wanted)
        assert spec.containers == tuple(
            str(tmp_path / f"src/{name}.tar") for name in chosen.split()
        )
        assert spec.notes[0].startswith(f"the split {wanted} is packed: ")
        spec = recognise(where, all_splits=True)
        assert len(spec.containers) == len(names.split())
        with pytest.raises(ConfigError, match=r"is not one of the splits of .*: choose of . of"):
            recognise(where, split="dev")


def test_files_of_one_split_are_not_asked_about(tmp_path: Path) -> None:
    for name in ("train-0", "train-1"):
        _tar(tmp_path / "src" / f"{name}.tar")
    assert recognise(str(tmp_path / "src")).notes == ()
    assert len(recognise(str(tmp_path / "src"), split="train").containers) == 2
    _tar(tmp_path / "plain" / "0.tar")
    assert recognise(str(tmp_path / "plain")).notes == ()
    with pytest.raises(ConfigError, match="plain has no splits, none of its files is called so"):
        recognise(str(tmp_path / "plain"), split="train")


_ROWS = (
    ("a.jpg", 0, "train"),
    ("b.jpg", 1, "train"),
    ("c.jpg", 1, "test"),
    ("gone.jpg", 7, "test"),
)


def _csv(column: str, values: dict[str, str], header: str = "file,label") -> tuple[str, bytes]:
    lines = [f"{file},{label},{values[split]}" for file, label, split in _ROWS]
    return "labels.csv", "\n".join((f"{header},{column}", *lines)).encode()


@pytest.mark.parametrize(
    ("labels", "train"),
    [
        (_csv("split", {"train": "train", "test": "test"}), "train"),
        (_csv("Set", {"train": "TRAINING", "test": "valid"}), "train"),
        (_csv("usage", {"train": "Training", "test": "PublicTest"}), "train"),
        (_csv("fold", {"train": "0", "test": "test"}), "0"),
        (_csv("split", {"train": "train", "test": ""}), "train"),
        (_csv("is_train", {"train": "1", "test": "0"}), "train"),
        (_csv("is_test", {"train": "False", "test": "True"}), "rest"),
        (_csv("what it is for", {"train": "train1", "test": "test1"}), "train"),
        (
            ("labels.jsonl", "\n".join(
                json.dumps({"file": file, "label": label, "partition": split})
                for file, label, split in _ROWS
            ).encode()),
            "train",
        ),
        (
            ("labels.json", json.dumps(
                {file: {"label": label, "split": split} for file, label, split in _ROWS}
            ).encode()),
            "train",
        ),
    ],
)  # fmt: skip
def test_rows_of_several_splits_are_never_mixed(
    tmp_path: Path, labels: tuple[str, bytes], train: str
) -> None:
    source = put(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg", "unlisted.jpg")
    put(source, labels[0], data=labels[1])
    with pytest.raises(ConfigError, match=f"{labels[0]}, by its column .*, has rows of several sp"):
        _list(source)
    listed = _list(source, split=train)
    assert listed.labels == {"a.jpg": 0, "b.jpg": 1}
    assert listed.rejected == {"unlisted.jpg": ("no-label", f"{labels[0]} has no row for it")}
    assert "is packed: 2 of 4 rows, of " in listed.facts.notes[0]
    listed = _list(source, all_splits=True)
    assert listed.labels == {"a.jpg": 0, "b.jpg": 1, "c.jpg": 1}
    assert "rows of all splits are packed" in listed.facts.notes[0]
    assert set(listed.rejected) == {"unlisted.jpg", "gone.jpg"}
    with pytest.raises(ConfigError, match="is not one of the splits of labels"):
        _list(source, split="dev")


@pytest.mark.parametrize(
    ("text", "note"),
    [
        (b"file,label,split\na.jpg,0,train\nb.jpg,1,train\n", "has rows of one split: train (2)"),
        (b"file,label,set\na.jpg,0,A\nb.jpg,1,B\n", ""),
        (b"file,label,vehicle\na.jpg,0,train\nb.jpg,1,bus\n", ""),
        (b"file,label\na.jpg,train\nb.jpg,test\n", ""),
        (b"file,vehicle\na.jpg,train\nb.jpg,bus\n", ""),
    ],
)
def test_rows_without_several_splits_are_not_asked_about(
    tmp_path: Path, text: bytes, note: str
) -> None:
    source = put(put(tmp_path / "src", "a.jpg", "b.jpg"), "labels.csv", data=text)
    listed = _list(source)
    assert len(listed.labels) == 2
    assert [line.partition(", by its column split, ")[2] for line in listed.facts.notes] == (
        [note] if note else []
    )


def test_a_column_of_splits_is_no_label(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "a.jpg", "b.jpg")
    put(source, "labels.csv", data=b"file,split\na.jpg,train\nb.jpg,test\n")
    with pytest.raises(ConfigError, match="has no column of labels: split looks like a split"):
        _list(source)
    assert set(_list(source, label="split").labels.values()) == {"train", "test"}
    put(source, "labels.csv", data=b"file,split,kind\na.jpg,train,3\nb.jpg,test,4\n")
    assert _list(source, split="test").labels == {"b.jpg": 4}
    put(source, "labels.csv", data=b"file,kind\na.jpg,3\nb.jpg,4\n")
    with pytest.raises(ConfigError, match=r"labels.csv has no splits, neither a column of it nor"):
        _list(source, split="test")


def test_a_row_whose_split_is_unknown_is_never_left_out_silently(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "a.jpg", "b.jpg", "c.jpg")
    put(source, "x.csv", data=b"file,label,split\na.jpg,0,train\nb.jpg,1\nc.jpg,1,test\n")
    listed = _list(source, split="train")
    assert (set(listed.labels), set(listed.rejected)) == ({"a.jpg"}, {"b.jpg"})
    source = put(tmp_path / "folders", "train/a.jpg", "test/b.jpg")
    put(source, "x.csv", data=b"file,label\ntrain/a.jpg,0\ntest/b.jpg,0\n/gone/x.jpg,1\n")
    listed = _list(source, split="train")
    assert (set(listed.labels), set(listed.rejected)) == ({"train/a.jpg"}, {"/gone/x.jpg"})


def test_rows_may_have_their_split_by_the_folder_of_their_file(tmp_path: Path) -> None:
    source = put(tmp_path / "src", "train/a.jpg", "val/b.jpg", "val/unlisted.jpg")
    put(source, "m.csv", data=b"file,label\ntrain/a.jpg,0\nval/b.jpg,1\nval/gone.jpg,2\n")
    with pytest.raises(
        ConfigError, match=r"by the folders of its files, .*train \(1\) and val \(2"
    ):
        _list(source)
    listed = _list(source, split="train")
    assert (listed.labels, listed.rejected) == ({"train/a.jpg": 0}, {})
    listed = _list(source, split="val")
    assert (listed.labels, set(listed.rejected)) == (
        {"val/b.jpg": 1},
        {"val/gone.jpg", "val/unlisted.jpg"},
    )
    assert len(_list(source, all_splits=True).labels) == 2


def _parquet(path: Path, split: list[object] | None, column: str = "split") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = 2 if split is None else len(split)
    columns = {"image": [_JPEG] * rows, "label": list(range(rows))}
    if split is not None:
        columns[column] = split
    write_parquet(path, columns)
    return path


@pytest.mark.parametrize(
    ("files", "column"),
    [
        ({"0": ["train", "test", "train"]}, "split"),
        ({"0": ["train", "train"], "1": ["test"]}, "partition"),
        ({"0": [True, True], "1": [False]}, "is_train"),
    ],
)
def test_rows_of_parquet_files_have_splits_too(
    tmp_path: Path, files: dict[str, list[object]], column: str
) -> None:
    source = tmp_path / "src"
    for name, split in files.items():
        _parquet(source / f"{name}.parquet", split, column)
    with pytest.raises(ConfigError, match=rf"src, by its column {column}, has rows of several spl"):
        recognise(str(source))
    spec = recognise(str(source), split="train")
    lists = [list_container(spec, tmp_path / "w", number) for number in range(len(files))]
    assert sum(len(listed.items) for listed in lists) == 2
    assert "is packed: 2 of 3 rows, of " in spec.notes[0]
    assert recognise(str(source), all_splits=True).split == ""


def test_files_of_the_chosen_split_may_hold_rows_of_others(tmp_path: Path) -> None:
    for name, split in (("train-0", ["train", "test"]), ("val-0", ["val"])):
        _parquet(tmp_path / f"src/{name}.parquet", [*split])
    for location in (tmp_path / "src", tmp_path / "src/train-0.parquet"):
        spec = recognise(str(location), split="train")
        assert list(list_container(spec, tmp_path / "work").labels.values()) == [0]
    spec = recognise(str(tmp_path / "src"), split="val")
    assert len(list_container(spec, tmp_path / "work").items) == 1


def test_parquet_files_without_several_splits_are_not_asked_about(tmp_path: Path) -> None:
    spec = recognise(str(_parquet(tmp_path / "x.parquet", ["train", "train"])))
    assert (spec.split, len(list_container(spec, tmp_path / "work").items)) == ("", 2)
    assert spec.notes[0].endswith("has rows of one split: train (2)")
    assert recognise(str(_parquet(tmp_path / "y.parquet", ["A", "B"], "set"))).notes == ()
    plain = _parquet(tmp_path / "z.parquet", None)
    assert recognise(str(plain)).notes == ()
    with pytest.raises(ConfigError, match="parquet has no splits, neither its files nor a column"):
        recognise(str(plain), split="train")
    assert path_from_text(spec.containers[0]).name == "x.parquet"
