"""A source that is replaced while it is packed is an error that names a file of it."""

import contextlib
import csv
import functools
import io
import json
import os
import random
import shutil
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feeder.dataset.manifest import MANIFEST_NAME
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, SourceChangedError
from feeder.pack.options import PackOptions
from feeder.pack.run import pack_dataset
from feeder.pack.task_pool import Messages, RunTasks
from tests.source.tar_writer import tar_bytes
from tests.source.tf_writer import encode_datum, encode_example, frame
from tests.support.sources import encoded, image, run_here, silent, write_lmdb, write_parquet

IMAGES = 41
CLASSES = ("n00000001", "n00000002", "n00000003")
PARTS = 4

Files = Mapping[str, bytes]  # the files of a source by their paths in its folder
Samples = Mapping[str, tuple[str, int]]
"""The class and the source checksum of each sample of a dataset, by name."""


@dataclass(frozen=True, slots=True)
class Picture:
    name: str
    data: bytes
    label: str


def draw_pictures(variant: int) -> list[Picture]:
    """Return the images of a variant: all have the same names and sizes, in any order."""
    chosen = random.Random(variant)
    contents, labels, order = ([*range(IMAGES)] for _ in range(3))
    if variant:
        for each in (contents, labels, order):
            chosen.shuffle(each)
    pictures = [
        Picture(
            f"ILSVRC2012_val_{name + 1:08d}.bmp",
            encoded(image(24, 16, seed=contents[name]), "BMP"),
            CLASSES[labels[name] % len(CLASSES)],
        )
        for name in range(IMAGES)
    ]
    return [pictures[at] for at in order]


def _class_folder(pictures: list[Picture]) -> Files:
    """Name p is in class p % 3 whatever the variant, so that only the images differ."""
    return {f"{CLASSES[int(p.name[15:23]) % 3]}/{p.name}": p.data for p in pictures}


def _csv_folder(pictures: list[Picture]) -> Files:
    text = io.StringIO()
    csv.writer(text).writerows([("file", "label"), *((p.name, p.label) for p in pictures)])
    return {p.name: p.data for p in pictures} | {"labels.csv": text.getvalue().encode()}


def _jsonl_folder(pictures: list[Picture]) -> Files:
    lines = [json.dumps({"file_name": p.name, "label": p.label}) + "\n" for p in pictures]
    return {p.name: p.data for p in pictures} | {"labels.jsonl": "".join(lines).encode()}


def _webdataset(pictures: list[Picture]) -> Files:
    return {
        f"{shard}.tar": tar_bytes(
            (name, data)
            for p in sorted(pictures, key=lambda each: int(each.name[15:23]) % 2)
            if int(p.name[15:23]) % 2 == shard
            for name, data in ((p.name, p.data), (f"{p.name[:-4]}.cls", p.label.encode()))
        )
        for shard in range(2)
    }


def _tfrecord(pictures: list[Picture]) -> Files:
    """Names have the position in the file, so records stay where they are."""
    records = [
        frame(
            encode_example(
                [
                    (b"image/class/label", ("int64", [CLASSES.index(p.label) + 1])),
                    (b"image/encoded", ("bytes", [p.data])),
                    (b"image/filename", ("bytes", [p.name.encode()])),
                ]
            )
        )
        for p in sorted(pictures, key=lambda each: each.name)
    ]
    return {"train-00000-of-00001": b"".join(records)}


def _parquet(pictures: list[Picture]) -> Files:
    ordered = sorted(pictures, key=lambda each: each.name)
    rows = {
        "image": [{"bytes": p.data, "path": p.name} for p in ordered],
        "label": [p.label for p in ordered],
    }
    file = io.BytesIO()
    write_parquet(file, rows, row_group_size=5, compression="none", use_dictionary=False)
    return {"train.parquet": file.getvalue()}


def _lmdb(pictures: list[Picture]) -> Files:
    values = {p.name.encode(): encode_datum(p.data, CLASSES.index(p.label)) for p in pictures}
    with tempfile.TemporaryDirectory() as folder:
        return {"data.mdb": write_lmdb(Path(folder) / "data.mdb", values).read_bytes()}


