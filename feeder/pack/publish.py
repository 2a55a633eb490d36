"""The end of a packing: parts become shards, and the manifest makes shards a dataset.

Balance, rename, write the lists and the survey, then the manifest. Each step is idempotent and
completes what a killed run began; before the last one there is no dataset.

Quarantined files leave some parts short. Parts with too many samples give their last ones, in
order, to parts with too few, so that each has the same number, give or take one; with fewer samples
than parts, the last parts give everything. Only parts that change are rewritten, receivers before
givers, so a kill at any moment loses no sample and a second run finishes the work.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.convert.decode_picture import WHITE_U16
from feeder.dataset.content import content_fingerprint
from feeder.dataset.files import LocalShard, Location, files_at
from feeder.dataset.format import checksum
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    QUARANTINE_BYTES_MAX,
    QUARANTINE_NAME,
    Manifest,
    ShardEntry,
    samples_in_shard,
)
from feeder.dataset.opened import Dataset
from feeder.dataset.reader import ShardReader
from feeder.dataset.writer import ShardWriter
from feeder.errors import DatasetError
from feeder.pack.progress import ProgressLine
from feeder.pack.work_folder import (
    PartResult,
    QuarantineEntry,
    WorkFolder,
    WorkState,
    encode_quarantine,
)
from feeder.process.output_file import fsync_folder, write_output
from feeder.survey.duplicates import find_duplicates, write_duplicates
from feeder.survey.numbers import plural
from feeder.survey.page import SURVEY_NAME, write_survey

_OPEN_SHARDS: Final = 8

Rows = tuple[int, int, int]
"""Consecutive samples of a part: the part, the first row, the number of rows."""


def publish_parts(
    work: WorkFolder,
    state: WorkState,
    classes: tuple[str, ...],
    rejected: Sequence[QuarantineEntry],
    results: Sequence[PartResult],
    progress: ProgressLine,
) -> None:
    """Make the finished parts in ``work`` the dataset that it is in.

    ``rejected`` are the items that listing left out, ``results`` those of all parts.
    """
    packed_badly = (entry for result in results for entry in result.quarantine)
    quarantine = sorted((*rejected, *packed_badly), key=lambda entry: entry.path)
    counts = [result.samples for result in results]
    conversion = state.conversion
    _warn_of_dark(max(result.level_max for result in results), conversion.png16_max, progress)
    changes = plan_balance(counts)
    if changes:
        progress.note(f"balancing {len(changes):,} of {plural(len(counts), 'shard')}")
    balance_parts(work, changes, state.labels.stored_bytes)
    options: dict[str, bool | int | str] = {
        "apply_exif": conversion.apply_exif,
        "quality": conversion.quality,
        "reencode": conversion.reencode,
        "max_side": conversion.max_side or 0,
        "subsampling": conversion.subsampling or "",
    }
    if conversion.png16_max != WHITE_U16:
        options["png16_max"] = conversion.png16_max
    draft = Manifest(
        samples=sum(counts),
        classes=classes,
        tile_width_px=conversion.tile_width_px,
        seed=state.seed,
        options=options,
        labels=state.labels,
        odd=_sum_counts(result.odd for result in results),
        subsampling=_sum_counts(result.subsampling for result in results),
        quarantined=len(quarantine),
        quarantine_xxh3=f"{checksum(encode_quarantine(quarantine)):016x}",
        source_bytes=sum(result.source_bytes for result in results),
        shards=(),
        content="",
    )
    publish_shards(work, draft, quarantine, shards=min(sum(counts), len(counts)))


def _warn_of_dark(level_max: int, white: int, progress: ProgressLine) -> None:
    if 0 < level_max < white // 2:
        used = (1 << level_max.bit_length()) - 1
        progress.note(
            f"feeder: warning: the highest level in images with 16 bits a sample is {level_max:,}, "
            f"and {white:,} becomes white, so that they are dark: to make {used:,} white, pack "
            f"again with --png16-max {used}"
        )


def _sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def plan_balance(counts: Sequence[int]) -> dict[int, list[Rows]]:
    """Choose the new content of each part that changes, so that all are even; receivers first.

    ``counts`` are the samples of each part. With fewer samples than parts, the first
    ``sum(counts)`` parts get one each and the rest none.
    """
    samples = sum(counts)
    shards = min(samples, len(counts))
    targets = [samples_in_shard(samples, shards, part) for part in range(shards)]
    targets += [0] * (len(counts) - shards)
    pairs = [*enumerate(zip(counts, targets, strict=True))]
    givers = [(part, target, count - target) for part, (count, target) in pairs if count > target]
    surplus = givers[::-1]  # a stack: the lowest part gives first
    changes: dict[int, list[Rows]] = {}
    for part, (count, target) in pairs:
        wanted = target - count
        while wanted > 0:
            giver, first, available = surplus.pop()
            given = min(available, wanted)
            changes.setdefault(part, [(part, 0, count)]).append((giver, first, given))
            if given < available:
                surplus.append((giver, first + given, available - given))
            wanted -= given
    return changes | {part: [(part, 0, kept)] for part, kept, _ in givers}


def balance_parts(
    work: WorkFolder, changes: Mapping[int, Sequence[Rows]], label_bytes: int
) -> None:
    """Write the shards of changed parts that are not written yet, and remove these parts.

    ``label_bytes`` is the size of a label row in all of them.
    """
    for part, content in changes.items():
        path = work.shard_path(part)
        if not path.exists() and any(count for _, _, count in content):
            with ShardWriter(path, shard=part, label_bytes=label_bytes) as writer:
                for source, first, count in content:
                    _copy_rows(work, work.part_path(source), first, count, writer)
                writer.finish()
        work.part_path(part).unlink(missing_ok=True)


def _copy_rows(work: WorkFolder, path: Path, first: int, count: int, writer: ShardWriter) -> None:
    with closing(ShardReader(LocalShard(path))) as reader:
        index = reader.read_index()
        if not index.is_intact:
            raise work.damaged(path)
        for row in range(first, min(len(index.records), first + count)):
            record = index.records[row]
            try:
                blob = memoryview(reader.read_blob(record))
            except ValueError:
                raise work.damaged(path) from None
            label_row = index.label_rows[row].tobytes()
            writer.append_copy(record, blob, index.name(record), label_row)


def publish_shards(
    work: WorkFolder, draft: Manifest, quarantine: Sequence[QuarantineEntry], *, shards: int
) -> None:
    """Make the first ``shards`` parts, of which changed ones are shards, the dataset in ``work``.

    ``draft`` is the manifest without what the shards show: their entries, duplicates and content.
    """
    destination = work.path.parent
    paths = [work.shard_path(part) for part in range(shards)]
    for part, path in enumerate(paths):
        if work.part_path(part).exists():
            work.part_path(part).replace(path)
    fsync_folder(destination)
    write_output(destination / QUARANTINE_NAME, encode_quarantine(quarantine))
    manifest = msgspec.structs.replace(
        draft,
        shards=tuple(map(_read_entry, paths)),
        content=content_fingerprint(
            destination,
            [path.name for path in paths],
            samples=draft.samples,
            labels=draft.labels,
            classes=draft.classes,
        ),
    ).sealed()
    problem = manifest.inconsistency()
    if problem is not None:
        raise DatasetError(
            f"the shards in {destination} are inconsistent ({problem}): remove the folder and "
            "pack again"
        )
    with Dataset(destination, manifest, _OPEN_SHARDS) as dataset:
        duplicates = find_duplicates(dataset)
    write_duplicates(destination, duplicates)
    manifest = msgspec.structs.replace(manifest, duplicates=duplicates.samples).sealed()
    with Dataset(destination, manifest, _OPEN_SHARDS) as dataset:
        write_survey(dataset, quarantine, duplicates, destination / SURVEY_NAME)
    write_output(destination / MANIFEST_NAME, manifest.encode())


def _read_entry(path: Path) -> ShardEntry:
    with closing(ShardReader(LocalShard(path))) as reader:
        return ShardEntry(
            name=path.name,
            samples=reader.header.samples,
            bytes=reader.file.size_bytes,
            index_xxh3=f"{reader.header.index_checksum:016x}",
        )


def count_classes(dataset: Path, manifest: Manifest) -> NDArray[np.int64]:
    """Count the samples of each class, (classes,); zeros if labels are no classes."""
    counts = np.zeros(len(manifest.classes), np.int64)
    for entry in manifest.shards if manifest.labels.kind == "index" else ():
        with closing(ShardReader(LocalShard(dataset / entry.name))) as reader:
            counts += np.bincount(reader.read_index().records["label"], minlength=len(counts))
    return counts


def read_quarantine(location: Location) -> list[QuarantineEntry]:
    """Read the quarantine list of a dataset; DatasetError if it is damaged."""
    files = files_at(location)
    where = files.locate(QUARANTINE_NAME)
    try:
        lines = files.read(QUARANTINE_NAME, QUARANTINE_BYTES_MAX).splitlines()
        return [msgspec.convert(json.loads(line), QuarantineEntry) for line in lines]
    except OSError as error:
        raise DatasetError(f"{where} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DatasetError(f"{where} is damaged ({error}); restore it or pack again") from None
