"""Turns one shard back into ordinary JPEG files: the work of an unpacking's worker process."""

import os
from pathlib import Path, PurePosixPath
from typing import Any, Final

import msgspec
import numpy as np

from feeder.errors import DatasetError
from feeder.manifest import ShardEntry
from feeder.pack_listing import unpacked_name
from feeder.proven_shard import ProvenShard
from feeder.shard_format import checksum, decode_name, printable
from feeder.shard_reader import ShardReader
from feeder.task_pool import Report
from feeder.tiles import layout_of, whole_jpeg

_REPORT_EVERY: Final = 32  # samples


class UnpackSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of an unpacking have in common."""

    path: str
    out: str


class UnpackTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which shard to unpack, and what the manifest says about it."""

    number: int
    entry: ShardEntry


def perform(setup: dict[str, Any], task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Unpack the shard; reports and answers {"samples", "bytes"} that were added since the last."""
    settings, shard = msgspec.convert(setup, UnpackSetup), msgspec.convert(task, UnpackTask)
    reader = ProvenShard(Path(settings.path), shard.entry, shard.number)
    out = Path(settings.out)
    temporary = out / f".unpacking-{shard.number:05d}.tmp"
    samples = size_bytes = 0
    try:
        records, names, is_proven = reader.read_index()
        if not is_proven:
            raise reader.changed()
        for row, record in enumerate(records):
            start = int(record["name_offset"])
            name = decode_name(names[start : start + int(record["name_bytes"])])
            jpeg = _read_jpeg(reader, record, f"{printable(name) or f'row {row}'} in {reader.path}")
            _place(jpeg, temporary, out / safe_name(name, str(reader.path)))
            samples += 1
            size_bytes += len(jpeg)
            if samples == _REPORT_EVERY:
                report({"samples": samples, "bytes": size_bytes})
                samples = size_bytes = 0
    finally:
        reader.close()
        temporary.unlink(missing_ok=True)
    return {"samples": samples, "bytes": size_bytes}


def _read_jpeg(reader: ShardReader, record: np.void, where: str) -> bytes:
    """Return the sample as an ordinary JPEG; ``where`` names it in errors."""
    offset, blob_bytes = int(record["offset"]), int(record["blob_bytes"])
    if not reader.holds_blob(offset, blob_bytes):
        raise DatasetError(f"the record of {where} points out of the shard: run feeder verify")
    blob = bytearray(blob_bytes)
    reader.read_into(offset, memoryview(blob))
    if checksum(blob) != int(record["checksum"]):
        raise DatasetError(f"{where} is damaged (its checksum does not match): run feeder verify")
    try:
        return whole_jpeg(
            memoryview(blob), layout_of(record), int(record["width"]), int(record["height"])
        )
    except ValueError as error:
        raise DatasetError(f"{where} is damaged ({error}): run feeder verify") from None


def _place(jpeg: bytes, temporary: Path, path: Path) -> None:
    """Write ``path`` so that it is whole whenever it is there."""
    temporary.write_bytes(jpeg)
    try:
        temporary.replace(path)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(path)


def safe_name(name: str, where: str) -> PurePosixPath:
    """Return the path below OUT for the sample ``name``; DatasetError where it would lead out."""
    path = PurePosixPath(unpacked_name(name))
    parts = name.split("/")
    if len(parts) < 2 or any(part in ("", ".", "..") for part in parts) or "\0" in name:
        raise DatasetError(f"{where} holds a sample of the impossible name {name!r}: not unpacked")
    return path


def remove_unfinished(out: Path) -> None:
    """Remove what was being written when an unpacking died."""
    for path in out.glob(".unpacking-*.tmp"):
        os.unlink(path)
