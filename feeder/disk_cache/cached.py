"""A cached dataset: the folder on this disk that holds some samples of a remote dataset.

    origin.json      Origin; written last: with it, the folder is a cached dataset
    manifest.json    as in the store, byte for byte
    shard-00003.fds  sparse, of full size; its header and index are there before any blob
    presence         [a byte a sample][a byte a shard, for its header and index]: 1 is there
    objects          lines "3 ETAG": the object that shard 3 is fetched from

Workers read it as any dataset. ``presence`` is mapped by its readers, and outlives all of
them. It carries the locks of processes that share the folder, open file description locks on byte
numbers, which the kernel drops when a process ends:

    piece                   shared while it is read, exclusive while it is evicted
    FETCHING + piece        exclusive while it is fetched
    INDEXING + shard        exclusive while its header and index are fetched
    IN_USE                  shared while a process has the dataset open, exclusive to remove it

Invariant: a sample is present only if its bytes, and those of its shard's index, were written
before. After a crash of the machine, which may lose the last writes, a checksum finds that.
"""

import contextlib
import errno
import fcntl
import json
import mmap
import os
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.manifest import Manifest, load_manifest
from feeder.disk_cache.ranges import Range
from feeder.errors import DatasetError, ResourceError
from feeder.plan.lanes import piece_samples
from feeder.process.regular_file import read_regular

ORIGIN_NAME: Final = "origin.json"
PRESENCE_NAME: Final = "presence"
OBJECTS_NAME: Final = "objects"

FETCHING: Final = 1 << 40
IN_USE: Final = 1 << 41
INDEXING: Final = 1 << 42

_ORIGIN_BYTES_MAX: Final = 64 << 10
_FLOCK: Final = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux; l_pid must be 0
_OFD_GETLK: Final = 36
_OFD_SETLK: Final = 37
_MAP_LOCKED: Final = 0x2000  # asm-generic/mman.h; Python has no name for it

