"""A folder of images with a file of labels, in CSV, JSON or JSONL; or without labels at all.

    SRC/…/file     listed by name, relative to SRC or to the folder of the file of labels

Files count if a row lists them. The file of labels is read twice: first its rows are compared with
the folder's names, as hashes, so that neither is ever held in memory; then its labels are read. The
rows of a file that has several are held until the last of them. Rows without a file and images
without a row are rejected, each with its place.

Rows of other splits than the chosen one are left out, and so are their files. A row's split is in a
column of the file of labels, or else is the folder that its file is in, where these are splits.

Without labels every image counts, by its suffix or else by its first bytes.
"""

import os
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import decode_name, printable
from feeder.source.item_bytes import FaultKind, SourceError, sniff_file
from feeder.source.kinds import Kind
from feeder.source.label_files.columns import BadLabel, has_image_suffix, parse_decimal
from feeder.source.label_files.label_file import LabelFile, LabelRow
from feeder.source.label_files.names import (
    NameFinder,
    NameKeys,
    hash_name,
)
from feeder.source.listing import ItemListing
from feeder.source.location.split_choice import SplitChoice
from feeder.source.location.splits import find_splits
from feeder.source.location.storage import show_path
from feeder.source.source import LooseFiles, SourceSpec

_NAME_CHARACTERS_MAX: Final = 4096
_NO_FILE: Final = 0
"""The hash that stands for a row's file where there is none."""


