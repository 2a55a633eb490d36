"""The list of a container's items: written once, as tables that are mapped, never as objects.

    list-00003.items     ITEM records, in the order of the container
    list-00003.text      names and labels of several values, at the offsets that the records have
    list-00003.spill     the images' bytes, where the container cannot be read in any order
    list-00003.rejected  items that cannot become samples: {"kind", "path", "reason"} a line
    list-00003.json      ListedContainer, written last: the list is complete
    fetched-…            a container of a store (feeder.source.fetch)

So 14 million items take 64 bytes and their name each, in the page cache. A list whose last file is
missing is written again; one that is complete is used again unless the container has changed.
"""

import contextlib
import functools
import json
import mmap
import os
import struct
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, Self

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.plan.labels import LabelChoice
from feeder.process.path_text import encode_name, printable
from feeder.process.regular_file import read_regular
from feeder.source.item_bytes import FaultKind
from feeder.source.raw_labels import (
    BadLabel,
    Form,
    LabelFacts,
    Value,
    encode_values,
    parse_decimal,
    read_raw,
    split_joined,
)

ITEM: Final = np.dtype(
    [
        ("name_key", "<u8"),  # xxh3_64 of the name
        ("fold_key", "<u8"),  # of the name without suffix, in lower case
        ("offset", "<u8"),  # of its bytes, or of the record that holds them
        ("size_bytes", "<u8"),
        ("stamp", "<u8"),  # of a file of its own, else 0
        ("label", "<i8"),  # a number, a float's bits, a text's number, a list's offset in the text
        ("name_at", "<u8"),  # in the text
        ("container", "<u4"),
        ("name_bytes", "<u2"),
        ("form", "<u2"),  # of the label: raw_labels.Form
    ]
)
_RECORD: Final = struct.Struct("<QQQQQqQIHH")
"""Packs one ITEM."""
NAME_BYTES_MAX: Final = 0xFFFF
CLASSES_MAX: Final = 2**20  # as many as a client accepts
_REPORT_EVERY_S: Final = 0.25
_JSON_BYTES_MAX: Final = 256 << 20

Progress = Callable[[int], None]
"""Called with the number of new items, a few times a second."""

Text = mmap.mmap | bytes


