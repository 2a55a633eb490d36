"""Shards as files, with label rows: written whole or not at all; every change is found."""

import contextlib
import os
from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.files import LocalShard, files_at
from feeder.dataset.format import checksum, decode_header, shard_name
from feeder.dataset.opened import Dataset
from feeder.dataset.proven_shard import ProvenShard
from feeder.dataset.reader import ShardReader
from feeder.dataset.writer import ShardWriter
from feeder.errors import DatasetError, ResourceError
from feeder.jpeg.recode import TiledJpeg, tile_jpeg
from feeder.plan.labels import LabelSpec
from feeder.process.output_file import temporary_path
from tests.support.rewrite import rewrite_record
from tests.support.sources import encoded, image
from tests.support.synthetic_sets import (
    EVERY_KIND,
    FLOATS,
    INDEX,
    MULTI,
    expected_rows,
    write_labelled,
)

WIDE = LabelSpec(kind="float", width=1500)  # a row of 6,000 bytes


def _tiled(seed: int) -> TiledJpeg:
    return tile_jpeg(encoded(image(50 + seed, 40, seed)), 32)


def _write(path: Path, seeds: range, shard: int = 5) -> None:
    with ShardWriter(path, shard=shard) as writer:
        for seed in seeds:
            writer.append(
                _tiled(seed), label=seed, name=f"class/é{seed}\udcff.jpg", flags=seed << 16
            )
        writer.finish()


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "shard-00005.fds"
    _write(path, range(4))
    return path


def test_shard_reads_back_as_written(shard: Path) -> None:
    reader = ShardReader(LocalShard(shard))
    assert (reader.header.shard, reader.header.samples) == (5, 4)
    assert reader.file.size_bytes == reader.header.file_bytes == shard.stat().st_size
    records, _, names, intact = reader.read_index()
    assert intact
    assert names.decode("utf-8", "surrogateescape") == "".join(
        f"class/é{seed}\udcff.jpg" for seed in range(4)
    )
    for seed, record in enumerate(records):
        tiled = _tiled(seed)
        blob = bytearray(int(record["blob_bytes"]))
        reader.file.read_into(int(record["offset"]), memoryview(blob))
        assert blob == tiled.blob
        assert record["content_checksum"] == tiled.content_checksum
        assert record["subsampling"] == tiled.subsampling
        assert checksum(blob) == record["checksum"]
        assert int(record["offset"]) % 8 == 0
        assert (record["width"], record["height"]) == (tiled.width, tiled.height)
        assert (record["label"], record["flags"]) == (seed, seed << 16)
        offset, blob_bytes = int(record["offset"]), int(record["blob_bytes"])
        assert reader.holds_blob(offset, blob_bytes)
        for outside in ((8, blob_bytes), (2**64 - 1, blob_bytes), (offset, 2**32 - 1)):
            assert not reader.holds_blob(*outside), outside
    reader.close()
    reader.close()


