"""Which items of a source are packed: all of them, or one side of a split.

A split by fraction goes by a hash of each item's name, so an item stays on its side when others are
added or removed, whatever the seed. A split by list names the items for validation.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.errors import ConfigError, DatasetError
from feeder.pack.items import SourceItems
from feeder.plan.rng import derive_keys
from feeder.process.path_text import decode_name, encode_name, printable
from feeder.source.label_files.tables import read_byte_lines
from feeder.survey.numbers import plural

Side = Literal["train", "val"]
_KEY: Final = 0x53504C4954  # any number, the same for ever: it decides on which side items are


class SplitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which side to pack; exactly one of ``val_fraction`` and ``val_list`` is given."""

    side: Side
    val_fraction: float | None = None
    val_list: Path | None = None

    def __post_init__(self) -> None:
        if self.side not in get_args(Side):
            raise ConfigError(
                f"--split {printable(self.side)}: with --val-fraction or --val-list it is train or "
                "val; without them it names a split of the source"
            )
        if (self.val_fraction is None) == (self.val_list is None):
            raise ConfigError("--split takes --val-fraction or --val-list, one of the two")
        if self.val_fraction is not None and not 0 < self.val_fraction < 1:
            raise ConfigError(
                f"--val-fraction {self.val_fraction:g} is not between 0 and 1: give 5% or 0.05"
            )

    def describe(self) -> str:
        """Return what a resumed packing must have in common with this."""
        how = f"{self.val_fraction!r}" if self.val_list is None else "by list"
        return f"{self.side} of a split {how}"


def parse_share(text: str) -> float:
    """Return the share that ``text`` names: "5%" or "0.05"; ConfigError if it names none."""
    digits, percent, rest = text.strip().partition("%")
    try:
        share = float(digits) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if rest or not 0 < share < 1:
        raise ConfigError(f"--val-fraction {text}: give a share between 0 and 1: 5% or 0.05")
    return share


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The items to pack, and whether a rejected item belongs to them."""

    rows: NDArray[np.int64]
    includes: Callable[[str], bool]


def select_items(items: SourceItems, split: SplitOptions | None) -> Selection:
    """Return the items on the side that ``split`` asks for; ConfigError if there are none."""
    if split is None:
        return Selection(rows=np.arange(len(items)), includes=lambda _: True)
    keys = np.array(items.rows["name_key"])
    if split.val_list is None:
        assert split.val_fraction is not None
        limit = int(split.val_fraction * 2**64)

        def is_val(some: NDArray[np.uint64]) -> NDArray[np.bool_]:
            return derive_keys(_KEY, some.view(np.int64)) < np.uint64(limit)
    else:
        listed = _read_list(split.val_list, np.concatenate((keys, _rejected_keys(items))))

        def is_val(some: NDArray[np.uint64]) -> NDArray[np.bool_]:
            return np.isin(some, listed)

    wanted = split.side == "val"

    def includes(name: str) -> bool:
        key = xxhash.xxh3_64_intdigest(encode_name(name))
        return bool(is_val(np.array([key], np.uint64))[0]) == wanted

    rows = np.flatnonzero(is_val(keys) == wanted)
    if not rows.size and len(items):
        raise ConfigError(
            f"--split {split.side} leaves nothing to pack of {len(items):,} items: give another "
            "--val-fraction or --val-list"
        )
    return Selection(rows=rows, includes=includes)


def _rejected_keys(items: SourceItems) -> NDArray[np.uint64]:
    """Return the keys of the items that listing rejected: a list may name them, too."""
    names = (entry["path"] for each in items.lists for entry in each.rejected())
    return np.fromiter((xxhash.xxh3_64_intdigest(encode_name(name)) for name in names), np.uint64)


def _read_list(path: Path, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the keys of the names in a file, sorted; ConfigError for a name that no item has."""
    try:
        listed = np.fromiter(
            (xxhash.xxh3_64_intdigest(name) for name in _read_names(path)), np.uint64
        )
    except DatasetError as error:
        raise ConfigError(f"--val-list: {error}") from None
    missing = np.flatnonzero(~np.isin(listed, keys))
    if missing.size:
        name = next(
            name for number, name in enumerate(_read_names(path)) if number == int(missing[0])
        )
        raise ConfigError(
            f"--val-list {path} names {plural(missing.size, 'item')} that the source does not "
            f"have, first {printable(decode_name(name))}: write names as they are below the "
            "source, one a line"
        )
    if not listed.size:
        raise ConfigError(f"--val-list {path} names nothing")
    return np.unique(listed)


def _read_names(path: Path) -> Iterator[bytes]:
    return filter(None, map(bytes.strip, read_byte_lines(path)))
