"""The transfers of one cached dataset: from the store into its sparse shards, and out again.

    fetch   store ─► compared with the checksums ─► pwrite ─► presence
    check   disk  ─► compared ─► presence taken back from what is damaged
    evict   presence taken back ─► hole punched

Each holds the lock of its piece, so that processes that share the folder do each once. A process
that is killed leaves bytes that count as missing, and no other trace. Safe to call in several
threads at once.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.dataset.format import (
    RECORD,
    RECORD_BYTES,
    checksum,
)
from feeder.disk_cache.cached import (
    FETCHING,
    CachedDataset,
    write_at,
)
from feeder.disk_cache.ranges import Range, find_runs
from feeder.disk_cache.shard_files import (
    ATTEMPTS,
    DamagedError,
    HeldError,
    IndexLostError,
    ShardFiles,
)
from feeder.errors import DatasetError
from feeder.metrics.records import StoreRecord
from feeder.process.punched_file import punch_hole
from feeder.store.client import Store

_STEP_BYTES: Final = 64 << 10


class Transfers:
    """What changes the files of a cached dataset; counts in ``record``."""

    def __init__(self, cached: CachedDataset, store: Store | None, record: StoreRecord) -> None:
        """Without a ``store``, what is there can be checked and evicted."""
        self.cached = cached
        self.mean_bytes = max(1, cached.layout.size_bytes // cached.manifest.samples)
        """Of a sample."""
        self._record = record
        self._files = ShardFiles(cached, store, record)
        self._claimed: set[int] = set()

    def there_bytes(self) -> NDArray[np.int64]:
        """Return about how many bytes of each piece are there, (pieces,)."""
        return self.cached.counts_there() * self.mean_bytes

    def missing_bytes(self, ranges: Sequence[Range]) -> int:
        """Return about how many bytes of samples are missing."""
        there = self.cached.samples_there
        missing = sum(end - first - int(there[first:end].sum()) for first, end in ranges)
        return missing * self.mean_bytes

    def find_unindexed(self, ranges: Iterable[Range]) -> list[int]:
        """Return the shards of samples that lack their indexes."""
        shards = set()
        for first, end in ranges:
            (begin, last), _ = self.cached.layout.locate(np.array([first, end - 1]))
            missing = np.flatnonzero(self.cached.shards_there[begin : last + 1] == 0)
            shards.update((begin + missing).tolist())
        return sorted(shards)

    def fetch_index(self, shard: int) -> None:
        """Fetch a shard's index, unless it is there or another process is at it; StoreError,
        DamagedError, OSError."""
        with contextlib.suppress(HeldError):
            self._files.ensure_index(shard)

    def sweep(self) -> None:
        """Free what a process wrote that was killed before it could count it as there."""
        for shard in np.flatnonzero(self.cached.shards_there).tolist():
            with contextlib.suppress(IndexLostError, DatasetError, OSError):
                self._sweep_shard(shard)  # fetching finds what is wrong, too

    def _sweep_shard(self, shard: int) -> None:
        cached = self.cached
        first, end = cached.range_of_shard(shard)
        # Its parts of pieces: the first sample of each, then the end of the last one.
        inner = range((first // cached.piece + 1) * cached.piece, end, cached.piece)
        bounds = np.array([first, *inner, end])
        empty = np.add.reduceat(cached.samples_there[first:end], bounds[:-1] - first) == 0
        with self._files.open(shard) as file:
            limit = self._files.records_offset(file, shard)
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
                    parts = self._files.split(ranges)
                    wrong = [number for part in parts for number in self._fetch_missing(*part)]
                except IndexLostError as lost:
                    self._files.forget(lost.shard)
                    continue
                except HeldError:
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
            ((shard, row, _, _),) = self._files.split([(sample, sample + 1)])
            with (
                contextlib.suppress(DatasetError, IndexLostError, HeldError),
                self._sole(sample // self.cached.piece) as is_ours,
            ):
                if not is_ours or self.cached.samples_there[sample]:
                    continue
                self._files.ensure_index(shard)
                with self._files.open(shard) as file:
                    offset, expected_bytes, expected = self._files.blobs(file, shard, row, 1)[0]
                    if len(blob) != expected_bytes or checksum(blob) != expected:
                        self._record.peer_failures["damaged"] += 1
                        continue
                    write_at(file, blob, offset)
                    self.cached.mark(sample, sample + 1, there=True)
                    placed, size = placed + 1, size + len(blob)
        with self._files.guard:
            self._record.peer_blobs += placed
            self._record.peer_bytes += size
        return size

    def check(self, piece: int) -> bool:
        """Compare what is there of a piece with its checksums, and take back what is damaged.

        False if another process, or thread, is at the piece.
        """
        cached = self.cached
        with self._sole(piece) as is_ours:
            for shard, row, first, end in self._files.split([cached.range_of(piece)] * is_ours):
                there = np.flatnonzero(cached.samples_there[first:end]).tolist()
                if not there:
                    continue
                try:
                    with self._files.open(shard) as file:
                        self._files.prove_index(file, shard)
                        for number in there:
                            offset, size, expected = self._files.blobs(
                                file, shard, row + number, 1
                            )[0]
                            if checksum(os.pread(file, size, offset)) != expected:
                                cached.mark(first + number, first + number + 1, there=False)
                except IndexLostError:
                    self._files.forget(shard)
            return is_ours

    def evict(self, piece: int) -> bool:
        """Free the room of a piece; False if it is being read or fetched. Raises OSError."""
        cached = self.cached
        with self._sole(piece) as is_ours:
            if not (is_ours and cached.lock(piece)):
                return False
            try:
                for shard, row, first, end in self._files.split([cached.range_of(piece)]):
                    if cached.shards_there[shard]:
                        cached.mark(first, end, there=False)
                        self._punch(shard, row, end - first)
            finally:
                cached.unlock(piece)
            return True

    @contextlib.contextmanager
    def _sole(self, piece: int) -> Iterator[bool]:
        """Whether no other process or thread fetches, checks or evicts a piece; none can then."""
        with self._files.guard:  # the lock of the file is the whole process's
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
                with self._files.guard:
                    self._claimed.discard(piece)

    # --- Blobs ----------------------------------------------------------------------------------

    def _fetch_missing(self, shard: int, row: int, first: int, end: int) -> Iterator[int]:
        """Fetch what is missing of a part; yield the samples that came with a wrong checksum."""
        missing = self.cached.samples_there[first:end] == 0
        if not missing.any():
            return
        self._files.ensure_index(shard)
        with self._files.open(shard) as file:
            for start, stop in find_runs(np.flatnonzero(missing)):
                yield from self._fetch_run(file, shard, row + start, first + start, stop - start)

    def _fetch_run(self, file: int, shard: int, row: int, first: int, rows: int) -> Iterator[int]:
        blobs = self._files.blobs(file, shard, row, rows)
        start, end = blobs[0][0], blobs[-1][0] + blobs[-1][1]
        data = self._files.fetch(shard, start, end - start)
        right = np.array(
            [_checksum(data[at - start : at - start + size]) == c for at, size, c in blobs]
        )
        for good, stop in find_runs(np.flatnonzero(right)):
            at, until = blobs[good][0], blobs[stop - 1][0] + blobs[stop - 1][1]
            try:
                write_at(file, data[at - start : until - start], at)
            except OSError:
                with contextlib.suppress(OSError):
                    punch_hole(file, at, until - at)  # a full disk gets back what was written
                raise
            self.cached.mark(first + good, first + stop, there=True)
        wrong = np.flatnonzero(~right).tolist()
        with self._files.guard:
            self._record.blobs += rows - len(wrong)
            self._record.damaged += len(wrong)
        if wrong:
            self._files.prove_index(file, shard)
        yield from (first + number for number in wrong)

    def _punch(self, shard: int, row: int, rows: int) -> None:
        try:
            with self._files.open(shard) as file:
                first, last = (
                    self._files.blobs(file, shard, r, 1)[0] for r in (row, row + rows - 1)
                )
                punch_hole(file, first[0], last[0] + last[1] - first[0])
        except IndexLostError:
            self._files.forget(shard)


def _checksum(blob: memoryview) -> int:
    """Return what ``checksum`` does, without releasing the GIL as that does above _STEP_BYTES:
    with eight threads, handing it over costs more than it gains."""
    state = xxhash.xxh3_64()
    for start in range(0, len(blob), _STEP_BYTES):
        state.update(blob[start : start + _STEP_BYTES])
    return state.intdigest()


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
