"""Packs a source into a dataset. The stages, from top to bottom:

    list      containers ─► lists of items, mapped, in DST/.packing                  (containers)
    plan      what labels mean, classes, split, packing order ─► one list   (label_reading, classes,
                                                                                     split, items)
    pack      worker processes pack the list's parts                                       (part)
    compare   the source is still the one that was listed                            (containers)
    publish   even shards, renamed into DST; quarantine, duplicates, survey; manifest   (publish)

Nothing before "pack" reads an image, apart from containers that are copied while they are listed.
All work happens in DST/.packing until every shard is complete; the manifest comes last and makes
the dataset. After a kill the same command resumes. The result depends on source and options only,
not on the number of worker processes or of interruptions.
"""

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.files import Location
from feeder.dataset.manifest import MANIFEST_NAME, Manifest, load_manifest, samples_in_shard
from feeder.errors import ConfigError, DatasetError, SourceChangedError, StoreError
from feeder.jpeg.libraries import library_warnings
from feeder.pack.classes import ClassPlan, plan_classes
from feeder.pack.containers import (
    check_labels,
    check_source,
    find_spec,
    is_image,
    list_source,
    stamp_labels,
)
from feeder.pack.items import SourceItems, check_names, merge_lists, write_items
from feeder.pack.label_reading import LabelReading, read_labels
from feeder.pack.label_words import describe_labels, label_warnings
from feeder.pack.options import PackOptions, TooManyBadImages
from feeder.pack.part import READS_AT_ONCE, READS_AT_ONCE_MIN, Setup, Task
from feeder.pack.progress import ProgressLine
from feeder.pack.publish import count_classes, publish_parts, read_quarantine
from feeder.pack.split import Selection, select_items
from feeder.pack.spool import refuse_spool
from feeder.pack.task_pool import RunTasks, run_tasks
from feeder.pack.work_folder import (
    OtherPackingError,
    PartResult,
    QuarantineEntry,
    WorkFolder,
    WorkState,
    check_destination,
    warn_of_small_disk,
)
from feeder.process.output_file import explain_disk_errors, is_inside
from feeder.process.path_text import path_from_text, path_to_text, printable
from feeder.process.punched_file import can_punch
from feeder.source.location.objects import retries, take_retries
from feeder.source.recognise import recognise
from feeder.source.source import SourceSpec
from feeder.survey.numbers import plural

_REMEDY: Final = "run the same command again to resume"
_WAIT: Final = "wait until it is complete, then run the same command again"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackSummary:
    """The result of a packing."""

    manifest: Manifest
    quarantine: tuple[QuarantineEntry, ...]
    lost_classes: tuple[str, ...] = ()
    """Classes with every image quarantined; they keep their label."""
    empty_classes: int = 0
    """Classes without an image in the source; they keep their label."""
    labels_read: str = "as an earlier run reported"
    """How labels were read: "12 classes by number (column label)"."""
    hidden: int = 0
    """Files and folders of the source with names that begin with a dot."""
    packed_files: int = 0
    """By this run; earlier runs finished the others."""
    packed_bytes: int = 0
    retries: Mapping[str, int] = field(default_factory=dict)
    """Requests to a store that this run made again, by the reason."""
    seconds: float


def pack_dataset(
    source: str | Path,
    destination: Path,
    options: PackOptions,
    progress: ProgressLine,
    *,
    spec: SourceSpec | None = None,
    run: RunTasks | None = None,
) -> PackSummary:
    """Pack ``source`` into the dataset ``destination``, or resume a killed run.

    ``spec`` is the source if it is recognised already. ``run`` performs the parts, by default in
    processes of this host. Raises ConfigError (impossible request), DatasetError (nothing to pack,
    or more bad images than ``max_bad`` allows), SourceChangedError (a file is not the one that was
    listed) and ResourceError (disk full or not writable).
    """
    began_s = time.monotonic()
    take_retries()
    location = source if isinstance(source, str) else path_to_text(source)
    with explain_disk_errors("packing into", destination, _REMEDY):
        check_destination(destination)
    known = load_known(options.classes_of)
    spec = spec or recognise(location, **options.reading)
    if known is not None:
        spec = msgspec.structs.replace(spec, may_lack_images=True)
    for container in spec.containers if spec.is_loose and not spec.is_remote else ():
        if is_inside(destination, path_from_text(container)):
            raise ConfigError(
                f"{destination} is inside the source {printable(container)}: give a folder outside"
            )
    for line in library_warnings():
        progress.note(f"feeder: warning: {line}")
    with explain_disk_errors("packing into", destination, _REMEDY):
        is_new = not destination.exists()
        destination.mkdir(parents=True, exist_ok=True)
        with WorkFolder(destination) as work:
            work.lock()
            refuse_spool(work, spec)
            if spec.is_fetched and work.is_begun and _is_complete(work, spec, options):
                work.remove()
                return _summarise(destination, began_s)
            try:
                plan, packed = _pack_into(work, spec, options, known, run or run_tasks, progress)
            except (ConfigError, DatasetError) as error:
                # Other options may still pack a spool, and lists where too many images are bad;
                # what was fetched is used again.
                is_kept = isinstance(error, (TooManyBadImages, StoreError)) or spec.is_fetched
                if spec.kind != "samples" and not is_kept:
                    work.abandon()
                elif spec.is_fetched:
                    progress.note(f"what was fetched is kept in {work.path} for the next run")
                if is_new and not any(destination.iterdir()):
                    destination.rmdir()
                if isinstance(error, SourceChangedError):
                    remedy = f"{_WAIT}; if that refuses to resume, remove {destination} first"
                    raise SourceChangedError(error.change, remedy) from None
                if isinstance(error, StoreError):
                    raise StoreError(error.kind, f"{error}; then {_REMEDY}") from None
                raise
            manifest = load_manifest(destination)
            listed, there = plan.class_counts, count_classes(destination, manifest)
            lost = np.flatnonzero((listed > 0) & (there == 0)) if len(listed) else ()
            hidden = sum(each.listed.hidden for each in plan.items.lists)
            work.remove()
        return _summarise(
            destination,
            began_s,
            lost_classes=tuple(plan.classes.classes[number] for number in lost),
            empty_classes=int((listed == 0).sum()),
            labels_read=plan.labels_read,
            hidden=hidden,
            packed_files=packed["count"],
            packed_bytes=packed["bytes"],
        )


