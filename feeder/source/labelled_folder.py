"""A folder of images with a file of labels, in CSV, JSON or JSONL; or without labels at all.

    SRC/…/file     listed by name, relative to SRC or to the folder of the file of labels

Files count if a row lists them. The file of labels is read twice: its rows are first compared with
each other and with the folder's names, as hashes, so that neither is ever held in memory. Rows
without a file and images without a row are rejected, each with its place.

Rows of other splits than the chosen one are left out, and so are their files. A row's split is in a
column of the file of labels, or else is the folder that its file is in, where these are splits.

Without labels every image counts, by its suffix or else by its first bytes.
"""

import itertools
from array import array
from collections import Counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import decode_name, path_from_text, path_to_text, printable
from feeder.source.item_bytes import FaultKind, sniff_file
from feeder.source.kinds import Kind
from feeder.source.label_files.columns import BadCellError, has_image_suffix, parse_decimal
from feeder.source.label_files.label_file import LabelFile, LabelRow
from feeder.source.label_files.names import NameFinder, NameKeys, RowTable, hash_name
from feeder.source.listing import ItemListing
from feeder.source.location.split_choice import SplitChoice
from feeder.source.location.splits import find_splits
from feeder.source.location.storage import show_path
from feeder.source.source import LooseFiles, SourceSpec

_NAME_CHARACTERS_MAX: Final = 4096