def test_unfinished_shard_leaves_no_file(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "shard.fds", shard=0)
    with contextlib.suppress(KeyError), writer:
        writer.append(_tiled(0), label=0, name="a/b.jpg", flags=0)
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_shard_is_synced_before_it_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut packing resumes from the shards that have their final names."""
    done, replace = [], Path.replace

    def note(source: Path, target: Path) -> Path:
        done.append("renamed")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", lambda number: done.append(os.readlink(f"/dev/fd/{number}")))
    monkeypatch.setattr(Path, "replace", note)
    path = tmp_path / "shard-00005.fds"
    _write(path, range(1))
    assert done == [str(temporary_path(path)), "renamed", str(tmp_path)]


def test_truncation_anywhere_is_a_dataset_error(shard: Path) -> None:
    whole = shard.read_bytes()
    for size in (0, 1, 63, 64, 100, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match="truncated"):
            ShardReader(LocalShard(shard))


def test_missing_file_and_exhausted_descriptors_raise_different_errors(
    tmp_path: Path, shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        ShardReader(LocalShard(tmp_path / "shard-00009.fds"))
    with pytest.raises(DatasetError, match="cannot be opened: Is a directory"):
        ShardReader(LocalShard(tmp_path))

    def refuse(*arguments: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ResourceError, match="too many open files"):
        ShardReader(LocalShard(shard))


def _read(dataset: Dataset, ids: np.ndarray) -> np.ndarray:
    out = np.full((len(ids), *dataset.labels.row_shape), 7, dataset.labels.dtype)
    dataset.read_labels(ids, dataset.read_records(ids), out)
    return out


@pytest.mark.parametrize("labels", [*EVERY_KIND, WIDE], ids=lambda each: each.kind)
def test_labels_of_every_kind_are_read_in_any_order(labels: LabelSpec, tmp_path: Path) -> None:
    write_labelled(tmp_path, labels, samples=13, shards=3)
    ids = np.array([12, 0, 7, 7, 3])
    with Dataset.open(tmp_path, open_shards=1) as dataset:
        assert np.array_equal(_read(dataset, ids), expected_rows(ids, labels))
        assert dataset.read_records(ids)["source_checksum"].tolist() == (1 + ids).tolist()


@pytest.mark.parametrize("labels", [INDEX, MULTI], ids=("index", "multi"))
def test_copied_samples_keep_all_but_their_offsets(labels: LabelSpec, tmp_path: Path) -> None:
    write_labelled(tmp_path, labels, samples=5, shards=1)
    path, copy = tmp_path / shard_name(0), tmp_path / "copy.fds"
    reader = ShardReader(LocalShard(path))
    records, label_rows, names, intact = reader.read_index()
    assert intact
    assert label_rows.shape == (5, labels.stored_bytes)
    with ShardWriter(copy, shard=0, label_bytes=labels.stored_bytes) as writer:
        for record, label_row in zip(records, label_rows, strict=True):
            blob = bytearray(int(record["blob_bytes"]))
            reader.file.read_into(int(record["offset"]), memoryview(blob))
            start = int(record["name_offset"])
            name = names[start : start + int(record["name_bytes"])]
            writer.append_copy(record, blob, name, label_row.tobytes())
        writer.finish()
    reader.close()
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("labels", [MULTI, FLOATS, WIDE], ids=("multi", "float", "wide"))
def test_any_flipped_byte_of_a_label_row_is_found_at_first_use(
    labels: LabelSpec, tmp_path: Path
) -> None:
    write_labelled(tmp_path, labels, samples=3, shards=1)
    path = tmp_path / shard_name(0)
    whole = path.read_bytes()
    header = decode_header(whole, "x")
    for at in np.linspace(header.labels_offset, header.names_offset - 1, 5).astype(int).tolist():
        changed = bytearray(whole)
        changed[at] ^= 0x10
        path.write_bytes(changed)
        with (
            Dataset.open(tmp_path) as dataset,
            pytest.raises(DatasetError, match="its records, labels or names are not those"),
        ):
            dataset.read_records(np.arange(1))


@pytest.mark.parametrize("labels", [MULTI, WIDE], ids=("multi", "wide"))
def test_a_label_row_that_changes_under_a_reader_is_read_as_it_was(
    labels: LabelSpec, tmp_path: Path
) -> None:
    write_labelled(tmp_path, labels, samples=40, shards=1)
    path = tmp_path / shard_name(0)
    content = bytearray(path.read_bytes())
    header = decode_header(bytes(content), "x")
    with Dataset.open(tmp_path) as dataset:
        _read(dataset, np.array([7]))
        content[header.labels_offset : header.names_offset] = bytes(40 * header.label_bytes)
        path.write_bytes(content)
        assert np.array_equal(_read(dataset, np.arange(40)), expected_rows(np.arange(40), labels))


def test_a_shard_with_rows_of_another_size_does_not_match(tmp_path: Path) -> None:
    """The index checksum covers the same bytes, however they are cut into rows and names."""
    manifest = write_labelled(tmp_path, MULTI, samples=4, shards=1)
    entry = manifest.shards[0]
    with pytest.raises(DatasetError, match="different labels"):
        ProvenShard(files_at(tmp_path), entry, 0)
    ProvenShard(files_at(tmp_path), entry, 0, label_bytes=MULTI.stored_bytes).close()


@pytest.mark.parametrize("labels", EVERY_KIND, ids=lambda each: each.kind)
def test_a_records_label_without_meaning_is_refused(labels: LabelSpec, tmp_path: Path) -> None:
    """The class exists where a sample has one; elsewhere the field is 0."""
    write_labelled(tmp_path, labels, samples=4, shards=1)
    rewrite_record(tmp_path, 1, label=3 if labels == INDEX else 1)
    with (
        Dataset.open(tmp_path) as dataset,
        pytest.raises(DatasetError, match=r"sample 1 .*its record contradicts itself"),
    ):
        dataset.read_records(np.arange(4))
