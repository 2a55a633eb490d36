"""The cache folder's entry of one source: a packed dataset, what it was packed from, and a lock.

    CACHE/packed/LABEL-HASH/        of the source's location, which is absolute
        record.json                 CacheRecord: which of the folders is the dataset
        0123456789abcdef/           the dataset, or one that is being packed
        lock                        held while packing; has that process and its progress

Only the record makes a folder the dataset, and it is replaced atomically: packing again leaves the
dataset before in place until the new one is complete. A folder is named after the source's stamp,
so an interrupted packing is resumed only if the source is still the same. Whatever else is there is
removed by the process that holds the lock. The whole entry can be removed at any time.

A validation set's dataset must have the classes of its training set: labels are only numbers.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Final

import msgspec

from feeder.dataset.manifest import (
    MANIFEST_NAME,
    WORK_FOLDER_NAME,
    Manifest,
    canonical_json,
    load_manifest,
)
from feeder.errors import DatasetError, StoreError
from feeder.pack_cache.shared_progress import SharedProgress, read_shared
from feeder.pack_cache.stamp import Stamp
from feeder.process.output_file import write_output
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.location.splits import pair_splits
from feeder.source.location.storage import stamp_path
from feeder.store.address import StoreAddress, is_remote

_RECORD_NAME: Final = "record.json"
_LOCK_NAME: Final = "lock"
_RECORD_BYTES_MAX: Final = 256 << 20  # room for a million containers
_VERSION: Final = 1
_LABEL_CHARACTERS_MAX: Final = 40
_LOCK_POLL_S: Final = 0.2


class CacheRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an entry's dataset was packed from."""

    version: int = _VERSION
    source: str
    """As the user gave it, absolute; as ``path_to_text`` writes it."""
    folder: str
    """The dataset's, in the entry."""
    stamp: Stamp


class CacheEntry:
    """The entry of one source, which may not exist yet."""

    def __init__(self, cache: Path, source: str) -> None:
        if is_remote(source):
            source = StoreAddress.parse(source).url
        digest = hashlib.blake2b(os.fsencode(source), digest_size=8).hexdigest()
        words = re.sub(r"[^A-Za-z0-9_.]+", "-", source.rstrip("/").rpartition("/")[2])
        label = words.strip("-.")[:_LABEL_CHARACTERS_MAX] or "source"
        self.source = source
        self.folder = cache / "packed" / f"{label}-{digest}"

    def read_record(self) -> CacheRecord | None:
        """Return the record; None where nothing is packed yet. DatasetError if it is damaged."""
        path = self.folder / _RECORD_NAME
        try:
            fields = json.loads(read_regular(path, _RECORD_BYTES_MAX))
            record = msgspec.convert(fields, CacheRecord)
            if record.version != _VERSION or os.path.basename(record.folder) != record.folder:
                raise ValueError
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
        except ValueError:
            raise DatasetError(
                f"{path} is damaged or of another version: remove {self.folder} to pack "
                f"{self.source} again"
            ) from None
        return record

    def write_record(self, folder: Path, stamp: Stamp) -> None:
        """Make ``folder``, which is complete, the entry's dataset."""
        record = CacheRecord(source=path_to_text(self.source), folder=folder.name, stamp=stamp)
        write_output(self.folder / _RECORD_NAME, canonical_json(msgspec.to_builtins(record)))

    def choose_folder(self, stamp: Stamp, record: CacheRecord | None) -> Path:
        """Return the folder to pack a source with ``stamp`` into; not that of ``record``."""
        data = canonical_json(msgspec.to_builtins(stamp))
        name = hashlib.blake2b(data, digest_size=8).hexdigest()
        return self.folder / (f"{name}.again" if record and record.folder == name else name)

    def remove_others(self, *kept: Path) -> None:
        """Remove all folders but these: old datasets, and packings of a source that has changed.

        What cannot be removed is left for the next time: it is no obstacle.
        """
        with os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and Path(entry.path) not in kept:
                    shutil.rmtree(entry.path, ignore_errors=True)

    @contextmanager
    def locked(self, progress: SharedProgress) -> Iterator[None]:
        """Hold the lock, and write ``progress`` into it.

        While another process has it, note that in one line, wait, and show its progress.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # open for writing: NFS locks no other descriptors
        lock = os.open(self.folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not _take_lock(lock):
                holder = read_shared(lock)[0]
                progress.note(
                    f"feeder: waiting for the packing of {self.source} by process {holder}"
                )
                last = progress.follow(lock, "")
                while not _take_lock(lock):
                    time.sleep(_LOCK_POLL_S)
                    last = progress.follow(lock, last)
            with progress.shared_in(lock):
                yield
        finally:
            os.close(lock)


def is_source(location: str, cache: Path | None) -> bool:
    """Return whether ``location`` is something to pack, and not a dataset, finished or not.

    What does not exist is a source if it is a pattern or a URL, or is packed in ``cache``. What is
    in a store that is away is one if it is packed in ``cache``, else a StoreError.
    """
    if is_remote(location):
        url = StoreAddress.parse(location).url
        try:
            return stamp_path(f"{url}/{MANIFEST_NAME}") == 0
        except StoreError:
            if cache is not None and CacheEntry(cache, url).read_record() is not None:
                return True
            raise
    if "://" in location:
        return True
    folder = Path(location)
    if os.path.lexists(folder / MANIFEST_NAME) or os.path.isdir(folder / WORK_FOLDER_NAME):
        return False
    if os.path.exists(folder) or any(character in location for character in "{*?["):
        return True
    return cache is not None and CacheEntry(cache, location).read_record() is not None


def describe_other_classes(manifest: Manifest, training: Manifest) -> str:
    """Return the first class that differs, as a clause; empty if none does.

    Labels are only numbers, so classes in another order are other classes. Labels of different
    kinds, or without classes, are not compared.
    """
    if manifest.labels.kind != training.labels.kind or not training.classes:
        return ""
    for number, names in enumerate(zip_longest(manifest.classes, training.classes)):
        if names[0] != names[1]:
            first, second = (printable(name) if name else "missing" for name in names)
            return f"class {number} is {first} and {second}"
    return ""


def class_warnings(data: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each validation set in ``data`` that has other classes.

    ``data`` has the datasets by the names that they are served under, which make pairs of them.
    """
    for name, training in pair_splits(data).items():
        try:
            manifests = [load_manifest(Path(data[each])) for each in (name, training)]
        except DatasetError:  # opening it reports why
            continue
        difference = describe_other_classes(*manifests)
        if difference:
            yield (
                f"warning: {name} has other classes than {training}, so the same label means "
                f"another class: {difference}; pack it with feeder pack --classes-of "
                f"{data[training]}"
            )


def _take_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
