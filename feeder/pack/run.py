"""Packs a source into a dataset: list, order, pack parts, balance, publish.

    containers ─► lists ─► classes, split, packing order ─► workers pack parts ─► balance
    (containers)           (classes, split, merge)          (part)                (balance)
      ─► renamed into DST ─► quarantine, duplicates, survey ─► manifest
                             (publish)

All work happens in DST/.packing until every shard is complete; the manifest comes last and makes
the dataset. After a kill the same command resumes. The result depends on source and options only,
not on the number of worker processes or of interruptions.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

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
from feeder.pack.bad_share import TooManyBadImages
from feeder.pack.containers import check_labels, check_source, stamp_labels
from feeder.pack.options import PackOptions
from feeder.pack.part import PartSetup, PartTask
from feeder.pack.plan import PackPlan, plan_packing
from feeder.pack.progress import ProgressLine
from feeder.pack.publish import count_classes, publish_parts, read_quarantine
from feeder.pack.spool import refuse_spool
from feeder.pack.task_pool import MakePool, TaskPool
from feeder.pack.work_folder import (
    STATE_NAME,
    QuarantineEntry,
    WorkFolder,
)
from feeder.process.output_file import explain_disk_errors, is_inside
from feeder.process.path_text import path_from_text, path_to_text, printable
from feeder.source.item_bytes import SourceChangedError
from feeder.source.recognise import recognise
from feeder.source.source import LOOSE_KINDS, SourceSpec

_REMEDY: Final = "run the same command again to resume"
_WAIT: Final = "wait until it is complete, then run the same command again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSummary:
    """The result of a packing."""

    manifest: Manifest
    quarantine: tuple[QuarantineEntry, ...]
    lost_classes: tuple[str, ...]
    """Classes with every image quarantined; they keep their label."""
    empty_classes: int
    """Classes without an image in the source; they keep their label."""
    labels_read: str
    """How labels were read: "12 classes by number (column label)"."""
    hidden: int
    """Files and folders of the source with names that begin with a dot."""
    packed_files: int
    """By this run; earlier runs finished the others."""
    packed_bytes: int
    seconds: float


def pack_dataset(
    source: str | Path,
    destination: Path,
    options: PackOptions,
    progress: ProgressLine,
    *,
    spec: SourceSpec | None = None,
    make_pool: MakePool | None = None,
) -> PackSummary:
    """Pack ``source`` into the dataset ``destination``, or resume a killed run.

    ``spec`` is the source if it is recognised already. ``make_pool`` makes the workers of the
    parts, by default processes of this host. Raises ConfigError (impossible request),
    DatasetError (nothing to pack, or more bad images than ``max_bad`` allows), SourceChangedError
    (a file is not the one that was listed) and ResourceError (disk full or not writable).
    """
    began_s = time.monotonic()
    location = source if isinstance(source, str) else path_to_text(source)
    with explain_disk_errors("packing into", destination, _REMEDY):
        check_destination(destination)
    known = load_known(options.classes_of)
    if spec is None:
        spec = _recognise(location, options)
    if known is not None:
        spec = msgspec.structs.replace(spec, may_lack_images=True)
    _check_outside(destination, spec)
    for line in library_warnings():
        progress.note(f"feeder: warning: {line}")
    with explain_disk_errors("packing into", destination, _REMEDY):
        is_new = not destination.exists()
        destination.mkdir(parents=True, exist_ok=True)
        with WorkFolder(destination) as work:
            work.lock()
            refuse_spool(work, spec)
            packing = _Packing(destination, work, options, progress, make_pool or TaskPool)
            labels = stamp_labels(spec)
            try:
                plan = plan_packing(work, spec, options, known, progress)
                check_labels(labels)
            except TooManyBadImages:
                raise
            except (ConfigError, DatasetError) as error:
                if spec.kind != "samples":  # which other options may still pack
                    work.abandon()
                if is_new and not any(destination.iterdir()):
                    destination.rmdir()
                if isinstance(error, SourceChangedError):
                    raise SourceChangedError(error.change, _WAIT) from None
                raise
            work.begin(plan.state, spec)
            if not (destination / MANIFEST_NAME).exists():
                try:
                    packing.pack_parts(plan)
                    check_source(spec, plan.items.lists, progress)
                    check_labels(labels)
                except SourceChangedError as error:
                    remedy = f"{_WAIT}; if that refuses to resume, remove {destination} first"
                    raise SourceChangedError(error.change, remedy) from None
                publish_parts(
                    destination,
                    work,
                    plan.state,
                    plan.classes.classes,
                    plan.rejected,
                    limit=options.bad_limit,
                    progress=progress,
                )
            manifest = load_manifest(destination)
            lost, empty = _find_empty_classes(plan, count_classes(destination, manifest))
            hidden = sum(each.listed.hidden for each in plan.items.lists)
            work.remove()
        return PackSummary(
            manifest=manifest,
            quarantine=tuple(read_quarantine(destination)),
            lost_classes=lost,
            empty_classes=empty,
            labels_read=plan.labels_read,
            hidden=hidden,
            packed_files=packing.packed_files,
            packed_bytes=packing.packed_bytes,
            seconds=time.monotonic() - began_s,
        )


def _recognise(location: str, options: PackOptions) -> SourceSpec:
    choices = options.reading
    return recognise(
        location,
        kind=choices.kind,
        image=choices.image,
        label=choices.label,
        label_kind=choices.label_kind,
        uncertain=choices.uncertain,
        label_base=choices.label_base,
        labels_file=choices.labels_file,
        class_names_file=choices.class_names_file,
        split=choices.split,
        all_splits=choices.all_splits,
    )


def load_known(dataset: Path | None) -> Manifest | None:
    """Return the manifest of the dataset whose classes to take, None without one."""
    try:
        return None if dataset is None else load_manifest(dataset)
    except DatasetError as error:
        raise DatasetError(f"--classes-of: {error}") from None


def _check_outside(destination: Path, spec: SourceSpec) -> None:
    for container in spec.containers if spec.kind in LOOSE_KINDS else ():
        if is_inside(destination, path_from_text(container)):
            raise ConfigError(
                f"{destination} is inside the source {printable(container)}: give a folder outside"
            )


def check_destination(destination: Path) -> None:
    """Raise ConfigError if this folder cannot become a dataset, nor holds one's beginning."""
    if not destination.exists():
        return
    if not destination.is_dir():
        raise ConfigError(f"{destination} is a file where the dataset's folder should be")
    names = {path.name for path in destination.iterdir()} - {"lost+found"}
    if (destination / WORK_FOLDER_NAME / STATE_NAME).exists():
        return  # WorkFolder.begin compares the state
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


