"""Chooses the columns of a table that hold images, labels and the splits of rows.

    image    --image; else the most usual name, of several the one whose value looks like an image's
             file name; else the only column that does
    label    --label; else the most usual name; else the only column that is left
    split    the most usual name with a value that is a split; else the only value; else the name

Where more than one column would do as image or label, none is chosen. A cell is only text, and is
passed on as text: what the labels of a source are is decided from all of them
(feeder.pack.label_reading). Here are the numbers, lists, yes and no that a cell may hold.
"""

import fnmatch
import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from feeder.errors import ConfigError
from feeder.process.path_text import printable
from feeder.source.location.splits import is_split, split_of

IMAGE_SUFFIXES: Final = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".tif", ".tiff", ".bmp"),
        *(".ppm", ".pgm", ".pbm", ".pnm"),
        *(".heic", ".avif", ".jp2", ".tga"),  # not packed, but no label files
    }
)
# Usual names, the most usual first.
_FILE_NAMES: Final = (
    frozenset({"file", "file_name", "filename", "file_path", "filepath", "image_file"}),
    frozenset({"image", "image_name", "image_path", "img", "img_name", "img_path", "path"}),
    frozenset({"name", "id", "image_id", "img_id", "key"}),
)
_LABEL_NAMES: Final = (
    frozenset({"label", "labels", "class", "classes", "target", "targets", "category"}),
    frozenset(
        {"label_id", "class_id", "class_index", "category_id", "label_index", "cls", "class_label"}
        | {"fine_label", "coarse_label"}
    ),
    frozenset({"label_name", "class_name", "categories", "tag", "tags", "y"}),
)
_CONFIDENCE_NAMES: Final = ("confidence", "score", "probability")
_SPLIT_NAMES: Final = frozenset(
    {"split", "splits", "splitname", "datasplit", "datasetsplit", "dataset", "set", "subset"}
    | {"partition", "fold", "phase", "usage"}
)
_SPLIT_FLAG: Final = re.compile(r"is[-_ ]?(.+)", re.IGNORECASE | re.DOTALL)
_REST: Final = "rest"
"""The split of rows that are not of the one that a column of yes and no is about."""
HOT_KINDS: Final = ("multi", "one-hot", "multi-hot")
"""Kinds of labels for which a column, or a place in a list, is a class."""
SEPARATORS: Final = (";", "|", ",")
YES: Final = frozenset({"1", "1.0", "true", "t", "yes", "y"})
NO: Final = frozenset({"0", "0.0", "false", "f", "no", "n"})
MINUS: Final = frozenset({"-1", "-1.0"})
_DECIMAL: Final = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_MISSING_WORDS: Final = frozenset({"", "?", "-", "na", "n/a", "nan", "none", "null", "nil", "<na>"})


class SplitColumn:
    """The column, or the field, of the split that a row belongs to: train, val, test.

    split, set, subset, partition, fold, phase, usage      holds splits if one value is called so
    is_train, is_test, is_valid, …                         yes or no
    any other                                              holds splits if all values are called so
    """

    def __init__(self, name: str) -> None:
        self.name = name
        flag = _SPLIT_FLAG.fullmatch(name.strip())
        self._flag = (split_of(flag[1]) or "") if flag and is_split(flag[1]) else ""
        self.is_usual = bool(self._flag) or re.sub(r"[\W_]", "", name.lower()) in _SPLIT_NAMES
        """Whether a column of this name is expected to hold splits."""

    def read(self, cell: object) -> str:
        """Return the split that a cell names, as it is written; empty where it names none."""
        text = str(cell).strip() if isinstance(cell, (str, int, float)) else ""
        if self._flag and text.lower() in YES:
            return self._flag
        return _REST if self._flag and text.lower() in NO else text

    def holds_splits(self, values: Collection[str]) -> bool:
        """Return whether ``values``, which ``read`` returned, are splits."""
        if self.is_usual:
            return any(split_of(value) for value in values)
        return bool(values) and all(is_split(value) for value in values)


def choose_columns(
    names: Sequence[str],
    first: Mapping[str, object],
    image: str,
    label: str,
    label_kind: str | None,
    where: str,
) -> tuple[str, tuple[str, ...], bool]:
    """Return the columns of images and of labels, and whether a label is in several columns.

    ``first`` has the values of the first row by column, ``image`` and ``label`` are the user's
    choices, if any. There are no columns of labels where their kind is "none". Raises ConfigError,
    which begins with ``where``.
    """
    image = image or _choose_image(names, first, where)
    if image not in names:
        raise ConfigError(
            f"{where}: --image {printable(image)} is none of its columns: {_show(names)}"
        )
    if label_kind == "none":
        return image, (), False
    others = [name for name in names if name != image]
    if not label:
        label = choose_label(others, where) or _choose_other(others, first, where)
    labels = _find_named(others, label, where)
    is_split = len(labels) > 1 or label not in others
    if is_split and label_kind not in (*HOT_KINDS, "float"):
        raise ConfigError(
            f"{where}: --label names {len(labels)} columns: give --label-kind float for a vector "
            "of their values, one-hot or multi for a class each"
        )
    return image, labels, is_split