class ListedContainer(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a container holds, besides the items themselves; sources set what differs from this."""

    container: str = ""
    stamp: tuple[int, int] = (0, 0)
    """Size and stamp of the file; zeros for a folder, which is listed again."""
    items: int = 0
    bytes: int = 0
    """Of all items."""
    spilled_bytes: int = 0
    is_fetched: bool = False
    """Whether the container itself was copied, from a store."""
    rejected: int = 0
    hidden: int = 0
    """Files and folders left out because their names begin with a dot."""
    field: str = ""
    """Where the labels are, for the summary: "column label"; empty where that is plain."""
    base: int = 0
    """The number of the first class."""
    by_name: bool = False
    """Whether labels are names of classes even where they are numbers: those of folders."""
    facts: LabelFacts = msgspec.field(default_factory=LabelFacts)
    """About the labels that are lists."""
    texts: tuple[str, ...] = ()
    """The distinct labels that are texts, by number; also classes without items."""
    names: dict[int, str] = {}
    """Names of class numbers, where the container has them."""
    is_declared: bool = False
    """Whether ``names`` has all classes that there are."""
    notes: tuple[str, ...] = ()
    """Lines for the user."""

    @property
    def is_copied(self) -> bool:
        """Whether its images are read from a copy in the work folder."""
        return self.is_fetched or self.spilled_bytes > 0


class ItemListing:
    """Writes the list of one container; a context manager that removes an unfinished one."""

    def __init__(
        self,
        folder: Path,
        number: int,
        *,
        label_kind: LabelChoice | None = None,
        progress: Progress | None = None,
        stamp: int | None = None,
        copy: Path | None = None,
    ) -> None:
        """``stamp`` is that of the container, which its readers compare; None: any.

        ``copy`` is what they read instead, where it is in a store.
        """
        self.folder = folder
        self.stamp = stamp
        self.copy = copy
        self.number = number
        self.about = ListedContainer(by_name=label_kind == "name", is_fetched=copy is not None)
        self._has_labels = label_kind != "none"
        self._is_split = label_kind in ("multi", "one-hot", "multi-hot")
        self._progress = progress
        self._reported_s = time.monotonic()
        self._new_items = 0
        forget_list(folder, number)
        self._files: dict[str, BinaryIO] = {}
        for suffix in ("items", "text"):  # which even an empty list has
            self._file(suffix)
        self._text_bytes = 0
        self._texts: dict[str, int] = {}
        self._finished = False

    def add(
        self, name: str, label: object, *, offset: int = 0, size_bytes: int, stamp: int = 0
    ) -> None:
        """Add an item; it is rejected instead if its label or name is impossible.

        ``name`` is unique, with '/' between folders; ``label`` is a RawLabel.
        """
        stored = encode_name(name)
        try:
            if not 0 < len(stored) <= NAME_BYTES_MAX:
                raise BadLabel(f"its name has {len(stored)} bytes, not 1 .. {NAME_BYTES_MAX}")
            form, value = read_raw(label if self._has_labels else None, is_name=self.about.by_name)
            if self._is_split and isinstance(value, str) and not self.about.by_name:
                parts = split_joined(value)
                form, value = read_raw(parts) if len(parts) > 1 else (form, value)
        except BadLabel as error:
            self.reject(name, "bad-label", str(error))
            return
        if form == Form.NONE and self._has_labels:
            self.reject(name, "no-label", "it has no label")
            return
        at = self._text_bytes
        self._write_text(stored)
        stem = os.path.splitext(name)[0].casefold()
        stored_form, stored_label = self._store_label(form, value)
        self._files["items"].write(
            _RECORD.pack(
                xxhash.xxh3_64_intdigest(stored),
                xxhash.xxh3_64_intdigest(encode_name(stem)),
                offset,
                size_bytes,
                stamp,
                stored_label,
                at,
                self.number,
                len(stored),
                stored_form,
            )
        )
        self.about.items += 1
        self.about.bytes += size_bytes
        self._count()

    def reject(self, name: str, kind: FaultKind, reason: str) -> None:
        """Record an item that cannot become a sample, for the quarantine list."""
        entry = {"kind": kind, "path": name, "reason": reason}
        self._file("rejected").write(json.dumps(entry, sort_keys=True).encode("ascii") + b"\n")
        self.about.rejected += 1
        self._count()

    def expect_spill(self, size_bytes: int) -> None:
        """Raise ResourceError if the disk has no room for a spilled copy of about this size."""
        status = os.statvfs(self.folder)
        free = status.f_bavail * status.f_frsize
        if size_bytes > free:
            raise ResourceError(
                f"{self.folder} has {free / 1e9:.1f} GB free, and a copy of images that cannot be "
                f"read in any order takes about {size_bytes / 1e9:.1f} GB there: make room, or "
                "pack to another disk"
            )

    def spill(self, data: bytes | memoryview) -> int:
        """Copy an item's bytes to the work folder; return the offset for ``add``."""
        at = self.about.spilled_bytes
        self._file("spill").write(data)
        self.about.spilled_bytes += len(data)
        return at

    def declare_class(self, text: str) -> None:
        """Make ``text`` a class, also if no item has it as its label."""
        self._text_number(text)

    def name_class(self, number: int, text: str) -> None:
        """Give class ``number`` a name; DatasetError if it has another one."""
        known = self.about.names.setdefault(number, text)
        if known != text:
            raise DatasetError(
                f"class {number} is called {printable(known)} and {printable(text)} in one file: "
                "mend the labels, or give --class-names"
            )

    def note(self, line: str) -> None:
        """Add a line for the user."""
        self.about.notes += (line,)

    def finish(self, container: str, stamp: tuple[int, int]) -> ListedContainer:
        """Complete the list and return its facts."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        listed = self.about
        listed.container, listed.stamp, listed.texts = container, stamp, tuple(self._texts)
        path = list_path(self.folder, self.number, "json")
        temporary = path.with_name(path.name + ".tmp")
        temporary.write_bytes(json.dumps(msgspec.to_builtins(listed, str_keys=True)).encode())
        temporary.replace(path)
        self._finished = True
        for file in self._files.values():
            file.close()
        if self._progress is not None:
            self._progress(self._new_items)
        return listed

    def _store_label(self, form: Form, value: Value) -> tuple[Form, int]:
        """Return the form and the number that a record holds for a label."""
        if isinstance(value, list):
            self.about.facts.observe(form, value, self.about.base)
            values: Sequence[Any] = value
            if form == Form.TEXTS:
                values = [self._text_number(str(text)) for text in value]
            at = self._text_bytes
            self._write_text(encode_values(form, values))
            return form, at
        if isinstance(value, str):
            is_full = len(self._texts) >= CLASSES_MAX and value not in self._texts
            number = parse_decimal(value) if is_full and not self.about.by_name else None
            if number is None:
                return form, self._text_number(value)
            form, value = Form.REAL, number  # more values than there can be classes
        if isinstance(value, float):
            return form, struct.unpack("<q", struct.pack("<d", value))[0]
        return form, value or 0

    def _text_number(self, text: str) -> int:
        number = self._texts.setdefault(text, len(self._texts))
        if number >= CLASSES_MAX:
            raise ConfigError(
                f"there are over {CLASSES_MAX:,} different labels, such as {printable(text)}: they "
                "are no classes; choose another field with --label"
            )
        return number

    def _write_text(self, data: bytes) -> None:
        self._files["text"].write(data)
        self._text_bytes += len(data)

    def _count(self) -> None:
        self._new_items += 1
        if self._progress is not None and time.monotonic() - self._reported_s > _REPORT_EVERY_S:
            self._reported_s = time.monotonic()
            self._progress(self._new_items)
            self._new_items = 0

    def _file(self, suffix: str) -> BinaryIO:
        """Return a file of the list, created where it is not there yet."""
        if suffix not in self._files:
            path = list_path(self.folder, self.number, suffix)
            self._files[suffix] = path.open("wb", buffering=1 << 20)
        return self._files[suffix]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if self._finished:
            return
        for file in self._files.values():
            with contextlib.suppress(OSError):  # of a full disk, where closing writes again
                file.close()
        forget_list(self.folder, self.number)


class ListedItems:
    """The complete list of one container: mapped when it is first read, until ``release``.

    A map keeps a descriptor, so the lists of thousands of containers are not mapped together.
    """

    def __init__(self, folder: Path, number: int, listed: ListedContainer) -> None:
        self.listed = listed
        self._folder = folder
        self._number = number

    @functools.cached_property
    def rows(self) -> NDArray[np.void]:
        """The items, (n,) of dtype ITEM; DatasetError if their file is damaged."""
        path = list_path(self._folder, self._number, "items")
        rows = map_rows(path)
        if len(rows) != self.listed.items:
            raise DatasetError(f"{path} is damaged: remove {self._folder.parent}, pack again")
        return rows

    @functools.cached_property
    def text(self) -> Text:
        """The names, and the labels of several values."""
        return map_text(list_path(self._folder, self._number, "text"))

    def release(self) -> None:
        """Unmap the list."""
        for name in ("rows", "text"):
            self.__dict__.pop(name, None)

    def rejected(self) -> Iterable[Mapping[str, str]]:
        """Yield "kind", "path" and "reason" of each rejected item."""
        if not self.listed.rejected:
            return
        with list_path(self._folder, self._number, "rejected").open("rb") as file:
            for line in file:
                yield json.loads(line)


def map_rows(path: Path) -> NDArray[np.void]:
    """Return the ITEM records in a file, mapped; (n,)."""
    return np.memmap(path, ITEM, "r") if path.stat().st_size else np.empty(0, ITEM)


def map_text(path: Path) -> Text:
    """Return the text of a list, mapped: names as shards store them, and encoded values."""
    with path.open("rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def list_path(folder: Path, number: int, suffix: str) -> Path:
    """Return a file of the list of container ``number`` in the work folder."""
    return folder / f"list-{number:05d}.{suffix}"


def fetched_path(folder: Path, url: str, stamp: int) -> Path:
    """Return the copy of an object in the work folder."""
    return folder / f"fetched-{xxhash.xxh3_64_hexdigest(encode_name(url))}-{stamp:016x}"


def forget_list(folder: Path, number: int) -> None:
    """Remove the files of a list, first the one that makes it complete."""
    for suffix in ("json", "items", "text", "rejected", "spill"):
        list_path(folder, number, suffix).unlink(missing_ok=True)


def read_listed(folder: Path, number: int) -> ListedContainer | None:
    """Return the facts of a complete list; None where there is none, or files are missing."""
    try:
        data = read_regular(list_path(folder, number, "json"), _JSON_BYTES_MAX)
        listed = msgspec.convert(json.loads(data), ListedContainer, str_keys=True)
        sizes = {"items": listed.items * ITEM.itemsize, "spill": listed.spilled_bytes}
        for suffix, size_bytes in sizes.items():
            if size_bytes and list_path(folder, number, suffix).stat().st_size != size_bytes:
                return None
    except (OSError, ValueError):
        return None
    return listed
