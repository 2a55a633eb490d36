"""Labels in JSON files and in JSONL files, an object a line.

    JSON    {"x.jpg": 3, …}, {"x.jpg": {"label": 3, …}, …}, [["x.jpg", 3], …] or a list of objects,
            also as the value of "labels"
    JSONL   an object a line, as metadata.jsonl of Hugging Face's image folders

JSONL files are streamed, however long they are. Which fields of objects count is decided by the
first one.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.source.label_files.cells import HOT_KINDS, CellMeaning
from feeder.source.label_files.columns import choose_columns, describe_columns
from feeder.source.label_files.row import FieldChoice, LabelRow
from feeder.source.label_files.split_column import SplitColumn, choose_split_column
from feeder.source.label_files.text_lines import read_lines, read_text

JSON_BYTES_MAX: Final = 64 << 20  # Python's objects take about ten times as much
_KEY: Final = "(key)"
"""The field that stands for the key of an object within an object."""


class _JsonObjects:
    """Rows that are JSON objects: which of their fields count, and their values."""

    def __init__(self, path: Path, first: Mapping[str, Any], choice: FieldChoice) -> None:
        where = printable(path_to_text(path))
        self._columns = choose_columns(
            list(first),
            list(first.values()),
            choice,
            where=where,
        )
        is_class_each = self._columns.is_split and choice.label_kind in HOT_KINDS
        self.classes = self._columns.labels if is_class_each else ()
        self.split = choose_split_column(first, (self._columns.image, *self._columns.labels))
        self.field = describe_columns(self._columns).replace("column", "field", 1)
        self._meaning = CellMeaning(
            choice.label_kind,
            self._columns.labels,
            is_split=self._columns.is_split,
            uncertain=choice.uncertain,
            where=where,
        )

    def row(self, number: int, value: object) -> LabelRow:
        """Return the row of one object."""
        if not isinstance(value, Mapping):
            return LabelRow(number, "", (), "it is no JSON object")
        file = value.get(self._columns.image)
        is_name = isinstance(file, (str, int)) and not isinstance(file, bool)
        values = [value.get(name) for name in self._columns.labels]
        split = "" if self.split is None else self.split.read(value.get(self.split.name))
        return LabelRow(number, str(file) if is_name else "", values, "", split=split)

    def observe(self, row: LabelRow) -> None:
        """Take note of a row's label; of every row, before ``read_label``."""
        if self._columns.is_split and not row.fault:
            self._meaning.observe([str(value) for value in row.label])

    def read_label(self, row: LabelRow) -> object:
        """Return the label of a row, None where it has none; raises BadCellError."""
        if not self._columns.is_split:
            return row.label[0] if row.label else None
        return self._meaning.read([str(value) for value in row.label])


class JsonLines:
    """An object a line."""

    unit: Final = "line"

    def __init__(self, path: Path, choice: FieldChoice) -> None:
        self._path = path
        for number, line in _numbered(path):
            first = load_line(line)
            if not isinstance(first, Mapping):
                raise DatasetError(
                    f"line {number} of {printable(path_to_text(path))} is no JSON object: the file "
                    "has to hold one a line"
                )
            break
        else:
            raise DatasetError(f"{printable(path_to_text(path))} has no rows")
        self._objects = _JsonObjects(path, first, choice)
        self.classes = self._objects.classes
        self.split = self._objects.split
        self.field = self._objects.field

    def rows(self) -> Iterator[LabelRow]:
        """Yield the rows in order, from the first on each call."""
        for number, line in _numbered(self._path):
            yield self._objects.row(number, load_line(line))

    def observe(self, row: LabelRow) -> None:
        """Take note of a row's label; of every row, before ``read_label``."""
        self._objects.observe(row)

    def read_label(self, row: LabelRow) -> object:
        """Return the label of a row, None where it has none; raises BadCellError."""
        return self._objects.read_label(row)


class JsonFile:
    """One JSON value, held in memory."""

    unit: Final = "entry"

    def __init__(self, path: Path, choice: FieldChoice) -> None:
        shown = printable(path_to_text(path))
        entries = _find_entries(_load_file(path, shown), shown)
        if not entries:
            raise DatasetError(f"{shown} has no entries")
        self._keys, self._values = _split_keys(entries)
        self._objects: _JsonObjects | None = None
        self.classes: tuple[str, ...] = ()
        self.split: SplitColumn | None = None
        self.field = ""
        first = self._values[0]
        if isinstance(first, Mapping):
            if self._keys is not None:
                first = {_KEY: self._keys[0], **first}
                choice = choice._replace(image=choice.image or _KEY)
            self._objects = _JsonObjects(path, first, choice)
            self.classes = self._objects.classes
            self.split = self._objects.split
            self.field = self._objects.field
        elif self._keys is None:
            raise DatasetError(f"entry 1 of {shown} is neither an object nor [file, label]")
        elif choice.image or choice.label:
            raise ConfigError(f"{shown} has no fields that --image or --label could name")

    def rows(self) -> Iterator[LabelRow]:
        """Yield the entries in order, from the first on each call."""
        for number, value in enumerate(self._values, 1):
            key = "" if self._keys is None else self._keys[number - 1]
            if self._objects is None:
                yield LabelRow(number, key, [value], "")
            elif self._keys is None or not isinstance(value, Mapping):
                row = self._objects.row(number, value)
                yield row._replace(file=row.file or key)
            else:
                yield self._objects.row(number, {_KEY: key, **value})

    def observe(self, row: LabelRow) -> None:
        """Take note of a row's label; of every row, before ``read_label``."""
        if self._objects is not None:
            self._objects.observe(row)

    def read_label(self, row: LabelRow) -> object:
        """Return the label of a row, None where it has none; raises BadCellError."""
        if self._objects is not None:
            return self._objects.read_label(row)
        return row.label[0]


def _numbered(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield number, line


def load_line(line: str) -> object:
    """Return the value of a line of JSON; None for what is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _load_file(path: Path, shown: str) -> object:
    text = read_text(path, JSON_BYTES_MAX)
    if text is None:
        raise DatasetError(
            f"{shown} has over {JSON_BYTES_MAX >> 20} MiB: write it as JSONL, an object a line, "
            "which is not held in memory"
        )
    try:
        return json.loads(text, object_pairs_hook=_keep_repeats)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{shown} is no JSON: {error}") from None


def _keep_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any] | list[list[Any]]:
    """Return an object; as pairs if a key repeats, for a file that is listed twice."""
    value = dict(pairs)
    return value if len(value) == len(pairs) else [list(pair) for pair in pairs]


def _find_entries(value: object, shown: str) -> dict[str, Any] | list[Any]:
    if isinstance(value, dict) and {"images", "annotations"} <= value.keys():
        raise DatasetError(
            f"{shown} seems to have COCO's annotations, which are of objects and not of images: "
            "write a CSV file with a label for each image"
        )
    if isinstance(value, dict) and isinstance(value.get("labels"), (dict, list)):
        value = value["labels"]  # as in StyleGAN's dataset.json
    if not isinstance(value, (dict, list)):
        raise DatasetError(f"{shown} holds neither an object nor a list")
    return value


def _split_keys(entries: dict[str, Any] | list[Any]) -> tuple[list[str] | None, list[Any]]:
    """Return images' names, None if they are in the objects, and labels or objects."""
    if isinstance(entries, dict):
        return list(entries), list(entries.values())
    if not isinstance(entries[0], list):
        return None, entries
    pairs = [each if _is_pair(each) else ("", None) for each in entries]
    return [name for name, _ in pairs], [label for _, label in pairs]


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
