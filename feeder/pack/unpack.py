"""Unpacks a dataset into a folder of classes: OUT/class/name.jpg.

Where samples have not one class each, a path is OUT/name, and OUT/labels.jsonl lists the labels, if
there are any: a line is ``{"file": "…", "labels": [ … ]}``, with class names where a sample has
several classes, else with numbers. Pixels equal those of the source files (those of the conversion
for converted samples). A name keeps a JPEG's suffix, else it gets .jpg. A name too long for the
file system of OUT is shortened (``unpack_names``) and listed in OUT/.shortened-names.jsonl. Files
are written atomically.
"""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from feeder.dataset.first_read import check_readable
from feeder.dataset.manifest import Manifest, load_manifest
from feeder.errors import ConfigError
from feeder.pack.progress import ProgressLine
from feeder.pack.task_pool import TaskPool
from feeder.pack.unpack_shard import (
    LABELS,
    SHORTENED,
    UnpackSetup,
    UnpackTask,
    list_path,
    remove_unfinished,
)
from feeder.process.output_file import explain_disk_errors, is_inside
from feeder.process.path_text import path_to_text

SHORTENED_NAME: Final = ".shortened-names.jsonl"
"""Begins with a dot, so packing OUT again leaves it out."""

LABELS_NAME: Final = "labels.jsonl"
"""The labels that no folder's name shows, of kinds "multi" and "float"."""

_REMEDY: Final = "run the same command again with --force"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackSummary:
    """The result of an unpacking."""

    manifest: Manifest
    shortened: int
    """Number of shortened names; SHORTENED_NAME lists them."""


def unpack_dataset(
    path: Path, out: Path, *, jobs: int, force: bool, progress: ProgressLine
) -> UnpackSummary:
    """Unpack the dataset at ``path`` into ``out``.

    ``force`` allows a non-empty ``out`` and replaces files of the same names. Raises DatasetError,
    ConfigError and ResourceError.
    """
    check_readable({f"dataset {path}": path})
    manifest = load_manifest(path)
    if is_inside(out, path):
        raise ConfigError(f"{out} is inside the dataset {path}: give a folder outside")
    shortened = 0
    with explain_disk_errors("unpacking into", out, _REMEDY):
        if out.exists() and not out.is_dir():
            raise ConfigError(f"{out} is a file where the folder to unpack into should be")
        out.mkdir(parents=True, exist_ok=True)
        if not force and any(out.iterdir()):
            raise ConfigError(
                f"{out} is not empty: give an empty or a new folder, or --force to replace files "
                "of the same names"
            )
        remove_unfinished(os.fsencode(out))  # a killed run's lists of names among them
        setup = UnpackSetup(
            path=path_to_text(path.absolute()),
            out=path_to_text(out.absolute()),
            fingerprint=manifest.fingerprint,
            may_replace=force,
        )
        progress.begin("unpacking", "samples", manifest.samples)
        try:
            with TaskPool(
                "feeder.pack.unpack_shard", msgspec.to_builtins(setup), jobs=jobs
            ) as pool:
                for _, _, counts in pool.run(_tasks(manifest)):
                    progress.add(counts["samples"], counts["bytes"])
                    shortened += counts["shortened"]
            shards = len(manifest.shards)
            if not _join_lists(out, SHORTENED, shards, SHORTENED_NAME):
                (out / SHORTENED_NAME).unlink(missing_ok=True)  # another dataset's
            _join_lists(out, LABELS, shards, LABELS_NAME)
        finally:
            progress.end()
            remove_unfinished(os.fsencode(out))
    return UnpackSummary(manifest=manifest, shortened=shortened)


def _join_lists(out: Path, kind: bytes, shards: int, name: str) -> bool:
    """Concatenate the lists of all shards, in order, into one that appears atomically.

    Returns whether there is any.
    """
    folder = os.fsencode(out)
    staging = list_path(folder, kind, shards)  # the number of no shard; removed like their lists
    is_empty = True
    with open(staging, "wb") as file:
        for number in range(shards):
            try:
                with open(list_path(folder, kind, number), "rb") as part:
                    shutil.copyfileobj(part, file)
                is_empty = False
            except FileNotFoundError:  # the shard has no list
                continue
    if not is_empty:
        os.replace(staging, out / name)
    return not is_empty


def _tasks(manifest: Manifest) -> Iterator[dict[str, object]]:
    for number, entry in enumerate(manifest.shards):
        yield msgspec.to_builtins(UnpackTask(number=number, entry=entry))
