"""The files of a source: listed, opened, read by ranges, and compared with what was listed.

    scan_folder     list: the entries of a folder
    open_stored     open, size, and read a range
    check_listed    whether a file is still the one that was listed, by its stamp

Whatever looks for images, lists a container or reads an image does it with these. A path is local,
or the URL of an object in a store, for which ``objects`` does the same. As text it is what
``path_to_text`` writes. Only tables are opened elsewhere, by the libraries that parse them.
"""

import hashlib
import io
import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final, Self

from feeder.errors import DatasetError, SourceChangedError
from feeder.process.path_text import decode_name, encode_name, printable
from feeder.process.regular_file import open_regular, open_regular_file
from feeder.source.location.objects import (
    ObjectEntry,
    ObjectFile,
    StoredObject,
    look_at,
    scan_objects,
    stamp_info,
)
from feeder.store.address import is_remote

FilePath = str | bytes | os.PathLike[str]
_BUFFER_BYTES: Final = 1 << 20


def encode_path(path: FilePath) -> bytes:
    if isinstance(path, bytes):
        return path
    return encode_name(path) if isinstance(path, str) else os.fsencode(path)


def is_url(path: FilePath) -> bool:
    """Return whether a path is that of an object, or of a folder of objects."""
    return is_remote(path if isinstance(path, str) else decode_name(encode_path(path)))


def is_folder_path(path: str) -> bool:
    """Return whether there is a folder at a path of a source; URLs of folders end with "/"."""
    return path.endswith("/") or os.path.isdir(encode_name(path))


class StoredFile:
    """An open regular file; a context manager. All of it raises OSError."""

    def __init__(
        self, path: bytes | os.PathLike[str], listed: int | None = None, *, is_pipe: bool = False
    ) -> None:
        """Open ``path``; ``listed`` is the stamp that it has at the end, None: any.

        A named pipe has no ranges: it is read by its descriptor, and opened only once.
        """
        self.path = os.fsencode(path)
        self._listed = listed
        self.descriptor = os.open(path, os.O_RDONLY) if is_pipe else open_regular(path)

    @property
    def size_bytes(self) -> int:
        return os.fstat(self.descriptor).st_size

    def read(self, at: int, size: int) -> bytes:
        """Read ``size`` bytes at an offset, fewer only at the file's end."""
        data = os.pread(self.descriptor, size, at)
        while len(data) < size and (
            more := os.pread(self.descriptor, size - len(data), at + len(data))
        ):
            data += more
        return data

    def close(self) -> None:
        os.close(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        """Close the file; SourceChangedError unless it has the stamp that was listed.

        That comes after reading, so that a write meanwhile counts, and instead of any other fault.
        """
        try:
            check_listed(self.path, self._listed, self.descriptor)
        finally:
            self.close()


def open_stored(
    path: FilePath, listed: int | None = None, *, is_pipe: bool = False
) -> StoredFile | StoredObject:
    """Open a file, see ``StoredFile``, or an object; OSError, and StoreError."""
    stored = encode_path(path)
    if is_url(stored):
        return StoredObject(stored, listed)
    return StoredFile(stored, listed, is_pipe=is_pipe)


def open_file(path: FilePath) -> BinaryIO:
    """Open a regular file or an object as a file of Python's; raises what ``open_stored`` does."""
    stored = encode_path(path)
    if not is_url(stored):
        return open_regular_file(stored)
    return io.BufferedReader(ObjectFile(StoredObject(stored)), _BUFFER_BYTES)


def read_whole(path: FilePath, bytes_max: int) -> bytes:
    """Return the first bytes of a regular file, up to ``bytes_max``; DatasetError if that fails."""
    try:
        with open_stored(path) as file:
            return file.read(0, bytes_max)
    except OSError as error:
        shown = show_path(encode_path(path))
        raise DatasetError(f"{shown} cannot be read: {error.strerror}") from None


def scan_folder(folder: bytes, what: str) -> Iterator[os.DirEntry[bytes] | ObjectEntry]:
    """Yield the entries of a folder; DatasetError, which calls it ``what``, if that fails."""
    if is_url(folder):
        yield from scan_objects(decode_name(folder))
        return
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except FileNotFoundError:
        raise DatasetError(f"{what} {show_path(folder)} does not exist") from None
    except NotADirectoryError:
        raise DatasetError(
            f"{what} {show_path(folder)} is a file: give a folder that holds a folder per class"
        ) from None
    except OSError as error:
        raise DatasetError(
            f"{what} {show_path(folder)} cannot be listed: {error.strerror}"
        ) from error


def is_folder(entry: os.DirEntry[bytes] | ObjectEntry) -> bool:
    """Return whether an entry is a folder or links to one."""
    try:
        return entry.is_dir()
    except OSError:  # e.g. a link to itself: packing quarantines it as unreadable
        return False


def stamp_status(status: os.stat_result) -> int:
    """The stamp of the file with this status, 1 .. 2**64 - 1: a hash which another file, or this
    one written again, does not have.

    A new file can be given the size and the modification time of the one before, but not its change
    time. Neither device nor inode counts: some file systems number them anew.
    """
    fields = (status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    data = struct.pack("<QQQ", *(field & 2**64 - 1 for field in fields))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


def look_at_path(path: FilePath) -> tuple[int, int]:
    """Return size and stamp of the file or object at ``path``, links followed; OSError."""
    stored = encode_path(path)
    if is_url(stored):
        info = look_at(decode_name(stored))
        return info.size_bytes, stamp_info(info)
    status = os.stat(stored)
    return status.st_size, stamp_status(status)


def stamp_path(path: FilePath) -> int:
    """The stamp of the file at ``path``, links followed; 0 where none can be looked at."""
    try:
        return look_at_path(path)[1]
    except OSError:
        return 0


def check_listed(path: bytes, listed: int | None, descriptor: int | None = None) -> None:
    """Raise SourceChangedError unless the file at ``path`` has the stamp that was listed.

    ``listed`` is 0 for a file that could not be looked at, None for any. With ``descriptor``, what
    was read from that is compared.
    """
    if listed is None:
        return
    stamp = stamp_path(path) if descriptor is None else stamp_status(os.fstat(descriptor))
    if stamp != listed:
        what = "it was written again or replaced" if stamp and listed else "it is gone"
        what = what if listed else "there was no such file"
        raise SourceChangedError(f"{show_path(path)} has changed since it was listed ({what})")


def show_path(path: bytes) -> str:
    return printable(decode_name(path))
