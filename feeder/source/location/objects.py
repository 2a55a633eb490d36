"""Objects of a store in the place of files: looked at, listed by pages, read by ranges.

    s3://bucket/raw/          a folder: what begins so; its URL ends with "/"
    s3://bucket/raw/x.tar     a file: an object

Millions of objects pass through a page at a time; none is held. Consoles mark folders by objects
without bytes that are called like them ("raw/cat/"): these are left out.

Invariant: a stamp, the hash of size and ETag, is another one as soon as an object is written again.
That there is no such object is a FileNotFoundError, as of a file; all else that fails at the store
is a StoreError.
"""

import errno
import functools
import hashlib
import io
import os
import threading
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from feeder.errors import SourceChangedError, StoreError
from feeder.process.path_text import decode_name, encode_name, printable

if TYPE_CHECKING:
    from feeder.store.client import ObjectInfo, Store

AT_ONCE: Final = 64
"""Requests at a time for objects that are looked at, or read, one by one."""
PATIENCE_S: Final = 30.0
_READ_AHEAD_BYTES: Final = 8 << 20

_opening: Final = threading.Lock()

retries: Counter[str] = Counter()
"""Requests of this process that were made again since ``take_retries``, by the reason."""


class ObjectEntry(NamedTuple):
    """An object, or a folder of objects, in the place of an os.DirEntry."""

    name: bytes
    """In the folder that is listed; of ``walk_objects``, the path below it."""
    size_bytes: int
    stamp: int
    """0 of a folder."""
    modified_ns: int

    def is_dir(self) -> bool:
        return not self.stamp


def open_store(url: str) -> "tuple[Store, str]":
    """Return the store that has the object or folder at ``url``, and its name there."""
    scheme, _, rest = url.partition("://")
    bucket, _, name = rest.partition("/")
    with _opening:  # else each of 64 threads would find credentials and read certificates, for 3 s
        return open_bucket(f"{scheme}://{bucket}"), name.rstrip("/")


@functools.lru_cache(maxsize=64)
def open_bucket(url: str) -> "Store":
    """Return the store of a bucket, or of a web server; one for each in a process."""
    from feeder.store.address import StoreAddress
    from feeder.store.client import Store  # only here: most sources are local

    def count(kind: str) -> None:
        retries[kind] += 1

    return Store(StoreAddress.parse(url), on_retry=count, patience_s=PATIENCE_S)


def take_retries() -> dict[str, int]:
    """Return and forget the retries of this process, and those that it was told of."""
    taken = dict(retries)
    retries.clear()
    return taken


def stamp_object(size_bytes: int, version: str) -> int:
    """The stamp of an object with this ETag, 1 .. 2**64 - 1; of one without, with this time."""
    # Azure quotes ETags in answers, but not in listings.
    key = b"%d %s" % (size_bytes, version.removeprefix("W/").strip('"').encode())
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little") or 1


def look_at(url: str) -> "ObjectInfo":
    """Return size, ETag and time of an object; FileNotFoundError."""
    store, name = open_store(url)
    try:
        return store.head(name)
    except StoreError as error:
        raise _as_missing(error, url) from None


def look_again(url: str) -> "ObjectInfo":
    """Return the same of an object that was listed; SourceChangedError."""
    try:
        return look_at(url)
    except FileNotFoundError:
        raise changed(url, "it is gone") from None


def stamp_info(info: "ObjectInfo") -> int:
    return stamp_object(info.size_bytes, info.etag or str(info.modified_ns))


def read_object(url: str, listed: int | None) -> bytes:
    """Return an object whole; SourceChangedError unless it has the stamp ``listed``."""
    store, name = open_store(url)
    try:
        fetched = store.read(name)
    except StoreError as error:
        raise as_change(error, url) from None
    if listed not in (None, stamp_object(fetched.size_bytes, fetched.etag)):
        raise changed(url)
    return bytes(fetched.data)


def read_start(url: str, size_bytes: int) -> bytes:
    """Return the first bytes of an object that was listed; SourceChangedError."""
    store, name = open_store(url)
    try:
        return bytes(store.read(name, 0, size_bytes).data)
    except StoreError as error:
        raise as_change(error, url) from None


def changed(url: str, what: str = "it was written again or replaced") -> SourceChangedError:
    return SourceChangedError(f"{printable(url)} has changed since it was listed ({what})")


