"""The folder of a host's cached datasets, and how a remote dataset gets its own in it.

    DISK_PATH/feeder-pieces/        shared by the daemons of the host
        MARKER                      Feeder made this folder, and may remove what is in it
        NAME-CONTENT-HASH/          a cached dataset; of its URL and its manifest's ETag

A process that makes or mends a dataset's folder holds a lock on a byte of MARKER. A dataset whose
manifest has changed in the store is another one, with a folder of its own; the old one is evicted
when room is needed.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from feeder.dataset.manifest import (
    MANIFEST_NAME,
    Manifest,
    canonical_json,
    decode_manifest,
    load_manifest,
)
from feeder.disk_cache.cached import (
    IN_USE,
    OBJECTS_NAME,
    ORIGIN_NAME,
    PRESENCE_NAME,
    CachedDataset,
    Origin,
    is_cached,
    lock,
    read_origin,
    write_at,
)
from feeder.disk_cache.shard_files import ATTEMPTS
from feeder.disk_cache.transfers import Transfers
from feeder.errors import ConfigError, DatasetError, ResourceError, StoreError
from feeder.metrics.records import StoreRecord
from feeder.process.output_file import explain_disk_errors, write_output
from feeder.process.punched_file import punch_hole
from feeder.store.address import StoreAddress
from feeder.store.client import Store

FOLDER_NAME: Final = "feeder-pieces"
MARKER_NAME: Final = "MARKER"

_VERSION_LINE: Final = b"feeder-pieces 1\n"
_MARKER: Final = (
    _VERSION_LINE + b"Pieces of remote datasets, kept by feeder serve; feeder cache shows them.\n"
)
_LABEL_CHARS_MAX: Final = 40
_NEW_S: Final = 60.0
_SUFFIX: Final = ".tmp"  # of files that are written under the dataset's lock: one at a time
_REMEDY: Final = "start again, or choose another folder with cache.disk_path (--disk-path)"
_PATIENCE_S: Final = 30.0
_WARM_PATIENCE_S: Final = 5.0
"""The same where the disk may have what is needed."""

_LOCK_PATIENCE_S: Final = 60.0
"""For a process that prepares the same dataset, and has _PATIENCE_S itself."""
_LOOK_S: Final = 0.02
"""Between looks at what another process fetches."""

_ABSENT: Final = ("unreachable", "timeout", "server", "throttled", "reset", "short", "expired")
"""Faults in which a cached dataset is served without a look at the store."""

_log = logging.getLogger(__name__)


class DiskCache:
    """The cached datasets below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @classmethod
    def open(cls, disk_path: Path) -> Self:
        """Open the cache in ``disk_path``, made if it is missing.

        ResourceError, in a line, if the folder cannot be written or cannot hold sparse files;
        ConfigError if something else has its name.
        """
        root = disk_path / FOLDER_NAME
        with explain_disk_errors("keeping remote datasets in", disk_path, _REMEDY):
            root.mkdir(parents=True, exist_ok=True)
            marker = root / MARKER_NAME
            if not marker.exists() and any(root.iterdir()):
                raise ConfigError(
                    f"{root} has files that Feeder did not download, and no {MARKER_NAME}: choose "
                    "another folder with cache.disk_path (--disk-path)"
                )
            try:
                file = os.open(marker, os.O_RDWR | os.O_CREAT, 0o666)
            except OSError as error:
                if error.errno != errno.EROFS:
                    raise
                return cls(root)  # what it holds can still be served
            try:
                text = os.pread(file, len(_VERSION_LINE), 0)
                if text and not text.startswith(_VERSION_LINE):
                    raise ConfigError(
                        f"{marker} is of another version of Feeder: choose another folder with "
                        "cache.disk_path (--disk-path)"
                    )
                if not text:
                    write_at(file, _MARKER, 0)
                if not punch_hole(file, 1 << 20, 4096):
                    raise OSError(errno.EOPNOTSUPP, "no sparse files")
            finally:
                os.close(file)
        return cls(root)

    def folders(self) -> list[Path]:
        """Return the cached datasets, those prepared last first."""
        with suppress(FileNotFoundError):
            times = {
                path: (path / ORIGIN_NAME).stat().st_mtime_ns
                for path in self.root.iterdir()
                if is_cached(path)
            }
            return sorted(times, key=lambda path: (-times[path], path.name))
        return []

    def is_new(self, folder: Path) -> bool:
        """Return whether a dataset was just prepared, so that a process may be about to open it."""
        age_s = time.time() - (folder / ORIGIN_NAME).stat().st_mtime
        return -_NEW_S < age_s < _NEW_S

    def find(self, url: str) -> list[Path]:
        """Return the cached datasets of a URL, those prepared last first."""
        matches = []
        for folder in self.folders():
            with suppress(DatasetError):
                if read_origin(folder).url == url:
                    matches.append(folder)
        return matches

    def used_bytes(self, folder: Path | None = None) -> int:
        """Return the room that a dataset takes on the disk, or all do; holes left out."""
        total = 0
        for path in self.root.iterdir() if folder is None else [folder]:
            # NotADirectoryError: the marker; FileNotFoundError: it is being removed
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as entries:
                total += sum(e.stat(follow_symlinks=False).st_blocks for e in entries) * 512
        return total

    @contextmanager
    def locked(self, folder: Path) -> Iterator[None]:
        """Hold the lock of a dataset's folder, which may not exist yet.

        ResourceError if another process holds it for too long.
        """
        digest = hashlib.blake2b(os.fsencode(folder.name), digest_size=7).digest()
        marker = os.open(self.root / MARKER_NAME, os.O_RDWR)
        try:
            number = int.from_bytes(digest)
            if not lock(marker, number, exclusive=True, patience_s=_LOCK_PATIENCE_S):
                raise ResourceError(
                    f"another process has been making or removing {folder} for "
                    f"{_LOCK_PATIENCE_S:.0f} s: end it (`fuser {self.root / MARKER_NAME}` shows "
                    "it), then start again"
                )
            yield
        finally:
            os.close(marker)

    def drop(self, folder: Path) -> bool:
        """Remove a cached dataset; False if a process has it open."""
        with self.locked(folder), explain_disk_errors("removing", folder, "drop it again"):
            try:
                presence = os.open(folder / PRESENCE_NAME, os.O_RDWR)
            except FileNotFoundError:
                shutil.rmtree(folder)
                return True
            try:
                if not lock(presence, IN_USE, exclusive=True):
                    return False
                # Without its origin it is no dataset, whatever ends this process now.
                (folder / ORIGIN_NAME).unlink(missing_ok=True)
                shutil.rmtree(folder)
            finally:
                os.close(presence)
        return True


