"""Unpacks one shard into ordinary JPEG files: the task of an unpacking's worker process.

Names are the file system's bytes, whatever the locale.
"""

import contextlib
import errno
import json
import os
import re
from typing import Any, Final

import msgspec
import numpy as np

from feeder.dataset.format import checksum
from feeder.dataset.manifest import ShardEntry
from feeder.dataset.proven_shard import ProvenShard
from feeder.dataset.reader import ShardReader
from feeder.errors import DatasetError, ResourceError
from feeder.jpeg.crop_decode import layout_of, whole_jpeg
from feeder.pack.task_pool import Report
from feeder.pack.unpack_names import NameLimits, choose_name
from feeder.process.path_text import decode_name, encode_name, path_from_text, printable

_REPORT_EVERY: Final = 32  # samples
_TEMPORARY: Final = b".unpacking-"
_UNFINISHED: Final = re.compile(rb"\.unpacking-\d+\.(tmp|names)")
_NAME_ERRORS: Final = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
"""How file systems refuse a name that is too long or has bytes that they do not allow."""


class UnpackSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of an unpacking share; paths as ``path_to_text`` writes them."""

    path: str
    out: str


class UnpackTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which shard to unpack, and its manifest entry."""

    number: int
    entry: ShardEntry


def perform(setup: dict[str, Any], task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Unpack the shard; shortened names, if any, are listed in the file ``shortened_path``.

    Reports and returns {"samples", "bytes", "shortened"} since the last report.
    """
    settings, shard = msgspec.convert(setup, UnpackSetup), msgspec.convert(task, UnpackTask)
    reader = ProvenShard(path_from_text(settings.path), shard.entry, shard.number)
    out = encode_name(settings.out)
    temporary = os.path.join(out, _TEMPORARY + b"%05d.tmp" % shard.number)
    limits = NameLimits.of_folder(out)
    shortened: list[str] = []
    samples = size_bytes = listed = 0
    try:
        records, _, names, is_proven = reader.read_index()
        if not is_proven:
            raise reader.changed()
        for row, record in enumerate(records):
            start = int(record["name_offset"])
            stored = bytes(names[start : start + int(record["name_bytes"])])
            shown = printable(decode_name(stored)) or f"row {row}"
            jpeg = _read_jpeg(reader, record, f"{shown} in {reader.path}")
            chosen = choose_name(stored, limits, str(reader.path))
            _write_jpeg(jpeg, temporary, os.path.join(out, chosen.path), shown)
            if chosen.is_shortened:
                entry = {"name": decode_name(stored), "path": decode_name(chosen.path)}
                shortened.append(json.dumps(entry) + "\n")
            samples += 1
            size_bytes += len(jpeg)
            if samples == _REPORT_EVERY:
                new = len(shortened) - listed
                report({"samples": samples, "bytes": size_bytes, "shortened": new})
                samples = size_bytes = 0
                listed = len(shortened)
        if shortened:
            with open(shortened_path(out, shard.number), "w", encoding="ascii") as file:
                file.writelines(shortened)
    finally:
        reader.close()
        _remove(temporary)
    return {"samples": samples, "bytes": size_bytes, "shortened": len(shortened) - listed}


def shortened_path(out: bytes, number: int) -> bytes:
    """Return the file that lists a shard's shortened names until all shards are unpacked."""
    return os.path.join(out, _TEMPORARY + b"%05d.names" % number)


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


def _write_jpeg(jpeg: bytes, temporary: bytes, path: bytes, name: str) -> None:
    """Write ``path`` atomically; OSErrors name it rather than ``temporary``."""
    try:
        with open(temporary, "wb") as file:
            file.write(jpeg)
        try:
            os.replace(temporary, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(temporary, path)
    except OSError as error:
        if error.errno in _NAME_ERRORS:
            raise ResourceError(
                f"{name} cannot be unpacked: the file system refuses the name "
                f"{printable(decode_name(path))} ({error.strerror}): unpack into a folder with a "
                "shorter path, or on another file system"
            ) from None
        raise OSError(error.errno, error.strerror, path) from None


def _remove(path: bytes) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENAMETOOLONG):  # with these it does not exist
            raise


def remove_unfinished(out: bytes) -> None:
    """Remove the temporary files that a killed unpacking left; ``out`` may be missing."""
    with contextlib.suppress(FileNotFoundError):
        for name in filter(_UNFINISHED.fullmatch, os.listdir(out)):
            _remove(os.path.join(out, name))
