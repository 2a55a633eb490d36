"""Packs one part: the task of a packing's worker process (see task_pool).

A part with no quarantined item is a complete shard. Its bytes and its result depend on its list of
items and the options only, not on the process that packs it, or when.
"""

from collections import Counter
from contextlib import closing

import msgspec

from feeder.convert.prepare import SourceOptions, prepare_sample
from feeder.dataset.format import checksum
from feeder.dataset.writer import ShardWriter
from feeder.errors import DatasetError
from feeder.pack.containers import read_spec
from feeder.pack.items import read_items
from feeder.pack.task_pool import Report
from feeder.pack.work_folder import PartResult, QuarantineEntry, WorkFolder
from feeder.process.path_text import path_from_text, path_to_text, printable
from feeder.source.item_bytes import SourceError
from feeder.source.source import open_source


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts of a packing share; the path as ``path_to_text`` writes it."""

    destination: str
    conversion: SourceOptions
    label_bytes: int
    strict: bool


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Which part to pack, and where the work folder's list has its items."""

    part: int
    offset: int
    bytes: int


def perform(setup: Setup, task: Task, report: Report) -> None:
    """Pack the part; reports "count", "bytes" and "quarantined"."""
    work = WorkFolder(path_from_text(setup.destination))
    label_bytes = setup.label_bytes
    odd: Counter[str] = Counter()
    subsampling: Counter[str] = Counter()
    quarantine: list[QuarantineEntry] = []
    source_bytes = level_max = 0
    with (
        closing(open_source(read_spec(work.path), path_to_text(work.path))) as source,
        ShardWriter(work.part_path(task.part), shard=task.part, label_bytes=label_bytes) as writer,
    ):
        for item, label, label_row in read_items(
            work.items_path, task.offset, task.bytes, label_bytes
        ):
            data = b""
            try:
                data = source.read_item(item)
                sample = prepare_sample(data, item.name, setup.conversion)
            except SourceError as error:
                if setup.strict:
                    raise DatasetError(
                        f"{printable(item.name)} is {error.kind} ({error.reason}): repair or "
                        "remove it; without --strict it would go to quarantine"
                    ) from None
                entry = QuarantineEntry(path=item.name, kind=error.kind, reason=error.reason)
                quarantine.append(entry)
                report.add(count=1, bytes=len(data), quarantined=1)
                continue
            writer.append(
                sample.tiled,
                label=label,
                name=item.name,
                flags=int(sample.flags),
                label_row=label_row,
                source_checksum=checksum(data),
            )
            odd.update(sample.flags.kinds())
            subsampling[sample.tiled.subsampling.name.lower()] += 1
            source_bytes += len(data)
            level_max = max(level_max, sample.level_max)
            report.add(count=1, bytes=len(data))
        header = writer.finish()
    work.write_result(
        task.part,
        PartResult(
            files=header.samples + len(quarantine),
            samples=header.samples,
            source_bytes=source_bytes,
            odd=dict(odd),
            subsampling=dict(subsampling),
            quarantine=quarantine,
            level_max=level_max,
        ),
    )
