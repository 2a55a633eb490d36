"""Writes the files that users name, and replaces files whole.

    nothing there, a regular file    replaced: written under a temporary name beside it, synced and
                                     renamed, so it has its old content or its new one at any moment
    a symbolic link                  followed: its target is replaced or made, the link stays
    a device, a named pipe           written into, as is a descriptor of this process (/dev/stdout)
    a folder, socket, block device   IrregularFileError

A file that is replaced keeps its permissions, and its owner where this process may set it. Imports
the standard library and feeder.errors at most, because training environments use this module.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from feeder.errors import ResourceError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import IrregularFileError, check_regular
from feeder.process.shortage import name_file
from feeder.process.stop_signals import stop_signals_blocked

_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL


def write_output(path: Path, data: bytes, *, suffix: str | None = None) -> None:
    """Make ``data`` the content of the file that a user calls ``path``; durable if it is regular.

    ``suffix`` is as for ``replace_file``. Raises OSError; ``explain_write_errors`` words it.
    """
    descriptor = _open_irregular(path)
    if descriptor is None:
        with stop_signals_blocked(), replace_file(path, suffix=suffix) as file:
            file.write(data)
    else:
        with open(descriptor, "wb") as file:
            file.write(data)


@contextlib.contextmanager
def replace_file(
    path: Path, *, mode: int | None = None, suffix: str | None = None
) -> Iterator[BinaryIO]:
    """Open a file that becomes ``path`` when the body ends, durably; an exception leaves the old.

    A file with secrets has ``mode`` before its first byte, and this process's user. ``suffix`` is
    that of the temporary name; the default is of this process alone. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        check_regular(os.stat(path), path)
    target = Path(os.path.realpath(path))
    temporary = temporary_path(target) if suffix is None else target.with_name(target.name + suffix)
    try:
        temporary.unlink(missing_ok=True)  # of a process that was killed
        descriptor = os.open(temporary, _NEW_FLAGS, 0o666 if mode is None else mode)
        with open(descriptor, "wb") as file:
            if mode is None:
                _take_over(target, descriptor)
            yield file
            file.flush()
            os.fsync(descriptor)
        temporary.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == os.fspath(temporary):
            raise OSError(error.errno, error.strerror, os.fspath(path)) from error
        raise
    with contextlib.suppress(PermissionError):  # a folder that may be written but not read
        fsync_folder(target.parent)


def temporary_path(path: Path) -> Path:
    """A name beside ``path`` for this process: one being killed may still be writing."""
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def fsync_folder(folder: Path) -> None:
    """Make renames in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def explain_write_errors(what: str, remedy: str) -> Iterator[None]:
    """Raise OSErrors of the body as ResourceErrors of one line: cannot write WHAT (…): REMEDY."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error).partition("\n")[0]
        raise ResourceError(f"cannot write {what} ({reason}): {remedy}") from error


def is_inside(path: Path, folder: Path) -> bool:
    """Whether ``path`` is ``folder`` or would be below it, links followed."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


@contextlib.contextmanager
def explain_disk_errors(doing: str, folder: Path, remedy: str) -> Iterator[None]:
    """Raise OSErrors of the body as ResourceErrors: what failed, why, and what to do.

    ``doing`` is e.g. "packing into"; ``remedy`` is what to do once the cause is fixed.
    """
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cause, fix = "no space left on its disk", "make room"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            cause, fix = f"not writable ({error.strerror})", "make it writable"
        else:
            name = name_file(error)
            at = f" at {printable(path_to_text(name))}" if name else ""
            cause, fix = f"{error.strerror}{at}", "fix that"
        raise ResourceError(f"{doing} {folder} failed: {cause}; {fix}, then {remedy}") from error


def _open_irregular(path: Path) -> int | None:
    """Open what is at ``path`` to write into it; None where a file is to be replaced."""
    try:
        kind = os.stat(path).st_mode
    except FileNotFoundError:
        return None
    own = _own_descriptor(path)
    if own is not None:
        return os.dup(own)  # a second open would write from the file's start
    if not stat.S_ISFIFO(kind) and not stat.S_ISCHR(kind):
        return None
    try:  # without blocking until a pipe has a reader
        descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if stat.S_ISFIFO(kind) and error.errno == errno.ENXIO:
            reason = "no process reads this named pipe (FIFO)"
            raise IrregularFileError(error.errno, reason, os.fspath(path)) from None
        raise
    os.set_blocking(descriptor, True)
    return descriptor


def _own_descriptor(path: Path) -> int | None:
    """The descriptor of this process that ``path`` names, as /dev/stdout and /dev/fd/1 do."""
    own = os.path.realpath("/proc/self/fd")
    while path.is_symlink():
        if os.path.realpath(path.parent) == own:
            return int(path.name)
        path = path.parent / path.readlink()
    return None


def _take_over(target: Path, descriptor: int) -> None:
    """Give an open file the owner and the permissions of the one that it replaces, if any."""
    with contextlib.suppress(FileNotFoundError):
        old = target.stat()
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, old.st_uid, old.st_gid)
        os.fchmod(descriptor, old.st_mode & 0o777)
