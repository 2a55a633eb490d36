"""Labels of every kind through balancing, verifying and unpacking."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from feeder.dataset.format import checksum, decode_header, shard_name
from feeder.dataset.manifest import MANIFEST_NAME, WORK_FOLDER_NAME, load_manifest
from feeder.dataset.reader import ShardReader
from feeder.errors import DatasetError
from feeder.pack.publish import balance_parts, plan_balance
from feeder.pack.unpack import LABELS_NAME, SHORTENED_NAME, unpack_dataset
from feeder.pack.unpack_names import NameLimits, choose_name, class_folder
from feeder.pack.verify import Verification
from feeder.pack.work_folder import WorkFolder
from feeder.plan.labels import LabelSpec
from feeder.process.path_text import decode_name, encode_name
from tests.support.rewrite import rewrite_record
from tests.support.sources import file_tree, run_inline, silent
from tests.support.synthetic_sets import (
    EVERY_KIND,
    FLOATS,
    INDEX,
    MULTI,
    NONE,
    classes_of,
    expected_rows,
    values_of,
    write_labelled,
)

LIMITS = NameLimits(name_bytes_max=255, path_bytes_max=4000)


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.verify", "pack.unpack")


def _problems(path: Path) -> list[str]:
    return list(Verification.open(path, jobs=1, progress=silent()).problems())


def _unpack(path: Path, out: Path, *, force: bool = False) -> None:
    unpack_dataset(path, out, jobs=1, force=force, progress=silent())


def _rewrite_label_row(folder: Path, row: int, stored: bytes) -> None:
    """Change a label row of the first shard, and every checksum that covers it."""
    path = folder / shard_name(0)
    data = bytearray(path.read_bytes())
    header = decode_header(data, "x")
    start = header.labels_offset + row * header.label_bytes
    data[start : start + header.label_bytes] = stored
    index_checksum = checksum(data[header.records_offset :])
    data[:64] = replace(header, index_checksum=index_checksum).encode()
    path.write_bytes(data)
    manifest = load_manifest(folder)
    first, *others = manifest.shards
    entry = msgspec.structs.replace(first, index_xxh3=f"{index_checksum:016x}")
    changed = msgspec.structs.replace(manifest, shards=(entry, *others)).sealed()
    (folder / MANIFEST_NAME).write_bytes(changed.encode())


def test_balanced_parts_keep_each_samples_label_row(tmp_path: Path) -> None:
    (tmp_path / WORK_FOLDER_NAME).mkdir()
    work = WorkFolder(tmp_path)
    counts = [5, 2]
    for part, count in enumerate(counts):
        write_labelled(tmp_path / "made", MULTI, samples=count, shards=1)
        shutil.copyfile(tmp_path / "made" / shard_name(0), work.part_path(part))
    label_bytes = MULTI.stored_bytes
    balance_parts(tmp_path, work, plan_balance(counts), label_bytes)
    for part, samples in enumerate([[0, 1, 2, 3], [0, 1, 4]]):
        reader = ShardReader(work.balanced_path(part))
        records, label_rows, _, intact = reader.read_index()
        reader.close()
        rows = np.empty((len(records), MULTI.width), np.uint8)
        MULTI.decode_rows(label_rows, rows)
        assert intact
        assert np.array_equal(rows, expected_rows(np.array(samples), MULTI))
        assert records["source_checksum"].tolist() == [1 + sample for sample in samples]


@pytest.mark.parametrize("labels", EVERY_KIND, ids=lambda each: each.kind)
def test_whole_datasets_of_every_kind_have_no_problem(labels: LabelSpec, tmp_path: Path) -> None:
    write_labelled(tmp_path, labels, samples=5, shards=2)
    assert _problems(tmp_path) == []


@pytest.mark.parametrize(
    ("labels", "stored", "problem"),
    [
        (MULTI, b"\x00\x08", "its labels have a bit above the 11 classes"),
        (FLOATS, np.array([0, np.nan, 0], "<f4").tobytes(), "its labels are not finite numbers"),
        (FLOATS, np.array([0, 0, np.inf], "<f4").tobytes(), "its labels are not finite numbers"),
    ],
)
def test_impossible_label_rows_are_found_whatever_the_checksums(
    labels: LabelSpec, stored: bytes, problem: str, tmp_path: Path
) -> None:
    write_labelled(tmp_path, labels, samples=3, shards=1)
    _rewrite_label_row(tmp_path, 1, stored)
    assert _problems(tmp_path) == [f"sample 1 (s001) in shard-00000.fds: {problem}"]


@pytest.mark.parametrize("labels", [MULTI, FLOATS, NONE], ids=lambda each: each.kind)
def test_a_class_in_a_record_of_another_kind_is_found(labels: LabelSpec, tmp_path: Path) -> None:
    write_labelled(tmp_path, labels, samples=3, shards=1)
    rewrite_record(tmp_path, 2, label=1)
    assert _problems(tmp_path) == ["sample 2 (s002) in shard-00000.fds: there is no class 1"]


def test_any_flipped_byte_of_label_rows_is_found(tmp_path: Path) -> None:
    write_labelled(tmp_path, MULTI, samples=3, shards=1)
    path = tmp_path / shard_name(0)
    whole = path.read_bytes()
    header = decode_header(whole, "x")
    for at in range(header.labels_offset, header.names_offset):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert _problems(tmp_path)[0] == (
            "shard-00000.fds: the checksum of its records, labels and names does not match"
        )


def test_a_header_that_cuts_rows_and_names_elsewhere_is_found(tmp_path: Path) -> None:
    """The index checksum holds; only the manifest's kind of labels does not."""
    write_labelled(tmp_path, MULTI, samples=3, shards=1)
    path = tmp_path / shard_name(0)
    data = bytearray(path.read_bytes())
    header = decode_header(data, "x")
    moved = replace(
        header, names_offset=header.names_offset + 3, names_bytes=header.names_bytes - 3
    )
    data[:64] = moved.encode()
    path.write_bytes(data)
    assert "shard-00000.fds: it has 3 bytes of labels a sample, not 2" in _problems(tmp_path)


