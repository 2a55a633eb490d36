"""Repacks a dataset of shard format 2 into another folder, in the current format.

    OLD/shard-00003.fds ─► a worker: old blob ─► JPEG ─► new blob, decoded again ─► part (shard)
      ─► renamed to NEW/shard-00003.fds ─► lists, survey ─► manifest (pack.publish)

Shards, samples and their order, labels, names and the quarantine list stay as they are. All work
happens in NEW/.packing as while packing, so the same command resumes after a kill at any moment.
OLD is only read.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from feeder.dataset.first_read import check_readable
from feeder.dataset.format import checksum, shard_name
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    QUARANTINE_NAME,
    Manifest,
    load_manifest,
)
from feeder.errors import ConfigError, DatasetError
from feeder.pack.progress import ProgressLine
from feeder.pack.publish import publish_shards, read_quarantine
from feeder.pack.run import check_destination, warn_of_small_disk
from feeder.pack.task_pool import TaskPool
from feeder.pack.work_folder import QuarantineEntry, WorkFolder, encode_quarantine
from feeder.process.output_file import explain_disk_errors, is_inside
from feeder.process.path_text import path_to_text
from feeder.repack.format2 import load_former
from feeder.repack.shard import RepackSetup, RepackTask

_REMEDY: Final = "run the same command again to resume"


@dataclass(frozen=True, slots=True, kw_only=True)
class RepackSummary:
    """The result of a repacking."""

    manifest: Manifest
    former_bytes: int
    """Size of OLD's shards."""
    repacked: int
    """Samples of this run; earlier runs finished the others."""
    seconds: float


def repack_dataset(old: Path, new: Path, *, jobs: int, progress: ProgressLine) -> RepackSummary:
    """Repack the dataset ``old`` into ``new``, or resume a killed run.

    Raises ConfigError (impossible request), DatasetError (damaged ``old``) and ResourceError (disk
    full or not writable).
    """
    began_s = time.monotonic()
    check_readable({f"dataset {old}": old})
    former = load_former(old)
    if is_inside(new, old):
        raise ConfigError(f"{new} is inside the dataset {old}: give a folder outside")
    quarantine = _read_quarantine(old, former)
    repacked = 0
    with explain_disk_errors("repacking into", new, _REMEDY):
        check_destination(new)
        new.mkdir(parents=True, exist_ok=True)
        with WorkFolder(new) as work:
            work.lock()
            work.begin_repacking(former.former)
            if not (new / MANIFEST_NAME).exists():
                repacked = _repack_shards(old, new, former, work, jobs, progress)
                publish_shards(new, work, former, quarantine, shards=len(former.shards))
            manifest = load_manifest(new)
            work.remove()
    return RepackSummary(
        manifest=manifest,
        former_bytes=sum(entry.bytes for entry in former.shards),
        repacked=repacked,
        seconds=time.monotonic() - began_s,
    )


def _repack_shards(
    old: Path, new: Path, former: Manifest, work: WorkFolder, jobs: int, progress: ProgressLine
) -> int:
    """Repack all shards that are not finished, in worker processes; return the samples in them."""
    tasks = [task for task in _tasks(former) if not _is_finished(task.number, new, work)]
    if not tasks:
        return 0
    warn_of_small_disk(new, sum(task.entry.bytes for task in tasks), progress)
    todo = sum(task.entry.samples for task in tasks)
    done = former.samples - todo
    if done:
        progress.note(f"resuming: {done:,} of {former.samples:,} images are repacked already")
    setup = RepackSetup(
        old=path_to_text(old.absolute()),
        new=path_to_text(new.absolute()),
        label_bytes=former.labels.stored_bytes,
        tile_width_px=former.tile_width_px,
    )
    progress.begin("repacking", "images", former.samples, done)
    try:
        with TaskPool("feeder.repack.shard", msgspec.to_builtins(setup), jobs=jobs) as pool:
            for _, _, counts in pool.run(map(msgspec.to_builtins, tasks)):
                progress.add(counts["samples"], counts["bytes"])
    finally:
        progress.end()
        work.remove_unfinished()
    return todo


def _tasks(former: Manifest) -> Iterator[RepackTask]:
    first_sample = 0
    for number, entry in enumerate(former.shards):
        yield RepackTask(number=number, first_sample=first_sample, entry=entry)
        first_sample += entry.samples


def _is_finished(number: int, new: Path, work: WorkFolder) -> bool:
    return work.part_path(number).exists() or (new / shard_name(number)).exists()


def _read_quarantine(old: Path, former: Manifest) -> list[QuarantineEntry]:
    entries = read_quarantine(old)
    if f"{checksum(encode_quarantine(entries)):016x}" != former.quarantine_xxh3:
        raise DatasetError(
            f"{old / QUARANTINE_NAME} is damaged (its checksum does not match); restore it or pack "
            "again"
        )
    return entries