def _is_complete(work: WorkFolder, spec: SourceSpec, options: PackOptions) -> bool:
    """Return whether only the work folder's removal remains, and copies may be gone from it.

    OtherPackingError for another source or other options: lists cannot be made again of copies
    whose images were given back, to compare more.
    """
    known = find_spec(work.path)
    is_complete = (work.path.parent / MANIFEST_NAME).exists()
    if known == spec and not is_complete:
        return False
    chosen = {
        "seed": options.seed,
        "split": options.split_text,
        "conversion": msgspec.to_builtins(options.conversion),
    }
    if (
        not is_complete
        or known not in (None, spec)
        or not chosen.items() <= work.read_state().items()
    ):
        folder = work.path.parent
        raise OtherPackingError(
            f"{folder} holds the beginning of a packing of another source, or with other options: "
            f"run the command that began it to resume it, or remove {folder} to start over"
        )
    return True


def _summarise(destination: Path, began_s: float, **facts: Any) -> PackSummary:
    return PackSummary(
        manifest=load_manifest(destination),
        quarantine=tuple(read_quarantine(destination)),
        retries=take_retries(),
        seconds=time.monotonic() - began_s,
        **facts,
    )


def _pack_into(
    work: WorkFolder,
    spec: SourceSpec,
    options: PackOptions,
    known: Manifest | None,
    run: RunTasks,
    progress: ProgressLine,
) -> tuple["PackPlan", Counter[str]]:
    """Take the stages that no earlier run has completed; return counts of what was packed, too."""
    labels = stamp_labels(spec)
    plan = plan_packing(work, spec, options, known, progress)
    check_labels(labels)
    work.begin(msgspec.to_builtins(plan.state))
    packed: Counter[str] = Counter()
    if not (work.path.parent / MANIFEST_NAME).exists():
        packed, results = pack_parts(work, plan, options, run, progress)
        check_source(spec, plan.items.lists, progress)
        check_labels(labels)
        publish_parts(work, plan.state, plan.classes.classes, plan.rejected, results, progress)
    return plan, packed


