"""The same images give the same samples, whatever container they are in."""

import gzip
import subprocess
from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.opened import Dataset
from tests.pack.label_situations import WRITERS
from tests.support.sources import feeder_command, pack, run_inline

_NAMES = [f"n0{number % 3}" for number in range(23)]


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run")


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
