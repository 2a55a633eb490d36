"""Balances the parts: each gets the same number of samples, give or take one.

Quarantined files leave some parts short. Parts with too many samples give their last ones, in
order, to parts with too few; with fewer samples than parts, the last parts give everything. Only
parts that change are rewritten, receivers before givers, so a kill at any moment loses no sample
and a second run finishes the work.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from feeder.dataset.format import checksum
from feeder.dataset.manifest import samples_in_shard
from feeder.dataset.reader import ShardReader
from feeder.dataset.writer import ShardWriter
from feeder.pack.work_folder import WorkFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Consecutive samples of one part."""

    part: int
    first: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartChange:
    """A part's new content: its first ``keep`` samples, then ``take``."""

    part: int
    keep: int
    take: tuple[Rows, ...]


def plan_balance(counts: list[int]) -> list[PartChange]:
    """Return the changes that balance parts with ``counts`` samples; receivers come first.

    With fewer samples than parts, the first ``sum(counts)`` parts get one each and the rest none.
    """
    samples = sum(counts)
    shards = min(samples, len(counts))
    targets = [
        samples_in_shard(samples, shards, part) if part < shards else 0
        for part in range(len(counts))
    ]
    surplus = [
        Rows(part=part, first=target, count=count - target)
        for part, (count, target) in enumerate(zip(counts, targets, strict=True))
        if count > target
    ]
    surplus.reverse()  # a stack: the lowest part gives first
    givers = [PartChange(part=rows.part, keep=rows.first, take=()) for rows in reversed(surplus)]
    receivers = []
    for part, (count, target) in enumerate(zip(counts, targets, strict=True)):
        take: list[Rows] = []
        wanted = target - count
        while wanted > 0:
            rows = surplus.pop()
            given = min(rows.count, wanted)
            take.append(Rows(part=rows.part, first=rows.first, count=given))
            if given < rows.count:
                rest = Rows(part=rows.part, first=rows.first + given, count=rows.count - given)
                surplus.append(rest)
            wanted -= given
        if take:
            receivers.append(PartChange(part=part, keep=count, take=tuple(take)))
    return receivers + givers


def balance_parts(
    work: WorkFolder,
    changes: list[PartChange],
    is_published: Callable[[int], bool],
    *,
    label_bytes: int = 0,
) -> None:
    """Write the changed parts that are not written yet, and remove the parts they replace.

    ``label_bytes`` is the size of a label row in all of them.
    """
    for change in changes:
        part, balanced = work.part_path(change.part), work.balanced_path(change.part)
        if not balanced.exists() and not is_published(change.part):
            _write_change(work, change, balanced, label_bytes)
        part.unlink(missing_ok=True)


def _write_change(work: WorkFolder, change: PartChange, path: Path, label_bytes: int) -> None:
    own = Rows(part=change.part, first=0, count=change.keep)
    with ShardWriter(path, shard=change.part, label_bytes=label_bytes) as writer:
        for rows in (own, *change.take):
            _copy_rows(work, rows, writer)
        writer.finish()


def _copy_rows(work: WorkFolder, rows: Rows, writer: ShardWriter) -> None:
    path = work.part_path(rows.part)
    reader = ShardReader(path)
    try:
        records, label_rows, names, intact = reader.read_index()
        if not intact:
            raise work.damaged(path)
        for row in range(rows.first, min(len(records), rows.first + rows.count)):
            record = records[row]
            blob = memoryview(bytearray(int(record["blob_bytes"])))
            reader.read_into(int(record["offset"]), blob)
            if checksum(blob) != int(record["checksum"]):
                raise work.damaged(path)
            name_offset = int(record["name_offset"])
            name = names[name_offset : name_offset + int(record["name_bytes"])]
            writer.append_copy(record, blob, name, label_rows[row].tobytes())
    finally:
        reader.close()
