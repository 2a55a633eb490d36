"""The folder of the disk cache: what it is on, its room and speed, and what is wrong with it.

It is measured with a file that has no name, so nothing is left of it however this process ends.

Invariant: as in ``mounts``, nothing on a file system that may not answer is touched.
"""

import ctypes
import errno
import fcntl
import os
import shlex
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from feeder.doctor.facts import (
    DiskCachePlace,
    Finding,
    Machine,
    error,
    format_size,
    note,
    warning,
)
from feeder.doctor.hardware_findings import IMAGES_PER_CORE
from feeder.doctor.kernel_files import KernelFiles
from feeder.doctor.mounts import describe_detour, locate, may_hang

PIECES: Final = "feeder-pieces"
"""As feeder.disk_cache.folder names it; tests/doctor/test_disk_cache.py compares them."""

_SAMPLE_BYTES: Final = 110_000  # of ImageNet, packed
_SLOW: Final = 0.5  # of what is needed: one short measurement is off by less

_BLOCK_BYTES: Final = 8 << 20
_FILE_BYTES_MAX: Final = 256 << 20
_MEASURE_S: Final = 0.4  # for writing, and for reading

_PUNCH_HOLE: Final = 0x03  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, linux/falloc.h
_OFD_SETLK: Final = 37  # fcntl(2)
_LOCK: Final = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)  # struct flock

_NO_START: Final = "`feeder serve` ends with an error if a dataset is in an object store."
_ELSEWHERE: Final = 'disk_path = "/LOCAL/DISK"   # under [cache]'


def read_disk_cache(
    files: KernelFiles, folder: Path, budget_bytes: int, *, is_here: bool
) -> DiskCachePlace | None:
    """What there is to know about ``folder``; it is measured, for a second, if ``is_here``."""
    for _, resolved, mount in locate(files, [folder]):
        place = DiskCachePlace(
            path=str(folder),
            mount=str(mount.point),
            kind=mount.kind,
            source=mount.source,
            budget_bytes=budget_bytes,
        )
        if not is_here or may_hang(mount.kind):
            return place
        path = files.process_root / resolved.relative_to("/") / PIECES
        try:
            while not path.exists() and path != path.parent:  # it is made at the first start
                path = path.parent
            state = os.statvfs(path)
            full_bytes, used_bytes = _read_sizes(path)
            return replace(
                place,
                free_bytes=state.f_bavail * state.f_frsize,
                full_bytes=full_bytes,
                used_bytes=used_bytes,
                **_probe(path),
            )
        except OSError as fault:
            return replace(place, problem=fault.strerror or str(fault))
    return None


def _read_sizes(path: Path) -> tuple[int, int]:
    """The bytes of all samples of the cached datasets, and of those that are there."""
    states = [shard.stat() for shard in path.glob("*/*.fds")] if path.name == PIECES else []
    return sum(s.st_size for s in states), sum(512 * s.st_blocks for s in states)


