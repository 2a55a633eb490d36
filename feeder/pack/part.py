"""Packs one part: the task of a packing's worker process (see task_pool).

A part with no quarantined item is a complete shard. Its bytes and its result depend on its list of
items and the options only, not on the process that packs it, or when.
"""

import time
from collections import Counter
from typing import Any, Final

import msgspec

from feeder.convert.prepare import SourceOptions, prepare_sample
from feeder.dataset.format import checksum
from feeder.dataset.writer import ShardWriter
from feeder.errors import DatasetError
from feeder.pack.containers import read_spec
from feeder.pack.item_list import PartItem, read_items
from feeder.pack.task_pool import Report
from feeder.pack.work_folder import PartResult, QuarantineEntry, WorkFolder
from feeder.process.path_text import path_from_text, path_to_text, printable
from feeder.source.item_bytes import SourceError
from feeder.source.source import Source, open_source

_REPORT_EVERY_S: Final = 0.25


class PartSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts of a packing share; the path as ``path_to_text`` writes it."""

    destination: str
    options: SourceOptions
    label_bytes: int
    strict: bool


class PartTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which part to pack, and where the work folder's list has its items."""

    part: int
    offset: int
    bytes: int


def perform(setup: dict[str, Any], task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Pack the part; reports and returns new {"files", "bytes", "quarantined"}."""
    settings = msgspec.convert(setup, PartSetup)
    work = WorkFolder(path_from_text(settings.destination))
    source = open_source(read_spec(work.path), path_to_text(work.path))
    try:
        return _Part(settings, work, source, report).pack(msgspec.convert(task, PartTask))
    finally:
        source.close()


class _Part:
    """The packing of one part."""

    def __init__(self, setup: PartSetup, work: WorkFolder, source: Source, report: Report) -> None:
        self._setup = setup
        self._work = work
        self._source = source
        self._progress = _PartProgress(report)
        self._odd: Counter[str] = Counter()
        self._subsampling: Counter[str] = Counter()
        self._quarantine: list[QuarantineEntry] = []
        self._source_bytes = 0
        self._level_max = 0

    def pack(self, task: PartTask) -> dict[str, Any]:
        work, label_bytes = self._work, self._setup.label_bytes
        files = 0
        with ShardWriter(
            work.part_path(task.part), shard=task.part, label_bytes=label_bytes
        ) as writer:
            for item in read_items(work.items_path, task.offset, task.bytes, label_bytes):
                self._pack_item(item, writer)
                files += 1
            header = writer.finish()
        work.write_result(
            task.part,
            PartResult(
                files=files,
                samples=header.samples,
                source_bytes=self._source_bytes,
                odd=dict(self._odd),
                subsampling=dict(self._subsampling),
                quarantine=self._quarantine,
                level_max=self._level_max,
            ),
        )
        return self._progress.take()

    def _pack_item(self, item: PartItem, writer: ShardWriter) -> None:
        name, data = item.item.name, b""
        try:
            data = self._source.read_item(item.item)
            sample = prepare_sample(data, name, self._setup.options)
        except SourceError as error:
            if self._setup.strict:
                raise DatasetError(
                    f"{printable(name)} is {error.kind} ({error.reason}): repair or remove it; "
                    "without --strict it would go to quarantine"
                ) from None
            entry = QuarantineEntry(path=name, kind=error.kind, reason=error.reason)
            self._quarantine.append(entry)
            self._progress.add(len(data), quarantined=1)
            return
        writer.append(
            sample.tiled,
            label=item.label,
            name=name,
            flags=int(sample.flags),
            label_row=item.label_row,
            source_checksum=checksum(data),
        )
        self._odd.update(sample.flags.kinds())
        self._subsampling[sample.tiled.subsampling.name.lower()] += 1
        self._source_bytes += len(data)
        self._level_max = max(self._level_max, sample.level_max)
        self._progress.add(len(data), quarantined=0)


class _PartProgress:
    """Counts that the parent does not have yet; reported a few times a second."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._files = self._bytes = self._quarantined = 0
        self._reported_s = time.monotonic()

    def add(self, size_bytes: int, *, quarantined: int) -> None:
        self._files += 1
        self._bytes += size_bytes
        self._quarantined += quarantined
        if time.monotonic() - self._reported_s > _REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            self._report(self.take())

    def take(self) -> dict[str, Any]:
        counts = {"files": self._files, "bytes": self._bytes, "quarantined": self._quarantined}
        self._files = self._bytes = self._quarantined = 0
        return counts
