"""Verifying: a change of any byte of a dataset is found, and each problem names its sample."""

import contextlib
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from feeder.dataset.files import LocalShard
from feeder.dataset.format import (
    RECORD_BYTES,
    SampleRecord,
    ShardHeader,
    checksum,
    decode_header,
    shard_name,
)
from feeder.dataset.manifest import MANIFEST_NAME, QUARANTINE_NAME, load_manifest
from feeder.dataset.reader import ShardReader
from feeder.errors import DatasetError
from feeder.jpeg.crop_decode import check_blob
from feeder.pack.verify import verify_dataset
from feeder.plan.labels import LabelSpec
from feeder.survey.duplicates import DUPLICATES_NAME
from feeder.survey.page import SURVEY_NAME
from tests.support.sources import encoded, image, make_source, pack, run_inline, silent
from tests.support.synthetic_sets import FLOATS, MULTI, write_labelled

_SHARDS = 2


@pytest.fixture(scope="module", autouse=True)
def inline() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch, "pack.run", "pack.verify")
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset with a quarantine list, odd samples, and padding in each shard."""
    root = tmp_path_factory.mktemp("whole")
    source = make_source(root / "source", 7, side=20)
    (source / "class0" / "drawn.png").write_bytes(encoded(image(9, 9), "PNG"))
    (source / "class0" / "broken.jpg").write_bytes(b"no image")
    pack(source, root / "packed", shards=_SHARDS, seed=1)
    return root / "packed"


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    """A copy for tests to damage."""
    return shutil.copytree(whole, tmp_path / "damaged")


def _problems(path: Path) -> list[str]:
    return list(verify_dataset(path, jobs=1, progress=silent())[1])


def _flip(path: Path, position: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1 << bit
    path.write_bytes(content)


def _index(path: Path, shard: int) -> tuple[ShardHeader, "np.ndarray[Any, Any]", bytes]:
    reader = ShardReader(LocalShard(path / shard_name(shard)))
    records, _, names, _ = reader.read_index()
    reader.close()
    return reader.header, records, names


@settings(
    max_examples=24, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_flipped_bit_of_any_file_is_found(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    names = [MANIFEST_NAME, QUARANTINE_NAME, *map(shard_name, range(_SHARDS))]
    reports = {DUPLICATES_NAME, SURVEY_NAME}  # made of the others; `feeder survey` makes them again
    assert {path.name for path in whole.iterdir()} == {*names, *reports}
    name = data.draw(st.sampled_from(names))
    position = data.draw(st.integers(0, (whole / name).stat().st_size - 1))
    bit = data.draw(st.integers(0, 7))
    copy = tmp_path_factory.getbasetemp() / "flipped"
    shutil.copytree(whole, copy, dirs_exist_ok=True)
    _flip(copy / name, position, bit)
    if name == MANIFEST_NAME:
        with pytest.raises(DatasetError, match=r"damaged|version"):
            verify_dataset(copy, jobs=1, progress=silent())
    else:
        problems = _problems(copy)
        assert problems
        assert all("\n" not in problem and name in problem for problem in problems)


def test_a_content_fingerprint_of_other_samples_is_found(damaged: Path) -> None:
    manifest = load_manifest(damaged)
    other = msgspec.structs.replace(manifest, content="0" * 32).sealed()
    (damaged / MANIFEST_NAME).write_bytes(other.encode())
    (problem,) = _problems(damaged)
    assert problem == (
        f"manifest.json: its content fingerprint does not match the shards, {manifest.content}"
    )


def test_padding_between_samples_and_before_the_records_is_covered(damaged: Path) -> None:
    header, records, _ = _index(damaged, 0)
    ends = (records["offset"] + records["blob_bytes"]).tolist()
    starts = [*records["offset"].tolist()[1:], header.records_offset]
    padded = [end for end, start in zip(ends, starts, strict=True) if end < start]
    for position in (padded[0], starts[-1] - 1 if ends[-1] < starts[-1] else padded[-1]):
        _flip(damaged / shard_name(0), position)
        (problem,) = _problems(damaged)
        assert "bytes between two samples are not zero" in problem
        _flip(damaged / shard_name(0), position)


def test_every_problem_names_its_sample_and_other_shards_are_still_checked(damaged: Path) -> None:
    _, records, names = _index(damaged, 1)
    first = load_manifest(damaged).shards[0].samples
    for record in records[:2]:
        _flip(damaged / shard_name(1), int(record["offset"]) + 50)
    (damaged / shard_name(0)).unlink()
    _flip(damaged / QUARANTINE_NAME, 4)
    problems = _problems(damaged)
    assert problems[0] == "quarantine.jsonl: its checksum does not match"
    assert "shard-00000.fds cannot be opened: No such file or directory" in problems[1]
    assert problems[2:] == [
        f"sample {first + row} ({names[record['name_offset'] :][: record['name_bytes']].decode()}) "
        "in shard-00001.fds: its checksum does not match"
        for row, record in enumerate(records[:2])
    ]
    (damaged / QUARANTINE_NAME).unlink()
    assert "quarantine.jsonl: it cannot be read (No such file" in _problems(damaged)[0]


def test_shards_of_another_size_or_number_are_found(damaged: Path) -> None:
    path = damaged / shard_name(0)
    whole, other = path.read_bytes(), (damaged / shard_name(1)).read_bytes()
    for content, message in (
        (whole[:-1], "is truncated"),
        (whole + b"\0", "shard-00000.fds: it differs from the manifest in its size"),
        (other, "shard-00000.fds: it differs from the manifest in its number, "),
    ):
        path.write_bytes(content)
        assert message in _problems(damaged)[0]


def _reseal(path: Path, shard: int, change: Callable[[dict[str, int], bytearray], None]) -> None:
    """Change the first sample of a shard and update all checksums."""
    header, records, names = _index(path, shard)
    content = bytearray((path / shard_name(shard)).read_bytes())
    fields = {name: int(records[0][name]) for name in SampleRecord.__slots__}
    start, end = fields["offset"], fields["offset"] + fields["blob_bytes"]
    blob = content[start:end]
    change(fields, blob)
    content[start:end] = blob
    fields["checksum"] = checksum(blob)
    content[header.records_offset :] = (
        SampleRecord(**fields).encode() + records[1:].tobytes() + names
    )
    _write_sealed(path, shard, content)


def _write_sealed(path: Path, shard: int, content: bytearray) -> None:
    """Write a shard with a matching index checksum, which the manifest gets, too."""
    header = decode_header(content, "x")
    header = replace(header, index_checksum=checksum(content[header.records_offset :]))
    content[:64] = header.encode()
    (path / shard_name(shard)).write_bytes(content)
    manifest = load_manifest(path)
    entries = list(manifest.shards)
    entries[shard] = msgspec.structs.replace(
        entries[shard], index_xxh3=f"{header.index_checksum:016x}"
    )
    sealed = msgspec.structs.replace(manifest, shards=tuple(entries)).sealed()
    (path / MANIFEST_NAME).write_bytes(sealed.encode())


def _set(field: str, value: int) -> Callable[[dict[str, int], bytearray], None]:
    def change(fields: dict[str, int], blob: bytearray) -> None:
        fields[field] = value

    return change


def _put(marker: bytes, offset: int, value: int) -> Any:
    """Change a byte after a marker, and the content checksum if the blob still decodes."""

    def change(fields: dict[str, int], blob: bytearray) -> None:
        blob[blob.index(marker) + offset] = value
        with contextlib.suppress(ValueError):
            fields["content_checksum"] = check_blob(blob)[0]

    return change


def _move(fields: dict[str, int], blob: bytearray) -> None:
    """Let the sample begin 8 bytes later, so that a gap precedes it."""
    fields["offset"] += 8
    fields["blob_bytes"] -= 8


_JFIF_VERSION = len(b"JFIF\0")  # which only libjpeg reads
_SCAN_BYTES = 2 + 2 + 1 + 2 * 3 + 3  # of an SOS segment


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("label", 3), "no sample has 20 x 15 pixels, subsampling 2 and class 3"),
        (_set("subsampling", 0), "its MCU size does not fit its subsampling"),
        (_set("width", 200), "its blob is of 20 x 15 pixels, its record of 200 x 15"),
        (_set("width", 0), "no sample has 0 x 15 pixels"),
        (_set("content_checksum", 1), "its coefficients do not match the checksum in its record"),
        (_put(b"\xff\xda", _SCAN_BYTES, 0), "its blob is damaged"),
        (_put(b"\xff\xda", _SCAN_BYTES, 4), "its tiles are 64 px wide, the dataset's at most 32"),
        (_put(b"JFIF", _JFIF_VERSION, 9), "it does not decode"),
        (_set("flags", 0x3FFFF), "its counts of odd kinds"),
        (_set("name_bytes", 3), "its name is not where it belongs"),
        (_move, "a gap or an overlap"),
        (_set("offset", 10**9), "its record points out of the shard"),
    ],
)
def test_inconsistent_samples_are_found_despite_correct_checksums(
    damaged: Path, change: Callable[[dict[str, int], bytearray], None], message: str
) -> None:
    _reseal(damaged, 0, change)
    problems = _problems(damaged)
    assert any(message in problem for problem in problems), problems


def test_a_sample_that_the_decoders_see_differently_is_found(tmp_path: Path) -> None:
    """Older versions packed them."""
    (tmp_path / "source" / "dark").mkdir(parents=True)
    dark = encoded(Image.new("L", (32, 32), 10), "JPEG")
    (tmp_path / "source" / "dark" / "0.jpg").write_bytes(dark)
    pack(tmp_path / "source", tmp_path / "packed", shards=1)
    assert _problems(tmp_path / "packed") == []

    _reseal(tmp_path / "packed", 0, _put(b"\xff\xdb", 5, 255))  # the first quantiser
    (problem,) = _problems(tmp_path / "packed")
    assert "dark/0.jpg" in problem
    assert problem.endswith("than TurboJPEG: pack its source again, which converts it")


# Labels


@pytest.mark.parametrize(
    ("labels", "stored", "problem"),
    [
        (MULTI, b"\x00\x08", "its labels have a bit above the 11 classes"),
        (FLOATS, np.array([0, np.nan, 0], "<f4").tobytes(), "its labels are not finite numbers"),
    ],
)
def test_impossible_label_rows_are_found_whatever_the_checksums(
    labels: LabelSpec, stored: bytes, problem: str, tmp_path: Path
) -> None:
    write_labelled(tmp_path, labels, samples=3, shards=1)
    content = bytearray((tmp_path / shard_name(0)).read_bytes())
    start = decode_header(content, "x").labels_offset + len(stored)
    content[start : start + len(stored)] = stored
    _write_sealed(tmp_path, 0, content)
    assert _problems(tmp_path) == [f"sample 1 (s001) in shard-00000.fds: {problem}"]


def test_any_change_of_label_rows_is_found(tmp_path: Path) -> None:
    write_labelled(tmp_path, MULTI, samples=3, shards=1)
    path = tmp_path / shard_name(0)
    whole = path.read_bytes()
    header = decode_header(whole, "x")
    _flip(path, header.labels_offset)
    assert _problems(tmp_path)[0] == (
        "shard-00000.fds: the checksum of its records, labels and names does not match"
    )
    # the index checksum holds; only the manifest's kind of labels does not
    names_bytes = header.names_bytes - 3
    moved = replace(header, names_offset=header.names_offset + 3, names_bytes=names_bytes)
    path.write_bytes(moved.encode() + whole[64:])
    assert _problems(tmp_path) == ["shard-00000.fds: it differs from the manifest in its labels"]


def test_a_record_with_a_wrong_checksum_of_its_own_is_found(damaged: Path) -> None:
    header, _, _ = _index(damaged, 0)
    content = bytearray((damaged / shard_name(0)).read_bytes())
    content[header.records_offset + RECORD_BYTES - 1] ^= 1
    _write_sealed(damaged, 0, content)
    (problem,) = _problems(damaged)
    assert re.fullmatch(r"sample 0 \(.*\) in shard-00000.fds: its record is damaged", problem)
