"""Packs one part: the task of a packing's worker process (see task_pool).

A part with no quarantined item is a complete shard. Its bytes and its result depend on its list of
items and the options only, not on the process that packs it, or when. Loose images in a store are
read ahead of packing, several at a time, as each takes tens of milliseconds to come.
"""

from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Final

import msgspec

from feeder.convert.prepare import SourceOptions, prepare_sample
from feeder.dataset.format import checksum
from feeder.dataset.writer import ShardWriter
from feeder.errors import DatasetError
from feeder.pack.containers import read_spec
from feeder.pack.items import read_items
from feeder.pack.task_pool import Message, Report
from feeder.pack.work_folder import PartResult, QuarantineEntry, WorkFolder
from feeder.process.path_text import path_from_text, path_to_text, printable
from feeder.source.item_bytes import SourceError
from feeder.source.location.objects import AT_ONCE, take_retries
from feeder.source.source import Item, Source, open_source

READS_AT_ONCE: Final = AT_ONCE
"""Loose images in a store that all processes of a host read at a time, but for what follows."""
READS_AT_ONCE_MIN: Final = 16
"""Of each process, which packs 300 a second: as many as come in 50 ms."""
_AHEAD_BYTES_MAX: Final = 256 << 20
"""Of images that are read ahead by a process, but for one."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all parts of a packing share; the path as ``path_to_text`` writes it."""

    destination: str
    conversion: SourceOptions
    label_bytes: int
    strict: bool
    reads_at_once: int = 1


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """Which part to pack, and where the work folder's list has its items."""

    part: int
    offset: int
    bytes: int


def perform(setup: Setup, task: Task, report: Report) -> Message:
    """Pack the part; reports "count", "bytes" and "quarantined", and in the end "retries"."""
    work = WorkFolder(path_from_text(setup.destination))
    label_bytes = setup.label_bytes
    odd: Counter[str] = Counter()
    subsampling: Counter[str] = Counter()
    quarantine: list[QuarantineEntry] = []
    source_bytes = level_max = 0
    spec = read_spec(work.path)
    at_once = setup.reads_at_once if spec.is_remote and spec.is_loose else 1
    rows = partial(read_items, work.items_path, task.offset, task.bytes, label_bytes)
    with (
        closing(open_source(spec, path_to_text(work.path))) as source,
        ShardWriter(work.part_path(task.part), shard=task.part, label_bytes=label_bytes) as writer,
        closing(_read_ahead(source, rows(), at_once)) as entries,
    ):
        for item, label, label_row, read in entries:
            data = b""
            try:
                data = read()
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
        source.drop_copies(item for item, _, _ in rows())
    return {"retries": take_retries()}


_Row = tuple[Item, int, bytes]


def _read_ahead(
    source: Source, rows: Iterator[_Row], at_once: int
) -> Generator[tuple[Item, int, bytes, Callable[[], bytes]], None, None]:
    """Yield each row with the call that returns its item's bytes, ``at_once`` of which run."""
    if at_once == 1:
        for row in rows:
            yield (*row, partial(source.read_item, row[0]))
        return
    with ThreadPoolExecutor(at_once) as pool:
        try:
            waiting: deque[tuple[_Row, Future[bytes]]] = deque()
            waiting_bytes = 0
            for row in rows:
                waiting.append((row, pool.submit(source.read_item, row[0])))
                waiting_bytes += row[0].size_bytes
                while len(waiting) > at_once or (waiting_bytes > _AHEAD_BYTES_MAX and waiting):
                    first, future = waiting.popleft()
                    waiting_bytes -= first[0].size_bytes
                    yield (*first, future.result)
            for first, future in waiting:
                yield (*first, future.result)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