def _imagenet_train(pictures: list[Picture]) -> Files:
    inner = {
        name: tar_bytes((p.name, p.data) for p in pictures if int(p.name[15:23]) % 3 == number)
        for number, name in enumerate(CLASSES)
    }
    return {"train.tar": tar_bytes((f"{name}.tar", data) for name, data in inner.items())}


def _imagenet_val(pictures: list[Picture]) -> Files:
    ordered = sorted(pictures, key=lambda each: each.name)
    lines = "".join(f"{p.label}\n" for p in ordered)
    return {"val.tar": tar_bytes((p.name, p.data) for p in pictures), "truth.txt": lines.encode()}


def _gzipped(write: Callable[[list[Picture]], Files]) -> Callable[[list[Picture]], Files]:
    """Store without compression, so that sizes stay equal."""

    def write_gzipped(pictures: list[Picture]) -> Files:
        found: dict[str, bytes] = {}
        for name, data in write(pictures).items():
            engine = zlib.compressobj(0, wbits=16 + zlib.MAX_WBITS)
            found[f"{name}.gz"] = engine.compress(data) + engine.flush()
        return found

    return write_gzipped


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of source: what writes it, and how it is packed."""

    write: Callable[[list[Picture]], Files]
    location: str = ""
    kind: str | None = None
    labels_file: str = ""


KINDS: Mapping[str, Kind] = {
    "class-folder": Kind(_class_folder),
    "labelled-csv": Kind(_csv_folder),
    "labelled-jsonl": Kind(_jsonl_folder),
    "webdataset": Kind(_webdataset, "{0..1}.tar", "webdataset"),
    "webdataset-gz": Kind(_gzipped(_webdataset), "{0..1}.tar.gz", "webdataset"),
    "tfrecord": Kind(_tfrecord, "train-00000-of-00001"),
    "parquet": Kind(_parquet),
    "lmdb": Kind(_lmdb),
    "imagenet-train": Kind(_imagenet_train, "train.tar", "imagenet-train"),
    "imagenet-val": Kind(_imagenet_val, "val.tar", "imagenet-val", "truth.txt"),
}
WAYS = ("files", "folder", "in place")


class Attack:
    """A source in ``folder`` that can be replaced once, and packed."""

    def __init__(self, kind: str, folder: Path, *, way: str, keeps_times: bool) -> None:
        self.kind = KINDS[kind]
        self.folder = folder
        self.source = folder / "source"
        self.other = folder / "other"
        self.packed = folder / "packed"
        self._way = way
        first, second = (self.kind.write(draw_pictures(variant)) for variant in (0, 1))
        sizes = [{name: len(data) for name, data in files.items()} for files in (first, second)]
        assert sizes[0] == sizes[1]
        for root, files in ((self.source, first), (self.other, second)):
            for name, data in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        self._names = sorted(first)
        self._times = {name: (self.source / name).stat().st_mtime_ns for name in first}
        self._keeps_times = keeps_times
        if keeps_times:
            for name, time_ns in self._times.items():
                os.utime(self.other / name, ns=(0, time_ns))

    def replace(self) -> None:
        if self._way == "folder":
            self.source.rename(self.folder / "before")
            self.other.rename(self.source)
            return
        for name in self._names:
            if self._way == "files":
                (self.other / name).replace(self.source / name)
                continue
            with (self.source / name).open("r+b") as file:
                file.write((self.other / name).read_bytes())
            if self._keeps_times:
                os.utime(self.source / name, ns=(0, self._times[name]))

    def pack(self, run: RunTasks = run_here, source: str = "source") -> Samples:
        """Pack what is the source now, or a variant of it, and return its samples."""
        root = self.folder / source
        labels = str(root / self.kind.labels_file) if self.kind.labels_file else ""
        options = PackOptions(
            shards=PARTS,
            max_bad="100%",
            reading={"kind": self.kind.kind, "labels_file": labels},
        )
        destination = self.packed if source == "source" else self.folder / f"{source}-packed"
        location = root / self.kind.location
        pack_dataset(location, destination, options, silent(), run=run)
        return read_samples(destination)

    def expected(self) -> tuple[Samples, Samples]:
        """Return the samples of the source and of the other one, before any replacement."""
        shutil.copytree(self.source, self.folder / "copy")
        expected = self.pack(source="copy"), self.pack(source="other")
        assert expected[0] != expected[1]
        assert expected[0].keys() == expected[1].keys()
        return expected


def read_samples(dataset: Path) -> Samples:
    with Dataset.open(dataset) as opened:
        records = opened.read_records(np.arange(opened.layout.samples))
        return {
            str(opened.name_of(number)): (
                opened.classes[int(record["label"])],
                int(record["source_checksum"]),
            )
            for number, record in enumerate(records)
        }


def run_and_act(act: Callable[[], object], after: int, *arguments: Any, **named: Any) -> Messages:
    """Pack in this process, and act after a number of parts."""
    done = 0
    for message in run_here(*arguments, **named):
        if message["kind"] == "done":
            if done == after:
                act()
            done += 1
        yield message
    if done == after:
        act()


def run_that(act: Callable[[], object], after: int) -> RunTasks:
    return functools.partial(run_and_act, act, after)


def check_refused(attack: Attack, change: SourceChangedError) -> None:
    """Check that the error names a file and a remedy, and that nothing is published or resumed."""
    text = str(change)
    assert text.startswith(f"{attack.source}/")
    assert "has changed since it was listed (it was written again or replaced): wait until" in text
    assert f"; if that refuses to resume, remove {attack.packed} first" in text
    assert "\n" not in text
    assert not (attack.packed / MANIFEST_NAME).exists()
    with pytest.raises(ConfigError, match=r"the source has changed|the classes were others"):
        attack.pack()


@pytest.mark.parametrize(("kind", "after"), [*zip(KINDS, cycle([0, PARTS - 1]), strict=False)])
def test_a_source_replaced_after_a_part_is_an_error(kind: str, after: int, tmp_path: Path) -> None:
    way = WAYS[(list(KINDS).index(kind) + after) % len(WAYS)]
    attack = Attack(kind, tmp_path, way=way, keeps_times=True)
    with pytest.raises(SourceChangedError) as caught:
        attack.pack(run_that(attack.replace, after))
    check_refused(attack, caught.value)


@pytest.mark.parametrize("kind", ["class-folder", "webdataset", "tfrecord", "parquet", "lmdb"])
@pytest.mark.parametrize("at", range(3))
def test_a_source_replaced_while_one_file_is_opened_is_not_mixed(
    kind: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As its listing begins, for example; all files are back at once, and as they were."""
    attack = Attack(kind, tmp_path, way="folder", keeps_times=True)
    expected = attack.expected()
    real_open = os.open
    opened = 0

    def swap_folders() -> None:
        attack.source.rename(attack.folder / "away")
        attack.other.rename(attack.source)
        (attack.folder / "away").rename(attack.other)

    def open_other(path: str | bytes | Path, *arguments: int, **named: int) -> int:
        nonlocal opened
        opened += os.fsencode(path).startswith(os.fsencode(attack.source) + b"/")
        if opened != at + 1:
            return real_open(path, *arguments, **named)
        opened += 1
        swap_folders()
        try:
            return real_open(path, *arguments, **named)
        finally:
            swap_folders()

    monkeypatch.setattr(os, "open", open_other)
    samples = expected[0]
    with contextlib.suppress(SourceChangedError):
        samples = attack.pack()
    assert samples == expected[0]
    assert opened > at


def test_a_file_that_is_gone_or_comes_is_no_bad_image(tmp_path: Path) -> None:
    attack = Attack("class-folder", tmp_path, way="files", keeps_times=False)
    path = next(attack.source.rglob("*.bmp"))
    with pytest.raises(SourceChangedError, match=rf"{path.name} has changed .*\(it is gone\)"):
        attack.pack(run_that(path.unlink, 0))
    attack = Attack("class-folder", tmp_path / "more", way="files", keeps_times=False)
    path = next(attack.source.rglob("*.bmp"))
    path.rename(tmp_path / "later.bmp")
    path.symlink_to(tmp_path / "late.bmp")
    with pytest.raises(SourceChangedError, match=r"has changed .*\(there was no such file\)"):
        attack.pack(run_that(lambda: (tmp_path / "later.bmp").rename(tmp_path / "late.bmp"), 3))
