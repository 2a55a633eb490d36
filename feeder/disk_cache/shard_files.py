"""The shard files of a cached dataset: sparse, but for the header and the index of each.

A shard's index is fetched before its first blob, and compared with the manifest before it is
written; so the records in the file are trusted as long as they agree with the blobs. A file that
is damaged, cut or gone is found by that: IndexLostError, after which ``forget`` has all of the
shard fetched again. Nothing is kept in memory but ETags. Threads may share it.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from feeder.dataset.format import (
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    checksum,
    decode_header,
)
from feeder.disk_cache.cached import INDEXING, OBJECTS_NAME, CachedDataset, write_at
from feeder.disk_cache.ranges import Range
from feeder.errors import DatasetError, StoreError
from feeder.metrics.records import StoreRecord
from feeder.process.log_lines import KEPT
from feeder.store.client import Fetched, Store

ATTEMPTS: Final = 3
"""Of bytes that came with a wrong checksum."""

_log = logging.getLogger(__name__)


class DamagedError(DatasetError):
    """Raised when a store keeps sending other bytes than were packed."""


class IndexLostError(Exception):
    """The index of a shard is not in its file any more: ``shard`` is fetched again."""

    def __init__(self, shard: int) -> None:
        super().__init__(shard)
        self.shard = shard


class HeldError(Exception):
    """Another process fetches the index of a shard."""


class ShardFiles:
    """The shard files of ``cached``, fetched from ``store``; counts in ``record``."""

    def __init__(self, cached: CachedDataset, store: Store | None, record: StoreRecord) -> None:
        self.cached = cached
        self.guard = threading.Lock()
        """Guards the record's counters and what follows."""
        self._store = store
        self._record = record
        self._etags: dict[int, str] = {}
        self._indexing: dict[int, threading.Lock] = {}

    # --- Blobs ----------------------------------------------------------------------------------

    def blobs(self, file: int, shard: int, row: int, rows: int) -> list[tuple[int, int, int]]:
        """Return offset, size and checksum of the blobs of rows, which are in order.

        Their records are those of the manifest's index as long as they agree with the blobs.
        """
        limit = self.records_offset(file, shard)
        data = os.pread(file, rows * RECORD_BYTES, limit + row * RECORD_BYTES)
        records = np.frombuffer(data, RECORD)
        blobs: list[tuple[int, int, int]] = records[["offset", "blob_bytes", "checksum"]].tolist()
        ends = [HEADER_BYTES, *(offset + size for offset, size, _ in blobs)]
        if any(blob[0] < end for blob, end in zip(blobs, ends, strict=False)) or ends[-1] > limit:
            self.prove_index(file, shard)
            raise DamagedError(
                f"{self._where(shard)} has records whose blobs overlap: pack the source again"
            )
        return blobs

    def split(self, ranges: Sequence[Range]) -> Iterator[tuple[int, int, int, int]]:
        """Yield the parts of ranges: a shard, the first row, the first sample and the end."""
        layout = self.cached.layout
        for first, end in ranges:
            while first < end:
                (shard,), (row,) = layout.locate(np.array([first]))
                stop = min(end, first + self.cached.manifest.shards[shard].samples - int(row))
                yield int(shard), int(row), first, stop
                first = stop

    def fetch(self, shard: int, start: int, size: int) -> memoryview:
        """Return bytes of the object that the shard's index is from; StoreError."""
        return memoryview(self._read(shard, start, size, self._etag(shard)).data)

    def _read(self, shard: int, start: int, size: int, etag: str) -> Fetched:
        with self.guard:
            self._record.requests += 1
        name = self.cached.manifest.shards[shard].name
        assert self._store is not None, "there is a store to fetch from"
        fetched = self._store.read(name, start, size, etag=etag)
        with self.guard:
            self._record.fetched_bytes += size
        return fetched

    # --- Indexes --------------------------------------------------------------------------------

    def ensure_index(self, shard: int) -> None:
        """Fetch a shard's header and index unless they are there; HeldError."""
        there = self.cached.shards_there
        if there[shard]:
            return
        # The lock of the file excludes other processes only.
        with self._indexing.setdefault(shard, threading.Lock()):
            if there[shard]:
                return
            if not self.cached.lock(INDEXING + shard):
                raise HeldError
            try:
                for left in range(ATTEMPTS - 1, -1, -1):
                    try:
                        if not there[shard]:
                            self._fetch_index(shard)
                        return
                    except StoreError:
                        raise
                    except DatasetError as error:
                        with self.guard:
                            self._record.damaged += 1
                        if not left:
                            raise DamagedError(str(error)) from None
            finally:
                self.cached.unlock(INDEXING + shard)

    def _fetch_index(self, shard: int) -> None:
        """Write header and index into the shard's file, which is made; DatasetError if they came
        damaged."""
        entry, where = self.cached.manifest.shards[shard], self._where(shard)
        first = self._read(shard, 0, HEADER_BYTES, "")
        header = decode_header(bytes(first.data), where)
        if not (
            header.shard == shard
            and header.samples == entry.samples
            and header.file_bytes == entry.bytes
            and f"{header.index_checksum:016x}" == entry.index_xxh3
        ):
            raise DamagedError(f"{where} is not the manifest's shard: publish both again")
        start = header.records_offset
        index = memoryview(self._read(shard, start, entry.bytes - start, first.etag).data)
        if checksum(index) != header.index_checksum:
            raise DamagedError(
                f"{where} came with a damaged index: run `feeder verify {self.cached.url}`"
            )
        file = os.open(self.cached.folder / entry.name, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            os.ftruncate(file, entry.bytes)
            write_at(file, index, start)
            write_at(file, memoryview(first.data), 0)
        finally:
            os.close(file)
        self._append_etag(shard, first.etag)
        self.cached.mark_shard(shard, there=True)

    def _append_etag(self, shard: int, etag: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
        file = os.open(self.cached.folder / OBJECTS_NAME, flags, 0o666)
        try:
            # A full disk may have cut the last line, of another shard, whose index is not there.
            write_at(file, f"\n{shard} {etag}\n".encode(), 0)  # O_APPEND: at the end
        finally:
            os.close(file)
        self._etags[shard] = etag

    def _etag(self, shard: int) -> str:
        """The ETag of the object that a shard's index is from; "" if the store has none."""
        if shard not in self._etags:  # another process, or an earlier one, has fetched the index
            text = (self.cached.folder / OBJECTS_NAME).read_text("utf-8", "replace")
            etags = dict(line.partition(" ")[::2] for line in text.splitlines())
            self._etags[shard] = etags.get(str(shard), "")
        return self._etags[shard]

    def records_offset(self, file: int, shard: int) -> int:
        try:
            header = decode_header(os.pread(file, HEADER_BYTES, 0), self._where(shard))
        except DatasetError:
            raise IndexLostError(shard) from None
        return header.records_offset

    def prove_index(self, file: int, shard: int) -> None:
        start, entry = self.records_offset(file, shard), self.cached.manifest.shards[shard]
        index = os.pread(file, entry.bytes - start, start)
        if f"{checksum(index):016x}" != entry.index_xxh3:
            raise IndexLostError(shard)

    def forget(self, shard: int) -> None:
        """Take back all of a shard whose file is damaged: it is fetched again, piece by piece.

        No hole is punched: other threads may be writing pieces of it just now. What is not
        overwritten is left to the next ``sweep``.
        """
        path = self.cached.folder / self.cached.manifest.shards[shard].name
        _log.warning("%s is damaged: what it holds is fetched again", path, extra=KEPT)
        self.cached.mark_shard(shard, there=False)
        self._etags.pop(shard, None)

    # --- Files ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def open(self, shard: int) -> Iterator[int]:
        """Open a shard's file, which has its full size, or IndexLostError."""
        entry = self.cached.manifest.shards[shard]
        try:
            file = os.open(self.cached.folder / entry.name, os.O_RDWR)
        except FileNotFoundError:
            raise IndexLostError(shard) from None
        try:
            if os.fstat(file).st_size != entry.bytes:
                raise IndexLostError(shard)
            yield file
        finally:
            os.close(file)

    def _where(self, shard: int) -> str:
        return f"{self.cached.url}/{self.cached.manifest.shards[shard].name}"
