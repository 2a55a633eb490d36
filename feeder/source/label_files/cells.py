"""What the cells of a CSV file mean: numbers, names or several of either.

A cell is only text. What it stands for is decided for the whole column, once all cells were seen: a
column of whole numbers holds class numbers, but where one cell is no number, all are names. Numbers
with leading zeros are names: 007 and 7 may be two classes. Whole numbers that are written as
decimals (1.0, as pandas writes class numbers where one is missing) may be classes or values: only
--label-kind decides that.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from feeder.errors import ConfigError
from feeder.plan.labels import LabelKind
from feeder.process.path_text import printable
from feeder.source.label_files.row import BadCellError

_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,17}", re.ASCII)
_WHOLE_DECIMAL: Final = re.compile(r"(0|-?[1-9][0-9]{0,17})(?:\.0*)?", re.ASCII)
_NUMBER: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_SEPARATORS: Final = (";", "|", ",")
_ANY_SEPARATOR: Final = re.compile(r"[;|,\s]+")
_YES: Final = frozenset({"1", "1.0", "true"})
_NO: Final = frozenset({"0", "0.0", "-1", "false"})


class CellMeaning:
    """The meaning of a label's cells; ``observe`` all of them before the first ``read``."""

    def __init__(
        self, kind: LabelKind | None, names: Sequence[str], *, is_split: bool, where: str
    ) -> None:
        """Take the file as messages name it in ``where``."""
        self._where = where
        self._kind = kind
        self._names = names
        """Of the columns."""
        self._is_split = is_split
        """Whether a label is in several columns."""
        self._all_whole = self._all_whole_decimals = self._all_numbers = True
        self._separators: set[str] = set()

    def observe(self, cells: Sequence[str]) -> None:
        """Take note of a label."""
        if self._is_split or self._kind in ("none", "float"):
            return
        cell = cells[0]
        if self._kind == "multi":
            if not cell.startswith("["):
                self._separators.update(each for each in _SEPARATORS if each in cell)
                texts = _ANY_SEPARATOR.split(cell)
                whole = all(_WHOLE.fullmatch(text) for text in texts if text)
                self._all_whole = self._all_whole and whole
            return
        if cell and self._all_numbers:
            self._all_whole = self._all_whole and _WHOLE.fullmatch(cell) is not None
            self._all_whole_decimals = (
                self._all_whole_decimals and _WHOLE_DECIMAL.fullmatch(cell) is not None
            )
            self._all_numbers = self._all_whole or (
                _NUMBER.fullmatch(cell) is not None and not _has_leading_zero(cell)
            )

    def read(self, cells: Sequence[str]) -> object:
        """Return the label that ``cells`` hold; BadCellError if they have no meaning as one.

        None where there is none: an empty cell. One of several labels may be empty: no class.
        Raises ConfigError where all cells are whole numbers, some written as decimals, and no kind
        was given.
        """
        if self._kind == "none":
            return None
        if self._is_split:
            return self._read_split(cells)
        cell = cells[0]
        if not cell and self._kind != "multi":
            return None
        if self._kind == "float":
            return [_read_float(value) for value in _split(cell, _any_separator(cell))]
        if self._kind == "multi":
            return self._read_several(cell)
        if self._all_whole:
            return int(cell)
        if self._all_numbers and self._all_whole_decimals:
            if self._kind is None:
                raise ConfigError(
                    f"the labels in column {printable(self._names[0])} of {self._where} are whole "
                    "numbers written as decimals (1.0, not 1): give --label-kind index if they "
                    "are classes, float if they are values"
                )
            return int(cell.partition(".")[0])
        if self._all_numbers and self._kind is None:
            return float(cell)
        return cell

    def _read_split(self, cells: Sequence[str]) -> object:
        if self._kind == "float":
            return [_read_float(cell) for cell in cells]
        chosen: list[str] = []
        for name, cell in zip(self._names, cells, strict=True):
            if cell.lower() in _YES:
                chosen.append(name)
            elif cell.lower() not in _NO:
                raise BadCellError(f"its label {cell[:80]!r} in column {name[:80]!r} is not 0 or 1")
        return chosen

    def _read_several(self, cell: str) -> object:
        if cell.startswith("["):
            return _read_json(cell)
        separator = next((each for each in _SEPARATORS if each in self._separators), None)
        texts = _split(cell, separator)
        return [int(text) for text in texts] if self._all_whole else texts


def _split(cell: str, separator: str | None) -> list[str]:
    return [text for text in (each.strip() for each in cell.split(separator)) if text]


def _any_separator(cell: str) -> str | None:
    return next((each for each in _SEPARATORS if each in cell), None)


def _read_float(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise BadCellError(f"its label {text[:80]!r} is no number")
    return float(text)


def _read_json(cell: str) -> object:
    try:
        values = json.loads(cell.replace("'", '"') if '"' not in cell else cell)
    except (ValueError, RecursionError):
        raise BadCellError(f"its label {cell[:80]!r} is no list") from None
    if not isinstance(values, list):
        raise BadCellError(f"its label {cell[:80]!r} is no list")
    return values


def _has_leading_zero(cell: str) -> bool:
    digits = cell.lstrip("+-")
    return len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
