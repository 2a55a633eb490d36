"""The end of a packing: parts become shards, and the manifest makes shards a dataset.

Balance, rename, write the lists and the survey, then the manifest. Each step is idempotent and
completes what a killed run began; before the last one there is no dataset.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.convert.deep_levels import WHITE_U16
from feeder.dataset.content import content_fingerprint
from feeder.dataset.format import checksum, shard_name
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    QUARANTINE_BYTES_MAX,
    QUARANTINE_NAME,
    Manifest,
    ShardEntry,
)
from feeder.dataset.reader import ShardReader
from feeder.errors import DatasetError
from feeder.pack.bad_share import BadLimit
from feeder.pack.balance import balance_parts, plan_balance
from feeder.pack.progress import ProgressLine
from feeder.pack.work_folder import (
    PartResult,
    QuarantineEntry,
    WorkFolder,
    WorkState,
    encode_quarantine,
)
from feeder.process.output_file import fsync_folder, write_output
from feeder.process.regular_file import read_regular
from feeder.survey.duplicates import find_duplicates, write_duplicates
from feeder.survey.numbers import plural
from feeder.survey.page import write_survey


def publish_parts(
    destination: Path,
    work: WorkFolder,
    state: WorkState,
    classes: tuple[str, ...],
    rejected: Sequence[QuarantineEntry],
    *,
    limit: BadLimit,
    progress: ProgressLine,
) -> None:
    """Make the finished parts in ``work`` the dataset ``destination``.

    ``rejected`` are the items that listing left out. Raises DatasetError if all are bad, or more
    than ``limit`` allows.
    """
    results = [_read_result(work, part) for part in range(state.shards)]
    packed_badly = (entry for result in results for entry in result.quarantine)
    quarantine = sorted((*rejected, *packed_badly), key=lambda entry: entry.path)
    counts = [result.samples for result in results]
    limit.check(len(quarantine), quarantine, state.files + len(rejected), work.path, untried=0)
    _warn_of_dark(max(result.level_max for result in results), state.png16_max, progress)
    changes = plan_balance(counts)
    if changes:
        progress.note(f"balancing {len(changes):,} of {plural(len(counts), 'shard')}")
    balance_parts(
        work,
        changes,
        lambda part: (destination / shard_name(part)).exists(),
        label_bytes=state.labels.stored_bytes,
    )
    draft = Manifest(
        samples=sum(counts),
        classes=classes,
        tile_width_px=state.tile_width_px,
        seed=state.seed,
        options={
            "apply_exif": state.apply_exif,
            "quality": state.quality,
            "reencode": state.reencode,
            "max_side": state.max_side,
            "subsampling": state.subsampling,
            **({} if state.png16_max == WHITE_U16 else {"png16_max": state.png16_max}),
        },
        labels=state.labels,
        odd=_sum_counts(result.odd for result in results),
        subsampling=_sum_counts(result.subsampling for result in results),
        quarantined=len(quarantine),
        quarantine_xxh3=f"{checksum(encode_quarantine(quarantine)):016x}",
        source_bytes=sum(result.source_bytes for result in results),
        shards=(),
        content="",
    )
    publish_shards(destination, work, draft, quarantine, shards=min(sum(counts), len(counts)))


def publish_shards(
    destination: Path,
    work: WorkFolder,
    draft: Manifest,
    quarantine: Sequence[QuarantineEntry],
    *,
    shards: int,
) -> None:
    """Make the first ``shards`` parts in ``work``, which are balanced, the dataset ``destination``.

    ``draft`` is the manifest without what the shards show: their entries, duplicates and content.
    """
    for part in range(shards):
        for finished in (work.balanced_path(part), work.part_path(part)):
            if finished.exists():
                finished.replace(destination / shard_name(part))
    fsync_folder(destination)
    write_output(destination / QUARANTINE_NAME, encode_quarantine(quarantine))
    paths = [destination / shard_name(part) for part in range(shards)]
    duplicates = find_duplicates(paths, draft.labels)
    write_duplicates(destination, duplicates)
    manifest = msgspec.structs.replace(
        draft,
        duplicates=duplicates.samples,
        shards=tuple(_read_entry(destination, part) for part in range(shards)),
        content=content_fingerprint(
            paths, samples=draft.samples, labels=draft.labels, classes=draft.classes
        ),
    ).sealed()
    problem = manifest.inconsistency()
    if problem is not None:
        raise DatasetError(
            f"the shards in {destination} are inconsistent ({problem}): remove the folder and "
            "pack again"
        )
    write_survey(destination, manifest, quarantine, duplicates)
    write_output(destination / MANIFEST_NAME, manifest.encode())


def _warn_of_dark(level_max: int, white: int, progress: ProgressLine) -> None:
    if 0 < level_max < white // 2:
        used = (1 << level_max.bit_length()) - 1
        progress.note(
            f"feeder: warning: the highest level in images with 16 bits a sample is {level_max:,}, "
            f"and {white:,} becomes white, so that they are dark: to make {used:,} white, pack "
            f"again with --png16-max {used}"
        )


def _read_result(work: WorkFolder, part: int) -> PartResult:
    result = work.read_result(part)
    if result is None:
        raise DatasetError(f"{work.result_path(part)} is missing: run the same command again")
    return result


def _sum_counts(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def count_classes(dataset: Path, manifest: Manifest) -> NDArray[np.int64]:
    """Return the number of samples of each class, (classes,); zeros if labels are no classes."""
    counts = np.zeros(len(manifest.classes), np.int64)
    for entry in manifest.shards if manifest.labels.kind == "index" else ():
        reader = ShardReader(dataset / entry.name)
        try:
            counts += np.bincount(reader.read_index().records["label"], minlength=len(counts))
        finally:
            reader.close()
    return counts


def _read_entry(destination: Path, part: int) -> ShardEntry:
    reader = ShardReader(destination / shard_name(part))
    reader.close()
    return ShardEntry(
        name=shard_name(part),
        samples=reader.header.samples,
        bytes=reader.file_bytes,
        index_xxh3=f"{reader.header.index_checksum:016x}",
    )


def read_quarantine(dataset: Path) -> list[QuarantineEntry]:
    """Return the quarantine list of a dataset; DatasetError if it is damaged."""
    path = dataset / QUARANTINE_NAME
    try:
        lines = read_regular(path, QUARANTINE_BYTES_MAX).splitlines()
        return [msgspec.convert(json.loads(line), QuarantineEntry) for line in lines]
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DatasetError(f"{path} is damaged ({error}); restore it or pack again") from None