class LabelledFolder(LooseFiles):
    """The images of a folder that a file labels; its one container is the folder."""

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
        for name, state in self.walk("", listing):
            if self.is_image(name):
                self.add(name, None, listing, state)
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
        self._shown = printable(spec.labels_file)
        labels_folder, name = os.path.split(spec.labels_file)
        self._name = printable(name)
        self._file = LabelFile(
            spec.labels_file,
            image=spec.image,
            label=spec.label,
            label_kind=spec.label_kind,
            uncertain=spec.uncertain,
        )
        listing.about.base = spec.label_base or 0
        listing.about.by_name |= bool(self._file.classes)
        listing.about.field = " of ".join(filter(None, (self._file.field, self._name)))
        keys, states, folders = array("Q"), array("Q"), set()
        for name, state in folder.walk("", listing):
            keys.append(hash_name(name))
            states.extend(state or ())  # 16 bytes for an object: looking at each would be a request
            folders.add(name.partition("/")[0] if "/" in name else "")
        self._files = NameKeys(keys, states)
        self._names = NameFinder(decode_name(folder.path("")), labels_folder, self._files)
        self._split_folders = frozenset(find_splits(sorted(folders - {""})))
        self._folder_split: str | None = None  # the only one to be taken

    def list_items(self) -> None:
        for text in self._file.classes:
            self._listing.declare_class(text)
        is_taken, repeated, labelled = self._compare_rows()
        pending: dict[str, list[LabelRow]] = {}  # rows of repeated files
        for row, taken in zip(self._file.rows(), is_taken, strict=False):
            if not taken:
                continue
            name = self._names.find(row.file)
            if name is None:
                self._reject_row(row)
                continue
            count = repeated.get(hash_name(name), 1) if repeated else 1
            rows = pending.setdefault(name, [])
            rows.append(row)
            if len(rows) == count:
                self._list_file(name, pending.pop(name))
        self._reject_unlabelled(labelled)
        if repeated:
            files = "1 file" if len(repeated) == 1 else f"{len(repeated):,} files"
            self._listing.note(f"{self._name} lists {files} more than once")

    def _compare_rows(self) -> tuple[NDArray[np.bool_], dict[int, int], NDArray[np.uint64]]:
        """Read the file of labels for the first time, before any label is read.

        Returns which rows to take, (rows,), the number of these rows of each file that has several,
        by its hash, and all files that rows list, also those that are not taken.
        """
        files, split_of_row = array("Q"), array("I")
        splits: dict[tuple[str | None, str | None], int] = {}
        for row in self._file.rows():
            name = self._names.find(row.file)
            files.append(_NO_FILE if name is None else hash_name(name))
            split = row.split, self._find_folder(row.file, name)
            split_of_row.append(splits.setdefault(split, len(splits)))
            if not row.fault:
                self._file.observe(row)
        if not files:
            raise DatasetError(f"{self._shown} has no rows")
        is_taken = self._choose_split(splits, np.frombuffer(split_of_row, np.uint32))
        keys = np.frombuffer(files, np.uint64)
        taken, counts = np.unique(keys[is_taken & (keys != _NO_FILE)], return_counts=True)
        if not len(taken):
            self._refuse_other_folder(is_taken)
        repeats = zip(taken[counts > 1].tolist(), counts[counts > 1].tolist(), strict=True)
        return is_taken, dict(repeats), np.unique(keys)

    def _find_folder(self, file: str, name: str | None) -> str | None:
        """Return the folder of a split that a row's file is in, "" for any other.

        None where it is unknown, because there is no such file.
        """
        folder = (name or file.removeprefix("./")).partition("/")[0]
        if folder in self._split_folders:
            return folder
        return None if name is None else ""

    def _choose_split(
        self, splits: Mapping[tuple[str | None, str | None], int], of_rows: NDArray[np.uint32]
    ) -> NDArray[np.bool_]:
        """Return which rows are of the split to pack, (rows,).

        ``splits`` has the number of each pair of what a row's column and its folder say, None where
        they say nothing: such a row is of every split.
        """
        rows_of_pair = np.bincount(of_rows).tolist()
        by_column: Counter[str] = Counter()
        by_folder: Counter[str] = Counter()
        for (in_column, in_folder), count in zip(splits, rows_of_pair, strict=True):
            if in_column is not None:
                by_column[in_column] += count
            if in_folder is not None:
                by_folder[in_folder] += count
        choice = SplitChoice(self._spec.split, self._spec.all_splits, self._shown)
        column = self._file.split
        if column is not None and column.holds_splits([*filter(None, by_column)]):
            side, counts, where = 0, by_column, f"by its column {printable(column.name)}"
        elif any(by_folder):
            side, counts, where = 1, by_folder, "by the folders of its files"
        elif self._spec.split:
            raise choice.no_splits("neither a column of it nor folders are called so")
        else:
            return np.ones(len(of_rows), np.bool_)
        split, note = choice.choose_rows(counts, f"{self._name}, {where},")
        self._listing.note(note)
        if split is None:
            return np.ones(len(of_rows), np.bool_)
        self._folder_split = split if side else None
        taken = [number for pair, number in splits.items() if pair[side] in (None, split)]
        return np.isin(of_rows, taken)

    def _refuse_other_folder(self, is_taken: NDArray[np.bool_]) -> None:
        """Raise DatasetError if rows name files: the folder has none of them."""
        for row, taken in zip(self._file.rows(), is_taken, strict=False):
            if taken and row.file:
                raise DatasetError(
                    f"{show_path(self._folder.path(''))} holds none of the files that {self._name} "
                    f"lists, such as {printable(row.file[:200])} ({self._file.unit} {row.number}): "
                    "give the folder that these names are relative to"
                )

    def _list_file(self, name: str, rows: list[LabelRow]) -> None:
        """List a file with the label of its rows, or reject it."""
        row = rows[0]
        other = next((each for each in rows if repr(each.label) != repr(row.label)), None)
        try:
            if other is None:
                self._add(name, self._read_label(row))
            elif self._spec.label_kind != "multi":
                reason = f"it has another label in {self._file.unit} {other.number}"
                raise SourceError("two-labels", f"{reason} (--label-kind multi takes all)")
            else:
                labels: dict[object, None] = {}
                for row in rows:  # one that is at fault is in the message
                    label = self._read_label(row)
                    self._check_confidence(row)
                    labels.update(dict.fromkeys(label if isinstance(label, list) else [label]))
                self._add(name, [*labels])
        except SourceError as error:
            self._reject(name, error.kind, row, error.reason)

    def _add(self, name: str, label: object) -> None:
        self._folder.add(name, label, self._listing, self._files.state_of(name))

    def _reject_row(self, row: LabelRow) -> None:
        """Reject a row without a file."""
        if not row.file:
            place = f"{self._name}:{row.number}"
            self._reject(place, "bad-row", row, row.fault or "it names no file")
            return
        # No file may be called so, but it is written.
        name = row.file[:_NAME_CHARACTERS_MAX].encode("utf-8", "backslashreplace").decode()
        self._reject(name, "unreadable", row, "there is no such file in the source")

    def _reject(self, name: str, kind: FaultKind, row: LabelRow, reason: str) -> None:
        where = f"{self._name} {self._file.unit} {row.number}"
        self._listing.reject(name, kind, f"listed in {where}, but {reason}")

    def _check_confidence(self, row: LabelRow) -> None:
        if row.confidence and parse_decimal(row.confidence) != 1:
            raise ConfigError(
                f"{self._shown} has a row for each label of an image, and a confidence that is not "
                f"always 1 ({self._file.unit} {row.number}: {printable(row.confidence[:20])}): "
                "take out the rows that are no labels, and this column"
            )

    def _read_label(self, row: LabelRow) -> object:
        """Return a row's label; SourceError (bad-row, bad-label, no-label)."""
        if row.fault:
            raise SourceError("bad-row", row.fault)
        try:
            label = self._file.read_label(row)
        except BadLabel as error:
            raise SourceError("bad-label", str(error)) from None
        if label is None and self._spec.label_kind != "none":
            raise SourceError("no-label", "it has no label")
        return label

    def _reject_unlabelled(self, labelled: NDArray[np.uint64]) -> None:
        """Reject images that no row lists, and count other files."""
        unlabelled = np.setdiff1d(self._files.keys, labelled, assume_unique=True)
        if not len(unlabelled):
            return
        keys = NameKeys(unlabelled)
        others = 0
        hidden = self._listing.about.hidden
        for name, _ in self._folder.walk("", self._listing):
            path = decode_name(self._folder.path(name))
            if name not in keys or path == self._spec.labels_file:
                continue
            if self._folder_split not in (None, self._find_folder(name, name)):
                continue  # it is in the folder of a split that is left out
            if self._folder.is_image(name):
                self._listing.reject(name, "no-label", f"{self._name} has no row for it")
            else:
                others += 1
        self._listing.about.hidden = hidden  # which the first walk counted
        _note_others(others, f"no images, and not in {self._name}", self._listing)


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
