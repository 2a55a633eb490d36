"""Unpacks one shard into ordinary JPEG files: the task of an unpacking's worker process.

Names are the file system's bytes, whatever the locale.
"""

import contextlib
import errno
import functools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import checksum
from feeder.dataset.manifest import ShardEntry, load_manifest
from feeder.dataset.proven_shard import ProvenShard
from feeder.dataset.reader import ShardReader
from feeder.dataset.record_checks import find_inconsistent
from feeder.errors import DatasetError, ResourceError
from feeder.jpeg.crop_decode import whole_jpeg
from feeder.pack.task_pool import Report
from feeder.pack.unpack_names import NameLimits, choose_name
from feeder.plan.labels import LabelSpec
from feeder.process.path_text import decode_name, encode_name, path_from_text, printable

_REPORT_EVERY: Final = 32  # samples
_TEMPORARY: Final = b".unpacking-"
SHORTENED: Final = b"names"
LABELS: Final = b"labels"
_UNFINISHED: Final = re.compile(rb"\.unpacking-\d+\.(tmp|names|labels)")
_NAME_ERRORS: Final = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
"""How file systems refuse a name that is too long or has bytes that they do not allow."""


class UnpackSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of an unpacking share; paths as ``path_to_text`` writes them."""

    path: str
    out: str
    fingerprint: str
    may_replace: bool
    """Whether a file that exists is replaced; else it is another sample's, and an error."""


class UnpackTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which shard to unpack, and its manifest entry."""

    number: int
    entry: ShardEntry


def perform(setup: dict[str, Any], task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Unpack the shard; its shortened names and labels, if any, are in the files ``list_path``.

    Reports and returns {"samples", "bytes", "shortened"} since the last report.
    """
    settings, shard = msgspec.convert(setup, UnpackSetup), msgspec.convert(task, UnpackTask)
    folder, out = path_from_text(settings.path), encode_name(settings.out)
    labels, classes = _load_labels(folder, settings.fingerprint)
    reader = ProvenShard(folder, shard.entry, shard.number, label_bytes=labels.stored_bytes)
    temporary = os.path.join(out, _TEMPORARY + b"%05d.tmp" % shard.number)
    limits = NameLimits.of_folder(out)
    shortened: list[str] = []
    label_lines: list[str] = []
    samples = size_bytes = listed = 0
    try:
        records, label_rows, names, is_proven = reader.read_index()
        if not is_proven:
            raise reader.changed()
        inconsistent = find_inconsistent(records, labels.count_record_labels(len(classes)))
        for row, record in enumerate(records):
            start = int(record["name_offset"])
            stored = bytes(names[start : start + int(record["name_bytes"])])
            shown = printable(decode_name(stored)) or f"row {row}"
            where = f"{shown} in {reader.path}"
            if row == inconsistent:
                raise DatasetError(
                    f"{where} is damaged (its record contradicts itself): run feeder verify"
                )
            jpeg = _read_jpeg(reader, record, where)
            class_name = classes[int(record["label"])] if labels.kind == "index" else None
            chosen = choose_name(stored, limits, str(reader.path), class_name)
            path = os.path.join(out, chosen.path)
            if not settings.may_replace and os.path.lexists(path):
                raise DatasetError(_explain_clash(shown, path))
            _write_jpeg(jpeg, temporary, path, shown)
            if _is_listed(labels):
                label_lines.append(_format_line(chosen.path, label_rows[row], labels, classes))
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
        for kind, lines in ((SHORTENED, shortened), (LABELS, label_lines)):
            if lines:
                with open(list_path(out, kind, shard.number), "w", encoding="ascii") as file:
                    file.writelines(lines)
    finally:
        reader.close()
        _remove(temporary)
    return {"samples": samples, "bytes": size_bytes, "shortened": len(shortened) - listed}


def list_path(out: bytes, kind: bytes, number: int) -> bytes:
    """Return the file of a shard's list, SHORTENED or LABELS, until all shards are unpacked."""
    return os.path.join(out, _TEMPORARY + b"%05d.%s" % (number, kind))


@functools.cache
def _load_labels(folder: Path, fingerprint: str) -> tuple[LabelSpec, tuple[str, ...]]:
    manifest = load_manifest(folder)
    if manifest.fingerprint != fingerprint:
        raise DatasetError(f"{folder} was packed again meanwhile: run the command with --force")
    return manifest.labels, manifest.classes


def _is_listed(labels: LabelSpec) -> bool:
    """Return whether labels of this kind are listed: no folder's name shows them."""
    return labels.stored_bytes > 0


def _format_line(
    path: bytes, stored: NDArray[np.uint8], labels: LabelSpec, classes: Sequence[str]
) -> str:
    """Return the line, newline included, of the file ``path`` with the label row ``stored``."""
    row = np.empty((1, labels.width), labels.dtype)
    labels.decode_rows(stored.reshape(1, -1), row)
    values: list[str] | list[float]
    if labels.kind == "multi":
        values = [classes[number] for number in np.flatnonzero(row[0]).tolist()]
    else:
        values = [float(str(value)) for value in row[0]]  # 0.1, not all digits of its float64
    return json.dumps({"file": decode_name(path), "labels": values}) + "\n"


def _explain_clash(name: str, path: bytes) -> str:
    return (
        f"{name} cannot be unpacked: another sample is in {printable(decode_name(path))} already; "
        "unpack where names differ by case, or pack again with names that differ in more"
    )


def _read_jpeg(reader: ShardReader, record: np.void, where: str) -> bytes:
    """Return the sample as an ordinary JPEG; ``where`` names it in errors."""
    offset, blob_bytes = int(record["offset"]), int(record["blob_bytes"])
    if not reader.holds_blob(offset, blob_bytes):
        raise DatasetError(
            f"{where} is damaged (its record points out of the shard): run feeder verify"
        )
    blob = bytearray(blob_bytes)
    reader.read_into(offset, memoryview(blob))
    if checksum(blob) != int(record["checksum"]):
        raise DatasetError(f"{where} is damaged (its checksum does not match): run feeder verify")
    try:
        return whole_jpeg(memoryview(blob), record)
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
