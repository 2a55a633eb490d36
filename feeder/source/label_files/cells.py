"""What cells of a table mean: one label, several in a cell, or a class in each column.

A cell is only text, and is passed on as text: what the labels of a source are is decided from all
of them (feeder.pack.label_reading). Here is what needs the columns: a cell that holds several
labels, and labels in several columns.
"""

import json
import re
from collections.abc import Sequence
from typing import Final

from feeder.errors import ConfigError
from feeder.plan.labels import LabelChoice, Uncertain
from feeder.process.path_text import printable

HOT_KINDS: Final = ("multi", "one-hot", "multi-hot")
"""Kinds of labels for which a column, or a place in a list, is a class."""

_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MISSING_WORDS: Final = frozenset({"", "?", "-", "na", "n/a", "nan", "none", "null", "nil", "<na>"})
_SEPARATORS: Final = (";", "|", ",")
_YES: Final = frozenset({"1", "1.0", "true"})
_NO: Final = frozenset({"0", "0.0", "false"})
_MINUS: Final = frozenset({"-1", "-1.0"})


def parse_decimal(text: str) -> float | None:
    """Return the number that a text writes; None for a name, which 007 is, too."""
    digits = text.lstrip("+-")
    has_leading_zero = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    return float(text) if _DECIMAL.fullmatch(text) and not has_leading_zero else None


def is_missing_word(text: str) -> bool:
    """Return whether a text stands for no value in tables: NA, NaN, None, ? and their like."""
    return text.lower() in _MISSING_WORDS


class BadCellError(ValueError):
    """Raised for a label without a meaning as its kind; the message is the reason."""


class CellMeaning:
    """The meaning of a label's cells; ``observe`` all of them before the first ``read``."""

    def __init__(
        self,
        kind: LabelChoice | None,
        names: Sequence[str],
        *,
        is_split: bool,
        uncertain: Uncertain | str,
        where: str,
    ) -> None:
        """Take the names of the columns, and the file as messages name it in ``where``.

        ``is_split``: a label is in several columns.
        """
        self._where = where
        self._kind = kind
        self._names = names
        self._is_split = is_split
        self._uncertain = uncertain
        self._separators: set[str] = set()
        self._has_zero = False

    def observe(self, cells: Sequence[str]) -> None:
        """Take note of a label."""
        if self._is_split:
            self._has_zero = self._has_zero or any(cell.lower() in _NO for cell in cells)
        elif self._kind in HOT_KINDS and not _is_list(cells[0]):
            self._separators.update(each for each in _SEPARATORS if each in cells[0])

    def read(self, cells: Sequence[str]) -> object:
        """Return the label in ``cells``, a RawLabel; BadCellError for one without meaning.

        None where there is none: an empty cell. One of several labels may be empty: no class.
        Raises ConfigError where only --uncertain can decide what -1 or nothing among 0 and 1 is.
        """
        if self._kind == "none":
            return None
        if self._is_split:
            return self._read_split(cells)
        cell = cells[0]
        if self._kind != "name" and _is_list(cell):
            return _read_json(cell)
        if self._kind == "float":
            return [_read_float(value) for value in _split(cell, _any_separator(cell))] or None
        if self._kind in HOT_KINDS:
            return _split(
                cell, next((each for each in _SEPARATORS if each in self._separators), None)
            )
        return cell or None

    def _read_split(self, cells: Sequence[str]) -> object:
        if self._kind == "float":
            return [_read_float(cell) for cell in cells]
        chosen: list[str] = []
        for name, cell in zip(self._names, cells, strict=True):
            text = cell.lower()
            if text in _YES or (self._is_uncertain(name, text) and self._uncertain == "yes"):
                chosen.append(name)
            elif text not in _NO and text not in _MINUS and not is_missing_word(text):
                raise BadCellError(f"its label {cell[:80]!r} in column {name[:80]!r} is not 0 or 1")
        if self._kind == "one-hot" and len(chosen) != 1:
            raise BadCellError(f"{len(chosen)} of its columns have a 1, not one")
        return chosen[0] if self._kind == "one-hot" else chosen

    def _is_uncertain(self, name: str, text: str) -> bool:
        """Return whether a cell is neither 0 nor 1; -1 is a 0 where no cell is one."""
        if not is_missing_word(text) and not (text in _MINUS and self._has_zero):
            return False
        if not self._uncertain:
            raise ConfigError(
                f"column {printable(name)} of {self._where} has {text or 'an empty cell'} beside 0 "
                "and 1: give --uncertain no, yes or leave-out"
            )
        if self._uncertain == "leave-out":
            raise BadCellError(f"its label in column {name[:80]!r} is {text or 'empty'}")
        return True


def _is_list(cell: str) -> bool:
    return cell.startswith("[") and cell.endswith("]")


def _split(cell: str, separator: str | None) -> list[str]:
    return [text for text in (each.strip() for each in cell.split(separator)) if text]


def _any_separator(cell: str) -> str | None:
    return next((each for each in _SEPARATORS if each in cell), None)


def _read_float(text: str) -> float:
    if not _DECIMAL.fullmatch(text):
        raise BadCellError(f"its label {text[:80]!r} is no number")
    return float(text)


def _read_json(cell: str) -> object:
    try:
        values = json.loads(cell.replace("'", '"') if '"' not in cell else cell)
    except (ValueError, RecursionError):
        raise BadCellError(f"its label {cell[:80]!r} is no list") from None
    return values
