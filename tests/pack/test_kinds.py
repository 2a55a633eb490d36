"""Every kind of source: the same images and labels give the same samples, by one rule."""

import csv
import gzip
import io
import json
import re
import subprocess
import tarfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import feeder
from feeder.cli.pack import format_summary
from feeder.dataset.opened import Dataset
from feeder.errors import FeederError
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset
from tests.source.tf_writer import encode_datum, encode_example, frame
from tests.support.sources import (
    encoded,
    feeder_command,
    image,
    pack,
    run_inline,
    write_lmdb,
    write_parquet,
)


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pack in this process, into a file system that need not be durable."""
    run_inline(monkeypatch, "pack.run")
    monkeypatch.setattr("os.fsync", lambda _: None)


# Writers of every kind of source


def _jpeg(number: int) -> bytes:
    return encoded(image(24, 16, seed=number))


def _images(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:02d}.jpg").write_bytes(_jpeg(number))
    return folder


def _csv(folder: Path, raw: Sequence[Any]) -> Path:
    _images(folder, len(raw))
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("file", "label"))
        rows.writerows(
            (f"{number:02d}.jpg", json.dumps(label) if isinstance(label, list) else label)
            for number, label in enumerate(raw)
        )
    return folder


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


def _parquet(folder: Path, raw: Sequence[Any]) -> Path:
    folder.mkdir()
    images = [{"bytes": _jpeg(number), "path": f"{number:02d}.jpg"} for number in range(len(raw))]
    write_parquet(folder / "x.parquet", {"image": images, "label": list(raw)})
    return folder / "x.parquet"


def _lmdb(folder: Path, raw: Sequence[Any]) -> Path:
    """Numbers in Datums, names as the folders of keys."""
    folder.mkdir()
    values = {}
    for number, label in enumerate(raw):
        if isinstance(label, str):
            values[f"{label}/{number:02d}.jpg".encode()] = _jpeg(number)
        else:
            values[f"{number:02d}.jpg".encode()] = encode_datum(_jpeg(number), label)
    return write_lmdb(folder / "data.mdb", values).parent


WRITERS: dict[str, Callable[[Path, Sequence[Any]], Path]] = {
    "csv": _csv,
    "jsonl": _jsonl,
    "json": _json,
    "folder": _folder,
    "wds-cls": _tar("cls", str),
    "wds-txt": _tar("txt", str),
    "wds-json": _tar("json", lambda label: json.dumps({"label": label})),
    "tfrecord": _tfrecord,
    "parquet": _parquet,
    "lmdb": _lmdb,
}


# Labels, as each kind of source that can hold them


TYPED = ("jsonl", "json", "wds-json", "tfrecord", "parquet", "samples")
"""Kinds whose values have types: lists, numbers, texts."""


class Situation(NamedTuple):
    """Labels of images, and how they must be read: as ``labels`` and ``line``, or not at all."""

    kinds: Sequence[str]
    raw: Sequence[Any]
    """The labels, an image each."""
    line: str
    """The beginning of the summary's line; of an error, a pattern in it."""
    classes: str = ""
    labels: Sequence[Any] | None = None
    """A number, a list of classes or of floats for each image; None: it is left out."""
    options: dict[str, Any] = {}  # noqa: RUF012
    """Of the source: label_kind, label_base, uncertain."""
    warning: str = ""


