"""Unpacks a dataset into a folder of classes: OUT/class/name.jpg.

Where samples have not one class each, a path is OUT/name, and OUT/labels.jsonl lists the labels, if
there are any: a line is ``{"file": "…", "labels": [ … ]}``, with class names where a sample has
several classes, else with numbers. Pixels equal those of the source files (those of the conversion
for converted samples). A name keeps a JPEG's suffix, else it gets .jpg. A name too long for the
file system of OUT is shortened (``unpack_names``) and listed in OUT/.shortened-names.jsonl.

Shards are unpacked by worker processes (see task_pool). Files are written atomically. Names are the
file system's bytes, whatever the locale.
"""

import contextlib
import errno
import functools
import json
import os
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.files import (
    DatasetFiles,
    Location,
    files_at,
    local_folder,
    location_from_text,
    location_to_text,
)
from feeder.dataset.first_read import check_readable
from feeder.dataset.manifest import Manifest, load_manifest
from feeder.dataset.proven_shard import ProvenShard
from feeder.dataset.record_checks import find_inconsistent
from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.jpeg.crop_decode import whole_jpeg
from feeder.pack.progress import ProgressLine
from feeder.pack.task_pool import Report, ShardTask, run_tasks, shard_tasks
from feeder.pack.unpack_names import choose_name, find_limits
from feeder.process.output_file import explain_disk_errors, is_inside
from feeder.process.path_text import (
    decode_name,
    encode_name,
    path_to_text,
    printable,
)

SHORTENED_NAME: Final = ".shortened-names.jsonl"
"""Begins with a dot, so packing OUT again leaves it out."""

LABELS_NAME: Final = "labels.jsonl"
"""The labels that no folder's name shows, of kinds "multi" and "float"."""

_REMEDY: Final = "run the same command again with --force"
_TEMPORARY: Final = b".unpacking-"
_LISTS: Final = {b"names": SHORTENED_NAME, b"labels": LABELS_NAME}
_UNFINISHED: Final = re.compile(rb"\.unpacking-\d+\.(tmp|names|labels)")
_NAME_ERRORS: Final = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
"""How file systems refuse a name that is too long or has bytes that they do not allow."""


def unpack_dataset(
    location: Location, out: Path, *, jobs: int, force: bool, progress: ProgressLine
) -> tuple[Manifest, int]:
    """Unpack the dataset there into ``out``; return its manifest and how many names were
    shortened.

    ``force`` allows a non-empty ``out`` and replaces files of the same names. Raises DatasetError,
    ConfigError and ResourceError.
    """
    check_readable({f"dataset {location}": location})
    manifest, source = load_manifest(location), local_folder(location)
    if source is not None and is_inside(out, source):
        raise ConfigError(f"{out} is inside the dataset {location}: give a folder outside")
    shortened = 0
    folder = os.fsencode(out)
    with explain_disk_errors("unpacking into", out, _REMEDY):
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file where the folder to unpack into should be")
        out.mkdir(parents=True, exist_ok=True)
        if not force and any(out.iterdir()):
            raise ConfigError(
                f"{out} is not empty: give an empty or a new folder, or --force to replace files "
                "of the same names"
            )
        _remove_unfinished(folder)  # a killed run's lists of names among them
        setup = Setup(
            path=location_to_text(location),
            out=path_to_text(out.absolute()),
            may_replace=force,
        )
        progress.begin("unpacking", "samples", manifest.samples)
        try:
            tasks = shard_tasks(manifest)
            with closing(run_tasks("feeder.pack.unpack", setup, tasks, jobs=jobs)) as messages:
                for message in messages:
                    progress.count(message)
                    shortened += message.get("shortened", 0)
            for kind in _LISTS:
                _join_lists(folder, kind, len(manifest.shards))
            if not shortened:
                (out / SHORTENED_NAME).unlink(missing_ok=True)  # another dataset's
        finally:
            progress.end()
            _remove_unfinished(folder)
    return manifest, shortened


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of an unpacking share; paths as ``location_to_text`` writes them."""

    path: str
    out: str
    may_replace: bool
    """Whether a file that exists is replaced; else it is another sample's, and an error."""


Task = ShardTask


@functools.cache
def _open_dataset(location: str) -> tuple[DatasetFiles, Manifest]:
    files = files_at(location_from_text(location))
    return files, load_manifest(files)


