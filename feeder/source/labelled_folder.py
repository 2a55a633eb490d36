"""A folder of images with a file of labels, in CSV, JSON or JSONL; or without labels at all.

    SRC/…/file     listed by name, relative to SRC or to the folder of the file of labels

Files count if a row lists them. The file of labels is read twice: its rows are first compared with
each other and with the folder's names, as hashes, so that neither is ever held in memory. Rows
without a file and images without a row are rejected, each with its place.

Without labels every image counts, by its suffix or else by its first bytes.
"""

import itertools
from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import (
    decode_name,
    encode_name,
    path_from_text,
    path_to_text,
    printable,
)
from feeder.source.folder_walk import LooseFiles, show_path, stat_file, walk_files
from feeder.source.item_bytes import FaultKind, sniff_file
from feeder.source.label_files.cells import parse_decimal
from feeder.source.label_files.columns import has_image_suffix
from feeder.source.label_files.label_file import open_label_file
from feeder.source.label_files.name_finder import NameFinder
from feeder.source.label_files.row import BadCellError, LabelRow
from feeder.source.label_files.row_table import NameKeys, Repeat, RowTable, hash_name
from feeder.source.listing import ItemListing
from feeder.source.names import stored_path
from feeder.source.source import SourceSpec

_NAME_CHARACTERS_MAX: Final = 4096


