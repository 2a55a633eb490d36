"""Labels in CSV files: how columns are separated, what they are called, and their cells.

    CSV     columns separated by , ; or tab, or "name label" with spaces; a line of columns' names,
            or, without one, two columns, one with names of images

They are streamed, however long they are.
"""

import csv
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.source.label_files.cells import HOT_KINDS, CellMeaning
from feeder.source.label_files.columns import (
    choose_columns,
    describe_columns,
    find_confidence,
    looks_like_image,
)
from feeder.source.label_files.row import FieldChoice, LabelRow
from feeder.source.label_files.split_column import choose_split_column
from feeder.source.label_files.text_lines import read_lines

_DELIMITERS: Final = (",", ";", "\t")
_SPACES: Final = " "
"""The last word is the label: ``my image.jpg 3``."""
_SAMPLE_LINES: Final = 20


class CsvLabels:
    """The rows of a CSV file.

    Without a line of names, which is one that holds an image's name, columns are called "column 1",
    "column 2", ….
    """

    unit: Final = "line"

    def __init__(self, path: Path, choice: FieldChoice) -> None:
        self._path = path
        self._shown = printable(path_to_text(path))
        layout = _recognise(path, can_have_spaces=choice.label_kind != "none")
        if layout is None:
            raise DatasetError(f"{self._shown} has no rows")
        self._delimiter, self._has_header, names, first = layout
        self._width = len(names)
        columns = choose_columns(
            [name for name in names if name],  # one without a name is an index that pandas wrote
            [cell for name, cell in zip(names, first, strict=False) if name],
            choice,
            where=self._shown,
        )
        for name in (columns.image, *columns.labels):
            if names.count(name) > 1:
                raise ConfigError(f"{self._shown} has two columns {printable(name)}: rename one")
        self._image = names.index(columns.image)
        self._labels = [names.index(name) for name in columns.labels]
        self._confidence = find_confidence(names)
        by_name = {name: cell for name, cell in itertools.zip_longest(names, first) if name}
        self.split = choose_split_column(by_name, (columns.image, *columns.labels))
        self._split = None if self.split is None else names.index(self.split.name)
        self._meaning = CellMeaning(
            choice.label_kind,
            columns.labels,
            is_split=columns.is_split,
            uncertain=choice.uncertain,
            where=self._shown,
        )
        self.classes = columns.labels if columns.is_split and choice.label_kind in HOT_KINDS else ()
        self.field = describe_columns(columns)

    def rows(self) -> Iterator[LabelRow]:
        """Yield the rows, from the first on each call; DatasetError if it is not CSV."""
        rows = _parse(read_lines(self._path), self._delimiter, self._shown)
        for line, cells in itertools.islice(rows, int(self._has_header), None):
            if len(cells) < self._width or any(cells[self._width :]):
                file = cells[self._image] if self._image < len(cells) else ""
                fault = f"it has {len(cells)} cells, the first line {self._width}"
                yield LabelRow(line, file, (), fault)
            else:
                label = [cells[column] for column in self._labels]
                split = ""
                if self.split is not None and self._split is not None:
                    split = self.split.read(cells[self._split])
                confidence = cells[self._confidence] if self._confidence is not None else ""
                yield LabelRow(line, cells[self._image], label, "", confidence, split)

    def observe(self, row: LabelRow) -> None:
        """Take note of a row's label; of every row, before ``read_label``."""
        if not row.fault:
            self._meaning.observe(row.label)

    def read_label(self, row: LabelRow) -> object:
        """Return the label of a row, None where its cell is empty; raises BadCellError."""
        return self._meaning.read(row.label)


class _Row(NamedTuple):
    line: int
    cells: list[str]


class _Layout(NamedTuple):
    delimiter: str
    has_header: bool
    names: list[str]
    """Of the columns, in order."""
    first: list[str]
    """The cells of the first row after the names; empty where there is none."""


def _parse(lines: Iterable[str], delimiter: str, shown: str) -> Iterator[_Row]:
    """Yield the rows that are not empty, with the number of their first line."""
    if delimiter == _SPACES:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _Row(number, line.rsplit(maxsplit=1))
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                yield _Row(number, stripped)
            number = reader.line_num + 1
    except csv.Error as error:
        raise DatasetError(
            f"line {number} of {shown} is no CSV ({printable(str(error))}): mend its quotes, or "
            "write it again with a CSV library"
        ) from None


def _recognise(path: Path, *, can_have_spaces: bool) -> _Layout | None:
    sample = list(itertools.islice(read_lines(path), _SAMPLE_LINES))
    delimiter = "\t" if path.suffix.lower() == ".tsv" else _find_delimiter(sample, can_have_spaces)
    shown = printable(path_to_text(path))
    # The sample may end within quotes, so parse the whole file, and only as far as needed.
    rows = [row.cells for row in itertools.islice(_parse(read_lines(path), delimiter, shown), 2)]
    if not rows:
        return None
    if any(looks_like_image(cell) for cell in rows[0]):
        names = [f"column {number}" for number in range(1, len(rows[0]) + 1)]
        return _Layout(delimiter, False, names, rows[0])
    return _Layout(delimiter, True, rows[0], rows[1] if len(rows) > 1 else [])


def _find_delimiter(sample: list[str], can_have_spaces: bool) -> str:
    """Return the delimiter that makes the most columns, the same number in most lines."""
    best, best_score = ",", (0, 1)
    for delimiter in _DELIMITERS:
        try:
            rows = [row for row in csv.reader(sample, delimiter=delimiter) if row]
        except csv.Error:
            continue
        if not rows:
            continue
        width, lines = Counter(len(row) for row in rows).most_common(1)[0]
        is_regular = lines == len(rows)
        if len(rows[0]) > 1 and (score := (is_regular, width)) > best_score:
            best, best_score = delimiter, score
    lines_with_words = [line.split() for line in sample if line.strip()]
    is_spaced = bool(lines_with_words) and all(len(words) > 1 for words in lines_with_words)
    if best_score == (0, 1) and can_have_spaces and is_spaced:
        return _SPACES
    return best
