"""Packs a folder of classes into a dataset: list, pack parts, balance, publish.

    list_source ─► shuffled over parts ─► workers pack parts ─► balance ─► rename into DST
                                           (part)               (balance)      ─► manifest

All work happens in DST/.packing until every shard is complete; the manifest comes last and makes
the dataset. After a kill the same command resumes. The result depends on source and options only,
not on the number of worker processes or of interruptions.
"""

import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from feeder.dataset.format import shard_name
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    WORK_FOLDER_NAME,
    Manifest,
    load_manifest,
    samples_in_shard,
)
from feeder.errors import ConfigError, DatasetError
from feeder.jpeg.libraries import library_warnings
from feeder.jpeg.recode import TILE_WIDTHS_PX
from feeder.pack.disk_errors import explain_disk_errors, is_inside
from feeder.pack.listing import SourceListing, list_source
from feeder.pack.part import PartSetup, PartTask
from feeder.pack.progress import ProgressLine
from feeder.pack.publish import publish_parts, read_quarantine
from feeder.pack.task_pool import TaskPool
from feeder.pack.work_folder import (
    STATE_NAME,
    QuarantineEntry,
    WorkFolder,
    WorkState,
    locate_files,
)
from feeder.plan.epoch import MAX_SEED, MAX_SHARDS
from feeder.process.path_text import path_to_text, printable