def prepare(cache: DiskCache, url: str, *, report: Callable[[str], None] = _log.warning) -> Path:
    """Return the folder of the cached dataset at ``url``, made if it is new.

    Fetches the manifest, and the first sample with the index of its shard, which shows that the
    rest can be fetched. If the store is away, a dataset that has them already is returned, and
    ``report`` gets a warning. Raises StoreError, DatasetError for what is no dataset, ResourceError
    for the disk.
    """
    address = StoreAddress.parse(url)
    former = cache.find(address.url)
    store = Store(address, patience_s=_WARM_PATIENCE_S if former else _PATIENCE_S)
    try:
        data, etag, manifest = _read_manifest(store)
        origin = Origin(
            url=address.url,
            content=manifest.content,
            fingerprint=manifest.fingerprint,
            manifest_etag=etag,
        )
        folder = cache.root / _name_folder(address, origin)
        with (
            explain_disk_errors("keeping remote datasets in", cache.root, _REMEDY),
            cache.locked(folder),
        ):
            _make_files(folder, origin, manifest, data, report)
            with closing(CachedDataset.open(folder)) as cached:
                _fetch_first_sample(Transfers(cached, store, StoreRecord()))
    except StoreError as error:
        warm = next(filter(_has_first_sample, former), None)
        if warm is None or error.kind not in _ABSENT:
            raise
        report(f"serving {address} from the disk cache, {warm}, without the store: {error}")
        return warm
    except ResourceError as error:
        if not _has_first_sample(folder):
            raise
        report(f"serving {address} with what {folder} has: {error}")
    return folder


