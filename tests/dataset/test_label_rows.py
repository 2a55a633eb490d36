"""Label rows in shards: written, read and copied; every change of one is found."""

from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.format import checksum, decode_header, shard_name
from feeder.dataset.manifest import ShardEntry
from feeder.dataset.opened import Dataset
from feeder.dataset.proven_shard import BLOCK_BYTES, ProvenShard
from feeder.dataset.reader import ShardReader
from feeder.dataset.writer import ShardWriter
from feeder.errors import DatasetError
from feeder.jpeg.recode import tile_jpeg
from feeder.plan.labels import LabelSpec
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

WIDE = LabelSpec(kind="float", width=1500)  # a row of 6,000 bytes: over several blocks


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


def test_copied_samples_keep_their_label_rows_and_source_checksums(tmp_path: Path) -> None:
    write_labelled(tmp_path, MULTI, samples=5, shards=1)
    path, copy = tmp_path / shard_name(0), tmp_path / "copy.fds"
    reader = ShardReader(path)
    records, label_rows, names, intact = reader.read_index()
    assert intact
    assert label_rows.shape == (5, MULTI.stored_bytes)
    with ShardWriter(copy, shard=0, label_bytes=MULTI.stored_bytes) as writer:
        for record, label_row in zip(records, label_rows, strict=True):
            blob = bytearray(int(record["blob_bytes"]))
            reader.read_into(int(record["offset"]), memoryview(blob))
            start = int(record["name_offset"])
            name = names[start : start + int(record["name_bytes"])]
            writer.append_copy(record, blob, name, label_row.tobytes())
        writer.finish()
    reader.close()
    assert copy.read_bytes() == path.read_bytes()


def test_a_row_of_another_size_is_refused(tmp_path: Path) -> None:
    tiled = tile_jpeg(encoded(image()), 32)
    with ShardWriter(tmp_path / "x.fds", shard=0, label_bytes=2) as writer:
        for row in (b"", b"123"):
            with pytest.raises(ValueError, match="bytes in a shard of 2 each"):
                writer.append(tiled, label=0, name="x", flags=0, label_row=row)


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
def test_a_label_row_that_changes_under_a_reader_is_found(
    labels: LabelSpec, tmp_path: Path
) -> None:
    """In the last block of the row, which is not the one of its record."""
    write_labelled(tmp_path, labels, samples=40, shards=1)
    path = tmp_path / shard_name(0)
    header = decode_header(path.read_bytes(), "x")
    with Dataset.open(tmp_path) as dataset:
        ids = np.array([0])
        records = dataset.read_records(ids)
        rows = np.empty((1, *labels.row_shape), labels.dtype)
        dataset.read_labels(ids, records, rows)
        assert header.labels_offset - header.records_offset > BLOCK_BYTES
        with path.open("r+b") as file:
            file.seek(header.labels_offset + header.label_bytes - 1)
            last = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([last ^ 1]))
        with pytest.raises(DatasetError, match=r"the label row of sample 0 in .* is not the one"):
            dataset.read_labels(ids, records, rows)


def test_a_shard_with_rows_of_another_size_does_not_match(tmp_path: Path) -> None:
    """The index checksum covers the same bytes, however they are cut into rows and names."""
    manifest = write_labelled(tmp_path, MULTI, samples=4, shards=1)
    entry: ShardEntry = manifest.shards[0]
    with pytest.raises(DatasetError, match="different labels"):
        ProvenShard(tmp_path, entry, 0)
    ProvenShard(tmp_path, entry, 0, label_bytes=MULTI.stored_bytes).close()


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


def test_names_follow_the_label_rows(tmp_path: Path) -> None:
    write_labelled(tmp_path, WIDE, samples=4, shards=1)
    data = (tmp_path / shard_name(0)).read_bytes()
    header = decode_header(data, "x")
    assert data[header.names_offset :] == b"s000s001s002s003"
    assert header.index_checksum == checksum(data[header.records_offset :])
    with Dataset.open(tmp_path) as dataset:
        assert dataset.name_of(2) == "s002"
