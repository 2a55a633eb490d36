"""Opens files that Feeder did not create: regular ones only, without blocking.

Opening a named pipe blocks until there is a writer, and reading a device may never end. So the path
is opened with O_NONBLOCK and the kind of file checked before anything is read. Errors are OSErrors
whose ``strerror`` names what was found, so callers report all of them alike.

Imports the standard library only, because training environments use this module.
"""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, Final

_OPEN_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_KINDS: Final = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_READ_BYTES: Final = 4096  # at least: kernel files have size 0


class IrregularFileError(OSError):
    """Raised when a path is a folder, pipe, socket or device, which ``strerror`` names."""


def open_regular(path: str | bytes | os.PathLike[str]) -> int:
    """Return a descriptor to read the regular file at ``path``.

    Raises OSError when it cannot be opened, IrregularFileError when it is not a regular file.
    """
    try:
        descriptor = os.open(path, _OPEN_FLAGS)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.EBUSY):  # a socket; some devices
            check_regular(os.stat(path), path)
        raise
    try:
        check_regular(os.fstat(descriptor), path)
        os.set_blocking(descriptor, True)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular_file(path: str | Path) -> BinaryIO:
    """Return the regular file at ``path``, open for reading; raises what ``open_regular`` does."""
    return open(path, "rb", opener=lambda name, _: open_regular(name))


def read_regular(path: str | bytes | os.PathLike[str], bytes_max: int) -> bytes:
    """Return the first ``bytes_max`` bytes of the regular file at ``path``, all if it has fewer.

    Raises what ``open_regular`` does.
    """
    descriptor = open_regular(path)
    try:
        return read_descriptor(descriptor, bytes_max)
    finally:
        os.close(descriptor)


def read_descriptor(descriptor: int, bytes_max: int) -> bytes:
    """Return the first ``bytes_max`` bytes of an open file, all if it has fewer; raises OSError."""
    parts: list[bytes] = []
    expected = max(os.fstat(descriptor).st_size + 1, _READ_BYTES)  # and one byte for its end
    while bytes_max > 0:
        part = os.read(descriptor, min(expected, bytes_max))
        if not part:
            break
        parts.append(part)
        bytes_max -= len(part)
    return b"".join(parts)


def check_regular(status: os.stat_result, path: object) -> None:
    """Raise IrregularFileError unless ``status`` is that of a regular file, at ``path``."""
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IrregularFileError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if kind != stat.S_IFREG:
        found = _KINDS.get(kind, "something else")
        raise IrregularFileError(errno.EINVAL, f"it is {found}, not a regular file", path)
