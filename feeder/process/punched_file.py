"""Gives back the room of a part of a file, which then reads as zeros; its size stays."""

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

_PUNCH_HOLE: Final = 0x03  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h
_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS)
_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def punch_hole(descriptor: int, offset: int, size_bytes: int) -> bool:
    """Give back the whole blocks within a range of a file that is open for writing.

    Returns whether its file system can do so: ext4, XFS, Btrfs and tmpfs can, NFS before 4.2
    cannot. Raises OSError.
    """
    if size_bytes <= 0 or _libc.fallocate(descriptor, _PUNCH_HOLE, offset, size_bytes) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number))


def can_punch(folder: Path) -> bool:
    """Return whether the file system of a folder gives back the room of parts of files."""
    path = folder / f"punched.{os.getpid()}.tmp"
    try:
        with path.open("wb") as file:
            file.write(b"\1" * 8192)
            return punch_hole(file.fileno(), 0, 8192)
    finally:
        path.unlink(missing_ok=True)
