"""The interface of all kinds of source, and the description that opens one in any process.

    list_items(container, listing)   adds each item of a container: name, label, where its bytes are
    read_item(item)                  returns the bytes of an item that was listed

A *container* is one file of the source: a tar shard, a TFRecord, a Parquet file. Sources of loose
files have one container, their folder. Containers are listed independently, by several processes.
An item's bytes can be read in any order, because packing shuffles; a container that cannot seek is
copied to the work folder while it is listed (``ItemListing.spill``), one in a store before that
(``fetch``). Loose files in a store are read there, many at a time.
"""

import errno
import functools
import itertools
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol

import msgspec

from feeder.errors import ConfigError, DatasetError
from feeder.plan.labels import LabelChoice, Uncertain
from feeder.process.path_text import decode_name, encode_name, path_from_text, printable
from feeder.process.punched_file import punch_hole
from feeder.source.item_bytes import (
    SNIFF_BYTES,
    SourceError,
    check_size,
    read_source,
    sniff_file,
    sniff_format,
)
from feeder.source.kinds import find_kind
from feeder.source.listing import ItemListing, fetched_path, list_path
from feeder.source.location.objects import (
    ObjectEntry,
    read_object,
    read_start,
    walk_objects,
)
from feeder.source.location.storage import (
    StoredFile,
    check_listed,
    is_folder,
    is_url,
    look_at_path,
    scan_folder,
    show_path,
)

_OPEN_MAX: Final = 64
_PATH_BYTES_MAX: Final = 512
_DEPTH_MAX: Final = 64
FOLDERS_AHEAD: Final = 16
"""Folders in a store that are listed at a time."""
_ENTRIES_AHEAD: Final = 2000  # two pages, more than a class of ImageNet has
_COMPRESSIONS: Final = ("gz", "gzip", "zst", "zlib")


class SourceSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a source is and how to read it.

    Paths are absolute, as ``path_to_text`` writes them, or URLs; those of folders end with "/".
    """

    kind: str
    """One of ``kinds.MODULES``, or "samples"."""
    location: str
    """As the user gave it, for messages."""
    containers: tuple[str, ...]
    image: str = ""
    """The field, column or suffix that holds the image; empty: found by looking."""
    label: str = ""
    """The same of the label."""
    label_kind: LabelChoice | None = None
    """None: what all labels suggest."""
    uncertain: Uncertain | Literal[""] = ""
    """What -1 and a missing value are in rows of 0 and 1; empty: an error."""
    label_base: int | None = None
    """The number of the first class; None: the kind's own (1 in ImageNet's TFRecords)."""
    labels_file: str = ""
    """A file with the labels, where they are apart from the images."""
    class_names_file: str = ""
    """A file with the name of each class, one a line, in the order of their numbers."""
    may_lack_images: bool = False
    """Whether a class folder may be empty, because the classes are another dataset's."""
    split: str = ""
    """The split to take rows of; empty: all rows, or there is only one split."""
    all_splits: bool = False
    """Whether what looks like several splits is to be taken as one."""
    notes: tuple[str, ...] = ()
    """Lines for the user, about what was chosen."""

    @property
    def is_loose(self) -> bool:
        """Whether the images are files, and the one container is their folder."""
        return self.kind != "samples" and not find_kind(self.kind).what

    @property
    def is_remote(self) -> bool:
        """Whether it is in a store."""
        return bool(self.containers) and is_url(self.containers[0])

    @property
    def is_fetched(self) -> bool:
        """Whether its containers are fetched before they are listed."""
        return self.is_remote and not self.is_loose


FileState = tuple[int, int]
"""Size in bytes and stamp of a file."""


class Item(NamedTuple):
    """An item as it was listed."""

    container: int
    offset: int
    """Of its bytes, or of the record that holds them, in the container or in its spilled copy."""
    size_bytes: int
    name: str
    stamp: int | None = None
    """Of the file that it is read from, as that was listed; None: any."""