class LabelledFolder(LooseFiles):
    """The images of a folder that a file labels; its one container is the folder."""

    def __init__(self, spec: SourceSpec) -> None:
        """Raise ConfigError for options of labels where there are none."""
        super().__init__(spec)
        if not spec.labels_file and (spec.image or spec.label):
            raise ConfigError(
                f"{'--image' if spec.image else '--label'} has no meaning for a folder without "
                "labels: give the file that has them with --labels"
            )

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add every file that a row lists; reject rows without a file and images without a row.

        Raises DatasetError for a folder or a file of labels that cannot be read, or that do not
        belong together; ConfigError where the columns of labels are not clear.
        """
        if self._spec.labels_file:
            _Listing(self, self._spec, listing).list_items()
            return
        shown = show_path(self._root)
        if self._spec.label_kind != "none":
            raise ConfigError(
                f"{shown} has no labels: name their file with --labels, or give --label-kind none"
            )
        others = 0
        for name in self.walk("", listing):
            if self.is_image(name):
                self.add(name, None, listing)
            else:
                others += 1
        if not listing.about.items:
            raise DatasetError(f"{shown} holds no images: put some there")
        _note_others(others, "not images by their names or content", listing)

    def is_image(self, name: str) -> bool:
        """Return whether a file is meant to be an image: by its suffix, else by its first bytes."""
        return has_image_suffix(name) or sniff_file(self.path(name)) is not None


class _Listing:
    """One listing of a folder by its file of labels."""

    def __init__(self, folder: LabelledFolder, spec: SourceSpec, listing: ItemListing) -> None:
        self._folder, self._spec, self._listing = folder, spec, listing
        path = path_from_text(spec.labels_file)
        self._shown = printable(spec.labels_file)
        self._name = printable(path_to_text(path.name))
        self._file = LabelFile(
            path,
            image=spec.image,
            label=spec.label,
            label_kind=spec.label_kind,
            uncertain=spec.uncertain,
        )
        listing.about.base = spec.label_base or 0
        listing.about.by_name |= bool(self._file.classes)
        listing.about.field = " of ".join(filter(None, (self._file.field, self._name)))
        keys, folders = array("Q"), set()
        for name in folder.walk("", listing):
            keys.append(hash_name(name))
            folders.add(name.partition("/")[0] if "/" in name else "")
        self._files = NameKeys(keys)
        root = decode_name(folder.path(""))
        self._names = NameFinder(root, path_to_text(path.parent), self._files)
        self._split_folders = frozenset(find_splits(sorted(folders - {""})))
        self._split: str | None = None  # to be taken; None: all rows
        self._is_by_column = False  # whether a row's split is not the folder of its file
        self._parts: dict[int, list[list[object]]] = {}  # labels of files that have a row for each

    def list_items(self) -> None:
        for text in self._file.classes:
            self._listing.declare_class(text)
        if self._file.split is not None or self._split_folders or self._spec.split:
            self._choose_split()
        table, left_out = self._compare_rows()
        is_listed = bytearray(table.repeats)
        for row in self._file.rows():
            name = self._names.find(row.file)
            if self._is_left_out(row, name):
                continue
            if name is not None:
                self._list_row(row, name, table, is_listed)
            elif not row.file:
                place = f"{self._name}:{row.number}"
                self._reject(place, "bad-row", row, row.fault or "it names no file")
            else:
                is_outside = self._names.is_outside(row.file)
                reason = "that is outside the source" if is_outside else "there is no such file"
                # No file may have such a name, but it is written.
                storable = row.file[:_NAME_CHARACTERS_MAX].encode("utf-8", "backslashreplace")
                self._reject(storable.decode(), "unreadable", row, reason)
        self._reject_unlabelled(np.union1d(table.names.keys, left_out.keys))
        if table.repeats:
            files = "1 file" if table.repeats == 1 else f"{table.repeats:,} files"
            self._listing.note(f"{self._name} lists {files} more than once")

    def _choose_split(self) -> None:
        """Count the rows of each split, and choose the one to take."""
        choice = SplitChoice(self._spec.split, self._spec.all_splits, self._shown)
        in_column: Counter[str] = Counter()
        in_folder: Counter[str] = Counter()
        for row in self._file.rows():
            if not row.fault:
                in_column[row.split] += 1
            if self._split_folders:
                folder = self._find_folder(row.file, self._names.find(row.file))
                if folder is not None:
                    in_folder[folder] += 1
        column = self._file.split
        if column is not None and column.holds_splits([split for split in in_column if split]):
            counts, where = in_column, f"{self._name}, by its column {printable(column.name)},"
            self._is_by_column = True
        elif any(in_folder):
            counts, where = in_folder, f"{self._name}, by the folders of its files,"
        elif self._spec.split:
            raise choice.no_splits("neither a column of it nor folders are called so")
        else:
            return
        self._split, note = choice.choose_rows(counts, where)
        self._listing.note(note)

    def _is_left_out(self, row: LabelRow, name: str | None) -> bool:
        """Return whether a row, whose file is ``name``, is of another split."""
        if self._split is None:
            return False
        if self._is_by_column:
            return not row.fault and row.split != self._split
        return self._find_folder(row.file, name) not in (None, self._split)

    def _find_folder(self, file: str, name: str | None) -> str | None:
        """Return the folder of a split that a row's file is in, "" for any other.

        None where it is unknown, because there is no such file.
        """
        folder = (name or file.removeprefix("./")).partition("/")[0]
        if folder in self._split_folders:
            return folder
        return None if name is None else ""

    def _compare_rows(self) -> tuple[RowTable, NameKeys]:
        """Return the files of the rows to take, and of those that are left out."""
        table = RowTable()
        rows = 0
        missing: LabelRow | None = None
        left_out = array("Q")
        for row in self._file.rows():
            rows += 1
            name = self._names.find(row.file)
            if self._is_left_out(row, name):
                if name is not None:
                    left_out.append(hash_name(name))
                continue
            if not row.fault:
                self._file.observe(row)
            if name is not None:
                table.add(name, row.label, row.number)
            elif missing is None and row.file:
                missing = row
        table.finish()
        if not rows:
            raise DatasetError(f"{self._shown} has no rows")
        if missing is not None and not len(table.names):
            raise DatasetError(
                f"{show_path(self._folder.path(''))} holds none of the files that {self._name} "
                f"lists, such as {printable(missing.file[:200])} ({self._place(missing.number)}): "
                "give the folder that these names are relative to"
            )
        return table, NameKeys(left_out)

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
            label = self._file.read_label(row)
        except BadCellError as error:
            self._reject(name, "bad-label", row, str(error))
            return
        if label is None and self._spec.label_kind != "none":
            self._reject(name, "no-label", row, "it has no label")
            return
        if repeat is not None and has_part:  # a row for each label: the last one lists the file
            self._check_confidence(row)
            parts = self._parts.setdefault(repeat.place, [])
            parts.append(label if isinstance(label, list) else [label])
            if len(parts) < repeat.rows:
                is_listed[repeat.place] = 0
                return
            del self._parts[repeat.place]
            label = list(dict.fromkeys(itertools.chain(*parts)))
        self._folder.add(name, label, self._listing)

    def _check_confidence(self, row: LabelRow) -> None:
        if row.confidence and parse_decimal(row.confidence) != 1:
            raise ConfigError(
                f"{self._shown} has a row for each label of an image, and a confidence that is not "
                f"always 1 ({self._place(row.number)}: {printable(row.confidence[:20])}): take out "
                "the rows that are no labels, and this column"
            )

    def _reject_unlabelled(self, labelled: NDArray[np.uint64]) -> None:
        """Reject images that no row lists, and count other files."""
        unlabelled = np.setdiff1d(self._files.keys, labelled, assume_unique=True)
        if not len(unlabelled):
            return
        keys = NameKeys(unlabelled)
        is_by_folder = self._split is not None and not self._is_by_column
        others = 0
        hidden = self._listing.about.hidden
        for name in self._folder.walk("", self._listing):
            path = decode_name(self._folder.path(name))
            if name not in keys or path == self._spec.labels_file:
                continue
            if is_by_folder and self._find_folder(name, name) != self._split:
                continue  # it is in the folder of a split that is left out
            if self._folder.is_image(name):
                self._listing.reject(name, "no-label", f"{self._name} has no row for it")
            else:
                others += 1
        self._listing.about.hidden = hidden  # which the first walk counted
        _note_others(others, f"no images, and not in {self._name}", self._listing)

    def _reject(self, name: str, kind: FaultKind, row: LabelRow, reason: str) -> None:
        where = f"{self._name} {self._place(row.number)}"
        self._listing.reject(name, kind, f"listed in {where}, but {reason}")

    def _place(self, number: int) -> str:
        return f"{self._file.unit} {number}"


def _note_others(count: int, why: str, listing: ItemListing) -> None:
    if count:
        listing.note(f"left out {count:,} file{'s' * (count > 1)}: {why}")


KINDS: Final = {
    "labelled-folder": Kind(
        open=lambda spec, _: LabelledFolder(spec),
        labels="in a file",
        takes="image label labels label-base float",
    )
}
