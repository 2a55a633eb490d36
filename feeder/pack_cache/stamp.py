"""The stamp of a source: equal as long as no file of it is added, removed, renamed or rewritten.

A container that is one file (a tar shard, a list of labels) counts by its size and modification
time. A folder counts by the name, size and modification time of every file below it, as packing
lists them: through links, without names that begin with a dot. Their hashes are added up, so that
neither an order nor an object for each file is needed. No file's content is read. What is in a
store counts by the ETag in place of the time.
"""

import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NoReturn

import msgspec
import xxhash

from feeder.errors import DatasetError
from feeder.process.path_text import decode_name, path_from_text, printable
from feeder.source.location.objects import has_objects, walk_objects
from feeder.source.location.storage import is_url, look_at_path, stamp_path

_REPORT_FILES: Final = 4096
_SIZE_AND_TIME: Final = struct.Struct("<QQ")
_MASK: Final = 2**64 - 1


class ContainerStamp(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a container, or of a file with labels or class names."""

    path: str
    """As ``path_to_text`` writes it."""
    is_folder: bool
    files: int
    bytes: int
    digest: str
    """Of names, sizes and times; 16 hexadecimal digits."""


Stamp = tuple[ContainerStamp, ...]
"""Of all containers, in the order of their paths."""


def take_stamp(paths: Iterable[str], report: Callable[[int], None]) -> Stamp:
    """Take the stamp of files and folders; DatasetError for one that cannot be looked at.

    ``report`` is called with the number of files so far, every few thousand files.
    """
    files = 0
    stamps = []
    for path in sorted(set(paths)):
        stamp = _stamp_container(path, lambda more: report(files + more))  # noqa: B023 -- called here
        files += stamp.files
        report(files)
        stamps.append(stamp)
    return tuple(stamps)


def describe_change(old: Stamp, new: Stamp) -> str:
    """Describe the first container that differs, as a clause for a message; empty if none does.

    A folder is looked at again, to name the file that was changed last, or the folder that was
    where files are gone.
    """
    before = {container.path: container for container in old}
    after = {container.path: container for container in new}
    changed = [path for path in sorted(before | after) if before.get(path) != after.get(path)]
    if not changed:
        return ""
    first = changed[0]
    if first in before and first in after:
        change = _describe_container(before[first], after[first])
    else:
        change = f"{printable(first)} is {'gone' if first in before else 'new'}"
    return f"{change}, and {len(changed) - 1:,} more" if len(changed) > 1 else change


def _describe_container(old: ContainerStamp, new: ContainerStamp) -> str:
    where = printable(old.path)
    if not (old.is_folder and new.is_folder):
        return f"{where} was written again"
    if old.files != new.files:
        difference = abs(new.files - old.files)
        s = "s" * (difference != 1)
        change = f"{difference:,} file{s} {'more' if new.files > old.files else 'fewer'} in {where}"
    else:
        what = "sizes" if old.bytes != new.bytes else "names or modification times"
        change = f"{what} of files in {where} differ"
    if is_url(new.path):
        dated = ((entry.modified_ns, decode_name(entry.name)) for entry in walk_objects(new.path))
        return f"{change}, the newest object is {printable(max(dated, default=(0, ''))[1])}"
    root = os.fsencode(path_from_text(new.path))
    newest = _find_newest(root, is_folder=new.files < old.files)
    return f"{change}, the last change was to {newest}"


def is_there(path: str) -> bool:
    """Return whether there is anything at the path of a container; StoreError."""
    if is_url(path):
        return has_objects(path) if path.endswith("/") else stamp_path(path) > 0
    return os.path.lexists(path_from_text(path))


def _stamp_container(path: str, report: Callable[[int], None]) -> ContainerStamp:
    if is_url(path):
        return _stamp_objects(path, report)
    location = os.fsencode(path_from_text(path))
    try:
        status = os.stat(location)
    except OSError as error:
        raise DatasetError(f"{printable(path)} cannot be read: {error.strerror}") from error
    is_folder = stat.S_ISDIR(status.st_mode)
    files, size_bytes, digest = 1, status.st_size, 0
    if not is_folder:
        digest = _hash_file(b"", size_bytes, status.st_mtime_ns, 0)
    else:
        files = size_bytes = seed = 0
        for folder, name, status_below in _walk(location):
            if not name:
                seed = xxhash.xxh3_64_intdigest(folder)
                digest += seed  # also a folder without files may be a class
                continue
            fields = (status_below.st_size, status_below.st_mtime_ns) if status_below else (0, 0)
            size_bytes += fields[0]
            digest += _hash_file(name, *fields, seed)
            files += 1
            if not files % _REPORT_FILES:
                report(files)
    digest_text = f"{digest & _MASK:016x}"
    return ContainerStamp(
        path=path, is_folder=is_folder, files=files, bytes=size_bytes, digest=digest_text
    )


def _stamp_objects(path: str, report: Callable[[int], None]) -> ContainerStamp:
    """Stamp an object, or those below a folder."""
    if not path.endswith("/"):
        try:
            size_bytes, stamp = look_at_path(path)
        except OSError as error:
            raise DatasetError(f"{printable(path)} cannot be read: {error.strerror}") from error
        return ContainerStamp(
            path=path, is_folder=False, files=1, bytes=size_bytes, digest=f"{stamp:016x}"
        )
    files = size_bytes = digest = 0
    for entry in walk_objects(path):
        if b"/." not in b"/" + entry.name:
            files += 1
            size_bytes += entry.size_bytes
            digest += _hash_file(entry.name, entry.size_bytes, entry.stamp, 0)
            if not files % _REPORT_FILES:
                report(files)
    return ContainerStamp(
        path=path, is_folder=True, files=files, bytes=size_bytes, digest=f"{digest & _MASK:016x}"
    )


def _find_newest(root: bytes, *, is_folder: bool) -> str:
    """The path of the file, or folder, below ``root`` that was changed last."""
    newest, path = 0, root
    for folder, name, status in _walk(root):
        if status is not None and is_folder is not bool(name) and status.st_ctime_ns > newest:
            newest, path = status.st_ctime_ns, os.path.join(root, folder, name)
    return printable(decode_name(path.rstrip(b"/")))


def _walk(root: bytes) -> Iterator[tuple[bytes, bytes, os.stat_result | None]]:
    """Yield the files below ``root``: folder, name and status, None for a link that leads nowhere.

    Before the files of a folder it is yielded itself, with an empty name. Names are looked up in
    the folder's descriptor, which is half as fast again as by their paths.
    """
    above: dict[bytes, frozenset[tuple[int, int]]] = {root: frozenset()}

    def fail(error: OSError) -> NoReturn:
        # os.fwalk gives the folder's name alone; its siblings are the last that were added
        named = (path for path in reversed(above) if os.path.basename(path) == error.filename)
        folder = printable(decode_name(next(named, root)))
        raise DatasetError(f"folder {folder} cannot be listed: {error.strerror}") from error

    for path, folders, names, descriptor in os.fwalk(root, onerror=fail, follow_symlinks=True):
        folder, status = path[len(root) :].lstrip(b"/"), os.fstat(descriptor)
        yield folder, b"", status
        identity, parents = (status.st_dev, status.st_ino), above.pop(path)
        if identity in parents:  # a link to a folder above it, which packing refuses
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith(b".")]
        above |= {os.path.join(path, name): parents | {identity} for name in folders}
        for name in names:
            if not name.startswith(b"."):
                try:
                    yield folder, name, os.stat(name, dir_fd=descriptor)
                except OSError:
                    yield folder, name, None


def _hash_file(name: bytes, size_bytes: int, mtime_ns: int, seed: int) -> int:
    key = name + b"\0" + _SIZE_AND_TIME.pack(size_bytes, mtime_ns & _MASK)
    return xxhash.xxh3_64_intdigest(key, seed)
