"""The stamp of a file: a number that another file, or the same one written again, does not have.

It is a hash of size, modification time, change time and inode. A new file can be given the size and
the modification time of the one before, but neither of the others: the kernel sets the change time,
also where the mode or the number of links changes. The device is left out, because a
file system gets another number when it is mounted again, and on each host.

Some file systems number inodes as they look at them, and give another number once they have
forgotten a file. There the inode is left out.
"""

import functools
import hashlib
import os
import struct
from typing import Final

_FIELDS: Final = struct.Struct("<QQQQ")
_MASK: Final = 2**64 - 1
_WITHOUT_INODES: Final = ("fuse", "cifs", "smb", "vfat", "msdos", "exfat")
"""How the names of file systems begin that may number the inode of a file again."""


def stamp_status(status: os.stat_result) -> int:
    """Return the stamp of the file with this status, 1 .. 2**64 - 1."""
    inode = status.st_ino if _keeps_inodes(status.st_dev) else 0
    fields = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, inode)
    data = _FIELDS.pack(*(field & _MASK for field in fields))
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


def stamp_path(path: str | bytes | os.PathLike[str]) -> int:
    """Return the stamp of the file at ``path``, links followed; 0 where none can be looked at."""
    try:
        return stamp_status(os.stat(path))
    except OSError:
        return 0


@functools.lru_cache(maxsize=64)
def _keeps_inodes(device: int) -> bool:
    """Return whether a file's inode is the same each time; yes for what is not mounted by itself.

    Source: proc_pid_mountinfo(5).
    """
    number = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
            for line in mounts:
                before, _, after = line.partition(" - ")
                if before.split(" ")[2] == number:
                    return not after.startswith(_WITHOUT_INODES)
    except OSError:  # no /proc: all that can be known is that the inode was this one
        pass
    return True
