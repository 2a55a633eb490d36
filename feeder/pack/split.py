"""Which items of a source are packed: all of them, or one side of a split.

A split by fraction goes by a hash of each item's name, so an item stays on its side when others are
added or removed, whatever the seed. A split by list names the items for validation.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

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

    def describe(self) -> str:
        """What a resumed packing must have in common with this."""
        how = f"{self.val_fraction!r}" if self.val_list is None else "by list"
        return f"{self.side} of a split {how}"


def parse_share(text: str) -> float:
    """Read a share: "5%" or "0.05"; ConfigError for another text."""
    digits, percent, rest = text.strip().partition("%")
    try:
        share = float(digits) / (100 if percent else 1)
    except ValueError:
        share = math.nan
    if rest or not 0 < share < 1:
        raise ConfigError(f"--val-fraction {text}: give a share between 0 and 1: 5% or 0.05")
    return share


class Selection(NamedTuple):
    """The rows (n,) of the items to pack, and whether a rejected item belongs to them."""

    rows: NDArray[np.int64]
    includes: Callable[[str], bool]


def select_items(items: SourceItems, split: SplitOptions | None) -> Selection:
    """Select the items on the side that ``split`` asks for; ConfigError if there are none."""
    if split is None:
        return Selection(np.arange(len(items)), lambda _: True)
    keys = np.array(items.rows["name_key"])
    limit = np.uint64(int((split.val_fraction or 0) * 2**64))
    listed: NDArray[np.uint64] | None = None
    if split.val_list is not None:
        rejected = (entry["path"] for each in items.lists for entry in each.rejected())
        known = np.concatenate((keys, _hash_names(map(encode_name, rejected))))
        listed = _read_list(split.val_list, known)

    def is_wanted(some: NDArray[np.uint64]) -> NDArray[np.bool_]:
        is_val: NDArray[np.bool_]
        if listed is None:
            is_val = derive_keys(_KEY, some.view(np.int64)) < limit
        else:
            is_val = np.isin(some, listed)
        return is_val if split.side == "val" else ~is_val

    rows = np.flatnonzero(is_wanted(keys))
    if not rows.size and len(items):
        raise ConfigError(
            f"--split {split.side} leaves nothing to pack of {len(items):,} items: give another "
            "--val-fraction or --val-list"
        )
    return Selection(rows, lambda name: bool(is_wanted(_hash_names([encode_name(name)]))[0]))


def _hash_names(names: Iterable[bytes]) -> NDArray[np.uint64]:
    return np.fromiter(map(xxhash.xxh3_64_intdigest, names), np.uint64)


def _read_list(path: Path, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash the names in a file, sorted; ConfigError for a name that no item has in its ``keys``."""
    try:
        listed = _hash_names(_read_names(path))
    except DatasetError as error:
        raise ConfigError(f"--val-list: {error}") from None
    missing = np.flatnonzero(~np.isin(listed, keys))
    if missing.size:
        name = next(itertools.islice(_read_names(path), int(missing[0]), None))
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
