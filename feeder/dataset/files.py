"""The files of a dataset, in a local folder or in a store: whatever reads a dataset comes by here.

    DatasetFiles    a folder or a prefix of a store: files by name
    └─ ShardFile    an open shard: bytes by offset

Invariant: a read fills the caller's memory, or raises a DatasetError that names the file.

A local shard is read with pread, not mmap: a process that serves terabytes keeps the resident
memory of its scratch, and a file that shrinks is an error that names it, not a SIGBUS. One in a
store is read by ranges, all of the object that was opened: an ETag that changes is an error.
"""

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from feeder.errors import DatasetError, ResourceError
from feeder.process.path_text import path_from_text, path_to_text
from feeder.process.regular_file import open_regular, read_regular
from feeder.store.address import StoreAddress, is_remote

if TYPE_CHECKING:
    from feeder.store.client import Fetched, Store

Location: TypeAlias = str | Path
"""A folder, or the URL of a prefix in a store. A URL is never a Path, which would take a slash."""

_READ_AHEAD_BYTES: Final = 128 * 1024
"""Of one larger request the kernel may read only this much, the usual ``read_ahead_kb``."""

_WINDOW_BYTES: Final = 8 << 20
"""How much of a stored shard is fetched at once, and kept, while it is read in order."""

_GAP_BYTES: Final = 64  # the padding between blobs, at most; what follows it is read in order

_HEAD_BYTES: Final = 64  # fetched when a stored shard is opened, for its size: its header