SITUATIONS = {
    "numbers": Situation(
        ("wds-cls", *TYPED),
        [2, 0, 1, 2],
        "3 classes by number",
        "0 1 2",
        [2, 0, 1, 2],
    ),
    "numbers as text, one missing": Situation(
        ("csv", "wds-txt", "jsonl", "tfrecord", "parquet"),
        ["2", "0", *"1111111111", "NA"],
        "3 classes by number",
        "0 1 2",
        [2, 0, *[1] * 10, None],
    ),
    "names with blanks around them": Situation(
        ("csv", "jsonl", "wds-txt", "parquet", "tfrecord", "samples"),
        ["cat ", "cat", " ant"],
        "2 classes by name",
        "ant cat",
        [1, 1, 0],
    ),
    # as torchvision.datasets.ImageFolder sorts them
    "folders called by numbers": Situation(
        ("folder",),
        ["2", "10", "0"],
        '3 classes by folder name, "10" before "2"',
        "0 10 2",
        [2, 1, 0],
    ),
    "numbers in Datums": Situation(
        ("lmdb",),
        [2, 0, 1, 2],
        "3 classes by number",
        "0 1 2",
        [2, 0, 1, 2],
    ),
    "folders in keys, called by numbers": Situation(
        ("lmdb",),
        ["2", "10", "0"],
        '3 classes by name, "10" before "2"',
        "0 10 2",
        [2, 1, 0],
    ),
    "whole numbers as decimals": Situation(
        ("csv", "wds-cls", "parquet", "samples"),
        [0.0, 1.0, 2.0],
        "whole numbers written as decimals .*--label-kind index if they are classes, float",
    ),
    "rows of 0 and 1": Situation(
        ("csv", *TYPED),
        [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]],
        "any of 4 classes from multi-hot rows of 4 numbers",
        "0 1 2 3",
        [[0, 3], [1], [2, 3]],
    ),
    "rows with null, left out": Situation(
        ("jsonl", "parquet", "samples"),
        [[1, 0, None], [0, 1, 1], [0, 0, 1]],
        "any of 3 classes from multi-hot rows",
        "0 1 2",
        [None, [1, 2], [2]],
        {"uncertain": "leave-out"},
    ),
    "lists of names": Situation(
        TYPED,
        [["dog", "ant"], ["bee", "dog"], ["ant", "bee"]],
        "any of 3 classes from lists, by name",
        "ant bee dog",
        [[0, 2], [1, 2], [0, 1]],
    ),
    "values": Situation(
        ("csv", *TYPED),
        [0.5, -2.25, 3.0],
        "a number for each image",
        "",
        [[0.5], [-2.25], [3.0]],
    ),
    "classes from 1 on": Situation(
        ("csv", "jsonl", "wds-cls", "parquet"),
        ["1", "2", "3", "0"],
        "3 classes by number from 1 on",
        "0 1 2",
        [0, 1, 2, None],
        {"label_base": 1},
    ),
    "numbers of which none is 0": Situation(
        ("csv",),
        [1, 2, 3, 1],
        "4 classes by number from 0 on; no image has class 0 (--label-base 1 if",
        "0 1 2 3",
        [1, 2, 3, 1],
    ),
    "a class for each image": Situation(
        ("wds-txt",),
        [f"cat{number:02}" for number in range(20)],
        "20 classes by name",
        " ".join(f"cat{number:02}" for number in range(20)),
        [*range(20)],
        warning="20 images have 20 different labels.*nearly a class for each image",
    ),
    "a class called None": Situation(
        ("csv",),
        ["cat", "None", "dog", "cat"],
        "3 classes by name",
        "None cat dog",
        [1, 0, 2, 1],
        warning="a class is called None, which stands for no label in many tables",
    ),
}


def _pack(situation: Situation, kind: str, folder: Path) -> tuple[str, str]:
    """Return the summary's line about labels, and all that was noted."""
    noted = io.StringIO()
    if kind == "samples":
        options = situation.options
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            packed = feeder.pack_samples(
                [(f"{n:02}.jpg", _jpeg(n), label) for n, label in enumerate(situation.raw)],
                folder / "packed",
                labels=options.get("label_kind"),
                uncertain=options.get("uncertain"),
                max_bad="100%",
                jobs=1,
            )
        return f"  labels: {packed.labels_read}", " ".join(str(each.message) for each in caught)
    source = WRITERS[kind](folder / "source", situation.raw)
    label = {"label": "label"} if kind == "tfrecord" else {}
    choices = {**situation.options, **label}
    summary = pack_dataset(
        source,
        folder / "packed",
        PackOptions(max_bad="100%", reading=choices),
        ProgressLine(noted),
    )
    lines = format_summary(folder / "packed", summary)
    return next(line for line in lines if line.startswith("  labels: ")), noted.getvalue()


