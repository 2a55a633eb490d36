"""How much memory slots and the decoded cache may take.

That is a share of what the machine has free or, if less, of what the cgroup allows. A cgroup's
inactive page cache counts as free, because the kernel drops it under pressure. (Kubernetes computes
a working set in the same way.)
"""

import errno
import functools
import re
import sys
from pathlib import Path
from typing import Final, Literal

import psutil

from feeder.errors import ResourceError
from feeder.host.kernel_files import cgroup_folders, read_bytes

_V1_NAMES: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V2_NAMES: Final = ("memory.max", "memory.current")
_TOTAL_INACTIVE: Final = re.compile(rb"^total_inactive_file (\d+)$", re.MULTILINE)
_INACTIVE: Final = re.compile(rb"^inactive_file (\d+)$", re.MULTILINE)

SLOTS_SHARE: Final = 0.5
"""Share of the available memory for slots; the rest is for workers, sockets and the page cache."""

CLIENT_SHARE: Final = 0.75
"""Share of the slot memory that one client may have: nearly all, as one user often runs all jobs of
a host, but with room for the next client's batches."""

CACHE_SHARE: Final = 0.25
"""Share of the available memory for the decoded cache, which never shrinks. With all slots in use a
quarter remains, above all for the page cache: samples that are not in the decoded cache should at
least not come from the disk."""


def available_bytes(root: Path = Path("/")) -> int:
    """The bytes that this process can still allocate without making the machine swap.

    The files of cgroups are read below ``root``. A limit that cannot be read for lack of
    descriptors is ignored. Raises ResourceError if the machine's memory cannot be read.
    """
    limits = [sys.maxsize]
    try:
        limits.append(int(psutil.virtual_memory().available))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise ResourceError(
                f"the free memory of this machine cannot be read ({error}): let the daemon read "
                "/proc/meminfo"
            ) from error
    for group in _memory_groups(root):
        remaining = _remaining_bytes(*group)
        if remaining is not None:
            limits.append(remaining)
    return min(limits)


def share_of(setting: int | Literal["auto"], share: float, available: int, nodes: int = 1) -> int:
    """The bytes for each of ``nodes`` node processes: as configured, or ``share`` over all."""
    return int(available * share) // nodes if setting == "auto" else setting


@functools.lru_cache(maxsize=8)
def _memory_groups(root: Path) -> tuple[tuple[str, str, str], ...]:
    """The files of limit, use and details of each cgroup that limits this process's memory: found
    once, while descriptors are left."""
    return tuple(
        (f"{folder}/{limit}", f"{folder}/{used}", f"{folder}/memory.stat")
        for folder, unified in cgroup_folders(root, "memory")
        for limit, used in (_V2_NAMES if unified else _V1_NAMES,)
    )


def _remaining_bytes(limit_file: str, used_file: str, details_file: str) -> int | None:
    """What a cgroup may still use, in bytes; None where it has no limit."""
    limit = read_bytes(limit_file).strip()
    if not limit.isdigit():  # cgroup v2 writes "max" for no limit
        return None
    used = read_bytes(used_file).strip()
    if not used.isdigit():
        return None
    details = read_bytes(details_file)
    inactive = _TOTAL_INACTIVE.search(details) or _INACTIVE.search(details)
    return max(0, int(limit) - int(used) + int(inactive[1] if inactive else 0))
