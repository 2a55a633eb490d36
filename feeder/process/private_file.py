"""Reads files with secrets, which only this process's user and root may have access to.

Root may also give a secret to a group of this process: its file has the mode 0440 then, as
Kubernetes mounts secrets for containers with fsGroup. No umask makes that mode by accident.
"""

import contextlib
import os
import stat
import struct
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError
from feeder.process.regular_file import open_regular_file

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_FOR_GROUP: Final = 0o440

# linux/posix_acl_xattr.h: a header, then (tag, permissions, user or group) for each entry.
_ACL_HEADER_BYTES: Final = 4
_ACL_ENTRY: Final = struct.Struct("<HHI")
_ACL_OWNER: Final = 0x01
_ACL_USER: Final = 0x02
_ACL_MASK: Final = 0x10


def read_private(path: Path, bytes_max: int, what: str) -> bytes:
    """Return the first ``bytes_max`` bytes of a file that only this process's user can read, and
    root, or only root and a group of this process.

    Raises OSError where it cannot be read, ConfigError that names ``what`` it is and what to do
    where others may have access.
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
    if _is_open_to_others(status.st_mode, acl) and (acl or not _is_for_own_group(status)):
        remedy = f"chmod 600 {path}"
        if status.st_uid != os.geteuid():  # root's: with 0600 it could not be read here
            remedy = f"chmod 440 {path} and chgrp {os.getegid()} {path}"
        raise ConfigError(
            f"{what} {path} is open to others (mode {stat.S_IMODE(status.st_mode):04o}): "
            f"{remedy}, and make a new one if others may have read it"
        )
    return data


def _is_for_own_group(status: os.stat_result) -> bool:
    """Return whether root has given a file to one of this process's groups, to read only."""
    is_given = status.st_uid == 0 and stat.S_IMODE(status.st_mode) == _FOR_GROUP
    return is_given and status.st_gid in (os.getegid(), *os.getgroups())


def _is_open_to_others(mode: int, acl: bytes) -> bool:
    """Return whether others than the owner, this process's user and root may use a file.

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
