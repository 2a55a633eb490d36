"""How much memory slots and the decoded cache may take.

That is a share of what the machine has free or, if less, of what the cgroup allows. A cgroup's
inactive page cache counts as free, because the kernel drops it under pressure. (Kubernetes computes
a working set in the same way.)
"""

import errno
import re
import sys
from pathlib import Path
from typing import Final, Literal

import psutil

from feeder.errors import ResourceError
from feeder.host.kernel_files import cgroup_folders, read_bytes

_V1_NAMES: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V2_NAMES: Final = ("memory.max", "memory.current")
_INACTIVE: Final = re.compile(rb"^(?:total_)?(inactive_file) (\d+)$", re.MULTILINE)
_ANY_PAGES: Final = re.compile(rb"^(?:total_)?((?:in)?active_file) (\d+)$", re.MULTILINE)
"""In v1 the totals, which include the groups below, come after the group's own sizes."""

SLOTS_SHARE: Final = 0.5  # of the available memory; the rest is for workers and the page cache

CLIENT_SHARE: Final = 0.75
"""Share of the slot memory that one client may have: nearly all, as one user often runs all jobs of
a host, but with room for the next client's batches."""

CACHE_SHARE: Final = 0.25
"""Of the available memory, for the decoded cache. With all slots in use a quarter remains, mostly
for the page cache: samples that are not decoded should at least not come from the disk."""

PAGE_CACHE_SHARE: Final = 0.8
"""Of what the page cache could hold, for samples of epochs to come; the rest is for slots, workers,
and programs that start later. If it were too much, the kernel would drop what is needed next."""


def available_bytes(root: Path = Path("/")) -> int:
    """The bytes that this process can still allocate without making the machine swap.

    A limit that cannot be read for lack of descriptors is ignored. ResourceError if the machine's
    memory cannot be read.
    """
    return _without_pages(root, _INACTIVE)


def cacheable_bytes(root: Path = Path("/")) -> int:
    """The bytes of files that the page cache can hold, with those that it holds; as above."""
    return _without_pages(root, _ANY_PAGES)


def _without_pages(root: Path, pages: re.Pattern[bytes]) -> int:
    """What is free if a cgroup's ``pages`` count as free."""
    limits = [sys.maxsize]
    try:
        limits.append(int(psutil.virtual_memory().available))
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise ResourceError(
                f"the free memory of this machine cannot be read ({error}): let the daemon read "
                "/proc/meminfo"
            ) from error
    for folder, unified in cgroup_folders(root, "memory"):
        limit, used = (
            read_bytes(f"{folder}/{name}").strip() for name in (_V2_NAMES if unified else _V1_NAMES)
        )
        if limit.isdigit() and used.isdigit():  # cgroup v2 writes "max" for no limit
            sizes = dict(pages.findall(read_bytes(f"{folder}/memory.stat")))
            limits.append(max(0, int(limit) - int(used) + sum(map(int, sizes.values()))))
    return min(limits)


def share_of(setting: int | Literal["auto"], share: float, available: int, nodes: int = 1) -> int:
    """The bytes for each of ``nodes`` node processes: as configured, or ``share`` over all."""
    return int(available * share) // nodes if setting == "auto" else setting
