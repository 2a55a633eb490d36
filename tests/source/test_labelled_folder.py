"""A folder of images with a file of labels: which rows and files belong together, which do not."""

import json
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ConfigError, DatasetError
from feeder.source.item_bytes import SourceError
from feeder.source.labelled_folder import LabelledFolder
from feeder.source.location.storage import stamp_path
from feeder.source.raw_labels import Form
from tests.source.listings import JPEG, Listed, list_one, put, spec_of

NAMES = ("a.jpg", "b.png", "deep/c.jpg")
ROWS = dict(zip(NAMES, (3, 1, 0), strict=True))
_PAIRS = ROWS.items()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return put(tmp_path / "source", " ".join(NAMES))


def list_with(source: Path, text: str, name: str = "labels.csv", **options: Any) -> Listed:
    labels_file = str(put(source, {name: text}) / name)
    return list_one("labelled-folder", source, labels_file=labels_file, **options)


def in_line(number: int, reason: str) -> str:
    return f"listed in labels.csv line {number}, but {reason}"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", "file,label\n" + "".join(f"{file},{n}\n" for file, n in _PAIRS)),
        ("labels.csv", "".join(f"{file};{label}\r\n" for file, label in _PAIRS)),
        ("labels.tsv", "label\tpath\n" + "".join(f"{n}\t{file}\n" for file, n in _PAIRS)),
        ("val.txt", "".join(f"{file} {label}\n" for file, label in _PAIRS)),
        ("labels.json", json.dumps(ROWS)),
        ("labels.json", json.dumps({file: {"label": n} for file, n in _PAIRS}, indent=1)),
        ("labels.json", json.dumps([{"image": file, "class": n} for file, n in _PAIRS])),
        ("dataset.json", json.dumps({"labels": [*ROWS.items()]})),
        ("m.jsonl", "\n".join(json.dumps({"file_name": file, "y": n}) for file, n in _PAIRS)),
    ],
)
def test_every_format_gives_the_same_labels(source: Path, name: str, text: str) -> None:
    listed = list_with(source, text, name)
    assert (listed.labels, listed.rejected, listed.facts.notes) == (ROWS, {}, ())
    assert (listed.facts.hidden, listed.forms) == (0, {Form.NUMBER})
    assert listed.items["a.jpg"].size_bytes == len(JPEG)
    assert listed.stamps["a.jpg"] == stamp_path(source / "a.jpg")
    folder = LabelledFolder(spec_of("labelled-folder", source))
    assert folder.read_item(listed.items["deep/c.jpg"]) == JPEG
    (source / "a.jpg").unlink()
    with pytest.raises(SourceError, match="unreadable: no such file"):
        folder.read_item(listed.items["a.jpg"])


def test_rows_without_a_file_and_images_without_a_row_are_rejected(source: Path) -> None:
    put(source, "d.jpg deep/e.heic noname .hidden.jpg")
    put(source, {"readme.md": b"", "empty": b""})
    listed = list_with(source, "file,label\na.jpg,1\ngone.jpg,2\n../out.jpg,0\nb.png,0\n")
    assert listed.labels == {"a.jpg": 1, "b.png": 0}
    no_row = ("no-label", "labels.csv has no row for it")
    assert listed.rejected == {
        "gone.jpg": ("unreadable", in_line(3, "there is no such file in the source")),
        "../out.jpg": ("unreadable", in_line(4, "there is no such file in the source")),
        **dict.fromkeys(("d.jpg", "deep/c.jpg", "deep/e.heic", "noname"), no_row),
    }
    assert listed.facts.hidden == 1
    assert listed.facts.notes == ("left out 2 files: no images, and not in labels.csv",)
    listed = list_with(source, ".hidden.jpg,1\n")
    assert listed.labels == {".hidden.jpg": 1}, "a row lists it"


def test_a_file_listed_twice_counts_once_unless_its_labels_differ(source: Path) -> None:
    rows = "a.jpg,1 b.png,2 ./a.jpg,1 b.png,2 b.png,3 deep/../deep/c.jpg,0 b.png,2"
    listed = list_with(source, "\n".join(("file,label", *rows.split())))
    assert listed.labels == {"a.jpg": 1, "deep/c.jpg": 0}
    reason = "it has another label in line 6 (--label-kind multi takes all)"
    assert listed.rejected == {"b.png": ("two-labels", in_line(3, reason))}
    assert listed.facts.notes == ("labels.csv lists 2 files more than once",)
    listed = list_with(source, '{"a.jpg": 1, "b.png": 2, "a.jpg": 3, "deep/c.jpg": 0}', "x.json")
    assert listed.labels == {"b.png": 2, "deep/c.jpg": 0}
    assert "it has another label in entry 3" in listed.rejected["a.jpg"][1]