def warn_of_small_disk(destination: Path, needed: int, progress: ProgressLine) -> None:
    """Note it if ``destination`` has less room than the ``needed`` bytes."""
    status = os.statvfs(destination)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        progress.note(
            f"warning: {destination} has {free / 1e9:.1f} GB free, "
            f"packing takes about {needed / 1e9:.1f} GB"
        )


def _find_empty_classes(plan: PackPlan, packed: NDArray[np.int64]) -> tuple[tuple[str, ...], int]:
    """Return the classes that quarantine emptied, and the number of those that were empty."""
    counts = plan.order.class_counts
    if not len(counts):
        return (), 0
    lost = np.flatnonzero((counts > 0) & (packed == 0)).tolist()
    return tuple(plan.classes.classes[number] for number in lost), int((counts == 0).sum())


class _Packing:
    """One run of pack_dataset, after the first checks."""

    def __init__(
        self,
        destination: Path,
        work: WorkFolder,
        options: PackOptions,
        progress: ProgressLine,
        make_pool: MakePool,
    ) -> None:
        self._make_pool = make_pool
        self._destination = destination
        self._work = work
        self._options = options
        self._progress = progress
        self.packed_files = 0
        self.packed_bytes = 0

    def pack_parts(self, plan: PackPlan) -> None:
        """Pack all parts that are not finished, in worker processes."""
        state, work = plan.state, self._work
        sizes = [samples_in_shard(state.files, state.shards, part) for part in range(state.shards)]
        todo = [part for part in range(state.shards) if not self._is_finished(part)]
        if not todo:
            return
        remaining = sum(sizes[part] for part in todo)
        needed = state.source_bytes * remaining // state.files
        warn_of_small_disk(self._destination, needed, self._progress)
        setup = PartSetup(
            destination=path_to_text(os.path.abspath(self._destination)),
            options=self._options.conversion,
            label_bytes=state.labels.stored_bytes,
            strict=self._options.strict,
        )
        done = state.files - remaining
        if done:
            self._progress.note(f"resuming: {done:,} of {state.files:,} files are packed already")
        self._progress.begin("packing", "images", state.files, done)
        bad = _BadCount(
            len(plan.rejected),
            self._options.bad_limit.allowed(state.files + len(plan.rejected)),
        )
        for part in set(range(state.shards)).difference(todo):
            result = work.read_result(part)
            bad.count += len(result.quarantine) if result is not None else 0
        try:
            with self._make_pool(
                "feeder.pack.part", msgspec.to_builtins(setup), jobs=self._options.jobs
            ) as pool:
                for _, _, counts in pool.run(self._tasks(todo, plan, bad)):
                    self.packed_files += counts["files"]
                    self.packed_bytes += counts["bytes"]
                    bad.count += counts["quarantined"]
                    self._progress.add(counts["files"], counts["bytes"], counts["quarantined"])
        finally:
            self._progress.end()
            work.remove_unfinished()
        if bad.is_too_many:
            results = [work.read_result(part) for part in range(state.shards)]
            entries = [entry for result in results if result for entry in result.quarantine]
            found = [*plan.rejected, *entries]
            files = state.files + len(plan.rejected)
            untried = sum(size for size, result in zip(sizes, results, strict=True) if not result)
            self._options.bad_limit.check(len(found), found, files, work.path, untried=untried)

    def _tasks(self, todo: list[int], plan: PackPlan, bad: "_BadCount") -> Iterator[dict[str, Any]]:
        """Yield the parts to pack, none once too many images are bad."""
        for part in todo:
            if bad.is_too_many:
                return
            offset, size = plan.order.extents[part]
            yield msgspec.to_builtins(PartTask(part=part, offset=offset, bytes=size))

    def _is_finished(self, part: int) -> bool:
        work = self._work
        shard = self._destination / shard_name(part)
        paths = (work.part_path(part), work.balanced_path(part), shard)
        return work.result_path(part).exists() and any(path.exists() for path in paths)


@dataclass(slots=True)
class _BadCount:
    """Bad images found so far, and how many may be."""

    count: int
    allowed: int

    @property
    def is_too_many(self) -> bool:
        return self.count > self.allowed
