"""All items of a source as one mapped table, their packing order, and the checks across containers.

The order is that of a keyed hash of the names. So it depends on names and seed only, neither on
containers nor on folders, and adding or removing an item keeps the order of the others.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os.path import splitext
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.plan.rng import derive_keys
from feeder.process.path_text import printable
from feeder.source.listing import ListedItems, ListText, map_rows
from feeder.source.raw_labels import Form
from feeder.source.source import Item

_COPY_ITEMS: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceItems:
    """The items of all containers; ``rows`` (n,) are ITEM records whose offsets are in ``text``."""

    lists: Sequence[ListedItems]
    rows: NDArray[np.void]
    text: ListText

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> str:
        """Return the name of the item in ``row``."""
        return self.item(row).name

    def stored_name(self, record: np.void) -> bytes:
        """Return the name in an ITEM record, as shards store it."""
        return self.text.name(int(record["name_at"]), int(record["name_bytes"]))

    def item(self, row: int) -> Item:
        """Return the item in ``row``."""
        record = self.rows[row]
        return Item(
            int(record["container"]),
            int(record["offset"]),
            int(record["size_bytes"]),
            self.stored_name(record).decode("utf-8", "surrogateescape"),
        )

    def order(self, selected: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Return ``selected`` rows (n,) in packing order."""
        keys = derive_keys(seed, self.rows["name_key"][selected].view(np.int64))
        order = np.argsort(keys, kind="stable")
        for first, end in _equal_runs(keys[order]):  # hashes of different names can be equal
            order[first:end] = sorted(order[first:end], key=lambda at: self.name(int(selected[at])))
        return selected[order]


def merge_lists(work_folder: Path, lists: Sequence[ListedItems]) -> SourceItems:
    """Return the items of all lists, in the order of the containers."""
    if len(lists) == 1:
        return SourceItems(lists=lists, rows=lists[0].rows, text=lists[0].text)
    rows_path, text_path = work_folder / "merged.items", work_folder / "merged.text"
    with rows_path.open("wb", buffering=1 << 20) as rows_file, text_path.open("wb") as text_file:
        for items in lists:
            _append(items, rows_file, text_file)
            items.release()
    return SourceItems(lists=lists, rows=map_rows(rows_path), text=ListText(text_path))


def _append(items: ListedItems, rows_file: BinaryIO, text_file: BinaryIO) -> None:
    """Copy a list, with the offsets that its text has in ``text_file``."""
    at = text_file.tell()
    for first in range(0, len(items.rows), _COPY_ITEMS):
        rows = np.array(items.rows[first : first + _COPY_ITEMS])
        rows["name_at"] += at
        rows["label"][rows["form"] >= Form.NUMBERS] += at
        rows_file.write(rows.tobytes())
    items.copy_text(text_file)


def check_names(items: SourceItems, is_image: Callable[[Item], bool]) -> list[str]:
    """Return warnings about names that differ only in case.

    Raises ConfigError for two items of one name, and for two images that would unpack to one.
    ``is_image`` is called for items whose names differ only in suffix or case.
    """
    keys = np.array(items.rows["fold_key"])
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    differ_in_case = 0
    example = ("", "")
    for first, end in _equal_runs(keys):
        found = sorted((items.item(int(row)) for row in order[first:end]), key=lambda i: i.name)
        _check_stems(items, found, is_image)
        folded: dict[str, str] = {}
        for item in found:
            other = folded.setdefault(item.name.casefold(), item.name)
            if other != item.name:
                differ_in_case += 1
                example = example if example[0] else (other, item.name)
    if not differ_in_case:
        return []
    count = "1 name differs" if differ_in_case == 1 else f"{differ_in_case:,} names differ"
    return [
        f"feeder: warning: {count} from another only in case, as {printable(example[0])} and "
        f"{printable(example[1])}: `feeder unpack` fails where case does not count"
    ]


def _check_stems(
    items: SourceItems, found: Sequence[Item], is_image: Callable[[Item], bool]
) -> None:
    """Raise ConfigError for two of ``found``, sorted by name, that cannot both be unpacked."""
    images: dict[str, Item] = {}
    previous: Item | None = None
    for item in found:
        if previous is not None and previous.name == item.name:
            containers = dict.fromkeys((previous.container, item.container))
            where = " and ".join(items.lists[each].listed.container for each in containers)
            raise ConfigError(
                f"two items are called {printable(item.name)}, in {printable(where)}: rename one"
            )
        previous = item
    by_stem: dict[str, list[Item]] = {}
    for each in found:
        by_stem.setdefault(splitext(each.name)[0], []).append(each)
    for stem, group in by_stem.items():
        for item in group if len(group) > 1 else []:
            if not is_image(item):
                continue
            other = images.setdefault(stem, item)
            if other is not item:
                source = items.lists[item.container].listed.container
                raise ConfigError(
                    f"{printable(other.name)} and {printable(item.name)} in {printable(source)} "
                    "would unpack to the same name: rename one"
                )


def _equal_runs(values: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of two or more equal numbers in sorted ``values`` (n,)."""
    edges = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1], [True])))
    for at in np.flatnonzero(np.diff(edges) > 1).tolist():
        yield int(edges[at]), int(edges[at + 1])
