"""All items of a source as one mapped table, their packing order, and the list that workers read.

The order is that of a keyed hash of the names. So it depends on names and seed only, neither on
containers nor on folders, and adding or removing an item keeps the order of the others.

    items   for each item: container u32, offset u64, size u64, stamp u64, label u32, name bytes
            u16, then the label row that its shard stores and the name

A part's items are consecutive bytes of that file. Its hash stands for the source: equal lists pack
to equal datasets. The stamp is that of the file that holds the item, be it a container or its own.
"""

import hashlib
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from os.path import splitext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.plan.rng import derive_keys
from feeder.process.path_text import decode_name, printable
from feeder.process.regular_file import open_regular_file
from feeder.source.listing import ListedItems, Text, map_rows, map_text
from feeder.source.raw_labels import Form
from feeder.source.source import Item

if TYPE_CHECKING:  # the worker processes read lists, and plan nothing
    from feeder.pack.classes import ClassPlan

_HEAD: Final = struct.Struct("<IQQQIH")
_COPY_ITEMS: Final = 1 << 16
_WRITE_ITEMS: Final = 1 << 14


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceItems:
    """The items of all containers; ``rows`` (n,) are ITEM records whose offsets are in ``text``.

    Labels of form TEXT are positions in ``texts``, those of form TEXTS after ``first_text`` of
    their container is added.
    """

    lists: Sequence[ListedItems]
    rows: NDArray[np.void]
    text: Text
    texts: tuple[str, ...]
    """The texts of all containers, one after the other."""
    first_text: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, row: int) -> str:
        return self.item(row).name

    def item(self, row: int) -> Item:
        record = self.rows[row]
        at = int(record["name_at"])
        name = self.text[at : at + int(record["name_bytes"])]
        return Item(
            int(record["container"]),
            int(record["offset"]),
            int(record["size_bytes"]),
            decode_name(name),
            self.stamp(record),
        )

    def stamp(self, record: np.void) -> int | None:
        """The stamp of the file that an item is read from; None: any."""
        return int(record["stamp"]) or self.lists[int(record["container"])].listed.stamp[1] or None

    def order(self, selected: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
        """Sort ``selected`` rows (n,) into packing order."""
        keys = derive_keys(seed, self.rows["name_key"][selected].view(np.int64))
        order = np.argsort(keys, kind="stable")
        for first, end in _equal_runs(keys[order]):  # hashes of different names can be equal
            order[first:end] = sorted(order[first:end], key=lambda at: self.name(int(selected[at])))
        return selected[order]

    def fields(self, separator: str, count: int) -> str:
        """The first fields that labels were found in, in brackets; empty where that is plain."""
        fields = dict.fromkeys(each.listed.field for each in self.lists if each.listed.field)
        return f" ({separator.join(list(fields)[:count])})" if fields else ""


def merge_lists(work_folder: Path, lists: Sequence[ListedItems]) -> SourceItems:
    """Join all lists, in the order of the containers."""
    texts = tuple(itertools.chain.from_iterable(each.listed.texts for each in lists))
    sizes = (len(each.listed.texts) for each in lists)
    first_text = tuple(itertools.accumulate(sizes, initial=0))[:-1]
    rows_path, text_path = work_folder / "merged.items", work_folder / "merged.text"
    if len(lists) == 1:
        rows, text = lists[0].rows, lists[0].text
    else:
        with rows_path.open("wb", buffering=1 << 20) as rows_file, text_path.open("wb") as file:
            for items, first in zip(lists, first_text, strict=True):
                _append(items, first, rows_file, file)
                items.release()
        rows, text = map_rows(rows_path), map_text(text_path)
    return SourceItems(lists=lists, rows=rows, text=text, texts=texts, first_text=first_text)


def _append(items: ListedItems, first_text: int, rows_file: BinaryIO, text_file: BinaryIO) -> None:
    """Copy a list, with the offsets that its text has in ``text_file``."""
    at = text_file.tell()
    for first in range(0, len(items.rows), _COPY_ITEMS):
        rows = np.array(items.rows[first : first + _COPY_ITEMS])
        rows["name_at"] += at
        rows["label"][rows["form"] >= Form.NUMBERS] += at
        rows["label"][rows["form"] == Form.TEXT] += first_text
        rows_file.write(rows.tobytes())
    text_file.write(items.text)


def check_names(items: SourceItems, is_image: Callable[[Item], bool]) -> str:
    """Return a warning if names differ only in case, else an empty text.

    Raises ConfigError for two items of one name, and for two images that would unpack to one.
    ``is_image`` is called for items whose names differ only in suffix or case.
    """
    keys = np.array(items.rows["fold_key"])  # equal for names that differ only in suffix or case
    order = np.argsort(keys, kind="stable")
    differ_in_case = 0
    example = ("", "")
    for first, end in _equal_runs(keys[order]):
        alike = sorted((items.item(int(row)) for row in order[first:end]), key=lambda i: i.name)
        _check_stems(items, alike, is_image)
        folded: dict[str, str] = {}
        for item in alike:
            other = folded.setdefault(item.name.casefold(), item.name)
            if other != item.name:
                differ_in_case += 1
                example = example if example[0] else (other, item.name)
    if not differ_in_case:
        return ""
    count = "1 name differs" if differ_in_case == 1 else f"{differ_in_case:,} names differ"
    return (
        f"feeder: warning: {count} from another only in case, as {printable(example[0])} and "
        f"{printable(example[1])}: `feeder unpack` fails where case does not count"
    )


def _check_stems(
    items: SourceItems, alike: Sequence[Item], is_image: Callable[[Item], bool]
) -> None:
    """Raise ConfigError for two of ``alike``, sorted by name, that cannot both be unpacked."""
    for item, following in itertools.pairwise(alike):
        if item.name == following.name:
            containers = dict.fromkeys((item.container, following.container))
            where = " and ".join(items.lists[each].listed.container for each in containers)
            raise ConfigError(
                f"two items are called {printable(item.name)}, in {printable(where)}: rename one"
            )
    by_stem: dict[str, list[Item]] = {}
    for item in alike:
        by_stem.setdefault(splitext(item.name)[0], []).append(item)
    for group in by_stem.values():
        images = [item for item in group if len(group) > 1 and is_image(item)]
        if len(images) > 1:
            source = items.lists[images[1].container].listed.container
            raise ConfigError(
                f"{printable(images[0].name)} and {printable(images[1].name)} in "
                f"{printable(source)} would unpack to the same name: rename one"
            )


def _equal_runs(values: NDArray[np.uint64]) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each run of two or more equal numbers in sorted ``values`` (n,)."""
    edges = np.flatnonzero(np.concatenate(([True], values[1:] != values[:-1], [True])))
    for at in np.flatnonzero(np.diff(edges) > 1).tolist():
        yield int(edges[at]), int(edges[at + 1])


def write_items(
    path: Path,
    items: SourceItems,
    order: NDArray[np.int64],
    plan: "ClassPlan",
    part_sizes: Sequence[int],
) -> tuple[str, list[tuple[int, int]], NDArray[np.int64]]:
    """Write the rows ``order`` (n,) of ``items``, of which part p takes ``part_sizes[p]``.

    Returns the list's hash, the offset and size in bytes of each part's items, and the number of
    items of each class, (classes,), empty unless labels are of kind "index".
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in plan.classes:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    digest.update(f"{plan.labels.kind} {plan.labels.width}".encode())
    for each in items.lists:  # a container that was replaced may have the same items elsewhere
        digest.update(repr(each.listed.stamp).encode())
    is_index = plan.labels.kind == "index"
    counts = np.zeros(len(plan.classes) if is_index else 0, np.int64)
    extents = []
    first = 0
    with path.open("wb", buffering=1 << 20) as file:
        for size in part_sizes:
            begin = file.tell()
            for start in range(first, first + size, _WRITE_ITEMS):
                rows = order[start : min(start + _WRITE_ITEMS, first + size)]
                labels = plan.labels_of(rows)
                data = _encode_rows(items, items.rows[rows], plan, labels)
                if is_index:
                    counts += np.bincount(labels, minlength=len(counts))
                digest.update(data)
                file.write(data)
            extents.append((begin, file.tell() - begin))
            first += size
    return digest.hexdigest(), extents, counts


def _encode_rows(
    items: SourceItems, rows: NDArray[np.void], plan: "ClassPlan", labels: NDArray[np.int64]
) -> bytes:
    parts = []
    fields = rows[["container", "offset", "size_bytes", "stamp", "name_at", "name_bytes"]].tolist()
    raw = rows[["form", "label"]].tolist()
    for (container, offset, size, stamp, name_at, name_bytes), label, (form, stored) in zip(
        fields, labels.tolist(), raw, strict=True
    ):
        stamp = stamp or items.lists[container].listed.stamp[1]
        parts.append(_HEAD.pack(container, offset, size, stamp, label, name_bytes))
        parts.append(plan.stored_row(items, container, form, stored))
        parts.append(items.text[name_at : name_at + name_bytes])
    return b"".join(parts)


def read_items(
    path: Path, offset: int, size: int, label_bytes: int
) -> Iterator[tuple[Item, int, bytes]]:
    """Yield the items in ``size`` bytes at ``offset`` of ``path``, each with label and label row.

    ``label_bytes`` is the size of a label row.
    """
    with open_regular_file(path) as file:
        file.seek(offset)
        while size > 0:
            head = _HEAD.unpack(file.read(_HEAD.size))
            container, item_offset, item_bytes, stamp, label, name_bytes = head
            label_row = file.read(label_bytes)
            name = decode_name(file.read(name_bytes))
            size -= _HEAD.size + label_bytes + name_bytes
            yield Item(container, item_offset, item_bytes, name, stamp), label, label_row
