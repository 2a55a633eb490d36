"""Lists a source folder of classes, and refuses a source that cannot become a dataset.

    SRC/class/…/file     class folders sorted; all files below one belong to its class

Files count whatever their suffix; names that begin with a dot are left out and counted. The
listing is a few arrays and one byte string, not an object for each file.

Names are the file system's bytes, decoded as UTF-8 whatever the locale: the same source gives the
same dataset everywhere.
"""

import hashlib
import os
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import decode_name, encode_name, printable
from feeder.source.item_bytes import JPEG_SUFFIXES, sniff_file

_DEPTH_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceListing:
    """The files of a source, sorted by class and name; names are relative to the source."""

    classes: tuple[str, ...]
    names: bytes
    """All names concatenated, UTF-8 with surrogateescape, '/' between folders."""
    name_ends: NDArray[np.int64]
    labels: NDArray[np.int64]
    sizes_bytes: NDArray[np.int64]
    mtimes_ns: NDArray[np.int64]
    hidden: int
    """Number of files and folders left out because their names begin with a dot."""

    def __len__(self) -> int:
        return len(self.labels)

    def stored_name(self, number: int) -> bytes:
        """Return the name of file ``number`` as it is stored in shards."""
        start = int(self.name_ends[number - 1]) if number else 0
        return self.names[start : int(self.name_ends[number])]

    @property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return int(self.sizes_bytes.sum())

    def digest(self) -> str:
        """Return a hash of all names, labels, sizes and modification times."""
        digest = hashlib.blake2b(digest_size=16)
        for part in (self.name_ends, self.labels, self.sizes_bytes, self.mtimes_ns):
            digest.update(np.ascontiguousarray(part, "<i8").tobytes())
        digest.update(self.names)
        digest.update(self.classes_digest().encode())
        return digest.hexdigest()

    def classes_digest(self) -> str:
        """Return a hash of the classes, in order."""
        names = "\0".join(self.classes).encode("utf-8", "surrogateescape")
        return hashlib.blake2b(names, digest_size=16).hexdigest()

    def shuffled(self, seed: int) -> NDArray[np.int64]:
        """Return all file numbers in the order of a keyed hash of their names.

        The order depends on names and seed only: adding or removing a file keeps that of the rest.
        """
        keys = np.fromiter(
            (xxhash.xxh3_64_intdigest(self.stored_name(n), seed) for n in range(len(self))),
            np.uint64,
            count=len(self),
        )
        return np.argsort(keys, kind="stable")


@dataclass(slots=True)
class _File:
    name: str
    size_bytes: int
    mtime_ns: int


def list_source(source: Path, known: tuple[str, ...] | None = None) -> SourceListing:
    """List the files below the class folders of ``source``.

    ``known`` are the classes of another dataset, by label: they become this one's, and only they
    may have folders. They may lack images.

    Raises DatasetError for a missing or empty source, a file beside the class folders or, unless it
    is known, a class without images; ConfigError for two images that would unpack to one name, and
    for folders of unknown classes.
    """
    root = os.fsencode(source)
    label_of = None if known is None else {name: label for label, name in enumerate(known)}
    unknown: list[bytes] = []
    hidden = 0
    classes: list[str] = []
    names, ends, labels = bytearray(), array("q"), array("q")
    sizes, mtimes = array("q"), array("q")
    for entry in _scan(root, "source folder"):
        name = decode_name(entry.name)
        if name.startswith("."):
            hidden += 1
            continue
        if not _is_folder(entry):
            raise DatasetError(
                f"{_show(entry.path)} is a file where a class folder should be: move it into a "
                "class folder or out of the source"
            )
        if label_of is not None and name not in label_of:
            unknown.append(entry.path)
            continue
        files: list[_File] = []
        folders: set[str] = set()
        hidden += _walk(entry.path, name, files, folders, ())
        files.sort(key=lambda file: file.name)
        _check_names(root, files, folders)
        if files or label_of is None:
            _check_images(root, name, files)
        label = len(classes) if label_of is None else label_of[name]
        for file in files:
            names += encode_name(file.name)
            ends.append(len(names))
            labels.append(label)
            sizes.append(file.size_bytes)
            mtimes.append(file.mtime_ns)
        classes.append(name)
    if unknown:
        more = len(unknown) - 1
        others = "" if not more else ", nor is 1 other" if more == 1 else f", nor are {more} others"
        raise ConfigError(
            f"class folder {_show(unknown[0])} is not among the {len(known or ())} classes of the "
            f"dataset that --classes-of names{others}: rename class folders to the names there, or "
            "move them out of the source"
        )
    if not classes:
        raise DatasetError(f"{source} holds no class folders: put images into a folder per class")
    if not labels:
        raise DatasetError(f"{source} holds no images: put some into the class folders")
    return SourceListing(
        classes=known or tuple(classes),
        names=bytes(names),
        name_ends=np.frombuffer(ends, np.int64),
        labels=np.frombuffer(labels, np.int64),
        sizes_bytes=np.frombuffer(sizes, np.int64),
        mtimes_ns=np.frombuffer(mtimes, np.int64),
        hidden=hidden,
    )