def test_samples_of_one_class_unpack_into_its_folder_whatever_their_names(tmp_path: Path) -> None:
    write_labelled(tmp_path / "packed", INDEX, samples=7, shards=2)
    _unpack(tmp_path / "packed", tmp_path / "out")
    expected = [f"class{number % 3}/s{number:03}.jpg" for number in range(7)]
    assert sorted(file_tree(tmp_path / "out")) == sorted(expected)


def test_several_labels_unpack_with_the_names_of_their_classes(tmp_path: Path) -> None:
    write_labelled(tmp_path / "packed", MULTI, samples=7, shards=2, name="sub/s{:03}.png")
    _unpack(tmp_path / "packed", tmp_path / "out")
    assert _read_list(tmp_path / "out") == [
        {
            "file": f"sub/s{number:03}.jpg",
            "labels": [f"class{label}" for label in classes_of(number, MULTI)],
        }
        for number in range(7)
    ]


def test_floats_unpack_with_their_numbers_in_as_few_digits_as_float32_needs(
    tmp_path: Path,
) -> None:
    write_labelled(tmp_path / "packed", FLOATS, samples=7, shards=2)
    _unpack(tmp_path / "packed", tmp_path / "out")
    listed = _read_list(tmp_path / "out")
    assert [line["file"] for line in listed] == [f"s{number:03}.jpg" for number in range(7)]
    assert listed[1]["labels"] == [0.33333334, -0.6666667, -1.6666666]
    for number, line in enumerate(listed):
        wanted = np.array(values_of(number, FLOATS), np.float32)
        assert np.array(line["labels"], np.float32).tobytes() == wanted.tobytes()


def _parse(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def _read_list(out: Path) -> list[dict[str, Any]]:
    """Return the list of labels; check that it lists each file once, and no list is left over."""
    listed = _parse(out / LABELS_NAME)
    assert sorted([*(line["file"] for line in listed), LABELS_NAME]) == sorted(file_tree(out))
    return listed


def test_without_labels_there_is_no_list(tmp_path: Path) -> None:
    write_labelled(tmp_path / "packed", NONE, samples=3, shards=2)
    _unpack(tmp_path / "packed", tmp_path / "out")
    assert sorted(file_tree(tmp_path / "out")) == ["s000.jpg", "s001.jpg", "s002.jpg"]


def test_shortened_files_are_listed_with_the_name_that_they_have(tmp_path: Path) -> None:
    write_labelled(tmp_path / "packed", MULTI, samples=3, shards=1, name="n" * 250 + "{:05}")
    _unpack(tmp_path / "packed", tmp_path / "out")
    paths = [line["path"] for line in _parse(tmp_path / "out" / SHORTENED_NAME)]
    listed = [line["file"] for line in _parse(tmp_path / "out" / LABELS_NAME)]
    assert listed == paths
    assert all((tmp_path / "out" / path).is_file() for path in paths)


def test_two_samples_of_one_path_are_an_error_not_a_loss(tmp_path: Path) -> None:
    write_labelled(tmp_path / "packed", NONE, samples=2, shards=1, name="same")
    with pytest.raises(DatasetError, match=r"another sample is in .*same\.jpg already"):
        _unpack(tmp_path / "packed", tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "class_name", "path"),
    [
        ("cat/x.png", "cat", "cat/x.jpg"),
        ("x.JPEG", "cat", "cat/x.JPEG"),
        ("cat", "cat", "cat/cat.jpg"),
        ("train/00/x", "cat", "cat/train/00/x.jpg"),
        ("dog/x.jpg", "cat", "cat/dog/x.jpg"),
        ("x", "a/../b", "a%2F..%2Fb/x.jpg"),
        ("x", "..", "%2E./x.jpg"),
        ("x", "", "%/x.jpg"),
        ("x", "50 %", "50 %25/x.jpg"),
        ("x", "a\0", "a%00/x.jpg"),
        ("x", None, "x.jpg"),
    ],
)
def test_the_class_is_the_first_folder_unless_the_name_has_it(
    name: str, class_name: str | None, path: str
) -> None:
    chosen = choose_name(encode_name(name), LIMITS, "shard", class_name)
    assert decode_name(chosen[0]) == path
    assert not chosen[1]


def test_different_classes_have_different_folders() -> None:
    names = ["", ".", "..", "%", "%25", "%2E", "a/b", "a%2Fb", "a\0", "a", "%2E."]
    assert len({class_folder(name) for name in names}) == len(names)


def test_a_single_long_name_below_a_deep_folder_is_shortened() -> None:
    limits = NameLimits(name_bytes_max=255, path_bytes_max=60)
    chosen = choose_name(b"n" * 100, limits, "shard")
    assert chosen[1]
    assert len(chosen[0]) == 60
    assert chosen[0].endswith(b".jpg")