def test_a_row_for_each_label_gives_all_of_them(source: Path) -> None:
    text = "file,label,score\na.jpg,x,1\nb.png,y,1.0\na.jpg,z,1\na.jpg,x,1\nb.png,y,1\n"
    listed = list_with(source, text, label="label", label_kind="multi")
    assert listed.labels == {"a.jpg": ["x", "z"], "b.png": ["y"]}
    options = {"label": "label", "label_kind": "multi"}
    with pytest.raises(ConfigError, match=r"a confidence that is not always 1 \(line 5: 0.3\): ta"):
        list_with(source, text.replace("x,1\nb.png,y,1\n", "x,0.3\n"), **options)
    rows = [{"file": "a.jpg", "label": each, "score": 0 if each == "z" else 1} for each in "xz"]
    with pytest.raises(ConfigError, match=r"not always 1 \(line 2: 0\)"):
        list_with(source, "\n".join(map(json.dumps, rows)), "x.jsonl", **options)


def test_rows_that_cannot_be_read_are_rejected_with_their_line(source: Path) -> None:
    put(source, "d.jpg")
    listed = list_with(source, 'file,label\na.jpg,1\n,5\nb.png\n\nd.jpg,1,2\n"deep/c.jpg",\n')
    assert listed.labels == {"a.jpg": 1}
    assert listed.rejected == {
        "labels.csv:3": ("bad-row", in_line(3, "it names no file")),
        "b.png": ("bad-row", in_line(4, "it has 1 cells, the first line 2")),
        "d.jpg": ("bad-row", in_line(6, "it has 3 cells, the first line 2")),
        "deep/c.jpg": ("no-label", in_line(7, "it has no label")),
    }


@pytest.mark.parametrize(
    "names",
    [
        "a b deep/c",
        "./a.jpg x/../b.png deep//c.jpg",
        "a.jpg b.png deep\\c.jpg",
        "source/a.jpg source/b.png source/deep/c.jpg",
        "{root}/a.jpg {root}/b.png {root}/deep/c.jpg",
    ],
)
def test_names_are_found_however_they_are_spelt(source: Path, names: str) -> None:
    labels = source.with_name("labels.csv")  # beside the folder
    spelt = names.format(root=source).split()
    labels.write_text("\n".join(["name,label", *(f"{name},{n}" for n, name in enumerate(spelt))]))
    listed = list_one("labelled-folder", source, labels_file=str(labels))
    assert (listed.labels, listed.rejected) == ({"a.jpg": 0, "b.png": 1, "deep/c.jpg": 2}, {})


def test_several_columns_are_a_vector_or_a_class_each(source: Path) -> None:
    text = "file,x,y,z\na.jpg,1,2.5,0\nb.png,-1,0,1e3\ndeep/c.jpg,0,zero,\n"
    listed = list_with(source, text, label="x,z", label_kind="float")
    assert listed.labels == {"a.jpg": [1.0, 0.0], "b.png": [-1.0, 1000.0]}
    assert listed.rejected["deep/c.jpg"] == ("bad-label", in_line(4, "its label '' is no number"))
    text = "image_id,is_cat,is_dog,is_none\na.jpg,1,0,-1\nb.png,1,1,0\ndeep/c.jpg,2,0,0\n"
    listed = list_with(source, text, label="is_*", label_kind="multi", uncertain="no")
    assert listed.labels == {"a.jpg": ["is_cat"], "b.png": ["is_cat", "is_dog"]}
    assert (listed.facts.texts, listed.facts.by_name) == (("is_cat", "is_dog", "is_none"), True)
    reason = in_line(4, "its label '2' in column 'is_cat' is not 0 or 1")
    assert listed.rejected["deep/c.jpg"] == ("bad-label", reason)
    with pytest.raises(ConfigError, match="--label names 3 columns: give --label-kind float"):
        list_with(source, text, label="is_*")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x.csv", "file,label\n", "x.csv has no rows"),
        ("x.csv", "file,label\nx.jpg,1\n", r"none of the files .* x.jpg \(line 2\): give the"),
        ("x.csv", 'file,label\na.jpg,1\n"b.png,2\n', r"line 3 of .* is no CSV"),
        ("x.json", '{"a.jpg": 1', r"x.json is no JSON: .* line 1"),
        ("x.json", "[" * 100_000, "x.json is no JSON"),
        ("x.jsonl", "nothing\n", "line 1 of .* is no JSON object"),
    ],
)
def test_files_that_hold_no_labels_of_the_folder_are_refused(
    source: Path, name: str, text: str, problem: str
) -> None:
    with pytest.raises(DatasetError, match=problem):
        list_with(source, text, name)


def test_without_labels_every_image_is_listed(source: Path) -> None:
    put(source, "noname .hidden.jpg")
    put(source, {"notes.txt": b"x", "broken.jpg": b"x"})
    listed = list_one("labelled-folder", source, label_kind="none")
    assert listed.labels == dict.fromkeys((*NAMES, "broken.jpg", "noname"))
    assert (listed.facts.hidden, listed.forms) == (1, {Form.NONE})
    assert listed.facts.notes == ("left out 1 file: not images by their names or content",)
    with pytest.raises(ConfigError, match="name their file with --labels, or give --label-kind no"):
        list_one("labelled-folder", source)
    with pytest.raises(DatasetError, match="empty holds no images"):
        list_one("labelled-folder", put(source / "empty", {}), label_kind="none")
