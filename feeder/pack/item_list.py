"""The items of a packing in packing order, as its worker processes read them.

    items   for each item: container u32, offset u64, size u64, stamp u64, label u32, name bytes
            u16, then the label row that its shard stores and the name

A part's items are consecutive bytes of it. Its hash stands for the source: equal lists pack to
equal datasets. The stamp is that of the file that holds the item, be it a container or its own.
"""

import hashlib
import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.process.path_text import decode_name, printable
from feeder.process.regular_file import open_regular_file
from feeder.source.source import LOOSE_KINDS, Item, SourceSpec

if TYPE_CHECKING:  # the worker processes read lists, and plan nothing
    from feeder.pack.classes import ClassPlan
    from feeder.pack.merge import SourceItems

_HEAD: Final = struct.Struct("<IQQQIH")
_CHUNK: Final = 1 << 14


class PartItem(NamedTuple):
    """One item to pack."""

    item: Item
    label: int
    label_row: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenList:
    """A list of items in a file: its hash, and where each part's items are."""

    digest: str
    extents: tuple[tuple[int, int], ...]
    """Offset and size in bytes of each part's items."""
    class_counts: NDArray[np.int64]
    """(classes,), the number of items of each class; empty unless labels are of kind "index"."""


def write_items(
    path: Path,
    items: "SourceItems",
    order: NDArray[np.int64],
    plan: "ClassPlan",
    part_sizes: list[int],
) -> WrittenList:
    """Write the rows ``order`` (n,) of ``items``, of which part p takes ``part_sizes[p]``."""
    digest = hashlib.blake2b(digest_size=16)
    for name in plan.classes:
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    digest.update(f"{plan.labels.kind} {plan.labels.width}".encode())
    for each in items.lists:  # a container that was replaced may have the same items elsewhere
        digest.update(repr(each.listed.stamp).encode())
    is_index = plan.labels.kind == "index"
    counts = np.zeros(len(plan.classes) if is_index else 0, np.int64)
    extents, at = [], 0
    with path.open("wb", buffering=1 << 20) as file:
        first = 0
        for size in part_sizes:
            begin = at
            for start in range(first, first + size, _CHUNK):
                rows = items.rows[order[start : min(start + _CHUNK, first + size)]]
                data, labels = _encode_rows(items, rows, plan)
                if is_index:
                    counts += np.bincount(labels, minlength=len(counts))
                digest.update(data)
                file.write(data)
                at += len(data)
            extents.append((begin, at - begin))
            first += size
    return WrittenList(digest=digest.hexdigest(), extents=tuple(extents), class_counts=counts)


def _encode_rows(
    items: "SourceItems", rows: NDArray[np.void], plan: "ClassPlan"
) -> tuple[bytes, NDArray[np.int64]]:
    labels = plan.labels_of(items, rows)
    parts = []
    fields = rows[["container", "offset", "size_bytes", "stamp", "name_at", "name_bytes"]].tolist()
    raw = rows[["form", "label"]].tolist()
    for (container, offset, size, stamp, name_at, name_bytes), label, (form, stored) in zip(
        fields, labels.tolist(), raw, strict=True
    ):
        stamp = stamp or items.lists[container].listed.stamp[1]
        parts.append(_HEAD.pack(container, offset, size, stamp, label, name_bytes))
        parts.append(plan.stored_row(items, container, form, stored))
        parts.append(items.text.name(name_at, name_bytes))
    return b"".join(parts), labels


def read_items(path: Path, offset: int, size: int, label_bytes: int) -> Iterator[PartItem]:
    """Yield the items in ``size`` bytes at ``offset`` of ``path``.

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
            item = Item(container, item_offset, item_bytes, name, stamp)
            yield PartItem(item, label, label_row)


def describe_change(old: Path, new: Path, label_bytes: int, spec: SourceSpec) -> str:
    """Return the first difference of two lists of one order, as a clause for a message."""
    lists = (read_items(path, 0, path.stat().st_size, label_bytes) for path in (old, new))
    for before, after in itertools.zip_longest(*lists):
        if before is None or after is None or before.item.name != after.item.name:
            names = " and ".join(printable(each.item.name) for each in (before, after) if each)
            return f"names differ, first {names}"
        if before.item != after.item:
            path = spec.containers[after.item.container]
            file = f"{path}/{after.item.name}" if spec.kind in LOOSE_KINDS else path
            return f"{printable(file)} was written again or replaced"
        if before != after:
            return f"{printable(after.item.name)} had another label"
    return "a file without items was written again or replaced"
