"""Walks a folder of loose files, and reads them: all but hidden ones, through links, not in loops.

Names are the file system's bytes, decoded as UTF-8 whatever the locale: the same source gives the
same dataset everywhere. The files of a folder come in the file system's order and are not kept:
a folder may hold millions.
"""

import os
from collections.abc import Iterator
from typing import Final, NamedTuple

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import decode_name, encode_name, printable
from feeder.source.item_bytes import read_source, sniff_file, stamp_status
from feeder.source.listing import ItemListing
from feeder.source.names import stored_path, unpacked_name
from feeder.source.source import Item, SourceSpec

_DEPTH_MAX: Final = 64


class FileStatus(NamedTuple):
    """What a list holds of a file."""

    size_bytes: int
    stamp: int
    """0 if it cannot be looked at."""


class LooseFiles:
    """The files below the folder that is a source's one container."""

    def __init__(self, spec: SourceSpec) -> None:
        self._root = encode_name(spec.containers[0])

    def read_item(self, item: Item) -> bytes:
        """Return the bytes of a file; SourceError (unreadable, empty or too-large)."""
        path = stored_path(self._root, encode_name(item.name))
        return read_source(path, listed=item.stamp)

    def close(self) -> None:
        """Close nothing: no file stays open."""


def walk_files(root: bytes, name: str, listing: ItemListing) -> Iterator[str]:
    """Yield the name, relative to ``root``, of each file below its folder ``name`` ("": of all).

    Names have '/' between folders. Hidden entries are counted in ``listing``. Raises DatasetError
    for a folder that cannot be listed or links to one above it, ConfigError for an image that would
    unpack to the name of a folder.
    """
    return _walk(root, name, listing, ())


def stat_file(path: bytes) -> FileStatus:
    """Return a file's status; zeros for a link that leads nowhere, which cannot be read."""
    try:
        status = os.stat(path)
    except OSError:  # packing quarantines it with the reason
        return FileStatus(0, 0)
    return FileStatus(status.st_size, stamp_status(status))


def scan_folder(folder: bytes, what: str) -> Iterator[os.DirEntry[bytes]]:
    """Yield the entries of a folder; DatasetError, which calls it ``what``, if that fails."""
    try:
        with os.scandir(folder) as entries:
            yield from entries
    except FileNotFoundError:
        raise DatasetError(f"{what} {show_path(folder)} does not exist") from None
    except NotADirectoryError:
        raise DatasetError(
            f"{what} {show_path(folder)} is a file: give a folder that holds a folder per class"
        ) from None
    except OSError as error:
        raise DatasetError(
            f"{what} {show_path(folder)} cannot be listed: {error.strerror}"
        ) from error


def is_folder(entry: os.DirEntry[bytes]) -> bool:
    """Return whether an entry is a folder or links to one."""
    try:
        return entry.is_dir()
    except OSError:  # e.g. a link to itself: packing quarantines it as unreadable
        return False


def show_path(path: bytes) -> str:
    """Return a path for a message."""
    return printable(decode_name(path))


def _walk(
    root: bytes, name: str, listing: ItemListing, above: tuple[tuple[int, int], ...]
) -> Iterator[str]:
    folder = _path(root, name)
    identity = _identify(folder)
    if identity in above or len(above) >= _DEPTH_MAX:
        raise DatasetError(f"{show_path(folder)} links to a folder above it: remove the link")
    folders: list[str] = []
    for entry in scan_folder(folder, "folder"):
        entry_name = _join(name, entry.name)
        if entry.name.startswith(b"."):
            listing.hidden += 1
        elif is_folder(entry):
            folders.append(entry_name)
        else:
            yield entry_name
    _check_folder_names(root, name, folders)
    for each in sorted(folders):
        yield from _walk(root, each, listing, (*above, identity))


def _identify(folder: bytes) -> tuple[int, int]:
    try:
        status = os.stat(folder)
    except OSError as error:
        raise DatasetError(
            f"folder {show_path(folder)} cannot be listed: {error.strerror}"
        ) from error
    return status.st_dev, status.st_ino


def _check_folder_names(root: bytes, name: str, folders: list[str]) -> None:
    """Raise ConfigError for an image that would unpack to the name of a folder beside it."""
    taken = {each for each in folders if unpacked_name(each) == each}
    if not taken:
        return
    clashes: list[str] = []
    for entry in scan_folder(_path(root, name), "folder"):
        file_name = _join(name, entry.name)
        if (
            unpacked_name(file_name) in taken
            and not entry.name.startswith(b".")
            and not is_folder(entry)
            and sniff_file(entry.path)
        ):
            clashes.append(file_name)
    if clashes:
        first = min(clashes)
        raise ConfigError(
            f"{printable(first)} in {show_path(root)} has the name of the folder "
            f"{printable(unpacked_name(first))} after unpacking: rename one"
        )


def _path(root: bytes, name: str) -> bytes:
    return stored_path(root, encode_name(name)) if name else root


def _join(folder: str, name: bytes) -> str:
    return f"{folder}/{decode_name(name)}" if folder else decode_name(name)