class Source(Protocol):
    """One kind of source; for one thread of one process."""

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add all items of a container to ``listing``.

        A fault of one item is rejected there, for the quarantine list. Raises DatasetError for a
        container that is damaged or of another kind, ConfigError for options that do not fit it.
        """

    def read_item(self, item: Item) -> bytes:
        """Return the bytes of an item's image; SourceError if they cannot be read.

        Raises SourceChangedError if their file is not the one that was listed, and StoreError.
        """

    def drop_copies(self, items: Iterable[Item]) -> None:
        """Give back the room that copies of these items take: they are not read again."""

    def close(self) -> None:
        """Close what is open; idempotent."""


class ContainerSource:
    """What sources of containers have in common: items are read at their offsets.

    These are in the container, or in its spilled copy. A container is compared with its listing
    after each read; its copy need not be, as it was made while the container was listed.
    """

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        self._spec = spec
        self._work_folder = Path(work_folder)
        self._open: OrderedDict[int, tuple[StoredFile, bool]] = OrderedDict()

    def path(self, container: int) -> Path:
        """Return the container's file; of one that is in no store."""
        return path_from_text(self._spec.containers[container])

    def where(self, container: int) -> str:
        """Return what messages call the container: its path or URL."""
        return printable(self._spec.containers[container])

    def prefix(self, container: int) -> str:
        """Return what the names of a container's items begin with: "" for an only one, or "STEM/".

        The stem is the file's name without the suffixes of its format. Where containers in several
        folders share it, all have the path from their common folder instead.
        """
        spec = self._spec
        if len(spec.containers) == 1:
            return ""
        return f"{_stems(spec.containers, find_kind(spec.kind).suffixes)[container]}/"

    def list_items(self, container: int, listing: ItemListing) -> None:
        """See ``Source``; each kind has its own. Samples are listed while they are spooled."""
        raise NotImplementedError

    def read_item(self, item: Item) -> bytes:
        """See ``Source``; SourceError (unreadable, empty, too-large, truncated)."""
        check_size(item.size_bytes, "it has no bytes")
        try:
            file, is_copy = self._open_file(item)
            data = file.read(item.offset, item.size_bytes)
            if not is_copy:
                check_listed(file.path, item.stamp, file.descriptor)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE) or self._spec.is_remote:
                raise
            check_listed(os.fsencode(self.path(item.container)), item.stamp)
            raise SourceError("unreadable", error.strerror or type(error).__name__) from None
        if len(data) < item.size_bytes:
            raise SourceError("truncated", "its file ends too early")
        return data

    def drop_copies(self, items: Iterable[Item]) -> None:
        """See ``Source``; whole blocks of the disk are given back, if its file system can."""
        ordered = sorted(items, key=lambda item: (item.container, item.offset))
        for _, group in itertools.groupby(ordered, key=lambda item: item.container):
            some = list(group)
            copy = self._find_copy(some[0])
            if copy is not None:
                with copy.open("r+b") as file:
                    for item in some:
                        if not punch_hole(file.fileno(), item.offset, item.size_bytes):
                            return

    def close(self) -> None:
        """Close all files; idempotent."""
        while self._open:
            self._open.popitem()[1][0].close()

    def _open_file(self, item: Item) -> tuple[StoredFile, bool]:
        """Return the open file that has a container's items, and whether it is a copy."""
        container = item.container
        if container in self._open:
            self._open.move_to_end(container)
            return self._open[container]
        while len(self._open) >= _OPEN_MAX:
            self._open.popitem(last=False)[1][0].close()
        copy = self._find_copy(item)
        file = StoredFile(self.path(container) if copy is None else copy)
        self._open[container] = file, copy is not None
        return file, copy is not None

    def _find_copy(self, item: Item) -> Path | None:
        """Return the copy of an item's container in the work folder, if there is one."""
        spilled = list_path(self._work_folder, item.container, "spill")
        if spilled.exists():
            return spilled
        if self._spec.is_fetched:
            url = self._spec.containers[item.container]
            return fetched_path(self._work_folder, url, item.stamp or 0)
        return None


