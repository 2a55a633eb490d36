"""Opens files that Feeder did not create: regular ones only, without blocking.

Opening a named pipe blocks until there is a writer, and reading a device may never end. Errors are
OSErrors whose ``strerror`` names what was found, so callers report all of them alike. Also reads
files with secrets. Imports the standard library and feeder.errors only, because training
environments use this module.
"""

import contextlib
import errno
import os
import stat
import struct
from pathlib import Path
from typing import BinaryIO, Final

from feeder.errors import ConfigError

_KINDS: Final = {
    stat.S_IFIFO: "a named pipe (FIFO)",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

# linux/posix_acl_xattr.h: a header, then (tag, permissions, user or group) for each entry.
_ACL_HEADER_BYTES: Final = 4
_ACL_ENTRY: Final = struct.Struct("<HHI")
_ACL_OWNER: Final = 0x01
_ACL_USER: Final = 0x02
_ACL_MASK: Final = 0x10


class IrregularFileError(OSError):
    """Raised when a path is a folder, pipe, socket or device, which ``strerror`` names."""


def open_regular(path: str | bytes | os.PathLike[str]) -> int:
    """Open a descriptor to read a regular file; raises OSError, for others IrregularFileError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        check_regular(os.stat(path), path)  # a socket cannot be opened, nor can some devices
        raise
    try:
        check_regular(os.fstat(descriptor), path)
        os.set_blocking(descriptor, True)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular_file(path: str | bytes | os.PathLike[str]) -> BinaryIO:
    """Open the regular file at ``path`` for reading; raises what ``open_regular`` does."""
    return open(path, "rb", opener=lambda name, _: open_regular(name))


def read_regular(path: str | bytes | os.PathLike[str], bytes_max: int) -> bytes:
    """Read the first ``bytes_max`` bytes of a file; raises what ``open_regular`` does."""
    with open_regular_file(path) as file:
        return read_descriptor(file.fileno(), bytes_max)


def read_descriptor(descriptor: int, bytes_max: int) -> bytes:
    """Read the first ``bytes_max`` bytes of an open file; raises OSError."""
    parts: list[bytes] = []
    expected = max(os.fstat(descriptor).st_size + 1, 4096)  # one for its end; kernel files have 0
    while bytes_max > 0 and (part := os.read(descriptor, min(expected, bytes_max))):
        parts.append(part)
        bytes_max -= len(part)
    return b"".join(parts)


def check_regular(status: os.stat_result, path: object) -> None:
    """Raise IrregularFileError unless ``status`` is that of a regular file, at ``path``."""
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IrregularFileError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if kind != stat.S_IFREG:
        name = _KINDS.get(kind, "something else")
        raise IrregularFileError(errno.EINVAL, f"it is {name}, not a regular file", path)


def read_private(path: Path, bytes_max: int, what: str) -> bytes:
    """Read the first ``bytes_max`` bytes of a file with a secret, named ``what`` in errors.

    Raises ConfigError unless only this process's user and root have access to it, or root has given
    it to a group of this process, to read (0440). Raises OSError.
    """
    with open_regular_file(path) as file:
        status = os.fstat(file.fileno())
        data = file.read(bytes_max)
        acl = b""
        with contextlib.suppress(OSError):  # no ACL, or none on this file system
            acl = os.getxattr(file.fileno(), "system.posix_acl_access")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{what} {path} belongs to another user ({status.st_uid}): chown {os.geteuid()} {path}"
        )
    # Kubernetes mounts secrets so for containers with fsGroup; no umask makes this mode.
    is_given = status.st_uid == 0 and stat.S_IMODE(status.st_mode) == 0o440
    is_for_own_group = is_given and status.st_gid in (os.getegid(), *os.getgroups())
    if _is_open_to_others(status.st_mode, acl) and (acl or not is_for_own_group):
        remedy = f"chmod 600 {path}"
        if status.st_uid != os.geteuid():  # root's: with 0600 it could not be read here
            remedy = f"chmod 440 {path} and chgrp {os.getegid()} {path}"
        raise ConfigError(
            f"{what} {path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}): "
            f"{remedy}, and make a new one if others may have read it"
        )
    return data


def _is_open_to_others(mode: int, acl: bytes) -> bool:
    """Whether others than the owner, this process's user and root may use a file.

    Where there is an ACL, the mode's group bits are its mask. systemd passes credentials that way
    (from 254, on Linux 6.3): root's file, 0400, with an entry for the service's user, which makes
    the mode 0440.
    """
    if not mode & _OTHERS or not acl:
        return bool(mode & _OTHERS)
    entries = acl[_ACL_HEADER_BYTES:]
    if not entries or len(entries) % _ACL_ENTRY.size:
        return True  # not an ACL as Linux writes it
    return any(
        permissions
        and tag not in (_ACL_OWNER, _ACL_MASK)
        and (tag, uid) not in ((_ACL_USER, os.geteuid()), (_ACL_USER, 0))
        for tag, permissions, uid in _ACL_ENTRY.iter_unpack(entries)
    )
