"""Chooses the columns, or the fields of JSON objects, that hold images' names and labels.

A column that the user named wins. Else it is the only one that has a usual name; for images also
the only one whose first value looks like an image's file name, for labels the only other one. Where
more than one would do, none is chosen.
"""

import fnmatch
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from feeder.errors import ConfigError
from feeder.process.path_text import printable
from feeder.source.label_files.row import FieldChoice
from feeder.source.label_files.split_column import SplitColumn
from feeder.source.location.splits import is_split

IMAGE_SUFFIXES: Final = frozenset(
    {
        *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".webp", ".tif", ".tiff", ".bmp"),
        *(".ppm", ".pgm", ".pbm", ".pnm"),
        *(".heic", ".avif", ".jp2", ".tga"),  # not packed, but no label files
    }
)
_FILE_NAMES: Final = (
    frozenset({"file", "file_name", "filename", "file_path", "filepath", "image_file"}),
    frozenset({"image", "image_name", "image_path", "img", "img_name", "img_path", "path"}),
    frozenset({"name", "id", "image_id", "img_id", "key"}),
)
_LABEL_NAMES: Final = (
    frozenset({"label", "labels", "class", "classes", "target", "targets", "category"}),
    frozenset({"label_id", "class_id", "class_index", "category_id", "label_index", "cls"}),
    frozenset({"label_name", "class_name", "categories", "tag", "tags", "y"}),
)
_CONFIDENCE_NAMES: Final = ("confidence", "score", "probability")
_SHOWN_COLUMNS: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The columns that matter, by name."""

    image: str
    labels: tuple[str, ...]
    """Empty where the kind of labels is "none"."""
    is_split: bool
    """Whether the label is in several columns."""


def choose_columns(
    names: Sequence[str],
    first: Sequence[object],
    choice: FieldChoice,
    *,
    where: str,
) -> Columns:
    """Return the columns to use of ``names``; ``first`` are the values of the first row.

    Raises ConfigError, which begins with ``where``.
    """
    image_column = _choose_image(names, first, choice.image, where)
    if choice.label_kind == "none":
        return Columns(image=image_column, labels=(), is_split=False)
    others = [name for name in names if name != image_column]
    if choice.label:
        labels = _find_named(others, choice.label, where)
        is_split = len(labels) > 1 or choice.label not in others
    else:
        labels = (_choose_label(others, dict(zip(names, first, strict=False)), where),)
        is_split = False
    if is_split and choice.label_kind not in ("multi", "one-hot", "multi-hot", "float"):
        raise ConfigError(
            f"{where}: --label names {len(labels)} columns: give --label-kind float for a vector "
            "of their values, one-hot or multi for a class each"
        )
    return Columns(image=image_column, labels=labels, is_split=is_split)


def describe_columns(columns: Columns) -> str:
    """Return where labels are, for a message: "column label"."""
    names = [printable(name) for name in columns.labels]
    if len(names) < 2:
        return "".join(name if name.startswith("column ") else f"column {name}" for name in names)
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"columns {', '.join(names[:3])}{more}"


def find_confidence(names: Sequence[str]) -> int | None:
    """Return the column with the confidence of each row's label, None without one."""
    folded = [_fold(name) for name in names]
    return next((folded.index(name) for name in _CONFIDENCE_NAMES if name in folded), None)


def looks_like_image(value: object) -> bool:
    """Return whether a value is a text that ends as an image's file name does."""
    return isinstance(value, str) and has_image_suffix(value)


def has_image_suffix(name: str) -> bool:
    """Return whether ``name`` has the suffix of an image format, of packable ones or others."""
    return os.path.splitext(name.strip())[1].lower() in IMAGE_SUFFIXES


def _choose_image(names: Sequence[str], first: Sequence[object], image: str, where: str) -> str:
    if image:
        if image not in names:
            raise ConfigError(
                f"{where}: --image {printable(image)} is none of its columns: {_show(names)}"
            )
        return image
    looking = [name for name, value in zip(names, first, strict=False) if looks_like_image(value)]
    for tier in _FILE_NAMES:
        usual = [name for name in names if _fold(name) in tier]
        likely = [name for name in usual if name in looking] or usual
        if len(likely) == 1:
            return likely[0]
        if likely:
            raise ConfigError(
                f"{where}: the images may be in {_show(likely)}: choose one with --image"
            )
    if len(looking) == 1:
        return looking[0]
    raise ConfigError(
        f"{where}: no column of {_show(names)} is known to hold the images' names: name it with "
        "--image (the first line has to hold the columns' names)"
    )


def _choose_label(others: Sequence[str], first: Mapping[str, object], where: str) -> str:
    for tier in _LABEL_NAMES:
        usual = [name for name in others if _fold(name) in tier]
        if len(usual) == 1:
            return usual[0]
        if usual:
            raise ConfigError(
                f"{where}: the labels may be in {_show(usual)}: choose one with --label"
            )
    splits = [name for name in others if _holds_splits(name, first.get(name))]
    others = [name for name in others if name not in splits]
    if len(others) == 1:
        return others[0]
    if splits and not others:
        raise ConfigError(
            f"{where} has no column of labels: {_show(splits)} looks like a split of the rows; "
            "name the labels' column with --label, or give --label-kind none"
        )
    if not others:
        raise ConfigError(f"{where} has no column of labels: give one, or --label-kind none")
    raise ConfigError(f"{where}: the labels may be in {_show(others)}: choose one with --label")


def _holds_splits(name: str, first: object) -> bool:
    column = SplitColumn(name)
    return column.is_usual and is_split(column.read(first))


def _find_named(others: Sequence[str], label: str, where: str) -> tuple[str, ...]:
    if label in others:
        return (label,)
    found: list[str] = []
    for each in label.split(","):
        pattern = each.strip()
        matching = (
            [pattern]
            if pattern in others
            else [name for name in others if fnmatch.fnmatchcase(name, pattern)]
        )
        if not matching:
            raise ConfigError(
                f"{where}: --label {printable(pattern)} is none of its columns: {_show(others)}"
            )
        found += (name for name in matching if name not in found)
    return tuple(found)


def _fold(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace(" ", "_")


def _show(names: Collection[str]) -> str:
    shown = ", ".join(printable(name[:60]) for name in list(names)[:_SHOWN_COLUMNS])
    more = len(names) - _SHOWN_COLUMNS
    return f"{shown} and {more} more" if more > 0 else shown