def number_name(prefix: str, number: int, path: bytes = b"") -> str:
    """Return the name of an item that has a number: with its file's, which alone may repeat."""
    file_name = decode_name(path).rpartition("/")[2] if len(path) <= _PATH_BYTES_MAX else ""
    return f"{prefix}{number:08d}{file_name and '-'}{file_name}"


class LooseFiles:
    """What sources have in common whose one container is a folder with all files below it.

    All but hidden ones count, through links. Names are the file system's bytes, decoded as UTF-8
    whatever the locale: the same source gives the same dataset everywhere. The files of a folder
    come in the file system's order and are not kept: a folder may hold millions. A folder of
    objects has no folders in it: what is below it comes in one listing, with all sizes and stamps.
    """

    def __init__(self, spec: SourceSpec) -> None:
        """Raise ConfigError for several containers."""
        if len(spec.containers) > 1:
            raise ConfigError(
                f"{printable(spec.location)} is {len(spec.containers):,} files: --source "
                f"{spec.kind} is for one folder"
            )
        self._spec = spec
        self._root = encode_name(spec.containers[0])
        self.is_remote = spec.is_remote
        self._pool = ThreadPoolExecutor(FOLDERS_AHEAD)  # which starts threads at its first use
        self._ahead: dict[str, Future[tuple[Iterator[ObjectEntry], bool]]] = {}
        self._begins_with_image: dict[str, bool] = {}  # first files of folders

    def path(self, name: str) -> bytes:
        """Return the path of the file called ``name``, or of the folder; "" is the whole one."""
        return os.path.join(self._root, encode_name(name)) if name else self._root

    def walk(
        self, name: str, listing: ItemListing, *, above: tuple[tuple[int, int], ...] = ()
    ) -> Iterator[tuple[str, FileState | None]]:
        """Yield the name, relative to the container, of each file below its folder ``name``.

        With size and stamp, where these come with the name. Names have '/' between folders. Hidden
        entries are counted in ``listing``. ``above`` are the folders above it, by device and inode.
        Raises DatasetError for a folder that cannot be listed or links to one above it.
        """
        path = self.path(name)
        if self.is_remote:
            yield from self._walk_objects(name, listing)
            return
        try:
            status = os.stat(path)
        except OSError as error:
            raise DatasetError(
                f"folder {show_path(path)} cannot be listed: {error.strerror}"
            ) from error
        identity = status.st_dev, status.st_ino
        if identity in above or len(above) >= _DEPTH_MAX:
            raise DatasetError(f"{show_path(path)} links to a folder above it: remove the link")
        folders: list[str] = []
        for entry in scan_folder(path, "folder"):
            entry_name = f"{name}/{decode_name(entry.name)}" if name else decode_name(entry.name)
            if entry.name.startswith(b"."):
                listing.about.hidden += 1
            elif is_folder(entry):
                folders.append(entry_name)
            else:
                yield entry_name, None
        for folder in sorted(folders):
            yield from self.walk(folder, listing, above=(*above, identity))

    def walk_ahead(self, names: Iterable[str]) -> None:
        """Begin to list folders that ``walk`` will be asked for: in a store each takes requests."""
        for name in names if self.is_remote else ():
            if name not in self._ahead:
                self._ahead[name] = self._pool.submit(self._begin_walk, name)

    def _begin_walk(self, name: str) -> tuple[Iterator[ObjectEntry], bool]:
        """Return what is below a folder, and whether the first file begins like an image."""
        entries = walk_objects(decode_name(self.path(name)))
        first = list(itertools.islice(entries, _ENTRIES_AHEAD))
        is_image = False
        if first:
            state = first[0].size_bytes, first[0].stamp
            is_image = self.begins_like_image(f"{name}/{decode_name(first[0].name)}", state)
        return itertools.chain(first, entries), is_image

    def begins_like_image(self, name: str, state: FileState | None = None) -> bool:
        """Return whether a file that ``walk`` yielded begins like an image."""
        known = self._begins_with_image.pop(name, None)
        if known is not None:
            return known
        path = self.path(name)
        if state is None or not self.is_remote:
            return sniff_file(path) is not None
        return sniff_format(read_start(decode_name(path), min(state[0], SNIFF_BYTES))) is not None

    def _walk_objects(
        self, name: str, listing: ItemListing
    ) -> Iterator[tuple[str, FileState | None]]:
        begun = self._ahead.pop(name, None)
        if begun is None:
            entries = walk_objects(decode_name(self.path(name)))
        else:
            entries, is_image = begun.result()
            first = next(entries, None)
            if first is not None:
                self._begins_with_image = {f"{name}/{decode_name(first.name)}": is_image}
                entries = itertools.chain((first,), entries)
        hidden = ""
        for entry in entries:
            path = decode_name(entry.name)
            if path.startswith(".") or "/." in path:
                at = path.find("/", f"/{path}".index("/."))
                top = path[:at] if at >= 0 else path
                listing.about.hidden += top != hidden  # a hidden folder counts once
                hidden = top
            else:
                yield f"{name}/{path}" if name else path, (entry.size_bytes, entry.stamp)

    def add(
        self, name: str, label: object, listing: ItemListing, state: FileState | None = None
    ) -> None:
        """Add a file to the listing; one that cannot be looked at is packing's to quarantine.

        ``state`` is what ``walk`` yielded with it.
        """
        try:
            size_bytes, stamp = state or look_at_path(self.path(name))
        except OSError:  # such as a link that leads nowhere
            size_bytes = stamp = 0
        listing.add(name, label, size_bytes=size_bytes, stamp=stamp)

    def read_item(self, item: Item) -> bytes:
        """Return the bytes of a file; SourceError (unreadable, empty or too-large)."""
        path = self.path(item.name)
        if not self.is_remote:
            return read_source(path, listed=item.stamp)
        check_size(item.size_bytes, "the file has no bytes")
        return read_object(decode_name(path), item.stamp)

    def drop_copies(self, items: Iterable[Item]) -> None:
        """Do nothing: there are none."""

    def close(self) -> None:
        """End what lists ahead; no file stays open."""
        self._pool.shutdown(wait=False, cancel_futures=True)


