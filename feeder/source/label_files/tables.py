"""Tables of labels as rows of named values, whatever their format.

    CSV     columns separated by , ; or tab, or "name label" with spaces; a line of columns' names,
            or, without one, "column 1", "column 2", …: then the first row has an image's name
    JSONL   an object a line, as metadata.jsonl of Hugging Face's image folders
    JSON    {"x.jpg": 3, …}, {"x.jpg": {"label": 3, …}, …}, [["x.jpg", 3], …] or a list of objects,
            also as the value of "labels"

CSV and JSONL are streamed, however long they are; a JSON file is held in memory. Faults of what
Feeder did not write come with their line.
"""

import codecs
import csv
import functools
import itertools
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import decode_name, printable
from feeder.source.label_files.columns import has_image_suffix
from feeder.source.location.storage import (
    FilePath,
    encode_path,
    look_at_path,
    open_file,
    read_whole,
    show_path,
)

BYTES_MAX: Final = 64 << 20  # of a line, and of a JSON file; as Python's objects ten times as much
KEY: Final = "(key)"
"""The field that stands for the key of an object within an object."""
VALUE: Final = "(value)"
"""The field that stands for a value without a name."""
_SPACES: Final = " "
"""A delimiter: the last word is the label, ``my image.jpg 3``."""
_START_BYTES: Final = 1 << 16
_LINE_SUFFIXES: Final = frozenset({".jsonl", ".ndjson"})
_SAMPLE_LINES: Final = 20

Rows = Iterator[tuple[int, Mapping[str, Any], str]]
"""The number of each row, its values by column, and why it cannot be read, or ""."""


class Table(NamedTuple):
    """A table of labels."""

    unit: str
    """What rows are counted in: "line" or "entry"."""
    column: str
    """What a column is called: "column", which has texts, or "field", whose values have types."""
    names: Sequence[str]
    """Of the columns, in order."""
    first: Mapping[str, object]
    """The values of the first row; empty where there is none."""
    rows: Callable[[], Rows]
    """Begins with the first row on each call; raises DatasetError where the file is damaged."""


def open_table(path: FilePath, where: str, *, can_have_spaces: bool) -> Table:
    """Return the table in a file, whose format is known by its name and its first characters.

    Raises DatasetError for a file without rows, or one that cannot be read.
    """
    suffix = _suffix(path)
    data = read_whole(path, _START_BYTES)
    start = data.removeprefix(codecs.BOM_UTF8).decode(errors="replace").lstrip()
    is_json = suffix == ".json" or start.startswith(("{", "["))
    if suffix in _LINE_SUFFIXES or (is_json and _begins_with_object(start)):
        unit, rows = "line", functools.partial(_read_json_lines, path)
    elif is_json:
        unit, rows = "entry", functools.partial(_read_entries, _load_entries(path, where))
    else:
        return _open_csv(path, where, can_have_spaces=can_have_spaces)
    number, first, fault = next(rows(), (0, {}, ""))
    if not number:
        raise DatasetError(f"{where} has no rows")
    if fault:
        raise DatasetError(
            f"{unit} {number} of {where} is no JSON object: each {unit} has to be one"
        )
    return Table(unit, "field", list(first), first, rows)


def _suffix(path: FilePath) -> str:
    return decode_name(os.path.splitext(encode_path(path))[1]).lower()


def _begins_with_object(start: str) -> bool:
    """Return whether the first line is a JSON object and another line follows it."""
    line, _, rest = start.partition("\n")
    return bool(rest.strip()) and isinstance(_load(line), Mapping)


def _read_json_lines(path: FilePath) -> Rows:
    for number, line in enumerate(read_lines(path), 1):
        if line.strip():
            yield number, *_as_object(_load(line))