def _probe(path: Path) -> dict[str, Any]:
    """Some fields of DiskCachePlace, by a try; OSError."""
    try:
        file = os.open(path, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as fault:
        if fault.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
        # The file system has no files without a name.
        return {} if os.access(path, os.W_OK | os.X_OK) else {"problem": "Permission denied"}
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.fallocate(file, _PUNCH_HOLE, ctypes.c_int64(0), ctypes.c_int64(4096)) != 0:
            return {"problem": "its file system cannot free a part of a file (no holes)"}
        try:
            fcntl.fcntl(file, _OFD_SETLK, _LOCK)
        except OSError:
            return {"problem": "its file system has no locks of open files (OFD locks)"}
        written_bytes, write_s = _write(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # the disk is read, not the page cache
        began_s, read_bytes = time.monotonic(), 0
        while read_bytes < written_bytes and time.monotonic() - began_s < _MEASURE_S:
            read_bytes += len(os.pread(file, _BLOCK_BYTES, read_bytes))
        read_s = time.monotonic() - began_s
        return {"write_bytes_a_s": written_bytes / write_s, "read_bytes_a_s": read_bytes / read_s}
    finally:
        os.close(file)


def _write(file: int) -> tuple[int, float]:
    block = os.urandom(_BLOCK_BYTES)  # some file systems compress
    began_s, written_bytes = time.monotonic(), 0
    while written_bytes < _FILE_BYTES_MAX and time.monotonic() - began_s < _MEASURE_S:
        written_bytes += os.pwrite(file, block, written_bytes)
        os.fdatasync(file)
    return written_bytes, time.monotonic() - began_s


def check_disk_cache(machine: Machine) -> Iterator[Finding]:
    cache = machine.disk_cache
    if cache is None:
        return
    path = shlex.quote(cache.path)
    if cache.problem:
        lines = [_ELSEWHERE]
        if "ermission" in cache.problem:
            lines.insert(0, f"sudo install -d -o feeder {path}   # or who runs feeder serve")
        what = f"the disk cache cannot be in {cache.path}: {cache.problem}"
        yield error("disk-cache", what, _NO_START, *lines)
        return
    yield from _check_place(cache)
    room_bytes = None if cache.free_bytes is None else cache.free_bytes + cache.used_bytes
    if room_bytes is not None and cache.budget_bytes > room_bytes:
        yield warning(
            "disk-cache-room",
            f"cache.disk_bytes is {format_size(cache.budget_bytes)}, and the disk of {cache.path} "
            f"has room for {format_size(room_bytes)}",
            "Once the disk is full, batches that wait for samples from a store fail (disk-full).",
            f'disk_bytes = "{room_bytes * 9 // 10 >> 30} GiB"   # under [cache]',
        )
    limit_bytes = cache.budget_bytes or room_bytes
    if limit_bytes is not None and cache.full_bytes > limit_bytes:
        yield note(
            "disk-cache-small",
            f"the datasets in {cache.path} take {format_size(cache.full_bytes)}, and the disk "
            f"cache may take {format_size(limit_bytes)}",
            "A host that serves them alone fetches what does not fit again in every epoch; of "
            "several feeders, each needs room for its own lanes.",
        )
    yield from _check_speed(machine, cache)


def _check_place(cache: DiskCachePlace) -> Iterator[Finding]:
    detour, lines = describe_detour(cache.kind, cache.source), [_ELSEWHERE]
    if cache.kind in ("tmpfs", "ramfs"):
        where = f"in memory ({cache.kind})"
        detail = "It takes memory from slots and page cache, and is fetched again after a reboot."
    elif cache.kind == "overlay":
        where = "in the container's own layer (overlay)"
        detail = "It is lost with the container, and all is fetched again."
        lines = [f"docker run --volume /LOCAL/DISK:{shlex.quote(cache.path)} …"]
    elif detour:
        where = f"written and read {detour} ({cache.kind}, {cache.source})"
        detail = "It should be faster than the object store, and answer when that does not."
    else:
        return
    yield warning("disk-cache-place", f"the disk cache {cache.path} is {where}", detail, *lines)


def _check_speed(machine: Machine, cache: DiskCachePlace) -> Iterator[Finding]:
    if cache.write_bytes_a_s is None or cache.read_bytes_a_s is None:
        return
    allowed = machine.allowed.count
    workers = min(allowed, machine.processor.cores or allowed)
    needs = {f"{workers} cores read": float(workers * IMAGES_PER_CORE * _SAMPLE_BYTES)}
    speeds = [card.speed_mbit or 0 for card in machine.cards if card.is_up]
    if speeds and all(speeds):
        needs["the network carries"] = sum(speeds) * 1e6 / 8
    who, need = min(needs.items(), key=lambda row: row[1])
    if min(cache.write_bytes_a_s, cache.read_bytes_a_s) < _SLOW * need:
        yield warning(
            "disk-cache-speed",
            f"the disk of {cache.path} writes {cache.write_bytes_a_s / 1e6:,.0f} MB/s and reads "
            f"{cache.read_bytes_a_s / 1e6:,.0f}; {who} up to {need / 1e6:,.0f} MB/s",
            "What comes from a store is written once, and read in each epoch unless it is in the "
            "page cache. Cores: at 1,636 images/s each (docs/performance.md), of 110 KB.",
            _ELSEWHERE,
        )
