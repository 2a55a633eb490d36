"""Opens a file of labels: CSV, JSON or JSONL, by its name and its first characters."""

import codecs
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from feeder.errors import DatasetError
from feeder.plan.labels import LabelChoice, Uncertain
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.label_files.csv_file import CsvLabels
from feeder.source.label_files.json_files import JsonFile, JsonLines, load_line
from feeder.source.label_files.row import FieldChoice, LabelFile

_START_BYTES: Final = 1 << 16
_LINE_SUFFIXES: Final = frozenset({".jsonl", ".ndjson"})
_JSON_SUFFIXES: Final = frozenset({".json", *_LINE_SUFFIXES})


def open_label_file(
    path: Path,
    *,
    image: str = "",
    label: str = "",
    label_kind: LabelChoice | None = None,
    uncertain: Uncertain | Literal[""] = "",
) -> LabelFile:
    """Return the rows of the file at ``path``; ``image`` and ``label`` name columns or fields.

    Raises DatasetError for a file that cannot be read, ConfigError where the columns to use are not
    clear.
    """
    suffix = path.suffix.lower()
    start = _read_start(path)
    is_json = suffix in _JSON_SUFFIXES or start.startswith(("{", "["))
    kind: type[JsonLines] | type[JsonFile] | type[CsvLabels] = CsvLabels
    if suffix in _LINE_SUFFIXES or (is_json and _begins_with_a_row(start)):
        kind = JsonLines
    elif is_json:
        kind = JsonFile
    return kind(path, FieldChoice(image, label, label_kind, uncertain))


def _read_start(path: Path) -> str:
    try:
        data = read_regular(path, _START_BYTES)
    except OSError as error:
        raise DatasetError(
            f"{printable(path_to_text(path))} cannot be read: {error.strerror}"
        ) from None
    return data.removeprefix(codecs.BOM_UTF8).decode(errors="replace").lstrip()


def _begins_with_a_row(start: str) -> bool:
    """Return whether the first line is an object and another line follows it."""
    line, _, rest = start.partition("\n")
    return bool(rest.strip()) and isinstance(load_line(line), Mapping)
