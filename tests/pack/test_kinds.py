"""The same images give the same samples, whatever container they are in."""

import csv
import io
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.opened import Dataset
from tests.source.tf_writer import encode_example, frame
from tests.support.sources import encoded, feeder_command, image, pack, run_inline, write_parquet

_CLASSES = ("n01", "n02", "n05")
_Images = dict[tuple[str, str], bytes]
"""By class and file name."""


@pytest.fixture(scope="module")
def images() -> _Images:
    found: _Images = {}
    for number in range(23):
        picture = image(40 + number, 30 + number % 5, seed=number)
        format_name = "PNG" if number == 7 else "JPEG"
        suffix = "png" if number == 7 else "jpg"
        found[_CLASSES[number % 3], f"x{number:03d}.{suffix}"] = encoded(picture, format_name)
    return found


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run")


def _class_folder(folder: Path, images: _Images) -> str:
    for (class_name, name), data in images.items():
        (folder / class_name).mkdir(parents=True, exist_ok=True)
        (folder / class_name / name).write_bytes(data)
    return str(folder)


def _labelled_folder(folder: Path, images: _Images) -> str:
    folder.mkdir()
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("file", "label"))
        for (class_name, name), data in images.items():
            (folder / name).write_bytes(data)
            rows.writerow((name, class_name))
    return str(folder)


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def _tars(folder: Path, images: _Images, mode: str, suffix: str) -> str:
    folder.mkdir()
    items = list(images.items())
    for number in range(2):
        with tarfile.open(folder / f"x-{number}{suffix}", mode) as tar:  # type: ignore[call-overload]
            for (class_name, name), data in items[number::2]:
                _add(tar, name, data)
                _add(tar, f"{name[:-4]}.txt", class_name.encode())
    return str(folder / f"x-{{0..1}}{suffix}")


def _webdataset(folder: Path, images: _Images) -> str:
    return _tars(folder, images, "w", ".tar")


def _compressed_webdataset(folder: Path, images: _Images) -> str:
    return _tars(folder, images, "w:gz", ".tar.gz")


def _tfrecord(folder: Path, images: _Images) -> str:
    folder.mkdir()
    with (folder / "train-00000-of-00001").open("wb") as file:
        for (class_name, name), data in images.items():
            example = encode_example(
                [
                    (b"image/class/label", ("int64", [_CLASSES.index(class_name) + 1])),
                    (b"image/class/text", ("bytes", [class_name.encode()])),
                    (b"image/encoded", ("bytes", [data])),
                    (b"image/filename", ("bytes", [name.encode()])),
                ]
            )
            file.write(frame(example))
    return str(folder)


def _parquet(folder: Path, images: _Images) -> str:
    folder.mkdir()
    rows = {
        "image": [{"bytes": data, "path": name} for (_, name), data in images.items()],
        "label": [class_name for class_name, _ in images],
    }
    write_parquet(folder / "train.parquet", rows, row_group_size=5)
    return str(folder)


def _imagenet(folder: Path, images: _Images) -> str:
    folder.mkdir()
    with tarfile.open(folder / "ILSVRC2012_img_train.tar", "w") as outer:
        for class_name in _CLASSES:
            inner_bytes = io.BytesIO()
            with tarfile.open(fileobj=inner_bytes, mode="w") as inner:
                for (each, name), data in images.items():
                    if each == class_name:
                        _add(inner, name, data)
            _add(outer, f"n{class_name[1:]:>08}.tar", inner_bytes.getvalue())
    return str(folder / "ILSVRC2012_img_train.tar")


def _samples(dataset: Path) -> dict[int, tuple[str, int]]:
    """Return class and source checksum of each sample, by the checksum of its blob."""
    with Dataset.open(dataset) as opened:
        records = opened.read_records(np.arange(opened.layout.samples))
        return {
            int(record["checksum"]): (
                opened.classes[int(record["label"])][-2:],
                int(record["source_checksum"]),
            )
            for record in records
        }


@pytest.mark.parametrize(
    "write",
    [
        _labelled_folder,
        _webdataset,
        _compressed_webdataset,
        _tfrecord,
        _parquet,
        _imagenet,
    ],
)
def test_every_kind_gives_the_samples_of_a_class_folder(
    tmp_path: Path, images: _Images, write: Callable[[Path, _Images], str]
) -> None:
    pack(_class_folder(tmp_path / "folder", images), tmp_path / "expected")
    expected = _samples(tmp_path / "expected")
    assert len(expected) == len(images)
    pack(write(tmp_path / "source", images), tmp_path / "packed")
    assert _samples(tmp_path / "packed") == expected


@pytest.mark.parametrize("kind", ["webdataset", "tfrecord"])
def test_a_stream_gives_the_samples_of_its_file(tmp_path: Path, images: _Images, kind: str) -> None:
    if kind == "webdataset":
        _webdataset(tmp_path / "source", images)
        file = tmp_path / "source" / "x-0.tar"
    else:
        _tfrecord(tmp_path / "source", images)
        file = tmp_path / "source" / "train-00000-of-00001"
    pack(file, tmp_path / "expected")
    with file.open("rb") as stream:  # through a pipe: cat's, as a shell makes it
        cat = subprocess.Popen(["cat"], stdin=stream, stdout=subprocess.PIPE)
    with cat:
        command = feeder_command("pack", "-", tmp_path / "packed", "--source", kind)
        packed = subprocess.run(command, stdin=cat.stdout, capture_output=True, text=True)
    assert packed.returncode == 0, packed.stderr
    assert _samples(tmp_path / "packed") == _samples(tmp_path / "expected")