def load_known(dataset: Location | None) -> Manifest | None:
    """Load the manifest of the dataset whose classes to take, if any."""
    try:
        return None if dataset is None else load_manifest(dataset)
    except DatasetError as error:
        raise DatasetError(f"--classes-of: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """What to pack, and what never will be packed."""

    items: SourceItems
    classes: ClassPlan
    class_counts: NDArray[np.int64]
    """(classes,), items to pack; empty unless labels are of kind "index"."""
    extents: Sequence[tuple[int, int]]
    """Offset and size in bytes of each part's items in the work folder's list."""
    rejected: Sequence[QuarantineEntry]
    state: WorkState
    labels_read: str


def plan_packing(
    work: WorkFolder,
    spec: SourceSpec,
    options: PackOptions,
    known: Manifest | None,
    progress: ProgressLine,
) -> PackPlan:
    """List the source and write its items to the work folder, in packing order.

    ``known`` is a dataset with the classes to use. Raises ConfigError and DatasetError for a source
    that cannot be packed like this.
    """
    lists = list_source(work.path, spec, jobs=options.jobs, progress=progress)
    notes = itertools.chain(spec.notes, *(each.listed.notes for each in lists))
    for line in dict.fromkeys(notes):
        progress.note(line)
    items = merge_lists(work.path, lists)
    warning = check_names(items, lambda item: is_image(work.path, spec, item))
    if warning:
        progress.note(warning)
    selection = select_items(items, options.split)
    reading = read_labels(items, spec)
    rows = selection.rows[~np.isin(selection.rows, list(reading.bad))]
    rejected = [*_rejected(items, selection, reading)]
    files = len(rows)
    options.check_bad(rejected, files + len(rejected), work.path, untried=files)
    if not files:
        raise DatasetError(f"{printable(spec.location)} holds no items: there is nothing to pack")
    classes = plan_classes(items, reading, spec, known)
    used = np.unique(classes.labels_of(rows))
    for line in label_warnings(items, spec, classes, files, used):
        progress.note(f"feeder: warning: {line}")
    order = items.order(rows, options.seed)
    total_bytes = int(items.rows["size_bytes"][order].sum())
    shards = options.choose_shards(files, total_bytes)
    sizes = [samples_in_shard(files, shards, part) for part in range(shards)]
    listing, extents, counts = write_items(work.items_path, items, order, classes, sizes)
    counted = f" in {plural(len(classes.classes), 'class', 'classes')}" if classes.classes else ""
    progress.note(f"found {plural(files, 'image')}{counted}, {total_bytes / 1e6:,.1f} MB")
    return PackPlan(
        items=items,
        classes=classes,
        class_counts=counts,
        extents=extents,
        rejected=rejected,
        labels_read=describe_labels(items, spec, classes, known, used),
        state=WorkState(
            listing=listing,
            classes=classes.digest(),
            files=files,
            source_bytes=total_bytes,
            shards=shards,
            seed=options.seed,
            split=options.split_text,
            labels=classes.labels,
            conversion=options.conversion,
        ),
    )


def _rejected(
    items: SourceItems, selection: Selection, reading: LabelReading
) -> Iterator[QuarantineEntry]:
    """Yield what listing left out, and the items whose labels are not like the others."""
    for each in items.lists:
        for entry in each.rejected():
            if selection.includes(entry["path"]):
                yield QuarantineEntry(**entry)
    for row in selection.rows[np.isin(selection.rows, list(reading.bad))].tolist():
        yield QuarantineEntry(path=items.name(row), kind="bad-label", reason=reading.bad[row])


def pack_parts(
    work: WorkFolder, plan: PackPlan, options: PackOptions, run: RunTasks, progress: ProgressLine
) -> tuple[Counter[str], list[PartResult]]:
    """Pack all parts that are not finished; return counts of what was packed, and all results.

    Raises TooManyBadImages.
    """
    state, parts = plan.state, range(plan.state.shards)
    results = [work.read_result(part) for part in parts]
    packed: Counter[str] = Counter()
    if None in results:
        packed = _pack_unfinished(work, plan, results, options, run, progress)
        results = [work.read_result(part) for part in parts]
    finished = [result for result in results if result is not None]
    bad = [*plan.rejected]
    for result in finished:
        bad += result.quarantine
    untried = state.files - sum(result.files for result in finished)
    options.check_bad(bad, state.files + len(plan.rejected), work.path, untried=untried)
    return packed, finished


def _pack_unfinished(
    work: WorkFolder,
    plan: PackPlan,
    results: Sequence[PartResult | None],
    options: PackOptions,
    run: RunTasks,
    progress: ProgressLine,
) -> Counter[str]:
    """Pack the parts whose result is None, beginning none once too many images are bad."""
    state, destination = plan.state, work.path.parent
    finished = [result for result in results if result is not None]
    done = sum(result.files for result in finished)
    # A part's copies give their room back when it is packed.
    copied = sum(each.listed.bytes for each in plan.items.lists if each.listed.is_copied)
    new_bytes = state.source_bytes - (copied if can_punch(work.path) else 0)
    needed = max(0, new_bytes) * (state.files - done) // state.files
    warn_of_small_disk(destination, needed, progress)
    if done:
        progress.note(f"resuming: {done:,} of {state.files:,} files are packed already")
    allowed = options.allowed_bad(state.files + len(plan.rejected))
    bad = len(plan.rejected) + sum(len(result.quarantine) for result in finished)
    packed: Counter[str] = Counter()

    def tasks() -> Iterator[Task]:
        for part, (offset, size) in enumerate(plan.extents):
            if results[part] is None and bad + packed["quarantined"] <= allowed:
                yield Task(part=part, offset=offset, bytes=size)

    setup = Setup(
        destination=path_to_text(os.path.abspath(destination)),
        conversion=state.conversion,
        label_bytes=state.labels.stored_bytes,
        strict=options.strict,
        reads_at_once=max(READS_AT_ONCE_MIN, READS_AT_ONCE // options.jobs),
    )
    progress.begin("packing", "images", state.files, done)
    try:
        with closing(run("feeder.pack.part", setup, tasks(), jobs=options.jobs)) as messages:
            for message in messages:
                progress.count(message)
                retries.update(message.get("retries", {}))
                for name in ("count", "bytes", "quarantined"):
                    packed[name] += message.get(name, 0)
    finally:
        progress.end()
        work.remove_unfinished()
    return packed