def _read_manifest(store: Store) -> tuple[bytes, str, Manifest]:
    """Return the manifest, its bytes and its ETag; fetched again if it came damaged."""
    for left in range(ATTEMPTS - 1, -1, -1):
        fetched = store.read(MANIFEST_NAME)
        data = bytes(fetched.data)
        try:
            manifest = decode_manifest(data, f"{store.address}/{MANIFEST_NAME}")
            break
        except DatasetError:
            if not left:
                raise
    return data, fetched.etag, manifest


def _fetch_first_sample(transfers: Transfers) -> None:
    cached, end_s = transfers.cached, time.monotonic() + _PATIENCE_S
    while not cached.samples_there[0] and not transfers.fetch(0, [(0, 1)]):
        if time.monotonic() > end_s:
            raise ResourceError(
                f"another process has been fetching the first samples of {cached.folder} for "
                f"{_PATIENCE_S:.0f} s: end it (`fuser {cached.folder / PRESENCE_NAME}` shows it), "
                "then start again"
            )
        time.sleep(_LOOK_S)


def _has_first_sample(folder: Path) -> bool:
    try:
        with closing(CachedDataset.open(folder)) as cached:
            return bool(cached.samples_there[0])
    except DatasetError:
        return False


def _name_folder(address: StoreAddress, origin: Origin) -> str:
    label = re.sub(r"[^A-Za-z0-9_.]+", "-", address.name).strip("-.")[:_LABEL_CHARS_MAX]
    source = f"{origin.url}\n{origin.manifest_etag}".encode()
    digest = hashlib.blake2b(source, digest_size=4).hexdigest()
    return f"{label or 'dataset'}-{origin.content[:12]}-{digest}"


def _make_files(
    folder: Path, origin: Origin, manifest: Manifest, data: bytes, report: Callable[[str], None]
) -> None:
    """Make the files of a cached dataset that are missing or damaged; its lock is held."""
    folder.mkdir(exist_ok=True)
    manifest_path = folder / MANIFEST_NAME
    if not manifest_path.exists() or manifest_path.read_bytes() != data:
        write_output(manifest_path, data, suffix=_SUFFIX)
    _mend_presence(folder, manifest, report)
    os.close(os.open(folder / OBJECTS_NAME, os.O_WRONLY | os.O_CREAT, 0o666))
    try:
        is_same = is_cached(folder) and read_origin(folder) == origin
    except DatasetError:
        is_same = False
    if is_same:
        os.utime(folder / ORIGIN_NAME)
    else:
        encoded = canonical_json(msgspec.to_builtins(origin))
        write_output(folder / ORIGIN_NAME, encoded, suffix=_SUFFIX)


def open_mended(cache: DiskCache, folder: Path) -> CachedDataset:
    """Open a cached dataset, whose presence is made again if it is damaged."""
    try:
        return CachedDataset.open(folder)
    except DatasetError:
        if not is_cached(folder):
            raise
        with cache.locked(folder):
            _mend_presence(folder, load_manifest(folder), _log.warning)
        return CachedDataset.open(folder)


def _mend_presence(folder: Path, manifest: Manifest, report: Callable[[str], None]) -> None:
    """Make the presence of a cached dataset, with nothing there, unless it has its size.

    In place, so that processes that have it open see the same, and never shorter than it was: what
    they have mapped must not end. Its blocks are written now: a full disk must not be found out by
    a signal.
    """
    path, size = folder / PRESENCE_NAME, manifest.samples + len(manifest.shards)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        found = os.fstat(file).st_size
        if found == size:
            return
        if found:
            report(f"{path} has {found} bytes in place of {size}: fetching again what it listed")
        write_at(file, bytes(size), 0)
        os.ftruncate(file, size)
        os.fsync(file)
    finally:
        os.close(file)
