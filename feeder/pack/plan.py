"""Plans a packing: lists its source, and writes all items in packing order with their classes.

    containers ─► lists ─► classes, names, split ─► packing order ─► one list in the work folder

Nothing here reads an image, apart from containers that are copied while they are listed.
"""

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from feeder.dataset.manifest import Manifest, samples_in_shard
from feeder.errors import DatasetError
from feeder.pack.classes import ClassPlan, plan_classes
from feeder.pack.containers import forget_containers, list_containers, read_lists, read_spec
from feeder.pack.item_list import WrittenList, write_items
from feeder.pack.label_reading import LabelReading, read_labels
from feeder.pack.label_words import describe_labels, label_warnings, used_classes
from feeder.pack.merge import SourceItems, check_names, merge_lists
from feeder.pack.options import PackOptions, choose_shards
from feeder.pack.progress import ProgressLine
from feeder.pack.split import Selection, select_items
from feeder.pack.work_folder import QuarantineEntry, WorkFolder, WorkState
from feeder.process.path_text import encode_name, path_to_text, printable
from feeder.source.item_bytes import SNIFF_BYTES, SourceError, sniff_file, sniff_format
from feeder.source.source import LOOSE_KINDS, Item, SourceSpec, open_source
from feeder.survey.numbers import plural


@dataclass(frozen=True, slots=True, kw_only=True)
class PackPlan:
    """What to pack, in which order, and what never will be packed."""

    items: SourceItems
    classes: ClassPlan
    order: WrittenList
    rejected: tuple[QuarantineEntry, ...]
    state: WorkState
    labels_read: str
    """How labels were read, for the summary."""


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
    if spec.kind == "samples":  # its spool is its list
        lists = read_lists(work.path, spec)
    else:
        _forget_other_source(work, spec)
        lists = list_containers(work.path, spec, jobs=options.jobs, progress=progress)
    notes = itertools.chain(spec.notes, *(each.listed.notes for each in lists))
    for line in dict.fromkeys(notes):
        progress.note(line)
    items = merge_lists(work.path, lists)
    for line in check_names(items, lambda item: _is_image(work, spec, item)):
        progress.note(line)
    selection = select_items(items, options.split)
    reading = read_labels(items, spec)
    rows = selection.rows[~np.isin(selection.rows, list(reading.bad))]
    rejected = tuple(_rejected(items, selection, reading))
    files, bad = len(rows), len(rejected)
    options.bad_limit.check(bad, rejected, files + bad, work.path, untried=files)
    if not files:
        raise DatasetError(f"{printable(spec.location)} holds no items: there is nothing to pack")
    classes = plan_classes(items, reading, spec, known)
    used = used_classes(items, classes, rows)
    for line in label_warnings(items, spec, classes, files, used):
        progress.note(f"feeder: warning: {line}")
    order = items.order(rows, options.seed)
    total_bytes = int(items.rows["size_bytes"][order].sum())
    shards = choose_shards(files, total_bytes, options)
    sizes = [samples_in_shard(files, shards, part) for part in range(shards)]
    written = write_items(work.new_items_path, items, order, classes, sizes)
    counted = f" in {plural(len(classes.classes), 'class', 'classes')}" if classes.classes else ""
    progress.note(f"found {plural(files, 'image')}{counted}, {total_bytes / 1e6:,.1f} MB")
    conversion = options.conversion
    state = WorkState(
        listing=written.digest,
        classes=classes.digest(),
        files=files,
        source_bytes=total_bytes,
        shards=shards,
        tile_width_px=options.tile_width_px,
        seed=options.seed,
        apply_exif=options.apply_exif,
        quality=conversion.quality,
        reencode=conversion.reencode,
        max_side=conversion.max_side or 0,
        subsampling=conversion.subsampling or "",
        split="" if options.split is None else options.split.describe(),
        labels=classes.labels,
        png16_max=options.png16_max,
    )
    return PackPlan(
        items=items,
        classes=classes,
        order=written,
        rejected=rejected,
        labels_read=describe_labels(items, spec, classes, known, used),
        state=state,
    )


def _forget_other_source(work: WorkFolder, spec: SourceSpec) -> None:
    """Remove the lists of another source, which an earlier run may have left."""
    try:
        is_same = read_spec(work.path) == spec
    except (OSError, ValueError):  # none, or half-written
        is_same = False
    if not is_same:
        forget_containers(work.path)


def _is_image(work: WorkFolder, spec: SourceSpec, item: Item) -> bool:
    if spec.kind in LOOSE_KINDS:
        root = encode_name(spec.containers[0])
        return sniff_file(os.path.join(root, encode_name(item.name))) is not None
    source = open_source(spec, path_to_text(work.path))
    try:
        return sniff_format(source.read_item(item)[:SNIFF_BYTES]) is not None
    except SourceError:
        return False
    finally:
        source.close()


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
