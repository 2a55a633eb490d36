"""How much memory slots and the decoded cache may take.

That is a share of what the machine has free or, if less, of what the cgroup allows. A cgroup's
inactive page cache counts as free, because the kernel drops it under pressure. (Kubernetes computes
a working set in the same way.)
"""

import errno
import os
import sys
from pathlib import Path
from typing import Final, Literal

import psutil

from feeder.errors import ResourceError

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
    """Return the bytes that this process can still allocate without making the machine swap.

    /proc/self/cgroup and /sys/fs/cgroup are read below ``root``. A limit that cannot be read for
    lack of descriptors is ignored. Raises ResourceError if the machine's memory cannot be read.
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
    for folder in _cgroup_folders(root):
        limit, used = _read_limit(folder)
        if limit is not None and used is not None:
            limits.append(max(0, limit - used))
    return min(limits)


def slots_budget(slots_bytes: int | Literal["auto"], *, nodes: int, available: int) -> int:
    """Return the slot memory of each of ``nodes`` node processes, in bytes.

    A configured figure is for each node process; ``auto`` divides SLOTS_SHARE of ``available``.
    """
    if slots_bytes == "auto":
        return int(available * SLOTS_SHARE) // nodes
    return slots_bytes


def client_slots_budget(client_slots_bytes: int | Literal["auto"], budget_bytes: int) -> int:
    """Return how much of a node process's slot memory one client may take, in bytes."""
    if client_slots_bytes == "auto":
        return int(budget_bytes * CLIENT_SHARE)
    return client_slots_bytes


def cache_budget(decoded_bytes: int | Literal["auto"], *, nodes: int, available: int) -> int:
    """Return the decoded cache of each of ``nodes`` node processes, in bytes; 0 means none.

    As ``slots_budget``, with CACHE_SHARE.
    """
    if decoded_bytes == "auto":
        return int(available * CACHE_SHARE) // nodes
    return decoded_bytes


def _cgroup_folders(root: Path) -> list[Path]:
    """Return the folders that limit this process's memory, from its own cgroup up to the root."""
    try:
        lines = (root / "proc/self/cgroup").read_bytes().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = os.fsdecode(line).split(":", 2)
        if controllers == "":
            base = root / "sys/fs/cgroup"
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
        else:
            continue
        own = base / path.lstrip("/")
        folders += [own, *(parent for parent in own.parents if parent.is_relative_to(base))]
    return folders


def _read_limit(folder: Path) -> tuple[int | None, int | None]:
    """Return a cgroup's limit and use, in bytes, or None for both."""
    for limit_name, used_name in (
        ("memory.max", "memory.current"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    ):
        limit, used = _read_number(folder / limit_name), _read_number(folder / used_name)
        if limit is not None and used is not None:
            return limit, used - _inactive_file(folder)
    return None, None


def _read_number(path: Path) -> int | None:
    try:
        text = path.read_text("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # cgroup v2 writes "max" for no limit


def _inactive_file(folder: Path) -> int:
    try:
        lines = (folder / "memory.stat").read_text("ascii", "replace").splitlines()
    except OSError:
        return 0
    figures = dict(line.split(" ", 1) for line in lines if " " in line)
    return int(figures.get("total_inactive_file", figures.get("inactive_file", "0")))