_SHARD_BYTES: Final = 256 << 20  # large enough to read in sequence, small enough to move around
_REMEDY: Final = "run the same command again to resume"
_LANES: Final = 8  # node processes that may share a dataset evenly
_SHARD_SAMPLES_MIN: Final = 8  # with fewer, lanes would hold no whole batch


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How to pack; None chooses by the size of the source."""

    shards: int | None = None
    lanes: int | None = None
    tile_width_px: int = 32  # 64 decodes 7 % more, 16 takes 2 % more storage
    seed: int = 0
    jobs: int = 1
    strict: bool = False
    apply_exif: bool = False  # as torchvision
    classes_of: Path | None = None  # a packed dataset whose classes and labels this one takes
    quality: int = 95  # of re-encoded images; at 4:4:4 no loss that training notices

    def __post_init__(self) -> None:
        ranges: tuple[tuple[str, int | None, int, int], ...] = (
            ("--shards", self.shards, 1, MAX_SHARDS),
            ("--lanes", self.lanes, 1, MAX_SHARDS),
            ("--seed", self.seed, 0, MAX_SEED),
            ("--quality", self.quality, 1, 100),
        )
        for name, value, low, high in ranges:
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} {value} is not within {low} .. {high}")
        if self.tile_width_px not in TILE_WIDTHS_PX:
            raise ConfigError(f"--tile-width {self.tile_width_px} is not one of {TILE_WIDTHS_PX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSummary:
    """The result of a packing."""

    manifest: Manifest
    quarantine: tuple[QuarantineEntry, ...]
    lost_classes: tuple[str, ...]
    """Classes with every file quarantined; they keep their label."""
    empty_classes: int
    """Classes of another dataset without a file here; they keep their label."""
    hidden: int
    """Files and folders of the source with names that begin with a dot."""
    packed_files: int
    """By this run; earlier runs finished the others."""
    packed_bytes: int
    seconds: float


def pack_dataset(
    source: Path, destination: Path, options: PackOptions, progress: ProgressLine
) -> PackSummary:
    """Pack ``source`` into the dataset ``destination``, or resume a killed run.

    Raises ConfigError (impossible request), DatasetError (nothing to pack; with ``strict`` also the
    first bad file) and ResourceError (disk full or not writable).
    """
    began_s = time.monotonic()
    with explain_disk_errors("packing into", destination, _REMEDY):
        _check_folders(source, destination)
    for line in library_warnings():
        progress.note(f"feeder: warning: {line}")
    listing = list_source(source, _known_classes(options.classes_of))
    shards, lanes = choose_layout(len(listing), listing.total_bytes, options)
    state = WorkState(
        listing=listing.digest(),
        classes=listing.classes_digest(),
        files=len(listing),
        source_bytes=listing.total_bytes,
        shards=shards,
        lanes=lanes,
        tile_width_px=options.tile_width_px,
        seed=options.seed,
        apply_exif=options.apply_exif,
        quality=options.quality,
    )
    progress.note(
        f"found {len(listing):,} files in {len(listing.classes):,} classes, "
        f"{listing.total_bytes / 1e6:,.1f} MB"
    )
    packing = _Packing(source, destination, options, listing, state, progress)
    with explain_disk_errors("packing into", destination, _REMEDY):
        destination.mkdir(parents=True, exist_ok=True)
        with WorkFolder(destination) as work:
            work.open(state)
            if not (destination / MANIFEST_NAME).exists():
                packing.pack_parts(work)
                publish_parts(
                    destination,
                    work,
                    state,
                    listing.classes,
                    strict=options.strict,
                    progress=progress,
                )
            work.remove()
        quarantine = read_quarantine(destination)
        return PackSummary(
            manifest=load_manifest(destination),
            quarantine=tuple(quarantine),
            lost_classes=_find_lost_classes(listing, quarantine),
            empty_classes=len(listing.classes) - len(np.unique(listing.labels)),
            hidden=listing.hidden,
            packed_files=packing.packed_files,
            packed_bytes=packing.packed_bytes,
            seconds=time.monotonic() - began_s,
        )


def _find_lost_classes(
    listing: SourceListing, quarantine: list[QuarantineEntry]
) -> tuple[str, ...]:
    bad = Counter(entry.path.split("/", 1)[0] for entry in quarantine)
    files = np.bincount(listing.labels, minlength=len(listing.classes)).tolist()
    return tuple(
        name for name, count in zip(listing.classes, files, strict=True) if 0 < count == bad[name]
    )


def _check_folders(source: Path, destination: Path) -> None:
    if is_inside(destination, source):
        raise ConfigError(f"{destination} is inside the source {source}: give a folder outside")
    if not destination.exists():
        return
    if not destination.is_dir():
        raise ConfigError(f"{destination} is a file where the dataset's folder should be")
    names = {path.name for path in destination.iterdir()} - {"lost+found"}
    if (destination / WORK_FOLDER_NAME / STATE_NAME).exists():
        return  # WorkFolder.open compares the state
    if MANIFEST_NAME in names:
        raise ConfigError(
            f"{destination} is a complete dataset already: give another folder, or remove it first"
        )
    names -= {WORK_FOLDER_NAME}
    if names:
        shown = printable(path_to_text(min(names)))
        raise ConfigError(
            f"{destination} is not empty (it holds {shown}): give an empty or a new folder"
        )


def choose_layout(files: int, total_bytes: int, options: PackOptions) -> tuple[int, int]:
    """Return the numbers of shards and lanes; ConfigError if those requested do not fit."""
    if options.shards is None:
        shards = max(-(-total_bytes // _SHARD_BYTES), min(_LANES, files // _SHARD_SAMPLES_MIN), 1)
        if shards > _LANES:
            shards = -(-shards // _LANES) * _LANES  # the same number in each lane
        shards = min(shards, files, MAX_SHARDS)
    else:
        shards = options.shards
    if shards > files:
        raise ConfigError(f"--shards {shards} is more than the {files} files to pack: use fewer")
    if options.lanes is None:
        divisors = [n for n in range(_LANES // 2, _LANES + 1) if shards % n == 0]
        lanes = max(divisors, default=min(shards, _LANES))
    else:
        lanes = options.lanes
    if lanes > shards:
        raise ConfigError(f"--lanes {lanes} is more than the {shards} shards: use fewer")
    return shards, lanes


class _Packing:
    """One run of pack_dataset, after the checks."""

    def __init__(
        self,
        source: Path,
        destination: Path,
        options: PackOptions,
        listing: SourceListing,
        state: WorkState,
        progress: ProgressLine,
    ) -> None:
        self._source = source
        self._destination = destination
        self._options = options
        self._listing = listing
        self._state = state
        self._progress = progress
        self.packed_files = 0
        self.packed_bytes = 0

    def pack_parts(self, work: WorkFolder) -> None:
        """Pack all parts that are not finished, in worker processes."""
        shards, files = self._state.shards, len(self._listing)
        sizes = [samples_in_shard(files, shards, part) for part in range(shards)]
        todo = [part for part in range(shards) if not self._is_finished(work, part)]
        if not todo:
            return
        self._warn_of_small_disk(sum(sizes[part] for part in todo) / files)
        order = self._listing.shuffled(self._options.seed)
        work.write_files(self._listing, order)
        extents = locate_files(self._listing, order, sizes)
        setup = PartSetup(
            source=path_to_text(os.path.abspath(self._source)),
            destination=path_to_text(os.path.abspath(self._destination)),
            tile_width_px=self._options.tile_width_px,
            apply_exif=self._options.apply_exif,
            quality=self._options.quality,
            strict=self._options.strict,
        )
        tasks = [
            msgspec.to_builtins(
                PartTask(part=part, offset=extents[part][0], bytes=extents[part][1])
            )
            for part in todo
        ]
        done = files - sum(sizes[part] for part in todo)
        if done:
            self._progress.note(f"resuming: {done:,} of {files:,} files are packed already")
        self._progress.begin("packing", "images", files, done)
        try:
            with TaskPool(
                "feeder.pack.part", msgspec.to_builtins(setup), jobs=self._options.jobs
            ) as pool:
                for _, _, counts in pool.run(tasks):
                    self.packed_files += counts["files"]
                    self.packed_bytes += counts["bytes"]
                    self._progress.add(counts["files"], counts["bytes"], counts["quarantined"])
        finally:
            self._progress.end()
            work.remove_unfinished()

    def _is_finished(self, work: WorkFolder, part: int) -> bool:
        paths = (work.part_path(part), work.balanced_path(part), self._shard_path(part))
        return work.result_path(part).exists() and any(path.exists() for path in paths)

    def _shard_path(self, part: int) -> Path:
        return self._destination / shard_name(part)

    def _warn_of_small_disk(self, share: float) -> None:
        needed = int(self._listing.total_bytes * share)
        status = os.statvfs(self._destination)
        free = status.f_bavail * status.f_frsize
        if needed > free:
            self._progress.note(
                f"warning: {self._destination} has {free / 1e9:.1f} GB free, "
                f"packing takes about {needed / 1e9:.1f} GB"
            )


def _known_classes(dataset: Path | None) -> tuple[str, ...] | None:
    """Return the classes of another packed dataset, None without one."""
    try:
        return None if dataset is None else load_manifest(dataset).classes
    except DatasetError as error:
        raise DatasetError(f"--classes-of: {error}") from None