def perform(setup: Setup, task: Task, report: Report) -> None:
    """Unpack the shard; its shortened names and labels, if any, are in the files ``_list_path``.

    Reports "count", "bytes" and "shortened".
    """
    out = encode_name(setup.out)
    files, manifest = _open_dataset(setup.path)
    labels, classes = manifest.labels, manifest.classes
    temporary = os.path.join(out, _TEMPORARY + b"%05d.tmp" % task.number)
    limits = find_limits(out)
    lists: dict[bytes, list[str]] = {kind: [] for kind in _LISTS}
    reader = ProvenShard(files, task.entry, task.number, label_bytes=labels.stored_bytes)
    with closing(reader):
        index = reader.prove_index()
        inconsistent = find_inconsistent(index.records, labels.count_record_labels(len(classes)))
        for row, record in enumerate(index.records):
            stored = index.name(record)
            name = printable(decode_name(stored)) or f"row {row}"
            try:
                if row == inconsistent:
                    raise ValueError("its record contradicts itself")
                jpeg = whole_jpeg(memoryview(reader.read_blob(record)), record)
            except ValueError as error:
                raise DatasetError(
                    f"{name} in {reader.file.where} is damaged ({error}): run feeder verify"
                ) from None
            class_name = classes[int(record["label"])] if labels.kind == "index" else None
            below, is_shortened = choose_name(stored, limits, reader.file.where, class_name)
            path = os.path.join(out, below)
            if not setup.may_replace and os.path.lexists(path):
                raise DatasetError(
                    f"{name} cannot be unpacked: another sample is in "
                    f"{printable(decode_name(path))} already; unpack where names differ by case, "
                    "or pack again with names that differ in more"
                )
            _write_jpeg(jpeg, temporary, path, name)
            if labels.stored_bytes:  # else a folder's name shows the label, or there is none
                row_labels = _list_labels(manifest, index.label_rows[row])
                line = {"file": decode_name(below), "labels": row_labels}
                lists[b"labels"].append(json.dumps(line) + "\n")
            if is_shortened:
                entry = {"name": decode_name(stored), "path": decode_name(below)}
                lists[b"names"].append(json.dumps(entry) + "\n")
            report.add(count=1, bytes=len(jpeg), shortened=is_shortened)
        for kind, lines in lists.items():
            if lines:
                with open(_list_path(out, kind, task.number), "w", encoding="ascii") as file:
                    file.writelines(lines)


def _list_labels(manifest: Manifest, stored: NDArray[np.uint8]) -> list[str] | list[float]:
    """The classes, or the numbers, in a label row."""
    labels = manifest.labels
    row = np.empty((1, labels.width), labels.dtype)
    labels.decode_rows(stored.reshape(1, -1), row)
    if labels.kind == "multi":
        return [manifest.classes[number] for number in np.flatnonzero(row[0]).tolist()]
    return [float(str(value)) for value in row[0]]  # 0.1, not all digits of its float64


def _list_path(out: bytes, kind: bytes, number: int) -> bytes:
    """The list of a shard, of names or labels, until all shards are unpacked."""
    return os.path.join(out, _TEMPORARY + b"%05d.%s" % (number, kind))


def _join_lists(out: bytes, kind: bytes, shards: int) -> None:
    """Make the lists of all shards one, in order, if there is any."""
    parts = [_list_path(out, kind, number) for number in range(shards)]
    parts = [path for path in parts if os.path.exists(path)]
    if not parts:
        return
    staging = _list_path(out, kind, shards)  # the number of no shard; removed like their lists
    with open(staging, "wb") as file:
        for path in parts:
            with open(path, "rb") as part:
                shutil.copyfileobj(part, file)
    os.replace(staging, os.path.join(out, os.fsencode(_LISTS[kind])))


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
    except (IsADirectoryError, NotADirectoryError, FileExistsError) as error:
        raise DatasetError(
            f"{name} cannot be unpacked: {error.strerror} at {printable(decode_name(path))}, where "
            "a file and a folder would have one name; unpack into an empty folder, or pack again "
            "with names that differ in more"
        ) from None
    except OSError as error:
        if error.errno in _NAME_ERRORS:
            raise ResourceError(
                f"{name} cannot be unpacked: the file system refuses the name "
                f"{printable(decode_name(path))} ({error.strerror}): unpack into a folder with a "
                "shorter path, or on another file system"
            ) from None
        raise OSError(error.errno, error.strerror, path) from None


def _remove_unfinished(out: bytes) -> None:
    """Remove the temporary files that a killed unpacking left; ``out`` may be missing."""
    with contextlib.suppress(FileNotFoundError):
        for name in filter(_UNFINISHED.fullmatch, os.listdir(out)):
            os.unlink(os.path.join(out, name))
