"""The files of a source: listed, opened, read by ranges, and compared with what was listed.

    scan_folder     list: the entries of a folder
    StoredFile      open, size, and read a range
    check_listed    whether a file is still the one that was listed, by its stamp

Whatever looks for images, lists a container or reads an image does it with these; a store of
objects has to offer the same three. Only tables are opened elsewhere, by the libraries that parse
them.
"""

import hashlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from feeder.errors import DatasetError
from feeder.process.path_text import decode_name, path_to_text, printable
from feeder.process.regular_file import open_regular


class SourceChangedError(DatasetError):
    """Raised for a file that is not the one that was listed: the whole packing ends.

    ``change`` is what happened, ``remedy`` what to do about it, which readers do not know.
    """

    def __init__(self, change: str, remedy: str = "") -> None:
        super().__init__(f"{change}: {remedy}" if remedy else change)
        self.change = change


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


def read_whole(path: Path, bytes_max: int) -> bytes:
    """Return the first bytes of a regular file, up to ``bytes_max``; DatasetError if that fails."""
    try:
        with StoredFile(path) as file:
            return file.read(0, bytes_max)
    except OSError as error:
        shown = printable(path_to_text(path))
        raise DatasetError(f"{shown} cannot be read: {error.strerror}") from None


def scan_folder(folder: bytes, what: str) -> Iterator[os.DirEntry[bytes]]:
    """Yield the entries of a folder; DatasetError, which calls it ``what``, if that fails."""
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


def is_folder(entry: os.DirEntry[bytes]) -> bool:
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


def stamp_path(path: str | bytes | os.PathLike[str]) -> int:
    """The stamp of the file at ``path``, links followed; 0 where none can be looked at."""
    try:
        return stamp_status(os.stat(path))
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