def _load(line: str) -> object:
    """Return the value of a line of JSON; None for what is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _as_object(value: object) -> tuple[Mapping[str, Any], str]:
    return (value, "") if isinstance(value, Mapping) else ({}, "it is no JSON object")


def _load_entries(path: FilePath, where: str) -> list[tuple[str | None, Any]]:
    """Return the entries of a JSON file, by key where they have one; "" for what is no pair."""
    if look_at_path(path)[0] > BYTES_MAX:
        raise DatasetError(
            f"{where} has over {BYTES_MAX >> 20} MiB: write it as JSONL, an object a line, "
            "which is not held in memory"
        )
    text = "".join(read_lines(path))
    try:
        value = json.loads(text, object_pairs_hook=_keep_repeats)
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"{where} is no JSON: {error}") from None
    if isinstance(value, dict) and isinstance(value.get("labels"), (dict, list)):
        value = value["labels"]  # as in StyleGAN's dataset.json
    if isinstance(value, dict):
        return list(value.items())
    if not isinstance(value, list):
        raise DatasetError(f"{where} holds neither an object nor a list")
    if value and isinstance(value[0], list):
        return [(pair[0], pair[1]) if _is_pair(pair) else ("", None) for pair in value]
    return [(None, entry) for entry in value]


def _keep_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any] | list[list[Any]]:
    """Return an object; as pairs if a key repeats, for a file that is listed twice."""
    value = dict(pairs)
    return value if len(value) == len(pairs) else [list(pair) for pair in pairs]


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _read_entries(entries: Sequence[tuple[str | None, Any]]) -> Rows:
    has_objects = bool(entries) and (entries[0][0] is None or isinstance(entries[0][1], Mapping))
    for number, (key, value) in enumerate(entries, 1):
        fields, fault = _as_object(value) if has_objects else ({VALUE: value}, "")
        yield number, fields if key is None else {KEY: key, **fields}, fault


def _open_csv(path: FilePath, where: str, *, can_have_spaces: bool) -> Table:
    sample = list(itertools.islice(read_lines(path), _SAMPLE_LINES))
    delimiter = "\t" if _suffix(path) == ".tsv" else _find_delimiter(sample, can_have_spaces)
    # The sample may end within quotes, so parse the file itself.
    _, names = next(_parse(read_lines(path), delimiter, where), (0, []))
    if not names:
        raise DatasetError(f"{where} has no rows")
    has_header = not any(map(has_image_suffix, names))
    if not has_header:
        names = [f"column {number}" for number in range(1, len(names) + 1)]

    def rows() -> Rows:
        parsed = _parse(read_lines(path), delimiter, where)
        width = len(names)
        for line, cells in itertools.islice(parsed, int(has_header), None):
            fault = ""
            if len(cells) < width or any(cells[width:]):
                fault = f"it has {len(cells)} cells, the first line {width}"
            yield line, dict(zip(names, cells, strict=False)), fault

    _, first, _ = next(rows(), (0, {}, ""))
    return Table("line", "column", names, first, rows)


def _parse(lines: Iterable[str], delimiter: str, where: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of CSV that are not empty, with the number of their first line."""
    if delimiter == _SPACES:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield number, line.rsplit(maxsplit=1)
        return
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    number = 1
    try:
        for cells in reader:
            stripped = [cell.strip() for cell in cells]
            if any(stripped):
                yield number, stripped
            number = reader.line_num + 1
    except csv.Error as error:
        raise DatasetError(
            f"line {number} of {where} is no CSV ({printable(str(error))}): mend its quotes, or "
            "write it again with a CSV library"
        ) from None


def _find_delimiter(sample: list[str], can_have_spaces: bool) -> str:
    """Return the delimiter that makes the most columns, the same number in most lines."""
    best, best_score = ",", (0, 1)
    for delimiter in (",", ";", "\t"):
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
    words = [line.split() for line in sample if line.strip()]
    is_spaced = bool(words) and all(len(line) > 1 for line in words)
    return _SPACES if best_score == (0, 1) and can_have_spaces and is_spaced else best


def read_class_names(path: FilePath) -> tuple[str, ...]:
    """Return the name of each class, one a line; ConfigError where they are none or not clear."""
    shown = f"--class-names {show_path(encode_path(path))}"
    try:
        names = [line.strip() for line in read_lines(path)]
    except DatasetError as error:
        raise ConfigError(f"--class-names: {error}") from None
    while names and not names[-1]:
        names.pop()
    if not names:
        raise ConfigError(f"{shown} names no class")
    lines: dict[str, int] = {}
    for line, name in enumerate(names, 1):
        if not name:
            raise ConfigError(f"{shown} has an empty line {line}: name each class")
        if lines.setdefault(name, line) != line:
            raise ConfigError(
                f"{shown} has {printable(name)} in lines {lines[name]} and {line}: names must "
                "differ"
            )
    return tuple(names)


def read_lines(path: FilePath) -> Iterator[str]:
    """Yield the lines of a file with their ends; a byte order mark is left out.

    Raises DatasetError for a file that cannot be read or is no UTF-8 text, with line and byte.
    """
    for number, line in enumerate(read_byte_lines(path), 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise DatasetError(
                f"line {number} of {show_path(encode_path(path))} is not UTF-8 (byte "
                f"{line[error.start]:#04x} at {error.start + 1}): decompress the file, or convert "
                "it, for example with `iconv -f latin1 -t utf-8`"
            ) from None


def read_byte_lines(path: FilePath) -> Iterator[bytes]:
    """Yield the same as bytes, for names, which need not be UTF-8; see ``read_lines``."""
    shown = show_path(encode_path(path))
    try:
        with open_file(path) as file:
            lines = iter(lambda: file.readline(BYTES_MAX + 1), b"")
            for number, line in enumerate(lines, 1):
                if len(line) > BYTES_MAX:
                    raise DatasetError(
                        f"line {number} of {shown} is longer than {BYTES_MAX >> 20} MiB: is it a "
                        "text file of a line for each image?"
                    )
                yield line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
    except OSError as error:
        raise DatasetError(f"{shown} cannot be read: {error.strerror}") from None