def as_change(error: StoreError, url: str) -> StoreError | SourceChangedError:
    """Return the error for an object that was listed and cannot be read."""
    if error.kind == "gone":
        return changed(url, "it is gone")
    return changed(url) if error.kind == "changed" else error


def _as_missing(error: StoreError, url: str) -> StoreError | FileNotFoundError:
    if error.kind != "gone":
        return error
    return FileNotFoundError(errno.ENOENT, "there is no such object or bucket", url)


class StoredObject:
    """An object that is read by ranges, all of one version; in the place of a StoredFile."""

    def __init__(self, path: bytes, listed: int | None = None) -> None:
        """``listed`` is the stamp that it has, None: any; FileNotFoundError, SourceChangedError."""
        self._url = decode_name(path)
        self._store, self._name = open_store(self._url)
        info = look_at(self._url)
        if listed not in (None, stamp_info(info)):
            raise changed(self._url)
        self.size_bytes = info.size_bytes
        self._etag = info.etag

    def read(self, at: int, size: int) -> bytes:
        """Read ``size`` bytes at an offset, fewer only at the object's end."""
        size = min(size, self.size_bytes - at)
        if size <= 0:
            return b""
        try:
            return bytes(self._store.read(self._name, at, size, etag=self._etag).data)
        except StoreError as error:
            raise as_change(error, self._url) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Close nothing: no connection is its own."""


class ObjectFile(io.RawIOBase):
    """An object as a file for libraries, which holds the last 8 MiB that were asked for."""

    def __init__(self, stored: StoredObject) -> None:
        self._stored = stored
        self._position = self._held_at = 0
        self._held = b""

    def readinto(self, buffer: Any) -> int:
        at = self._position - self._held_at
        if not 0 <= at < len(self._held):
            # What jumps around, as readers of Parquet do, asks for what it needs at once.
            is_next = at == len(self._held)
            size = max(len(buffer), _READ_AHEAD_BYTES if is_next else io.DEFAULT_BUFFER_SIZE)
            self._held, self._held_at, at = self._stored.read(self._position, size), 0, 0
            self._held_at = self._position
        part = self._held[at : at + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def seek(self, position: int, whence: int = os.SEEK_SET, /) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._stored.size_bytes}
        self._position = max(0, start[whence] + position)
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def scan_objects(url: str) -> Iterator[ObjectEntry]:
    """Yield the objects and folders directly in a folder; nothing where there is none.

    A folder of files comes by pages. One that has folders too comes at once, as these may hold
    millions of objects, which the store then leaves out.
    """
    store, prefix = open_store(url)
    start = len(prefix) + 1 if prefix else 0
    last = ""
    for page in store.list(prefix):
        if any("/" in info.name[start:] for info in page):
            break
        for info in page:
            if info.name[start:]:
                yield _entry(info, start)
        last = page[-1].name
    else:
        return
    for page in store.list(prefix, delimiter=True):
        folders = {info.name.rstrip("/") for info in page if info.name.endswith("/")}
        for info in page:
            name = info.name.rstrip("/")
            is_marker = not info.size_bytes and name == info.name and name in {*folders, prefix}
            if not is_marker and not info.name <= last:
                yield _entry(info, start)


def walk_objects(url: str) -> Iterator[ObjectEntry]:
    """Yield all objects below a folder, as the store sorts them: by the bytes of their names."""
    store, prefix = open_store(url)
    start = len(prefix) + 1 if prefix else 0
    last: ObjectEntry | None = None
    for page in store.list(prefix):
        for info in page:
            entry = _entry(info, start)
            is_marker = (
                last is not None
                and not last.size_bytes
                and (entry.name.startswith(last.name + b"/"))
            )
            if last is not None and last.name and not is_marker:
                yield last
            last = entry
    if last is not None and last.name:
        yield last


def has_objects(url: str) -> bool:
    """Return whether there is a folder at ``url``: any object below it."""
    store, prefix = open_store(url)
    return next(store.list(prefix), None) is not None


def _entry(info: "ObjectInfo", start: int) -> ObjectEntry:
    name = encode_name(info.name[start:])
    if name.endswith(b"/"):
        return ObjectEntry(name.rstrip(b"/"), 0, 0, 0)
    return ObjectEntry(name, info.size_bytes, stamp_info(info), info.modified_ns)
