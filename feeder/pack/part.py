"""Packs one part: the task of a packing's worker process (see task_pool).

A part with no quarantined file is a complete shard. Its bytes and its result depend on its list of
files and the options only, not on the process that packs it, or when.
"""

import time
from collections import Counter
from typing import Any, Final

import msgspec

from feeder.dataset.writer import ShardWriter
from feeder.errors import DatasetError
from feeder.pack.convert import SourceOptions, prepare_sample
from feeder.pack.listing import stored_path
from feeder.pack.task_pool import Report
from feeder.pack.work_folder import PartResult, QuarantineEntry, WorkFolder, read_files
from feeder.process.path_text import decode_name, encode_name, path_from_text, printable
from feeder.source.item_bytes import SourceError, read_source

_REPORT_EVERY_S: Final = 0.25


class PartSetup(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts of a packing share; paths as ``path_to_text`` writes them."""

    source: str
    destination: str
    tile_width_px: int
    apply_exif: bool
    quality: int
    strict: bool


class PartTask(msgspec.Struct, frozen=True, kw_only=True):
    """Which part to pack, and where the work folder's list has its files."""

    part: int
    offset: int
    bytes: int


def perform(setup: dict[str, Any], task: dict[str, Any], report: Report) -> dict[str, Any]:
    """Pack the part; reports and returns new {"files", "bytes", "quarantined"}."""
    return _pack_part(msgspec.convert(setup, PartSetup), msgspec.convert(task, PartTask), report)


def _pack_part(setup: PartSetup, task: PartTask, report: Report) -> dict[str, Any]:
    work = WorkFolder(path_from_text(setup.destination))
    options = SourceOptions(
        tile_width_px=setup.tile_width_px, apply_exif=setup.apply_exif, quality=setup.quality
    )
    files = read_files(work.path / "files", task.offset, task.bytes)
    source = encode_name(setup.source)
    odd: Counter[str] = Counter()
    subsampling: Counter[str] = Counter()
    quarantine: list[QuarantineEntry] = []
    source_bytes = 0
    progress = _PartProgress(report)
    with ShardWriter(work.part_path(task.part), shard=task.part) as writer:
        for label, stored_name in files:
            name = decode_name(stored_name)
            data = b""
            try:
                data = read_source(stored_path(source, stored_name))
                sample = prepare_sample(data, name, options)
            except SourceError as error:
                if setup.strict:
                    raise DatasetError(
                        f"{printable(name)} is {error.kind} ({error.reason}): repair or remove it; "
                        "without --strict it would go to quarantine"
                    ) from None
                quarantine.append(QuarantineEntry(path=name, kind=error.kind, reason=error.reason))
                progress.add(len(data), quarantined=1)
                continue
            writer.append(sample.tiled, label=label, name=name, flags=int(sample.flags))
            odd.update(sample.flags.kinds())
            subsampling[sample.tiled.subsampling.name.lower()] += 1
            source_bytes += len(data)
            progress.add(len(data), quarantined=0)
        header = writer.finish()
    work.write_result(
        task.part,
        PartResult(
            files=len(files),
            samples=header.samples,
            source_bytes=source_bytes,
            odd=dict(odd),
            subsampling=dict(subsampling),
            quarantine=quarantine,
        ),
    )
    return progress.take()


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
