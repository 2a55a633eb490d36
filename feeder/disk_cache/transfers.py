"""The transfers of one cached dataset: from the store into its sparse shards, and out again.

    fetch   store ─► compared with the checksums ─► pwrite ─► presence
    check   disk  ─► compared ─► presence taken back from what is damaged
    evict   presence taken back ─► hole punched

Each holds the lock of its piece, so that processes that share the folder do each once. Nothing is
kept in memory but ETags: the records of a piece are read from the index that was fetched, which is
compared with the manifest before it is written. A process that is killed leaves bytes that count as
missing, and no other trace. Safe to call in several threads at once.
"""

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import (
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    checksum,
    decode_header,
)
from feeder.disk_cache.cached import (
    FETCHING,
    INDEXING,
    OBJECTS_NAME,
    CachedDataset,
    Range,
    write_at,
)
from feeder.errors import DatasetError, StoreError
from feeder.metrics.records import StoreRecord
from feeder.process.log_lines import KEPT
from feeder.process.punched_file import punch_hole
from feeder.store.client import Fetched, Store

ATTEMPTS: Final = 3
"""Of bytes that came with a wrong checksum."""

_log = logging.getLogger(__name__)


class DamagedError(DatasetError):
    """Raised when a store keeps sending other bytes than were packed."""


class _IndexLostError(Exception):
    """The index of a shard is not in its file any more: ``shard`` is fetched again."""

    def __init__(self, shard: int) -> None:
        super().__init__(shard)
        self.shard = shard


class _HeldError(Exception):
    """Another process fetches the index of a shard."""