def _scan(folder: bytes, what: str) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: decode_name(entry.name))
    except FileNotFoundError:
        raise DatasetError(f"{what} {_show(folder)} does not exist") from None
    except NotADirectoryError:
        raise DatasetError(
            f"{what} {_show(folder)} is a file: give a folder that holds a folder per class"
        ) from None
    except OSError as error:
        raise DatasetError(f"{what} {_show(folder)} cannot be listed: {error.strerror}") from error


def _show(path: bytes) -> str:
    return printable(decode_name(path))


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # e.g. a link to itself: packing quarantines it as unreadable
        return False


def _walk(
    folder: bytes,
    name: str,
    files: list[_File],
    folders: set[str],
    above: tuple[tuple[int, int], ...],
) -> int:
    """Add what is below ``folder`` (called ``name``); return the number of hidden entries."""
    try:
        status = os.stat(folder)
    except OSError as error:
        raise DatasetError(f"folder {_show(folder)} cannot be listed: {error.strerror}") from error
    identity = (status.st_dev, status.st_ino)
    if identity in above or len(above) >= _DEPTH_MAX:
        raise DatasetError(f"{_show(folder)} links to a folder above it: remove the link")
    hidden = 0
    for entry in _scan(folder, "folder"):
        entry_name = f"{name}/{decode_name(entry.name)}"
        if entry.name.startswith(b"."):
            hidden += 1
        elif _is_folder(entry):
            folders.add(entry_name)
            hidden += _walk(entry.path, entry_name, files, folders, (*above, identity))
        else:
            try:
                found = entry.stat()
                files.append(_File(entry_name, found.st_size, found.st_mtime_ns))
            except OSError:  # a dangling link: packing quarantines it with the reason
                files.append(_File(entry_name, 0, 0))
    return hidden


def unpacked_name(name: str) -> str:
    """Return the name that a sample called ``name`` unpacks to, which has a JPEG's suffix."""
    stem, suffix = os.path.splitext(name)
    return name if suffix.lower() in JPEG_SUFFIXES else f"{stem}.jpg"


def _check_names(source: bytes, files: Iterable[_File], folders: set[str]) -> None:
    """Raise ConfigError for two images of a class that would unpack to the same name."""
    seen: dict[str, str] = {}
    for file in files:
        stem = os.path.splitext(file.name)[0]
        other = seen.setdefault(stem, file.name)
        if other != file.name and _is_image(source, other) and _is_image(source, file.name):
            raise ConfigError(
                f"{printable(other)} and {printable(file.name)} in {_show(source)} would unpack to "
                "the same name: rename one"
            )
        if other != file.name and not _is_image(source, other):
            seen[stem] = file.name
        if unpacked_name(file.name) in folders and _is_image(source, file.name):
            raise ConfigError(
                f"{printable(file.name)} in {_show(source)} has the name of the folder "
                f"{printable(unpacked_name(file.name))} after unpacking: rename one"
            )


def _check_images(source: bytes, class_name: str, files: list[_File]) -> None:
    folder = _show(stored_path(source, encode_name(class_name)))
    if not files:
        raise DatasetError(f"class folder {folder} holds no images: add some or remove the folder")
    if not any(_is_image(source, file.name) for file in files):
        raise DatasetError(
            f"class folder {folder} holds no images, only {len(files)} other files: add some or "
            "remove the folder"
        )


def _is_image(source: bytes, name: str) -> bool:
    return sniff_file(stored_path(source, encode_name(name))) is not None


def stored_path(source: bytes, stored_name: bytes) -> bytes:
    """Return the path of the file that is stored as ``stored_name``."""
    return os.path.join(source, stored_name)