def _choose_image(names: Sequence[str], first: Mapping[str, object], where: str) -> str:
    likely = [
        name
        for name in names
        if isinstance(cell := first.get(name), str) and has_image_suffix(cell)
    ]
    usual = _most_usual(names, _FILE_NAMES)
    usual = [name for name in usual if name in likely] or usual
    if usual:
        return _only(usual, "images", "--image", where)
    if len(likely) == 1:
        return likely[0]
    raise ConfigError(
        f"{where}: no column of {_show(names)} is known to hold the images' names: name it with "
        "--image (the first line has to hold the columns' names)"
    )


def choose_label(names: Sequence[str], where: str, declared: Collection[str] = ()) -> str:
    """Return the column of labels that has the most usual name, or is declared as such; or "".

    Raises ConfigError, which begins with ``where``, for several.
    """
    usual = [name for name in names if name in declared or _fold(name) in _LABEL_NAMES[0]]
    usual = usual or _most_usual(names, _LABEL_NAMES[1:])
    return _only(usual, "labels", "--label", where) if usual else ""


def _choose_other(others: Sequence[str], first: Mapping[str, object], where: str) -> str:
    """Return the only column that may hold labels, though its name does not say so."""
    columns = map(SplitColumn, others)
    splits = [c.name for c in columns if c.is_usual and is_split(c.read(first.get(c.name)))]
    rest = [name for name in others if name not in splits]
    if rest:
        return _only(rest, "labels", "--label", where)
    why = f": {_show(splits)} looks like a split of the rows" if splits else ""
    raise ConfigError(
        f"{where} has no column of labels{why}: name it with --label, or give --label-kind none"
    )


def _most_usual(names: Sequence[str], tiers: Sequence[Collection[str]]) -> list[str]:
    for tier in tiers:
        usual = [name for name in names if _fold(name) in tier]
        if usual:
            return usual
    return []


def _only(names: Sequence[str], what: str, option: str, where: str) -> str:
    if len(names) > 1:
        raise ConfigError(f"{where}: the {what} may be in {_show(names)}: choose one with {option}")
    return names[0]


def _find_named(others: Sequence[str], label: str, where: str) -> tuple[str, ...]:
    """Return the columns that --label names, with commas between them; each may be a pattern."""
    if label in others:
        return (label,)
    matches: dict[str, None] = {}
    for pattern in map(str.strip, label.split(",")):
        columns = [pattern] if pattern in others else fnmatch.filter(others, pattern)
        if not columns:
            raise ConfigError(
                f"{where}: --label {printable(pattern)} is none of its columns: {_show(others)}"
            )
        matches.update(dict.fromkeys(columns))
    return tuple(matches)


def choose_split_column(
    names: Sequence[str], first: Mapping[str, object], taken: Collection[str]
) -> SplitColumn | None:
    """Return the column that may hold splits, by names and first values.

    The columns ``taken`` hold something else.
    """
    others = [SplitColumn(name) for name in names if name not in taken]
    usual = [column for column in others if column.is_usual]
    likely = [column for column in others if is_split(column.read(first.get(column.name)))]
    both = [column for column in usual if column in likely]
    return next(iter((*both, *likely, *usual)), None)


def find_confidence(names: Sequence[str]) -> str | None:
    """Return the column with the confidence of each row's label, None without one."""
    return next((name for name in names if _fold(name) in _CONFIDENCE_NAMES), None)


def describe_columns(names: Sequence[str], what: str) -> str:
    """Return where labels are, for a message: "column label", ``what`` being a column."""
    shown = _show(names, 3)
    is_plain = not names or (len(names) == 1 and shown.startswith("column "))
    return shown if is_plain else f"{what}{'s' * (len(names) > 1)} {shown}"


def has_image_suffix(name: str) -> bool:
    """Return whether ``name`` has the suffix of an image format, of packable ones or others."""
    return os.path.splitext(name.strip())[1].lower() in IMAGE_SUFFIXES


def _fold(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _show(names: Sequence[str], most: int = 12) -> str:
    shown = ", ".join(printable(name[:60]) for name in names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


class BadLabel(ValueError):  # noqa: N818 -- names what happened
    """Raised for a label without a meaning; the message is the reason."""


def is_missing_word(text: str) -> bool:
    """Return whether a text stands for no value in tables: NA, NaN, None, ? and their like."""
    return text.lower() in _MISSING_WORDS


def parse_decimal(text: str) -> float | None:
    """Return the number that a text writes; None for a name, which 007 is, too."""
    digits = text.lstrip("+-")
    has_leading_zero = len(digits) > 1 and digits[0] == "0" and digits[1].isdigit()
    return float(text) if _DECIMAL.fullmatch(text) and not has_leading_zero else None


def read_float(text: str) -> float:
    """Return the number in a cell; BadLabel for none."""
    if not _DECIMAL.fullmatch(text):
        raise BadLabel(f"its label {text[:80]!r} is no number")
    return float(text)


def read_list(cell: str) -> object:
    """Return the list in a cell, in JSON or as Python prints it; BadLabel for none."""
    try:
        return json.loads(cell.replace("'", '"') if '"' not in cell else cell)
    except (ValueError, RecursionError):
        raise BadLabel(f"its label {cell[:80]!r} is no list") from None
