"""What cells of a table are: numbers, lists, yes and no, or nothing.

A cell is only text, and is passed on as text: what the labels of a source are is decided from all
of them (feeder.pack.label_reading).
"""

import json
import re
from typing import Final

HOT_KINDS: Final = ("multi", "one-hot", "multi-hot")
"""Kinds of labels for which a column, or a place in a list, is a class."""
SEPARATORS: Final = (";", "|", ",")
YES: Final = frozenset({"1", "1.0", "true"})
NO: Final = frozenset({"0", "0.0", "false"})
MINUS: Final = frozenset({"-1", "-1.0"})
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MISSING_WORDS: Final = frozenset({"", "?", "-", "na", "n/a", "nan", "none", "null", "nil", "<na>"})


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


def split_cell(cell: str, separator: str | None) -> list[str]:
    """Return the labels in a cell, with white space between them if ``separator`` is None."""
    return [text for text in map(str.strip, cell.split(separator)) if text]


def read_float(text: str) -> float:
    """Return the number in a cell; BadCellError for none."""
    if not _DECIMAL.fullmatch(text):
        raise BadCellError(f"its label {text[:80]!r} is no number")
    return float(text)


def read_list(cell: str) -> object:
    """Return the list in a cell, in JSON or as Python prints it; BadCellError for none."""
    try:
        return json.loads(cell.replace("'", '"') if '"' not in cell else cell)
    except (ValueError, RecursionError):
        raise BadCellError(f"its label {cell[:80]!r} is no list") from None