_REMOVAL_S: Final = 30.0
_LOOK_S: Final = 0.02


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cached dataset comes from."""

    url: str
    content: str
    fingerprint: str
    manifest_etag: str
    """"" where the store has none."""


def is_cached(folder: Path) -> bool:
    """Return whether a folder is a cached dataset, complete or not."""
    return (folder / ORIGIN_NAME).is_file()


def read_origin(folder: Path) -> Origin:
    """Return the origin of a cached dataset; DatasetError if it is none, or damaged."""
    path = folder / ORIGIN_NAME
    try:
        return msgspec.convert(json.loads(read_regular(path, _ORIGIN_BYTES_MAX)), Origin)
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError:
        raise DatasetError(f"{path} is damaged: remove {folder} to fetch it again") from None


class CachedDataset:
    """The presence, the pins and the locks of a cached dataset; thread-safe but for ``close``."""

    def __init__(self, folder: Path, url: str, manifest: Manifest, presence: int) -> None:
        self.folder = folder
        self.url = url
        self.manifest = manifest
        self.layout = manifest.layout
        self.piece = piece_samples(manifest.samples, self.layout.size_bytes)
        """Samples in a piece: the unit of fetching ahead and of eviction."""
        self.pieces = -(-manifest.samples // self.piece)
        self._descriptor = presence
        self._pinned: set[int] = set()
        access = fcntl.fcntl(presence, fcntl.F_GETFL) & os.O_ACCMODE
        self._is_read_only = access == os.O_RDONLY  # such descriptors get no exclusive locks
        mapped = _map_locked(presence)
        flags = np.frombuffer(mapped, np.uint8)  # which unmaps it when the last array is gone
        self.samples_there: NDArray[np.uint8] = flags[: manifest.samples]
        self.shards_there: NDArray[np.uint8] = flags[manifest.samples :]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Open a cached dataset that ``prepare`` returned, which is in use then.

        Raises DatasetError if there is none, or its files are damaged: ``prepare`` mends that.
        """
        origin, manifest = read_origin(folder), load_manifest(folder)
        path = folder / PRESENCE_NAME
        expected = manifest.samples + len(manifest.shards)
        try:
            descriptor = _open_writable(path)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise ResourceError(
                    f"too many open files at {path}: raise the limit (ulimit -n)"
                ) from error
            raise DatasetError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            if not lock(descriptor, IN_USE, exclusive=False, patience_s=_REMOVAL_S):
                raise DatasetError(f"{folder} is being removed by another process: start again")
            status = os.fstat(descriptor)
            if status.st_nlink == 0 or status.st_size != expected:
                what = f"{status.st_size} of {expected} bytes" if status.st_nlink else "removed"
                raise DatasetError(f"{path} is damaged ({what}): start again to fetch what it had")
            return cls(folder, origin.url, manifest, descriptor)
        except BaseException:
            os.close(descriptor)
            raise

    def pieces_of(self, sample_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the pieces of samples (n,): each once, ascending."""
        return np.unique(sample_ids // self.piece)

    def ranges_of(self, pieces: Iterable[int] | NDArray[np.int64]) -> tuple[Range, ...]:
        """Return the samples of pieces (n,): first id and end of each, as messages take them."""
        return tuple(self.range_of(int(piece)) for piece in pieces)

    def range_of(self, piece: int) -> Range:
        first = piece * self.piece
        return first, min(first + self.piece, self.manifest.samples)

    def counts_there(self) -> NDArray[np.int64]:
        """Return how many samples of each piece are there, (pieces,)."""
        firsts = np.arange(0, self.manifest.samples, self.piece)
        return np.add.reduceat(self.samples_there, firsts, dtype=np.int64)

    def count_whole(self) -> int:
        """Return how many pieces are there wholly."""
        sizes = np.full(self.pieces, self.piece)
        sizes[-1] = self.manifest.samples - (self.pieces - 1) * self.piece
        return int((self.counts_there() == sizes).sum())

    def has(self, sample_ids: NDArray[np.int64]) -> bool:
        """Return whether samples (n,) are all there; only those of pinned pieces stay there."""
        return bool(self.samples_there[sample_ids].all())

    def pin(self, piece: int) -> bool:
        """Keep a piece from being evicted, in every process; False if it is just being evicted.

        Pins of one object do not add up: the first ``unpin`` ends them.
        """
        is_pinned = lock(self._descriptor, piece, exclusive=False)
        if is_pinned:
            self._pinned.add(piece)
        return is_pinned

    def unpin(self, piece: int) -> None:
        self._pinned.discard(piece)
        unlock(self._descriptor, piece)

    def lock(self, number: int) -> bool:
        """Lock a byte exclusively, in place of a pin of this object until ``unlock``; False if
        another has it.

        Raises OSError where the file may only be read.
        """
        if self._is_read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(self.folder / PRESENCE_NAME))
        return lock(self._descriptor, number, exclusive=True)

    def unlock(self, number: int) -> None:
        if number in self._pinned:
            lock(self._descriptor, number, exclusive=False)
        else:
            unlock(self._descriptor, number)

    def is_used_by_others(self) -> bool:
        """Return whether another object, of this process or another, has the dataset open."""
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, IN_USE, 1, 0)
        kind: int = _FLOCK.unpack(fcntl.fcntl(self._descriptor, _OFD_GETLK, query))[0]
        return kind != fcntl.F_UNLCK

    def mark(self, first: int, end: int, *, there: bool) -> None:
        """Record that samples first .. end - 1 are there, or not any more. Raises OSError.

        Written, not stored through the map: a disk that is full or fails would be a SIGBUS.
        """
        write_at(self._descriptor, (b"\1" if there else b"\0") * (end - first), first)

    def mark_shard(self, shard: int, *, there: bool) -> None:
        """Record that a shard's header and index are there, or, with its samples, not any more."""
        if not there:
            first, end = self.range_of_shard(shard)
            self.mark(first, end, there=False)
        write_at(self._descriptor, b"\1" if there else b"\0", self.manifest.samples + shard)

    def range_of_shard(self, shard: int) -> Range:
        rows, long_shards = divmod(self.manifest.samples, len(self.manifest.shards))
        first = shard * rows + min(shard, long_shards)
        return first, first + self.manifest.shards[shard].samples

    def close(self) -> None:
        """Close it, which ends its pins and locks; arrays that others hold stay mapped."""
        if self._descriptor >= 0:
            fcntl.fcntl(self._descriptor, _OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, 0, 0, 0, 0))
            os.close(self._descriptor)  # the map has a duplicate, which would keep the locks
            self._descriptor = -1
            self.samples_there = self.shards_there = np.zeros(0, np.uint8)


def lock(descriptor: int, number: int, *, exclusive: bool, patience_s: float = 0.0) -> bool:
    """Lock byte ``number`` of an open file; False if it is locked otherwise, for ``patience_s``."""
    kind = fcntl.F_WRLCK if exclusive else fcntl.F_RDLCK
    request = _FLOCK.pack(kind, os.SEEK_SET, number, 1, 0)
    end_s = time.monotonic() + patience_s
    while True:
        try:
            fcntl.fcntl(descriptor, _OFD_SETLK, request)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        # Not F_OFD_SETLKW, which has no deadline: the process that holds it may be stopped.
        if time.monotonic() >= end_s:
            return False
        time.sleep(_LOOK_S)


def unlock(descriptor: int, number: int) -> None:
    fcntl.fcntl(descriptor, _OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0))


def _map_locked(descriptor: int) -> mmap.mmap:
    """Map a file for reading, locked in memory if ``ulimit -l`` allows it: a page that a failing
    disk cannot read back would be a SIGBUS."""
    with contextlib.suppress(OSError):
        return mmap.mmap(descriptor, 0, mmap.MAP_SHARED | _MAP_LOCKED, mmap.PROT_READ)
    return mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)


def _open_writable(path: Path) -> int:
    """Open a file to read and write it, only to read it where that is not allowed."""
    try:
        return os.open(path, os.O_RDWR)
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        return os.open(path, os.O_RDONLY)


def write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of ``data``; raises OSError."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
