"""Shards as files: written whole or not at all; errors name every damage."""

import contextlib
import os
from pathlib import Path

import pytest

from feeder.dataset.format import HEADER_BYTES, checksum
from feeder.dataset.reader import ShardReader
from feeder.dataset.writer import ShardWriter
from feeder.errors import DatasetError, ResourceError
from feeder.jpeg.recode import TiledJpeg, tile_jpeg
from tests.support.sources import encoded, image


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
    reader = ShardReader(shard)
    assert (reader.header.shard, reader.header.samples) == (5, 4)
    assert reader.file_bytes == reader.header.file_bytes == shard.stat().st_size
    records, _, names, intact = reader.read_index()
    assert intact
    assert names.decode("utf-8", "surrogateescape") == "".join(
        f"class/é{seed}\udcff.jpg" for seed in range(4)
    )
    for seed, record in enumerate(records):
        tiled = _tiled(seed)
        blob = bytearray(int(record["blob_bytes"]))
        reader.read_into(int(record["offset"]), memoryview(blob))
        assert blob == tiled.blob
        assert record["content_checksum"] == tiled.content_checksum
        assert record["subsampling"] == tiled.subsampling
        assert checksum(blob) == record["checksum"]
        assert int(record["offset"]) % 8 == 0
        assert (record["width"], record["height"]) == (tiled.width, tiled.height)
        assert (record["label"], record["flags"]) == (seed, seed << 16)
        assert reader.holds_blob(int(record["offset"]), int(record["blob_bytes"]))
    reader.close()
    reader.close()


def test_index_is_under_half_a_percent_of_images_of_usual_size(tmp_path: Path) -> None:
    path = tmp_path / "shard.fds"
    tiled = tile_jpeg(encoded(image(500, 400), quality=93), 32)
    with ShardWriter(path, shard=0) as writer:
        for number in range(10):
            writer.append(tiled, label=0, name=f"n01440764/{number}.JPEG", flags=0)
        writer.finish()
    overhead = path.stat().st_size - 10 * len(tiled.blob)
    assert overhead < 0.005 * path.stat().st_size


def test_empty_shard_is_valid(tmp_path: Path) -> None:
    path = tmp_path / "shard.fds"
    _write(path, range(0))
    assert path.stat().st_size == HEADER_BYTES
    reader = ShardReader(path)
    assert len(reader.read_index()[0]) == 0
    reader.close()


def test_copied_samples_keep_all_but_their_offsets(shard: Path, tmp_path: Path) -> None:
    reader = ShardReader(shard)
    records, _, names, _ = reader.read_index()
    copy = tmp_path / "copy.fds"
    with ShardWriter(copy, shard=5) as writer:
        for record in records:
            blob = bytearray(int(record["blob_bytes"]))
            reader.read_into(int(record["offset"]), memoryview(blob))
            start = int(record["name_offset"])
            writer.append_copy(record, blob, names[start : start + int(record["name_bytes"])])
        writer.finish()
    reader.close()
    assert copy.read_bytes() == shard.read_bytes()


def test_unfinished_shard_leaves_no_file(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "shard.fds", shard=0)
    with contextlib.suppress(KeyError), writer:
        writer.append(_tiled(0), label=0, name="a/b.jpg", flags=0)
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_truncation_anywhere_is_a_dataset_error(shard: Path) -> None:
    whole = shard.read_bytes()
    for size in (0, 1, 63, 64, 100, len(whole) // 2, len(whole) - 1):
        shard.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match="truncated"):
            ShardReader(shard)


def test_shard_that_shrinks_while_open_is_a_dataset_error(shard: Path) -> None:
    reader = ShardReader(shard)
    records = reader.read_index().records
    os.truncate(shard, 200)
    with pytest.raises(DatasetError, match="truncated: it ends before byte"):
        reader.read_into(int(records[3]["offset"]), memoryview(bytearray(100)))
    reader.close()


def test_missing_file_and_exhausted_descriptors_raise_different_errors(
    tmp_path: Path, shard: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        ShardReader(tmp_path / "shard-00009.fds")
    with pytest.raises(DatasetError, match="cannot be opened: Is a directory"):
        ShardReader(tmp_path)

    def refuse(*arguments: object) -> int:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ResourceError, match="too many open files"):
        ShardReader(shard)


def test_blob_outside_the_shard_is_detected(shard: Path) -> None:
    reader = ShardReader(shard)
    records = reader.read_index()[0].copy()
    for field, value in (
        ("offset", 8),
        ("offset", 2**64 - 1),
        ("blob_bytes", 2**32 - 1),
    ):
        blob = {name: int(records[0][name]) for name in ("offset", "blob_bytes")}
        assert not reader.holds_blob(**{**blob, field: value}), field
    reader.close()
