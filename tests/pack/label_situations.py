"""Small sources whose labels could be misread, and what is right: the table of test_label_table.

A situation is written as every kind of source that can hold it. ``why`` says where the right value
comes from: what the format's writer means, another library's behaviour, or the rule that what could
be read in two ways is an error.
"""

import csv
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.source.tf_writer import encode_example, frame
from tests.support.sources import encoded, image, write_parquet

TABLES = ("csv", "tsv", "jsonl", "json")
TYPED = ("jsonl", "json", "wds-json", "tfrecord", "parquet", "samples")
"""Kinds whose values have types: lists, numbers, texts."""
TEXTS = ("jsonl", "json", "wds-cls", "wds-txt", "tfrecord", "parquet", "samples")


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Labels of images, and how they must be read: as ``labels`` and ``line``, or not at all."""

    title: str
    why: str
    kinds: Sequence[str]
    raw: Sequence[Any]
    """The labels, an image each."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the source: label_kind, label_base, uncertain."""
    classes: tuple[str, ...] = ()
    labels: Sequence[Any] | None = None
    """A number, a list of classes or of floats for each image; None: it is left out."""
    line: str = ""
    """The beginning of the summary's line."""
    error: str = ""
    """A pattern in the one line of an error."""
    warning: str = ""


def _repeat(values: Sequence[Any], count: int) -> list[Any]:
    return [values[number % len(values)] for number in range(count)]