class LabelledFolder(LooseFiles):
    """The images of a folder that a file labels; its one container is the folder."""

    def __init__(self, spec: SourceSpec) -> None:
        super().__init__(spec)
        self._spec = spec

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add every file that a row lists; reject rows without a file and images without a row.

        Raises DatasetError for a folder or a file of labels that cannot be read, or that do not
        belong together; ConfigError where the columns of labels are not clear.
        """
        if self._spec.labels_file:
            _Listing(self._spec, self._root, listing).list_items()
            return
        if self._spec.label_kind != "none":
            raise ConfigError(
                f"{show_path(self._root)} has no labels: name their file with --labels, or give "
                "--label-kind none"
            )
        others = 0
        for name in walk_files(self._root, "", listing):
            if _is_image(self._root, name):
                _add(self._root, name, None, listing)
            else:
                others += 1
        if not listing.items:
            raise DatasetError(f"{show_path(self._root)} holds no images: put some there")
        _note_others(others, "not images by their names or content", listing)


class _Listing:
    """One listing of a folder by its file of labels."""

    def __init__(self, spec: SourceSpec, root: bytes, listing: ItemListing) -> None:
        self._spec = spec
        self._root = root
        self._listing = listing
        path = path_from_text(spec.labels_file)
        self._shown = printable(spec.labels_file)
        self._name = printable(path_to_text(path.name))
        self._rows = open_label_file(
            path,
            image=spec.image,
            label=spec.label,
            label_kind=spec.label_kind,
            uncertain=spec.uncertain,
        )
        listing.base = spec.label_base or 0
        listing.by_name |= bool(self._rows.classes)
        listing.field = " of ".join(filter(None, (self._rows.field, self._name)))
        self._parts: dict[int, list[list[object]]] = {}  # labels of files that have a row for each
        self._files = _hash_names(walk_files(root, "", listing))
        folder = path_to_text(path.parent)
        self._names = NameFinder(decode_name(root), folder, self._files)

    def list_items(self) -> None:
        for text in self._rows.classes:
            self._listing.declare_class(text)
        table = self._compare_rows()
        is_listed = bytearray(table.repeats)
        for row in self._rows.rows():
            name = self._names.find(row.file)
            if name is None:
                self._reject_row(row)
            else:
                self._list_row(row, name, table, is_listed)
        self._reject_unlabelled(table.names)
        if table.repeats:
            files = "1 file" if table.repeats == 1 else f"{table.repeats:,} files"
            self._listing.note(f"{self._name} lists {files} more than once")

    def _compare_rows(self) -> RowTable:
        table = RowTable()
        rows = 0
        missing: LabelRow | None = None
        for row in self._rows.rows():
            rows += 1
            if not row.fault:
                self._rows.observe(row)
            name = self._names.find(row.file)
            if name is not None:
                table.add(name, row.label, row.number)
            elif missing is None and row.file:
                missing = row
        table.finish()
        if not rows:
            raise DatasetError(f"{self._shown} has no rows")
        if missing is not None and not len(table.names):
            raise DatasetError(
                f"{show_path(self._root)} holds none of the files that {self._name} lists, such as "
                f"{printable(missing.file[:200])} ({self._place(missing.number)}): give the folder "
                "that these names are relative to"
            )
        return table

    def _list_row(self, row: LabelRow, name: str, table: RowTable, is_listed: bytearray) -> None:
        repeat = table.find_repeat(name)
        has_part = repeat is not None and repeat.other > 0 and self._spec.label_kind == "multi"
        if repeat is not None:
            if is_listed[repeat.place]:
                return
            is_listed[repeat.place] = 1
            if repeat.other and not has_part:
                other = self._place(repeat.other)
                reason = f"it has another label in {other} (--label-kind multi takes all)"
                self._reject(name, "two-labels", row, reason)
                return
        if row.fault:
            self._reject(name, "bad-row", row, row.fault)
            return
        try:
            label = self._rows.read_label(row)
        except BadCellError as error:
            self._reject(name, "bad-label", row, str(error))
            return
        if label is None and self._spec.label_kind != "none":
            self._reject(name, "no-label", row, "it has no label")
            return
        if repeat is not None and has_part:
            label = self._join_parts(repeat, row, label)
            if label is None:
                is_listed[repeat.place] = 0
                return
        _add(self._root, name, label, self._listing)

    def _join_parts(self, repeat: Repeat, row: LabelRow, label: object) -> list[object] | None:
        """Return all labels of a file that has a row for each, at its last row; None before."""
        if row.confidence and parse_decimal(row.confidence) != 1:
            raise ConfigError(
                f"{self._shown} has a row for each label of an image, and a confidence that is not "
                f"always 1 ({self._place(row.number)}: {printable(row.confidence[:20])}): take out "
                "the rows that are no labels, and this column"
            )
        parts = self._parts.pop(repeat.place, [])
        parts.append(label if isinstance(label, list) else [label])
        if len(parts) < repeat.rows:
            self._parts[repeat.place] = parts
            return None
        return list(dict.fromkeys(itertools.chain(*parts)))

    def _reject_row(self, row: LabelRow) -> None:
        if not row.file:
            name = f"{self._name}:{row.number}"
            self._reject(name, "bad-row", row, row.fault or "it names no file")
            return
        is_outside = self._names.is_outside(row.file)
        reason = "that is outside the source" if is_outside else "there is no such file"
        self._reject(_storable(row.file), "unreadable", row, reason)

    def _reject_unlabelled(self, labelled: NameKeys) -> None:
        """Reject images that no row lists, and count other files."""
        unlabelled = np.setdiff1d(self._files.keys, labelled.keys, assume_unique=True)
        if not len(unlabelled):
            return
        keys = NameKeys(array("Q", unlabelled.tobytes()))
        others = 0
        hidden = self._listing.hidden
        for name in walk_files(self._root, "", self._listing):
            path = stored_path(self._root, encode_name(name))
            if name not in keys or decode_name(path) == self._spec.labels_file:
                continue
            if _is_image(self._root, name):
                self._listing.reject(name, "no-label", f"{self._name} has no row for it")
            else:
                others += 1
        self._listing.hidden = hidden  # which the first walk counted
        _note_others(others, f"no images, and not in {self._name}", self._listing)

    def _reject(self, name: str, kind: FaultKind, row: LabelRow, reason: str) -> None:
        where = f"{self._name} {self._place(row.number)}"
        self._listing.reject(name, kind, f"listed in {where}, but {reason}")

    def _place(self, number: int) -> str:
        return f"{self._rows.unit} {number}"


def _add(root: bytes, name: str, label: object, listing: ItemListing) -> None:
    status = stat_file(stored_path(root, encode_name(name)))
    listing.add(name, label, size_bytes=status.size_bytes, stamp=status.stamp)


def _is_image(root: bytes, name: str) -> bool:
    """Return whether a file is meant to be an image: by its suffix, else by its first bytes."""
    return has_image_suffix(name) or sniff_file(stored_path(root, encode_name(name))) is not None


def _note_others(count: int, why: str, listing: ItemListing) -> None:
    if count:
        listing.note(f"left out {count:,} file{'s' * (count > 1)}: {why}")


def _hash_names(names: Iterable[str]) -> NameKeys:
    return NameKeys(array("Q", (hash_name(name) for name in names)))


def _storable(name: str) -> str:
    """Return a name that no file may have as one that can be written."""
    return name[:_NAME_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()