def _labels(dataset: Dataset) -> dict[int, Any]:
    """Return the label of each image that was packed, by its number."""
    ids = np.arange(dataset.layout.samples)
    rows = np.empty((len(ids), *dataset.labels.row_shape), dataset.labels.dtype)
    dataset.read_labels(ids, dataset.read_records(ids), rows)
    found = {}
    for number in ids.tolist():
        row = rows[number]
        name = re.search(r"(\d\d)\.jpg$", str(dataset.name_of(number)))
        assert name is not None
        multi = dataset.labels.kind == "multi"
        found[int(name[1])] = np.flatnonzero(row).tolist() if multi else row.tolist()
    return found


@pytest.mark.parametrize("title", SITUATIONS)
def test_labels_are_read_as_they_are_meant_from_every_kind(title: str, tmp_path: Path) -> None:
    situation = SITUATIONS[title]
    for kind in situation.kinds:
        folder = tmp_path / kind
        folder.mkdir()
        if situation.labels is None:
            with pytest.raises(FeederError) as raised:
                _pack(situation, kind, folder)
            message = str(raised.value).replace(" labels=", " --label-kind ")
            assert re.search(situation.line, message), message
            assert "\n" not in message
            assert not (folder / "packed" / "manifest.json").exists()
            continue
        line, noted = _pack(situation, kind, folder)
        assert line.startswith(f"  labels: {situation.line}"), kind
        assert re.search(situation.warning or "^", noted)
        assert situation.warning or "warning" not in noted
        with Dataset.open(folder / "packed") as dataset:
            assert dataset.classes == tuple(situation.classes.split()), kind
            wanted = {n: label for n, label in enumerate(situation.labels) if label is not None}
            assert _labels(dataset) == wanted, kind


# Samples


_NAMES = [f"n0{number % 3}" for number in range(23)]


def _samples(dataset: Path) -> dict[int, tuple[str, int]]:
    """Class and source checksum of each sample, by the checksum of its blob."""
    with Dataset.open(dataset) as opened:
        records = opened.read_records(np.arange(opened.layout.samples))
        return {
            int(record["checksum"]): (
                opened.classes[int(record["label"])],
                int(record["source_checksum"]),
            )
            for record in records
        }


def test_every_kind_gives_the_samples_of_a_class_folder(tmp_path: Path) -> None:
    pack(WRITERS["folder"](tmp_path / "folder", _NAMES), tmp_path / "expected")
    expected = _samples(tmp_path / "expected")
    assert len(expected) == len(_NAMES)
    for kind in ("csv", "jsonl", "wds-cls", "tfrecord", "parquet"):
        reading = {"label": "label"} if kind == "tfrecord" else {}
        pack(WRITERS[kind](tmp_path / kind, _NAMES), tmp_path / f"packed-{kind}", reading=reading)
        assert _samples(tmp_path / f"packed-{kind}") == expected, kind
    zipped = tmp_path / "x.tar.gz"  # cannot be read in any order
    zipped.write_bytes(gzip.compress((tmp_path / "wds-cls" / "x.tar").read_bytes()))
    pack(zipped, tmp_path / "packed-gz")
    assert _samples(tmp_path / "packed-gz") == expected
    pack(WRITERS["lmdb"](tmp_path / "lmdb", _NAMES), tmp_path / "packed-lmdb")
    assert _samples(tmp_path / "packed-lmdb") == expected


@pytest.mark.parametrize(("kind", "writer"), [("webdataset", "wds-cls"), ("tfrecord", "tfrecord")])
def test_a_stream_gives_the_samples_of_its_file(tmp_path: Path, kind: str, writer: str) -> None:
    file = WRITERS[writer](tmp_path / "source", _NAMES)
    pack(file, tmp_path / "expected", reading={"label": "label"} if kind == "tfrecord" else {})
    options = ["--source", kind, *(["--label", "label"] if kind == "tfrecord" else [])]
    with file.open("rb") as stream:  # through a pipe: cat's, as a shell makes it
        cat = subprocess.Popen(["cat"], stdin=stream, stdout=subprocess.PIPE)
    with cat:
        command = feeder_command("pack", "-", tmp_path / "packed", *options)
        packed = subprocess.run(command, stdin=cat.stdout, capture_output=True, text=True)
    assert packed.returncode == 0, packed.stderr
    assert _samples(tmp_path / "packed") == _samples(tmp_path / "expected")
