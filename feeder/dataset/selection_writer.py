"""The bytes of a selection, from the samples of its members. Opens no file.

``feeder.dataset.selection`` describes them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.dataset.manifest import canonical_json
from feeder.dataset.selection import (
    CHECKSUM_BYTES,
    DTYPES,
    ID_BITS,
    MAGIC,
    PREAMBLE,
    VERSION,
    Member,
    SelectionHeader,
    Table,
    aligned,
    fingerprint_tables,
)
from feeder.plan.labels import LabelSpec


def merge_classes(classes: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return all class names, in the order of their first appearance."""
    return tuple(dict.fromkeys(name for names in classes for name in names))


def merge_rows(ids: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return the row of each member's samples: ``ids`` are theirs, ascending, (n,) for each member.

    Row k of n sorts at (2k + 1) / 2n, ties by member. Exact: of another member with m samples,
    those precede it whose i has (2i + 1) · n < (2k + 1) · m, and for an earlier one also those at
    equality, all in integers below 2**63.
    """
    counts = [len(own) for own in ids]
    merged = []
    for number, count in enumerate(counts):
        k = np.arange(count, dtype=np.int64)
        rows = k.copy()
        for other, others in enumerate(counts):
            if other != number:
                # count ≥ 1: without samples there is no row
                rows += ((2 * k + 1) * others + count - (other > number)) // (2 * max(1, count))
        merged.append(rows)
    return merged


def encode_selection(
    name: str,
    members: Sequence[Member],
    ids: Sequence[NDArray[np.int64]],
    *,
    classes: Sequence[str],
    labels: LabelSpec,
    own_labels: Sequence[NDArray[np.int32]] | None = None,
    options: Mapping[str, str] | None = None,
) -> list[bytes | memoryview]:
    """Return the parts of the file that names these samples, in order.

    ``ids`` are those of each member, ascending, each once; ``own_labels`` the classes of the same,
    where labels are not those of the members. Members without samples are left out.
    """
    kept = [number for number, own in enumerate(ids) if len(own)]
    ids = [ids[number] for number in kept]
    rows = merge_rows(ids)
    samples = sum(map(len, ids))
    tables: dict[str, NDArray[Any]] = {"sources": np.empty(samples, "<i8")}
    for place, own in enumerate(ids):
        tables["sources"][rows[place]] = own | np.int64(place << ID_BITS)
    if own_labels is not None:
        tables["labels"] = np.empty(samples, "<i4")
        for place, number in enumerate(kept):
            tables["labels"][rows[place]] = own_labels[number]
    header = SelectionHeader(
        name=name,
        samples=samples,
        classes=tuple(classes),
        labels=labels,
        members=tuple(
            msgspec.structs.replace(members[number], chosen=len(own))
            for number, own in zip(kept, ids, strict=True)
        ),
        tables=tuple(Table(name=table, dtype=DTYPES[table]) for table in tables),
        options=dict(options or {}),
        content="0" * 32,
    )
    content = fingerprint_tables(header, tables.values())
    text = canonical_json(msgspec.to_builtins(msgspec.structs.replace(header, content=content)))
    parts: list[bytes | memoryview] = [text]
    at = PREAMBLE.size + len(text)
    for table in tables.values():
        parts += [bytes(aligned(at) - at), table.view(np.uint8).data]
        at = aligned(at) + table.nbytes
    preamble = PREAMBLE.pack(MAGIC, VERSION, len(text), 0)[:-CHECKSUM_BYTES]
    state = xxhash.xxh3_64(preamble)
    for part in parts:
        state.update(part)
    return [preamble, struct.pack("<Q", state.intdigest()), *parts]
