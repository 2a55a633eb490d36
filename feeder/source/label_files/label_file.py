"""A file with a label for each image: CSV, TSV, JSON or JSONL, as rows of one form."""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from feeder.errors import ConfigError
from feeder.plan.labels import LabelChoice, Uncertain
from feeder.process.path_text import printable
from feeder.source.label_files.columns import (
    HOT_KINDS,
    MINUS,
    NO,
    SEPARATORS,
    YES,
    BadLabel,
    choose_columns,
    choose_split_column,
    describe_columns,
    find_confidence,
    is_missing_word,
    read_float,
    read_list,
)
from feeder.source.label_files.tables import KEY, VALUE, open_table
from feeder.source.location.storage import FilePath, encode_path, show_path


class LabelRow(NamedTuple):
    """What one row of a file of labels holds."""

    number: int
    """The line where it begins, or which entry of a JSON file it is; from 1."""
    file: str
    """As it is written; empty where there is none."""
    label: Sequence[Any]
    """Its cells or values, not yet interpreted."""
    fault: str
    """Why the row is unusable; empty where it is not."""
    confidence: str = ""
    """Of the label, where there is a column of it, as in tables with a row for each label."""
    split: str | None = None
    """What ``LabelFile.split`` says about it; None without such a column, and in faulty rows."""


class LabelFile:
    """A file of labels: which columns or fields of its table count, and what they mean."""

    def __init__(
        self,
        path: FilePath,
        *,
        image: str = "",
        label: str = "",
        label_kind: LabelChoice | None = None,
        uncertain: Uncertain | Literal[""] = "",
    ) -> None:
        """``image`` and ``label`` name columns or fields, the latter several with commas between.

        Raises DatasetError for a file that cannot be read, ConfigError where the columns to use are
        not clear.
        """
        where = show_path(encode_path(path))
        self._table = table = open_table(path, where, can_have_spaces=label_kind != "none")
        names = [name for name in table.names if name]  # pandas writes its index without one
        if VALUE in names and (image or label):
            raise ConfigError(f"{where} has no fields that --image or --label could name")
        image, label = image or KEY * (KEY in names), label or VALUE * (VALUE in names)
        columns = choose_columns(names, table.first, image, label, label_kind, where)
        self._image, self._labels, self._is_split = columns
        for name in (self._image, *self._labels):
            if table.names.count(name) > 1:
                raise ConfigError(f"{where} has two columns {printable(name)}: rename one")
        self.unit = table.unit
        """What ``LabelRow.number`` counts: "line" or "entry"."""
        self.split = choose_split_column(names, table.first, (self._image, *self._labels))
        """The column that may hold the rows' splits."""
        self.classes = self._labels if self._is_split and label_kind in HOT_KINDS else ()
        """Classes that the file names apart from its labels: those with a column each."""
        self.field = "" if VALUE in names else describe_columns(self._labels, table.column)
        """Where labels are, for the summary: "column label"; empty where that has no name."""
        self._confidence = find_confidence(names)
        self._where, self._kind, self._uncertain = where, label_kind, uncertain
        self._has_texts = table.column == "column"  # else values have types
        self._separators: set[str] = set()  # between labels in a cell
        self._has_zero = False  # in a column of a class

    def rows(self) -> Iterator[LabelRow]:
        """Yield the rows in order, from the first on each call; DatasetError for a damaged file."""
        for number, values, fault in self._table.rows():
            file = values.get(self._image)
            is_name = isinstance(file, (str, int)) and not isinstance(file, bool)
            name = str(file) if is_name else ""
            if fault:
                yield LabelRow(number, name, (), fault)
                continue
            label = [values.get(column) for column in self._labels]
            split = None if self.split is None else self.split.read(values.get(self.split.name))
            score = None if self._confidence is None else values.get(self._confidence)
            confidence = "" if score is None else str(score)  # of 0, too, a number in JSON
            yield LabelRow(number, name, label, "", confidence, split)

    def observe(self, row: LabelRow) -> None:
        """Take note of a row's label; of every row, before the first ``read_label``."""
        if self._is_split:
            self._has_zero = self._has_zero or any(str(cell).lower() in NO for cell in row.label)
        elif self._has_texts and self._kind in HOT_KINDS and not _is_list(cell := row.label[0]):
            self._separators.update(each for each in SEPARATORS if each in cell)

    def read_label(self, row: LabelRow) -> object:
        """Return the label of a row as it is there, a RawLabel; None where it has none.

        One of several labels may be empty: no class. Raises BadLabel, and ConfigError where only
        --uncertain can decide what -1 or nothing among 0 and 1 is.
        """
        if not row.label:  # none is wanted
            return None
        if self._is_split:
            cells = [str(cell) for cell in row.label]
            if self._kind == "float":
                return [read_float(cell) for cell in cells]
            return self._read_classes(cells)
        cell = row.label[0]
        if not self._has_texts:
            return cell
        if self._kind != "name" and _is_list(cell):
            return read_list(cell)
        if self._kind not in (*HOT_KINDS, "float"):
            return cell or None
        seen = cell if self._kind == "float" else self._separators
        separator = next((each for each in SEPARATORS if each in seen), None)
        parts = [text for text in map(str.strip, cell.split(separator)) if text]
        return [read_float(text) for text in parts] or None if self._kind == "float" else parts

    def _read_classes(self, cells: Sequence[str]) -> str | list[str]:
        """Return the classes that have a 1 in their columns; -1 is a 0 where no cell is one."""
        chosen: list[str] = []
        for name, cell in zip(self._labels, cells, strict=True):
            text = cell.lower()
            if text in YES:
                chosen.append(name)
            elif text in NO or (text in MINUS and not self._has_zero):
                continue
            elif text not in MINUS and not is_missing_word(text):
                raise BadLabel(f"its label {cell[:80]!r} in column {name[:80]!r} is not 0 or 1")
            elif not self._uncertain:
                raise ConfigError(
                    f"column {printable(name)} of {self._where} has {text or 'an empty cell'} "
                    "beside 0 and 1: give --uncertain no, yes or leave-out"
                )
            elif self._uncertain == "leave-out":
                raise BadLabel(f"its label in column {name[:80]!r} is {text or 'empty'}")
            elif self._uncertain == "yes":
                chosen.append(name)
        if self._kind == "one-hot" and len(chosen) != 1:
            raise BadLabel(f"{len(chosen)} of its columns have a 1, not one")
        return chosen[0] if self._kind == "one-hot" else chosen


def _is_list(cell: str) -> bool:
    return cell.startswith("[") and cell.endswith("]")
