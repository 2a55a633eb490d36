"""Repacks a dataset of shard format 2 into another folder, in the current format.

    OLD/shard-00003.fds ─► a worker: old blob ─► JPEG ─► new blob, decoded again ─► part
      ─► renamed to NEW/shard-00003.fds ─► lists, survey ─► manifest (pack.publish)

Shards, samples and their order, labels, names and the quarantine list stay as they are. Each
sample's coefficients are read twice: by libjpeg-turbo out of the JPEG that the old blob becomes,
and by Feeder's decoder out of the new blob. The new one is written only if both are the same image.

All work happens in NEW/.packing as while packing, so the same command resumes after a kill at any
moment. OLD is only read.
"""

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from feeder.dataset.files import LocalShard
from feeder.dataset.first_read import check_readable
from feeder.dataset.format import checksum
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    QUARANTINE_NAME,
    Manifest,
    load_manifest,
)
from feeder.dataset.reader import ShardReader
from feeder.dataset.writer import ShardWriter
from feeder.errors import ConfigError, DatasetError
from feeder.jpeg.crop_decode import check_blob
from feeder.jpeg.recode import RecodeError, TiledJpeg, tile_jpeg
from feeder.pack.progress import ProgressLine
from feeder.pack.publish import publish_shards, read_quarantine
from feeder.pack.task_pool import Report, ShardTask, run_tasks, shard_tasks
from feeder.pack.work_folder import (
    WorkFolder,
    check_destination,
    encode_quarantine,
    warn_of_small_disk,
)
from feeder.process.output_file import explain_disk_errors, is_inside
from feeder.process.path_text import decode_name, path_from_text, path_to_text, printable
from feeder.repack import format2

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
    former = format2.load_former(old)
    if is_inside(new, old):
        raise ConfigError(f"{new} is inside the dataset {old}: give a folder outside")
    quarantine = read_quarantine(old)
    if f"{checksum(encode_quarantine(quarantine)):016x}" != former.quarantine_xxh3:
        raise DatasetError(
            f"{old / QUARANTINE_NAME} is damaged (its checksum does not match); restore it or pack "
            "again"
        )
    repacked = 0
    with explain_disk_errors("repacking into", new, _REMEDY):
        check_destination(new)
        new.mkdir(parents=True, exist_ok=True)
        with WorkFolder(new) as work:
            work.lock()
            work.begin({"former": former.former})
            if not (new / MANIFEST_NAME).exists():
                repacked = _repack_shards(old, new, former, work, jobs, progress)
                publish_shards(work, former, quarantine, shards=len(former.shards))
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
    tasks = [
        task
        for task in shard_tasks(former)
        if not work.part_path(task.number).exists() and not work.shard_path(task.number).exists()
    ]
    if not tasks:
        return 0
    warn_of_small_disk(new, sum(task.entry.bytes for task in tasks), progress)
    todo = sum(task.entry.samples for task in tasks)
    done = former.samples - todo
    if done:
        progress.note(f"resuming: {done:,} of {former.samples:,} images are repacked already")
    setup = Setup(
        old=path_to_text(old.absolute()),
        new=path_to_text(new.absolute()),
        label_bytes=former.labels.stored_bytes,
        tile_width_px=former.tile_width_px,
    )
    progress.begin("repacking", "images", former.samples, done)
    try:
        with closing(run_tasks("feeder.repack.run", setup, tasks, jobs=jobs)) as messages:
            for message in messages:
                progress.count(message)
    finally:
        progress.end()
        work.remove_unfinished()
    return todo


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all shards of a repacking share; paths as ``path_to_text`` writes them."""

    old: str
    new: str
    label_bytes: int
    tile_width_px: int


Task = ShardTask


def perform(setup: Setup, task: Task, report: Report) -> None:
    """Repack the shard into a finished part; reports "count" and "bytes"."""
    path = path_from_text(setup.old) / task.entry.name
    part = WorkFolder(path_from_text(setup.new)).part_path(task.number)
    with (
        closing(ShardReader(LocalShard(path), version=format2.VERSION)) as reader,
        ShardWriter(part, shard=task.number, label_bytes=setup.label_bytes) as writer,
    ):
        index = format2.read_index(reader, task.entry, task.number, setup.label_bytes)
        for row, record in enumerate(index.records):
            name = decode_name(index.name(record))
            where = f"sample {task.first_sample + row} ({printable(name)}) in {path}"
            try:
                blob = reader.read_blob(record)
                tiled = tile_jpeg(format2.convert_to_jpeg(blob, record), setup.tile_width_px)
                _compare(tiled, record, where)
            except (RecodeError, ValueError) as error:
                raise DatasetError(
                    f"{where} is damaged ({error}): restore it, or pack the source again"
                ) from None
            writer.append(
                tiled,
                label=int(record["label"]),
                name=name,
                flags=int(record["flags"]),
                label_row=index.label_rows[row].tobytes(),
                source_checksum=int(record["source_checksum"]),
            )
            report.add(count=1, bytes=len(blob))
        writer.finish()


def _compare(tiled: TiledJpeg, record: np.void, where: str) -> None:
    """Raise an error unless a sample in the current format is the image of its old record."""
    geometry = (tiled.width, tiled.height, tiled.subsampling)
    stored = (int(record["width"]), int(record["height"]), int(record["subsampling"]))
    if tiled.warnings or geometry != stored:
        raise ValueError("its scan does not match its record")
    if check_blob(tiled.blob)[:3] != (tiled.content_checksum, tiled.width, tiled.height):
        raise DatasetError(
            f"{where} has different coefficients after repacking: this is a fault of this "
            "machine's memory or of feeder; report it if it happens again"
        )
