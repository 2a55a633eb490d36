"""Fetches containers from a store into the work folder: each once, before it is listed.

    fetched-URL-STAMP         hashes of both: the object, whole
    fetched-URL-STAMP.part    its first bytes, while it is fetched; an interruption resumes there

Readers then list it as a local file, and its images are read from it at packing. One that is read
in one order only (Parquet, compressed) is removed when its images were spilled. So an object that
has not changed is fetched once, whatever is killed and when, and other options for labels cost no
transfer.

Room: as much as all containers, and one more for each process that lists, if they are spilled. A
shard's images give theirs back when it is packed, where the file system can; where not, all stay
until the dataset is complete, which takes as much again.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from feeder.errors import ResourceError, StoreError
from feeder.process.output_file import fsync_folder
from feeder.process.path_text import printable
from feeder.process.punched_file import can_punch
from feeder.source.listing import fetched_path
from feeder.source.location.objects import (
    AT_ONCE,
    as_change,
    look_again,
    open_store,
    stamp_info,
)

_RANGE_BYTES: Final = 8 << 20
_RANGES_AT_ONCE: Final = 8  # more are no faster (STORES.md)
_SPILLED: Final = re.compile(r"\.(parquet|gz|gzip|tgz|zst|tzst|zlib)$", re.IGNORECASE)
_KEPT_SHARE: Final = 0.1  # of copies, when their images are packed: blocks at the images' ends
_FETCHED: Final = "fetched-*"


def look_at_all(urls: Sequence[str]) -> list[tuple[int, int]]:
    """Return size and stamp of each object; SourceChangedError for one that is gone."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        infos = list(pool.map(look_again, urls))
    return [(info.size_bytes, stamp_info(info)) for info in infos]


def fetch_container(
    folder: Path, url: str, report: Callable[[int], None]
) -> tuple[Path, tuple[int, int]]:
    """Fetch an object unless it is here; return its copy, its size and its stamp.

    ``report`` is called with the number of bytes that came. Raises SourceChangedError, StoreError
    and OSError.
    """
    info = look_again(url)
    stamp = stamp_info(info)
    path = fetched_path(folder, url, stamp)
    if not path.exists():
        part = _part_path(path)
        try:
            _fetch(part, url, info.size_bytes, info.etag, report)
        except StoreError as error:
            raise as_change(error, url) from None
        part.replace(path)
        fsync_folder(folder)
    return path, (info.size_bytes, stamp)


def _part_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.part")


def _fetch(part: Path, url: str, size_bytes: int, etag: str, report: Callable[[int], None]) -> None:
    """Complete a file whose first bytes may be there; ranges are written in their order."""
    store, name = open_store(url)
    # Not to append: a killed process may still be in its last write, of the same bytes as here.
    mode = "r+b" if part.exists() else "wb"
    with part.open(mode) as file, ThreadPoolExecutor(_RANGES_AT_ONCE) as pool:
        begin = file.seek(0, os.SEEK_END)
        ranges = (
            (at, min(_RANGE_BYTES, size_bytes - at))
            for at in range(begin, size_bytes, _RANGE_BYTES)
        )
        waiting: deque[Future[bytes]] = deque()

        def read(at: int, size: int) -> bytes:
            return bytes(store.read(name, at, size, etag=etag).data)

        try:
            for at, size in ranges:
                waiting.append(pool.submit(read, at, size))
                if len(waiting) == _RANGES_AT_ONCE:
                    report(file.write(waiting.popleft().result()))
            while waiting:
                report(file.write(waiting.popleft().result()))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        file.flush()
        os.fsync(file.fileno())


def forget_copies(folder: Path, kept: Iterable[Path]) -> None:
    """Remove all copies but these, and what was fetched of others."""
    names = {path.name for path in kept}
    for path in folder.glob(_FETCHED):
        if path.name.removesuffix(".part") not in names:
            path.unlink()


def state_room(
    folder: Path,
    location: str,
    todo: Mapping[str, tuple[int, int]],
    all_bytes: int,
    workers: int,
) -> str:
    """Return a line about the room that packing takes; ResourceError if it is not there.

    ``todo`` has size and stamp of the containers to list, by URL, of ``all_bytes`` in all.
    """
    missing = 0
    for url, (size, stamp) in todo.items():
        path = fetched_path(folder, url, stamp)
        here = next((each for each in (path, _part_path(path)) if each.exists()), None)
        missing += size - (here.stat().st_size if here else 0)
    spilled = sorted(size for url, (size, _) in todo.items() if _SPILLED.search(url))
    dataset = int(all_bytes * (_KEPT_SHARE if can_punch(folder) else 1))
    needed = missing + sum(spilled[-workers:]) + dataset
    status = os.statvfs(folder)
    free = status.f_bavail * status.f_frsize
    if needed > free:
        raise ResourceError(
            f"{folder.parent} has {free / 1e9:.2f} GB free, and packing {printable(location)} "
            f"takes about {needed / 1e9:.2f} GB there, as its files are fetched first: make room, "
            "or pack to another disk"
        )
    return (
        f"fetching {missing / 1e9:,.2f} GB into {folder}: packing takes about {needed / 1e9:,.2f} "
        f"GB there, and {free / 1e9:,.2f} GB are free"
    )