class ShardFile(Protocol):
    """An open shard; ``close`` is idempotent."""

    where: str
    """Its path or URL, for messages."""
    size_bytes: int

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` from ``offset``; DatasetError where the file ends before it is full."""

    def read_ahead(self, offset: int, size_bytes: int) -> None:
        """Request that these bytes be at hand soon; does not wait for them."""

    def drop(self, offset: int, size_bytes: int) -> None:
        """Let the system drop these bytes from memory."""

    def close(self) -> None:
        """Close the file."""


class DatasetFiles(Protocol):
    """The files of one dataset, by name."""

    where: str
    """The folder or URL, for messages."""

    def locate(self, name: str) -> str:
        """Return the path or URL of a file, for messages."""

    def open(self, name: str) -> ShardFile:
        """Open a shard; DatasetError, or ResourceError if too many files are open."""

    def read(self, name: str, bytes_max: int) -> bytes:
        """Return the first ``bytes_max`` bytes of a file; OSError or StoreError."""


def files_at(location: Location | DatasetFiles) -> DatasetFiles:
    """Return the files at a location; those themselves where they are given. ConfigError."""
    if not isinstance(location, str | Path):
        return location
    folder = local_folder(location)
    return StoredFiles(StoreAddress.parse(str(location))) if folder is None else LocalFiles(folder)


def parse_location(text: str) -> Location:
    """Return the location that a user wrote."""
    return text if is_remote(text) else Path(text)


def local_folder(location: Location) -> Path | None:
    """Return the folder; None where the location is in a store."""
    is_url = isinstance(location, str) and is_remote(location)
    return None if is_url else Path(location)


def location_to_text(location: Location) -> str:
    """Return a text for another process, whatever its locale and working folder."""
    folder = local_folder(location)
    return str(location) if folder is None else path_to_text(folder.absolute())


def location_from_text(text: str) -> Location:
    """Return the location of a text from ``location_to_text``."""
    return text if is_remote(text) else path_from_text(text)


def cut_off(file: ShardFile, end: int) -> DatasetError:
    """Return the error for a shard that should have bytes up to ``end``."""
    return DatasetError(
        f"{file.where} is truncated: it ends before byte {end}; restore it or pack again"
    )


class LocalFiles:
    """A folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.where = str(folder)

    def locate(self, name: str) -> str:
        return str(self._folder / name)

    def open(self, name: str) -> "LocalShard":
        return LocalShard(self._folder / name)

    def read(self, name: str, bytes_max: int) -> bytes:
        return read_regular(self._folder / name, bytes_max)


class LocalShard:
    """A regular file."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        try:
            self._descriptor = open_regular(path)
            self.size_bytes = os.fstat(self._descriptor).st_size
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise ResourceError(
                    f"too many open files at {path}: lower open_shards, or raise the limit "
                    "(ulimit -n)"
                ) from error
            raise DatasetError(f"{path} cannot be opened: {error.strerror}") from error

    def read_into(self, offset: int, out: memoryview) -> None:
        done = 0
        while done < len(out):
            try:
                remaining = out[done:] if done else out
                count = os.preadv(self._descriptor, [remaining], offset + done)
            except OSError as error:
                raise DatasetError(
                    f"{self.where} cannot be read at byte {offset}: {error.strerror}"
                ) from error
            if count == 0:
                raise cut_off(self, offset + len(out))
            done += count

    def read_ahead(self, offset: int, size_bytes: int) -> None:
        """Have the kernel read into the page cache.

        If many bytes, and the middle one is there, all are taken to be: requests would cost 0.5 %
        of decoding. At either end may be a page that is there for what is beside it.
        """
        if size_bytes > _READ_AHEAD_BYTES and self._is_cached(offset + size_bytes // 2):
            return
        for start in range(offset, offset + size_bytes, _READ_AHEAD_BYTES):
            part = min(_READ_AHEAD_BYTES, offset + size_bytes - start)
            os.posix_fadvise(self._descriptor, start, part, os.POSIX_FADV_WILLNEED)

    def _is_cached(self, offset: int) -> bool:
        try:
            return os.preadv(self._descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except OSError:  # it is not cached, or the file system cannot answer
            return False

    def drop(self, offset: int, size_bytes: int) -> None:
        """Drop bytes from the page cache, except for pages that hold others as well."""
        if size_bytes:  # else it would be the rest of the file
            os.posix_fadvise(self._descriptor, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class StoredFiles:
    """The objects below a prefix of a store."""

    def __init__(self, address: StoreAddress) -> None:
        from feeder.store.client import Store  # here: local datasets need none of its libraries

        self._store = Store(address)
        self.where = address.url

    def locate(self, name: str) -> str:
        return self._store.address.child(name).url

    def open(self, name: str) -> "StoredShard":
        return StoredShard(self._store, name)

    def read(self, name: str, bytes_max: int) -> bytes:
        info = self._store.head(name)
        size_bytes = min(bytes_max, info.size_bytes)
        return bytes(self._store.read(name, 0, size_bytes, etag=info.etag).data)


class StoredShard:
    """An object.

    Reads that follow each other are served from a window, which costs a request each 8 MiB; others
    fetch what they need and no more, as indexes and single samples do.
    """

    def __init__(self, store: "Store", name: str) -> None:
        self.where = store.address.child(name).url
        self._store = store
        self._name = name
        self._etag = ""
        head = self._fetch(0, _HEAD_BYTES)
        self._etag, self.size_bytes = head.etag, head.size_bytes
        self._window, self._start = memoryview(head.data), 0
        self._next = 0  # the end of the last read

    def read_into(self, offset: int, out: memoryview) -> None:
        end = offset + len(out)
        if end > self.size_bytes:
            raise cut_off(self, end)
        if not out:
            return
        if 0 <= offset - self._next <= _GAP_BYTES and end > self._start + len(self._window):
            size_bytes = min(max(len(out), _WINDOW_BYTES), self.size_bytes - offset)
            self._window, self._start = memoryview(self._fetch(offset, size_bytes).data), offset
        if self._start <= offset and end <= self._start + len(self._window):
            out[:] = self._window[offset - self._start : end - self._start]
        else:
            out[:] = memoryview(self._fetch(offset, len(out)).data)
        self._next = end

    def _fetch(self, offset: int, size_bytes: int) -> "Fetched":
        return self._store.read(self._name, offset, size_bytes, etag=self._etag)

    def read_ahead(self, offset: int, size_bytes: int) -> None:
        """Nothing: the store is asked when the bytes are needed."""

    def drop(self, offset: int, size_bytes: int) -> None:
        """Nothing: there is one window."""

    def close(self) -> None:
        self._window = memoryview(b"")
