"""What ``feeder select`` chooses by: its options, read from the files that they name."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final, TextIO

import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.choose.where import Condition
from feeder.dataset.selection import Selection, is_selection
from feeder.errors import ConfigError
from feeder.process.path_text import encode_name, printable
from feeder.process.regular_file import open_regular_file

MAX_SEED: Final = 2**64 - 1
_RELABEL_HEAD: Final = ["name", "class"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleList:
    """Samples that a file lists: by name, by id, or as a selection."""

    where: str
    names: frozenset[bytes] = frozenset()
    ids: Mapping[int, NDArray[np.int64]] = field(default_factory=dict)
    """By the position of their DST; each once, ascending."""
    selection: Selection | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fraction:
    """A share of the names: those whose hash is below ``end`` of 2**64.

    So a name is in or out whatever else is in the dataset: the share stays when samples are added,
    or packed again, and a larger share has all of a smaller one.
    """

    end: int
    seed: int = 0

    def has(self, names: Sequence[bytes]) -> NDArray[np.bool_]:
        if self.end >> 64:
            return np.ones(len(names), np.bool_)
        hashes = [xxhash.xxh3_64_intdigest(name, self.seed) for name in names]
        return np.array(hashes, np.uint64) < np.uint64(self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """All of them must hold of a chosen sample; None are those that were not given."""

    classes: tuple[str, ...] | None = None
    exclude_classes: tuple[str, ...] = ()
    listed: SampleList | None = None
    excluded: SampleList | None = None
    fraction: Fraction | None = None
    where: Condition | None = None
    relabel: Mapping[bytes, str] = field(default_factory=dict)
    """Class by name; classes of the others stay. It comes before the choice by class."""
    relabel_where: str = ""

    @property
    def needs_names(self) -> bool:
        lists = [given for given in (self.listed, self.excluded) if given and given.names]
        return bool(lists or self.fraction or self.relabel)

    @property
    def needs_classes(self) -> bool:
        return self.classes is not None or bool(self.exclude_classes or self.relabel)


def read_class_names(option: str, text: str) -> tuple[str, ...]:
    """Return the names in "A,B", or those in the lines of FILE of "@FILE"; ConfigError."""
    names: list[str] = text.split(",")
    if text.startswith("@"):
        names = [line.decode("utf-8", "surrogateescape") for line in _read_lines(option, text[1:])]
    names = [name for name in names if name]
    if not names:
        raise ConfigError(f"{option} {text}: it names no class: write A,B or @FILE")
    return tuple(names)


def read_list(option: str, text: str, datasets: int) -> SampleList:
    """Return the samples that a file lists for so many DSTs; ConfigError.

    A .npy file has ids (n,), or (n, 2): the position of the DST in the command, and the id. Any
    other that is no selection has names, one a line.
    """
    where = f"{option} {text}"
    if is_selection(text):
        return SampleList(where=where, selection=Selection.open(text))
    if not text.endswith(".npy"):
        names = frozenset(_read_lines(option, text))
        if not names:
            raise ConfigError(f"{where}: it lists no names")
        return SampleList(where=where, names=names)
    return SampleList(where=where, ids=split_ids(where, read_array(where, text), datasets))


def open_text_file(path: str) -> TextIO:
    """Open a regular file in UTF-8, also with other bytes, as ``csv`` reads it; OSError."""
    file = open_regular_file(path)
    return io.TextIOWrapper(file, encoding="utf-8", errors="surrogateescape", newline="")


def read_array(where: str, path: str) -> NDArray[Any]:
    """Return the array that numpy.save wrote to a file; ConfigError."""
    try:
        with open_regular_file(path) as file:
            return np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise ConfigError(f"{where}: it cannot be read: {error.strerror}") from None
    # A damaged header is parsed as Python, or says that there is more than any memory.
    except (ValueError, EOFError, OverflowError, SyntaxError, TokenError, MemoryError):
        raise ConfigError(f"{where}: it is not an array of numpy (np.save)") from None


def split_ids(
    where: str, table: "NDArray[np.int64]", datasets: int
) -> dict[int, NDArray[np.int64]]:
    """Return the ids by the position of their DST, of an array as ``read_list`` describes it."""
    if table.dtype.kind not in "iu" or not table.size:
        raise ConfigError(f"{where}: it must be an array of whole numbers, one at least")
    if table.ndim == 1 and datasets == 1:
        table = np.stack([np.zeros(len(table), np.int64), table.astype(np.int64)], axis=1)
    if table.ndim != 2 or table.shape[1] != 2:
        raise ConfigError(
            f"{where}: ids are an array (n, 2): position of the DST in the command, from 0, and "
            "id; of one DST also (n,)"
        )
    places = table[:, 0]
    if places.min() < 0 or places.max() >= datasets:
        wrong = int(places[(places < 0) | (places >= datasets)][0])
        raise ConfigError(f"{where}: there is no DST {wrong}, they are 0 .. {datasets - 1}")
    return {
        place: np.unique(table[places == place, 1].astype(np.int64))
        for place in np.unique(places).tolist()
    }


def read_fraction(text: str, seed: int) -> Fraction:
    """Return the share that a user wrote, such as "0.1"; ConfigError."""
    try:
        share = Decimal(text)
    except InvalidOperation:
        share = Decimal(0)
    if not (share.is_finite() and Decimal(2) ** -64 <= share <= 1):
        raise ConfigError(f"--fraction {text}: it must be above 0, up to 1")
    if not 0 <= seed <= MAX_SEED:
        raise ConfigError(f"--fraction-seed {seed}: it must be 0 .. 2**64 - 1")
    numerator, denominator = share.as_integer_ratio()
    return Fraction(end=max(1, (numerator << 64) // denominator), seed=seed)


def read_relabelling(text: str) -> dict[bytes, str]:
    """Return the class by name of the lines "name,class" of a CSV file; ConfigError."""
    where, classes = f"--relabel {text}", dict[bytes, str]()
    try:
        with open_text_file(text) as file:
            for number, row in enumerate(csv.reader(file, strict=True), 1):
                if not row or (number == 1 and row == _RELABEL_HEAD):
                    continue
                if len(row) != 2 or not all(row):
                    shown = printable(",".join(row)[:80])
                    raise ConfigError(f"{where}: line {number} is {shown!r}, not name,class")
                if row[1] != row[1].strip():
                    raise ConfigError(
                        f"{where}: line {number}: class {row[1]!r} has white space at an end: "
                        "leave it out"
                    )
                name = encode_name(row[0])
                if classes.setdefault(name, row[1]) != row[1]:
                    raise ConfigError(
                        f"{where}: line {number} gives {printable(row[0])} a second class"
                    )
    except OSError as error:
        raise ConfigError(f"{where}: it cannot be read: {error.strerror}") from None
    except csv.Error as error:
        raise ConfigError(f"{where}: it is not CSV: {error}") from None
    if not classes:
        raise ConfigError(f"{where}: it has no lines name,class")
    return classes


def _read_lines(option: str, path: str) -> list[bytes]:
    try:
        with open_regular_file(Path(path)) as file:
            lines = [line.removesuffix(b"\r") for line in file.read().split(b"\n")]
            return [line for line in lines if line]
    except OSError as error:
        raise ConfigError(f"{option} {path}: it cannot be read: {error.strerror}") from None