class Transfers:
    """What changes the files of a cached dataset; counts in ``record``."""

    def __init__(self, cached: CachedDataset, store: Store | None, record: StoreRecord) -> None:
        """Without a ``store``, what is there can be checked and evicted."""
        self.cached = cached
        self.mean_bytes = max(1, cached.layout.size_bytes // cached.manifest.samples)
        """Of a sample."""
        self._store = store
        self._record = record
        self._guard = threading.Lock()  # of what follows, and of counting
        self._claimed: set[int] = set()
        self._etags: dict[int, str] = {}
        self._indexing: dict[int, threading.Lock] = {}

    def there_bytes(self) -> NDArray[np.int64]:
        """Return about how many bytes of each piece are there, (pieces,)."""
        return self.cached.counts_there() * self.mean_bytes

    def missing_bytes(self, ranges: Sequence[Range]) -> int:
        """Return about how many bytes of samples are missing."""
        there = self.cached.samples_there
        missing = sum(end - first - int(there[first:end].sum()) for first, end in ranges)
        return missing * self.mean_bytes

    def sweep(self) -> None:
        """Free what a process wrote that was killed before it could count it as there."""
        for shard in np.flatnonzero(self.cached.shards_there).tolist():
            with contextlib.suppress(_IndexLostError, DatasetError, OSError):
                self._sweep_shard(shard)  # fetching finds what is wrong, too

    def _sweep_shard(self, shard: int) -> None:
        cached = self.cached
        first, end = cached.range_of_shard(shard)
        # Its parts of pieces: the first sample of each, then the end of the last one.
        inner = range((first // cached.piece + 1) * cached.piece, end, cached.piece)
        bounds = np.array([first, *inner, end])
        empty = np.add.reduceat(cached.samples_there[first:end], bounds[:-1] - first) == 0
        with self._open(shard) as file:
            limit = self._records_offset(file, shard)
            written = _written(file, limit)
            if not (written and empty.any()):
                return
            records = np.frombuffer(os.pread(file, (end - first) * RECORD_BYTES, limit), RECORD)
            offsets, block = records["offset"].astype(np.int64), os.fstat(file).st_blksize
            # The whole blocks of a part, about: its neighbours have a share of the others.
            starts = -(-offsets[bounds[:-1] - first] // block) * block
            lasts = np.append(offsets, limit)[bounds[1:] - first] // block * block
            begins, ends = np.array(written).T
            near = np.minimum(np.searchsorted(ends, starts, "right"), len(ends) - 1)
            is_written = (begins[near] < lasts) & (starts < ends[near])
            for part in np.flatnonzero(empty & is_written).tolist():
                start, stop = int(bounds[part]), int(bounds[part + 1])
                with self._sole(start // cached.piece) as is_ours:
                    if is_ours and not cached.samples_there[start:stop].any():
                        self._punch(shard, start - first, stop - start)

    def fetch(self, piece: int, ranges: Sequence[Range]) -> bool:
        """Fetch those samples of a piece, in ``ranges``, that are missing.

        False if another process, or thread, is at it. Raises StoreError, DamagedError for
        bytes that keep coming wrong, OSError for the disk.
        """
        wrong: list[int] = []
        with self._sole(piece) as is_ours:
            if not is_ours:
                return False
            for _ in range(ATTEMPTS):
                try:
                    wrong = [w for part in self._split(ranges) for w in self._fetch_missing(*part)]
                except _IndexLostError as lost:
                    self._forget_shard(lost.shard)
                    continue
                except _HeldError:
                    return False
                if not wrong:
                    return True
        if not wrong:
            raise OSError(errno.EIO, "it does not keep what is written", str(self.cached.folder))
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise DamagedError(
            f"{self.cached.url}: sample {wrong[0]}{more} came {ATTEMPTS} times with a wrong "
            f"checksum: run `feeder verify {self.cached.url}`"
        )

    def find_missing(self, ranges: Iterable[Range]) -> list[int]:
        """Return the samples of ranges that are not there."""
        there = self.cached.samples_there
        return [
            first + number
            for first, end in ranges
            for number in np.flatnonzero(there[first:end] == 0).tolist()
        ]

    def place(self, blobs: Mapping[int, memoryview]) -> int:
        """Write samples that a peer has sent, by id, as far as they are what was packed; return
        their bytes. The others are left to ``fetch``, which finds what is wrong. OSError."""
        placed = size = 0
        for sample, blob in blobs.items():
            ((shard, row, _, _),) = self._split([(sample, sample + 1)])
            with (
                contextlib.suppress(DatasetError, _IndexLostError, _HeldError),
                self._sole(sample // self.cached.piece) as is_ours,
            ):
                if not is_ours or self.cached.samples_there[sample]:
                    continue
                self._ensure_index(shard)
                with self._open(shard) as file:
                    offset, expected_bytes, expected = self._blobs(file, shard, row, 1)[0]
                    if len(blob) != expected_bytes or checksum(blob) != expected:
                        self._record.peer_failures["damaged"] += 1
                        continue
                    write_at(file, blob, offset)
                    self.cached.mark(sample, sample + 1, there=True)
                    placed, size = placed + 1, size + len(blob)
        with self._guard:
            self._record.peer_blobs += placed
            self._record.peer_bytes += size
        return size

    def check(self, piece: int) -> bool:
        """Compare what is there of a piece with its checksums, and take back what is damaged.

        False if another process, or thread, is at the piece.
        """
        cached = self.cached
        with self._sole(piece) as is_ours:
            for shard, row, first, end in self._split([cached.range_of(piece)] * is_ours):
                there = np.flatnonzero(cached.samples_there[first:end]).tolist()
                if not there:
                    continue
                try:
                    with self._open(shard) as file:
                        self._prove_index(file, shard)
                        for number in there:
                            offset, size, expected = self._blobs(file, shard, row + number, 1)[0]
                            if checksum(os.pread(file, size, offset)) != expected:
                                cached.mark(first + number, first + number + 1, there=False)
                except _IndexLostError:
                    self._forget_shard(shard)
            return is_ours

    def evict(self, piece: int) -> bool:
        """Free the room of a piece; False if it is being read or fetched. Raises OSError."""
        cached = self.cached
        with self._sole(piece) as is_ours:
            if not (is_ours and cached.lock(piece)):
                return False
            try:
                for shard, row, first, end in self._split([cached.range_of(piece)]):
                    if cached.shards_there[shard]:
                        cached.mark(first, end, there=False)
                        self._punch(shard, row, end - first)
            finally:
                cached.unlock(piece)
            return True

    @contextlib.contextmanager
    def _sole(self, piece: int) -> Iterator[bool]:
        """Whether no other process or thread fetches, checks or evicts a piece; none can then."""
        with self._guard:  # the lock of the file is the whole process's
            is_free = piece not in self._claimed
            if is_free:
                self._claimed.add(piece)
        try:
            is_ours = is_free and self.cached.lock(FETCHING + piece)
            try:
                yield is_ours
            finally:
                if is_ours:
                    self.cached.unlock(FETCHING + piece)
        finally:
            if is_free:
                with self._guard:
                    self._claimed.discard(piece)

    # --- Blobs ----------------------------------------------------------------------------------

    def _split(self, ranges: Sequence[Range]) -> Iterator[tuple[int, int, int, int]]:
        """Yield the parts of ranges: a shard, the first row, the first sample and the end."""
        layout = self.cached.layout
        for first, end in ranges:
            while first < end:
                (shard,), (row,) = layout.locate(np.array([first]))
                stop = min(end, first + self.cached.manifest.shards[shard].samples - int(row))
                yield int(shard), int(row), first, stop
                first = stop

    def _fetch_missing(self, shard: int, row: int, first: int, end: int) -> Iterator[int]:
        """Fetch what is missing of a part; yield the samples that came with a wrong checksum."""
        missing = self.cached.samples_there[first:end] == 0
        if not missing.any():
            return
        self._ensure_index(shard)
        with self._open(shard) as file:
            for start, stop in runs_of(missing):
                yield from self._fetch_run(file, shard, row + start, first + start, stop - start)

    def _fetch_run(self, file: int, shard: int, row: int, first: int, rows: int) -> Iterator[int]:
        blobs = self._blobs(file, shard, row, rows)
        start, end = blobs[0][0], blobs[-1][0] + blobs[-1][1]
        data = memoryview(self._read(shard, start, end - start, self._etag(shard)).data)
        right = np.array(
            [checksum(data[at - start : at - start + size]) == c for at, size, c in blobs]
        )
        for good, stop in runs_of(right):
            at, until = blobs[good][0], blobs[stop - 1][0] + blobs[stop - 1][1]
            try:
                write_at(file, data[at - start : until - start], at)
            except OSError:
                with contextlib.suppress(OSError):
                    punch_hole(file, at, until - at)  # a full disk gets back what was written
                raise
            self.cached.mark(first + good, first + stop, there=True)
        wrong = np.flatnonzero(~right).tolist()
        with self._guard:
            self._record.blobs += rows - len(wrong)
            self._record.damaged += len(wrong)
        if wrong:
            self._prove_index(file, shard)
        yield from (first + number for number in wrong)

    def _blobs(self, file: int, shard: int, row: int, rows: int) -> list[tuple[int, int, int]]:
        """Return offset, size and checksum of the blobs of rows, which are in order.

        Their records are those of the manifest's index as long as they agree with the blobs.
        """
        limit = self._records_offset(file, shard)
        data = os.pread(file, rows * RECORD_BYTES, limit + row * RECORD_BYTES)
        records = np.frombuffer(data, RECORD)
        blobs: list[tuple[int, int, int]] = records[["offset", "blob_bytes", "checksum"]].tolist()
        ends = [HEADER_BYTES, *(offset + size for offset, size, _ in blobs)]
        if any(blob[0] < end for blob, end in zip(blobs, ends, strict=False)) or ends[-1] > limit:
            self._prove_index(file, shard)
            raise DamagedError(
                f"{self._where(shard)} has records whose blobs overlap: pack the source again"
            )
        return blobs

    def _punch(self, shard: int, row: int, rows: int) -> None:
        try:
            with self._open(shard) as file:
                first, last = (self._blobs(file, shard, r, 1)[0] for r in (row, row + rows - 1))
                punch_hole(file, first[0], last[0] + last[1] - first[0])
        except _IndexLostError:
            self._forget_shard(shard)

    def _read(self, shard: int, start: int, size: int, etag: str) -> Fetched:
        with self._guard:
            self._record.requests += 1
        name = self.cached.manifest.shards[shard].name
        assert self._store is not None, "there is a store to fetch from"
        fetched = self._store.read(name, start, size, etag=etag)
        with self._guard:
            self._record.fetched_bytes += size
        return fetched

    # --- Indexes --------------------------------------------------------------------------------

    def _ensure_index(self, shard: int) -> None:
        """Fetch a shard's header and index unless they are there; _HeldError."""
        there = self.cached.shards_there
        if there[shard]:
            return
        # The lock of the file excludes other processes only.
        with self._indexing.setdefault(shard, threading.Lock()):
            if there[shard]:
                return
            if not self.cached.lock(INDEXING + shard):
                raise _HeldError
            try:
                for left in range(ATTEMPTS - 1, -1, -1):
                    try:
                        if not there[shard]:
                            self._fetch_index(shard)
                        return
                    except StoreError:
                        raise
                    except DatasetError as error:
                        with self._guard:
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
            os.fdatasync(file)
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

    def _records_offset(self, file: int, shard: int) -> int:
        try:
            header = decode_header(os.pread(file, HEADER_BYTES, 0), self._where(shard))
        except DatasetError:
            raise _IndexLostError(shard) from None
        return header.records_offset

    def _prove_index(self, file: int, shard: int) -> None:
        start, entry = self._records_offset(file, shard), self.cached.manifest.shards[shard]
        index = os.pread(file, entry.bytes - start, start)
        if f"{checksum(index):016x}" != entry.index_xxh3:
            raise _IndexLostError(shard)

    def _forget_shard(self, shard: int) -> None:
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
    def _open(self, shard: int) -> Iterator[int]:
        """Open a shard's file, which has its full size, or _IndexLostError."""
        entry = self.cached.manifest.shards[shard]
        try:
            file = os.open(self.cached.folder / entry.name, os.O_RDWR)
        except FileNotFoundError:
            raise _IndexLostError(shard) from None
        try:
            if os.fstat(file).st_size != entry.bytes:
                raise _IndexLostError(shard)
            yield file
        finally:
            os.close(file)

    def _where(self, shard: int) -> str:
        return f"{self.cached.url}/{self.cached.manifest.shards[shard].name}"


def _written(file: int, end: int) -> list[Range]:
    """Return the extents of a file that are no holes, up to ``end``, without its first block."""
    extents, at = [], os.fstat(file).st_blksize
    while at < end:
        try:
            start = os.lseek(file, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # a hole up to the end
                raise
            break
        at = os.lseek(file, start, os.SEEK_HOLE)
        if start < end:
            extents.append((start, at))
    return extents


def runs_of(flags: NDArray[np.bool_]) -> list[Range]:
    """Return the runs of true ``flags`` (n,): first and end of each."""
    padded = np.zeros(len(flags) + 2, np.bool_)
    padded[1:-1] = flags
    edges = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