def open_source(spec: SourceSpec, work_folder: str) -> Source:
    """Return the source of ``spec``; ``work_folder`` holds or gets its spilled copies.

    Raises ConfigError for options of the spec that have no meaning for its kind.
    """
    if spec.kind == "samples":
        return ContainerSource(spec, work_folder)
    kind = find_kind(spec.kind)
    given = {
        "image": spec.image,
        "label": spec.label,
        "labels": spec.labels_file,
        "label-base": spec.label_base is not None,
        "float": spec.label_kind == "float",
    }
    for option in (option for option, value in given.items() if value):
        if option not in kind.takes.split():
            shown = "label-kind float" if option == "float" else option
            raise ConfigError(
                f"--{shown} has no meaning for --source {spec.kind}, whose labels are "
                f"{kind.labels}: leave it out"
            )
    return kind.open(spec, work_folder)


@functools.lru_cache(maxsize=2)
def _stems(containers: tuple[str, ...], suffixes: tuple[str, ...]) -> tuple[str, ...]:
    ends = re.compile(rf"(\.({'|'.join((*suffixes, *_COMPRESSIONS))}))+$", re.IGNORECASE)
    folder = os.path.commonpath([os.path.dirname(path) for path in containers])
    relative = [os.path.relpath(path, folder) for path in containers]
    for names in ([os.path.basename(path) for path in containers], relative):
        stems = tuple(ends.sub("", name) or name for name in names)
        if len(set(stems)) == len(stems):
            return stems
    return tuple(relative)