TWELVE = _repeat(range(12), 24)
HOT = [[1, 0, 0, 1, 0], [0, 1, 0, 0, 1], [0, 0, 1, 1, 0], [1, 1, 0, 0, 0]]
HOT_CLASSES = [[0, 3], [1, 4], [2, 3], [0, 1]]
ONE_HOT = [[0, 0, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
BOTH = "the rule: it could be read in two ways"

SITUATIONS = (
    Situation(
        title="whole numbers",
        why="class numbers from 0, as DataLoaders of all frameworks give them",
        kinds=(*TABLES, "wds-cls", "wds-json", "tfrecord", "parquet", "samples"),
        raw=[2, 0, 1, 2],
        classes=("0", "1", "2"),
        labels=[2, 0, 1, 2],
        line="3 classes by number",
    ),
    Situation(
        title="numbers written as text",
        why="a number in quotes is the same number: 2 is class 2 and not the fifth name",
        kinds=TEXTS,
        raw=[str(each) for each in TWELVE],
        classes=tuple(map(str, range(12))),
        labels=TWELVE,
        line="12 classes by number",
    ),
    Situation(
        title="numbers, one of them NA",
        why="pandas' NA is a missing value; the other 23 labels do not change their meaning",
        kinds=("csv", "tsv", *TEXTS),
        raw=[*map(str, TWELVE[:-1]), "NA"],
        classes=tuple(map(str, range(12))),
        labels=[*TWELVE[:-1], None],
        line="12 classes by number",
    ),
    *(
        Situation(
            title=f"numbers, one of them {word or 'blank'}",
            why="what tables of pandas, R, Excel and UCI write for a missing value",
            kinds=("csv",),
            raw=[*map(str, TWELVE[:-1]), word],
            classes=tuple(map(str, range(12))),
            labels=[*TWELVE[:-1], None],
            line="12 classes by number",
        )
        for word in ("NaN", "?", "None", "", "null", "N/A")
    ),
    Situation(
        title="names",
        why="sorted as torchvision.datasets.folder.find_classes sorts the names of folders",
        kinds=(*TABLES, "wds-txt", "wds-cls", "tfrecord", "parquet", "samples"),
        raw=["cat", "ant", "cat", "bee"],
        classes=("ant", "bee", "cat"),
        labels=[2, 0, 2, 1],
        line="3 classes by name",
    ),
    Situation(
        title="names with blanks around them",
        why="CSV readers strip them; a class that differs by a blank is a slip in every format",
        kinds=("csv", "jsonl", "wds-txt", "parquet", "tfrecord", "samples"),
        raw=["cat ", "cat", " ant", "ant"],
        classes=("ant", "cat"),
        labels=[1, 1, 0, 0],
        line="2 classes by name",
    ),
    Situation(
        title="folders called 0 to 11",
        why="torchvision.datasets.ImageFolder sorts folders as text: 10 comes before 2",
        kinds=("folder",),
        raw=[str(each) for each in TWELVE],
        classes=("0", "1", "10", "11", *"23456789"),
        labels=[("0", "1", "10", "11", *"23456789").index(str(each)) for each in TWELVE],
        line='12 classes by folder name, "10" before "2"',
    ),
    Situation(
        title="names with leading zeros",
        why="007 is no way to write a number: codes of one length are names, in one order",
        kinds=("csv", "jsonl", "wds-cls", "parquet"),
        raw=["007", "010", "123", "007"],
        classes=("007", "010", "123"),
        labels=[0, 1, 2, 0],
        line="3 classes by name",
    ),
    Situation(
        title="whole numbers written as decimals",
        why=BOTH + ": pandas writes class numbers so where one is missing, and values always",
        kinds=("csv", "wds-cls", "parquet", "jsonl", "samples"),
        raw=[0.0, 1.0, 2.0],
        error="whole numbers written as decimals .*--label-kind index if they are classes, float",
    ),
    Situation(
        title="numbers of 19 digits",
        why="identifiers: they are no floats, which would make different ones equal",
        kinds=("csv", "jsonl", "parquet", "samples", "wds-cls"),
        raw=[1234567890123456789, 1234567890123456790],
        error="class number 1,234,567,890,123,456,790 is too large.*--label-kind name",
    ),
    Situation(
        title="rows of 0 and 1, several in a row",
        why="issue 33: [1,0,0,1,0] over five classes are the classes 0 and 3",
        kinds=("csv", *TYPED),
        raw=HOT,
        classes=tuple("01234"),
        labels=HOT_CLASSES,
        line="any of 5 classes from multi-hot rows of 5 numbers",
    ),
    Situation(
        title="rows of 0 and 1, one in a row",
        why="keras.utils.to_categorical and pandas.get_dummies write one class each so",
        kinds=("csv", *TYPED),
        raw=ONE_HOT,
        classes=("0", "1", "2"),
        labels=[2, 0, 1, 2],
        line="3 classes from one-hot rows of 3 numbers",
    ),
    Situation(
        title="rows with -1 for uncertain",
        why="CheXpert's -1 is neither yes nor no; the rule asks",
        kinds=("jsonl", "parquet", "samples"),
        raw=[[1, 0, -1], [0, 1, 1], [0, 0, 1]],
        error="-1 beside 0 and 1 .*--uncertain no, yes or leave-out",
    ),
    Situation(
        title="rows with null, left out",
        why="--uncertain leave-out: CheXpert's U-ignore",
        kinds=("jsonl", "parquet"),
        raw=[[1, 0, None], [0, 1, 1], [0, 0, 1]],
        options={"uncertain": "leave-out"},
        classes=("0", "1", "2"),
        labels=[None, [1, 2], [2]],
        line="any of 3 classes from multi-hot rows",
    ),
    Situation(
        title="rows of several, one of them without a 1",
        why="an image of no class, as in NUS-WIDE; and it is said",
        kinds=("jsonl", "parquet", "tfrecord"),
        raw=[*HOT, [0, 0, 0, 0, 0]],
        classes=tuple("01234"),
        labels=[*HOT_CLASSES, []],
        line="any of 5 classes from multi-hot rows of 5 numbers, 1 row without a 1",
    ),
    Situation(
        title="rows of 0.0 and 1.0",
        why=BOTH + ": targets of BCEWithLogitsLoss, or one-hot classes",
        kinds=("jsonl", "parquet", "tfrecord", "samples"),
        raw=[[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]],
        error="rows of 0.0 and 1.0 .*--label-kind float if they are values, one-hot",
    ),
    Situation(
        title="lists of classes",
        why="MS-COCO's categories of an image: numbers of classes, each once",
        kinds=TYPED,
        raw=[[0, 3], [2, 0, 1], [4, 3]],
        classes=tuple("01234"),
        labels=[[0, 3], [0, 1, 2], [3, 4]],
        line="any of 5 classes from lists, by number",
    ),
    Situation(
        title="lists of names",
        why="tags: sorted as all names are",
        kinds=TYPED,
        raw=[["dog", "ant"], ["bee", "dog", "cow"], ["ant", "bee"]],
        classes=("ant", "bee", "cow", "dog"),
        labels=[[0, 3], [1, 2, 3], [0, 1]],
        line="any of 4 classes from lists, by name",
    ),
    Situation(
        title="values",
        why="regression: numbers that are not whole",
        kinds=("csv", "jsonl", "parquet", "tfrecord", "samples", "json"),
        raw=[0.5, -2.25, 3.0],
        labels=[[0.5], [-2.25], [3.0]],
        line="a number for each image",
    ),
    Situation(
        title="classes from 1 on",
        why="--label-base 1 says so",
        kinds=("csv", "jsonl", "wds-cls", "parquet"),
        raw=["1", "2", "3", "0"],
        options={"label_base": 1},
        classes=("0", "1", "2"),
        labels=[0, 1, 2, None],
        line="3 classes by number from 1 on",
    ),
    Situation(
        title="numbers of which none is 0",
        why="numbers count from 0 until --label-base says otherwise, and it is said",
        kinds=("csv", "parquet"),
        raw=[1, 2, 3, 1],
        classes=tuple("0123"),
        labels=[1, 2, 3, 1],
        line="4 classes by number from 0 on; no image has class 0 (--label-base 1 if",
    ),
    Situation(
        title="a caption for each image",
        why="issue 33: a class for every image is said loudly",
        kinds=("csv", "wds-txt", "parquet"),
        raw=[f"a photo of {number} cats" for number in range(20)],
        classes=tuple(sorted(f"a photo of {number} cats" for number in range(20))),
        labels=None,
        line="20 classes by name",
        warning="20 images have 20 different labels.*nearly a class for each image",
    ),
    Situation(
        title="a class called None",
        why="kept, as the others are names; and said, because tables write it for no label",
        kinds=("csv", "jsonl", "parquet"),
        raw=["cat", "None", "dog", "cat"],
        classes=("None", "cat", "dog"),
        labels=[1, 0, 2, 1],
        line="3 classes by name",
        warning="a class is called None, which stands for no label in many tables",
    ),
    Situation(
        title="a row of digits in one cell, said to be several",
        why="--label-kind multi splits the cell, and rows of 0 and 1 are what they always are",
        kinds=("csv",),
        raw=["1 0 0 1 0", "0 1 0 0 1", "1 1 0 0 0"],
        options={"label_kind": "multi"},
        classes=tuple("01234"),
        labels=[[0, 3], [1, 4], [0, 1]],
        line="any of 5 classes from multi-hot rows of 5",
    ),
    Situation(
        title="a column for each class, -1 and blanks",
        why="CheXpert-v1.0's train.csv: 1.0, 0.0, -1.0 and blanks; the rule asks",
        kinds=("columns",),
        raw=[["1.0", "0.0", "-1.0"], ["0.0", "1.0", "1.0"]],
        options={"label_kind": "multi", "label": "is_*"},
        error="column is_2 of .*labels.csv has -1.0 beside 0 and 1: give --uncertain no, yes or",
    ),
    Situation(
        title="a column for each class, -1 and blanks are no",
        why="CheXpert's U-zeros; a blank is a finding that the report does not mention",
        kinds=("columns",),
        raw=[["1.0", "", "-1.0"], ["0.0", "1.0", "1.0"]],
        options={"label_kind": "multi", "label": "is_*", "uncertain": "no"},
        classes=("is_0", "is_1", "is_2"),
        labels=[[0], [1, 2]],
        line="any of 3 classes from lists, by name",
    ),
    Situation(
        title="a column for each class, of 1 and -1",
        why="CelebA's list_attr_celeba: -1 is no where nothing is 0",
        kinds=("columns",),
        raw=[["1", "-1", "-1"], ["-1", "1", "1"]],
        options={"label_kind": "multi", "label": "is_*"},
        classes=("is_0", "is_1", "is_2"),
        labels=[[0], [1, 2]],
        line="any of 3 classes from lists, by name (columns is_0, is_1, is_2 of labels.csv)",
    ),
    Situation(
        title="a row for each label of an image",
        why="OpenImages' image-level labels: an image has all labels of its rows",
        kinds=("long",),
        raw=[
            [("cat", "1"), ("dog", "1")],
            [("dog", "1")],
            [("ant", "1"), ("dog", "1"), ("dog", "1")],
        ],
        options={"label_kind": "multi", "label": "label"},
        classes=("ant", "cat", "dog"),
        labels=[[1, 2], [2], [0, 2]],
        line="any of 3 classes from lists, by name",
    ),
    Situation(
        title="a row for each label, some with confidence 0",
        why="OpenImages: confidence 0 says that a label was found to be wrong",
        kinds=("long",),
        raw=[[("cat", "1"), ("dog", "0")], [("dog", "1")]],
        options={"label_kind": "multi", "label": "label"},
        error="a confidence that is not always 1 .line 3: 0.: take out",
    ),
    Situation(
        title="classes by Hugging Face's ClassLabel",
        why="datasets.ClassLabel: the names in the file, also of classes without images",
        kinds=("class-label",),
        raw=[2, 0, 2],
        classes=("cat", "dog", "bird"),
        labels=[2, 0, 2],
        line="3 classes by number (column label)",
    ),
    Situation(
        title="a class that the ClassLabel does not declare",
        why="issue 33: no name is invented",
        kinds=("class-label",),
        raw=[2, 0, 5],
        error="class 5 is not among the 3 classes that .*x.parquet declares .cat, dog, bird.",
    ),
)


def _jpeg(number: int) -> bytes:
    return encoded(image(24, 16, seed=number))


def _images(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:02d}.jpg").write_bytes(_jpeg(number))
    return folder


def _table(folder: Path, raw: Sequence[Any], name: str, delimiter: str) -> Path:
    _images(folder, len(raw))
    with (folder / name).open("w", newline="") as file:
        rows = csv.writer(file, delimiter=delimiter)
        rows.writerow(("file", "label"))
        rows.writerows(
            (f"{number:02d}.jpg", json.dumps(label) if isinstance(label, list) else label)
            for number, label in enumerate(raw)
        )
    return folder


def _columns(folder: Path, raw: Sequence[Any]) -> Path:
    _images(folder, len(raw))
    rows = [["file", *(f"is_{number}" for number in range(len(raw[0])))]]
    rows += [[f"{number:02d}.jpg", *label] for number, label in enumerate(raw)]
    (folder / "labels.csv").write_text("\n".join(map(",".join, rows)))
    return folder


def _long(folder: Path, raw: Sequence[Any]) -> Path:
    _images(folder, len(raw))
    rows = [f"{n:02d}.jpg,{name},{sure}" for n, names in enumerate(raw) for name, sure in names]
    (folder / "labels.csv").write_text("\n".join(["file,label,Confidence", *rows]))
    return folder


def _class_label(folder: Path, raw: Sequence[Any]) -> Path:
    feature = {"_type": "ClassLabel", "names": ["cat", "dog", "bird"]}
    described = json.dumps({"info": {"features": {"label": feature}}})
    return _parquet(folder, raw, metadata={"huggingface": described})


def _jsonl(folder: Path, raw: Sequence[Any]) -> Path:
    _images(folder, len(raw))
    lines = [json.dumps({"file": f"{n:02d}.jpg", "label": label}) for n, label in enumerate(raw)]
    (folder / "labels.jsonl").write_text("\n".join(lines))
    return folder


def _json(folder: Path, raw: Sequence[Any]) -> Path:
    _images(folder, len(raw))
    labels = {f"{number:02d}.jpg": label for number, label in enumerate(raw)}
    (folder / "labels.json").write_text(json.dumps(labels))
    return folder


def _folder(folder: Path, raw: Sequence[Any]) -> Path:
    for number, label in enumerate(raw):
        (folder / label).mkdir(parents=True, exist_ok=True)
        (folder / label / f"{number:02d}.jpg").write_bytes(_jpeg(number))
    return folder


def _tar(extension: str, encode: Callable[[Any], str]) -> Callable[[Path, Sequence[Any]], Path]:
    def write(folder: Path, raw: Sequence[Any]) -> Path:
        folder.mkdir()
        with tarfile.open(folder / "x.tar", "w") as tar:
            for number, label in enumerate(raw):
                for suffix, data in (("jpg", _jpeg(number)), (extension, encode(label).encode())):
                    member = tarfile.TarInfo(f"{number:02d}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
        return folder / "x.tar"

    return write


def _tfrecord(folder: Path, raw: Sequence[Any]) -> Path:
    folder.mkdir()
    with (folder / "x.tfrecord").open("wb") as file:
        for number, label in enumerate(raw):
            values = label if isinstance(label, list) else [label]
            kind = {str: "bytes", float: "float", int: "int64"}[type(values[0])]
            stored = [each.encode() for each in values] if kind == "bytes" else values
            features: list[Any] = [
                (b"image/encoded", ("bytes", [_jpeg(number)])),
                (b"image/filename", ("bytes", [f"{number:02d}.jpg".encode()])),
                (b"label", (kind, stored)),
            ]
            file.write(frame(encode_example(features)))
    return folder / "x.tfrecord"


def _parquet(folder: Path, raw: Sequence[Any], **options: Any) -> Path:
    folder.mkdir()
    images = [{"bytes": _jpeg(number), "path": f"{number:02d}.jpg"} for number in range(len(raw))]
    write_parquet(folder / "x.parquet", {"image": images, "label": list(raw)}, **options)
    return folder / "x.parquet"


WRITERS: dict[str, Callable[[Path, Sequence[Any]], Path]] = {
    "csv": lambda folder, raw: _table(folder, raw, "labels.csv", ","),
    "tsv": lambda folder, raw: _table(folder, raw, "labels.tsv", "\t"),
    "jsonl": _jsonl,
    "json": _json,
    "folder": _folder,
    "wds-cls": _tar("cls", str),
    "wds-txt": _tar("txt", str),
    "wds-json": _tar("json", lambda label: json.dumps({"label": label})),
    "tfrecord": _tfrecord,
    "parquet": _parquet,
    "columns": _columns,
    "long": _long,
    "class-label": _class_label,
}


def samples(raw: Sequence[Any]) -> list[tuple[str, bytes, Any]]:
    """Return what ``feeder.pack_samples`` takes."""
    return [(f"{number:02d}.jpg", _jpeg(number), label) for number, label in enumerate(raw)]
