"""Every kind of source: the same images and labels give the same samples, by one rule."""

import csv
import gzip
import io
import json
import re
import subprocess
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import feeder
from feeder.cli.pack import format_summary
from feeder.dataset.opened import Dataset
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
        for number, label in enumerate(raw):
            cell = json.dumps(label) if isinstance(label, list) else label
            rows.writerow((f"{number:02d}.jpg", cell))
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
    """Labels of images, and how they are read from each kind of source."""

    kinds: Sequence[str]
    raw: Sequence[Any]
    """The labels, an image each."""
    line: str
    """A pattern with which the summary's line begins."""
    classes: str
    labels: Sequence[Any]
    """A number, a list of classes or of floats for each image; None: it is left out."""
    warning: str = ""
    base: int | None = None


_CATS = [f"cat{number:02}" for number in range(20)]
SITUATIONS = {
    "numbers": Situation(
        ("lmdb", "wds-cls", *TYPED), [2, 0, 1, 2], "3 classes by number", "0 1 2", [2, 0, 1, 2]
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
        ("folder", "lmdb"),
        ["2", "10", "0"],
        '3 classes by (folder )?name, "10" before "2"',
        "0 10 2",
        [2, 1, 0],
    ),
    "rows of 0 and 1": Situation(
        ("csv", *TYPED),
        [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]],
        "any of 4 classes from multi-hot rows of 4 numbers",
        "0 1 2 3",
        [[0, 3], [1], [2, 3]],
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
        base=1,
    ),
    "numbers of which none is 0": Situation(
        ("csv",),
        [1, 2, 3, 1],
        r"4 classes by number from 0 on; no image has class 0 \(--label-base 1 if",
        "0 1 2 3",
        [1, 2, 3, 1],
    ),
    "a class for each image": Situation(
        ("wds-txt",),
        _CATS,
        "20 classes by name",
        " ".join(_CATS),
        [*range(20)],
        "20 images have 20 different labels.*nearly a class for each image",
    ),
    "a class called None": Situation(
        ("csv",),
        ["cat", "None", "dog", "cat"],
        "3 classes by name",
        "None cat dog",
        [1, 0, 2, 1],
        "a class is called None, which stands for no label in many tables",
    ),
}


def _pack(situation: Situation, kind: str, folder: Path) -> tuple[str, str]:
    """Return the summary's line about labels, and all that was noted."""
    if kind == "samples":
        samples = [(f"{n:02}.jpg", _jpeg(n), label) for n, label in enumerate(situation.raw)]
        packed = feeder.pack_samples(samples, folder / "packed", jobs=1)
        return f"  labels: {packed.labels_read}", ""
    source = WRITERS[kind](folder / "source", situation.raw)
    reading: dict[str, Any] = {"label": "label"} if kind == "tfrecord" else {}
    reading |= {} if situation.base is None else {"label_base": situation.base}
    noted = io.StringIO()
    options = PackOptions(max_bad="100%", reading=reading)
    summary = pack_dataset(source, folder / "packed", options, ProgressLine(noted))
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
        line, noted = _pack(situation, kind, folder)
        assert re.match(f"  labels: {situation.line}", line), kind
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
        fields = records[["checksum", "label", "source_checksum"]].tolist()
        return {blob: (opened.classes[label], source) for blob, label, source in fields}


def test_every_kind_gives_the_samples_of_a_class_folder(tmp_path: Path) -> None:
    pack(WRITERS["folder"](tmp_path / "folder", _NAMES), tmp_path / "expected")
    expected = _samples(tmp_path / "expected")
    assert len(expected) == len(_NAMES)
    sources = {
        kind: WRITERS[kind](tmp_path / kind, _NAMES)
        for kind in ("csv", "jsonl", "wds-cls", "tfrecord", "parquet", "lmdb")
    }
    sources["gz"] = tmp_path / "x.tar.gz"  # cannot be read in any order
    sources["gz"].write_bytes(gzip.compress(sources["wds-cls"].read_bytes()))
    for kind, source in sources.items():
        reading = {"label": "label"} if kind == "tfrecord" else {}
        pack(source, tmp_path / f"packed-{kind}", reading=reading)
        assert _samples(tmp_path / f"packed-{kind}") == expected, kind


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
