"""The bytes of a selection, from the samples of its members. Opens no file.

``feeder.dataset.selection`` describes them.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from feeder.dataset.manifest import canonical_json
from feeder.dataset.selection import (
    CHECKSUM_BYTES,
    ID_BITS,
    MAGIC,
    PREAMBLE,
    VERSION,
    Drawing,
    Member,
    SelectionHeader,
    Table,
    aligned,
    fingerprint_tables,
)
from feeder.plan.labels import LabelSpec
from feeder.plan.lanes import piece_samples


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
            if other != number and count and others:
                rows += ((2 * k + 1) * others + count - (other > number)) // (2 * count)
        merged.append(rows)
    return merged


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawTables:
    """How often samples are drawn: as ``encode_selection`` has them, by member."""

    epoch_samples: int
    epochs: tuple[int, ...]
    columns: Sequence[Sequence[NDArray[np.uint32]]]
    """Weights by column and member, (n,)."""
    shares: Sequence[int]
    components: Sequence[NDArray[np.int64]] | None = None
    """The number of the share of each sample, by member; None: there is one share."""


def encode_selection(
    name: str,
    members: Sequence[Member],
    ids: Sequence[NDArray[np.int64]],
    *,
    classes: Sequence[str],
    labels: LabelSpec,
    own_labels: Sequence[NDArray[np.int32]] | None = None,
    draws: DrawTables | None = None,
    options: Mapping[str, str] | None = None,
) -> list[bytes | memoryview]:
    """Return the parts of the file that names these samples, in order.

    ``ids`` are those of each member, ascending, each once; ``own_labels`` the classes of the same,
    where labels are not those of the members. Members without samples are left out. In a mix, what
    the components have comes one after the other.
    """
    kept = [number for number, own in enumerate(ids) if len(own)]
    ids = [ids[number] for number in kept]
    samples = sum(map(len, ids))
    drawing = None
    if draws is None or draws.components is None:
        rows = merge_rows(ids)
        parts_of_mix = [(0, samples, 1)]
    else:
        rows, parts_of_mix = _merge_components(
            ids, [draws.components[n] for n in kept], draws.shares
        )
    tables: dict[str, NDArray[Any]] = {"sources": np.empty(samples, "<i8")}
    for place, own in enumerate(ids):
        tables["sources"][rows[place]] = own | np.int64(place << ID_BITS)
    if own_labels is not None:
        tables["labels"] = np.empty(samples, "<i4")
        for place, number in enumerate(kept):
            tables["labels"][rows[place]] = own_labels[number]
    if draws is not None:
        drawing = Drawing(
            epoch_samples=draws.epoch_samples,
            epochs=draws.epochs,
            components=tuple(parts_of_mix),
            piece=piece_samples(
                samples,
                sum(
                    m.size_bytes * len(i) // m.samples
                    for m, i in zip((members[n] for n in kept), ids, strict=True)
                ),
            ),
        )
        for column, weights in enumerate(draws.columns):
            table = tables[f"weights-{column}"] = np.empty(samples, "<u4")
            for place, number in enumerate(kept):
                table[rows[place]] = weights[number]
    header = SelectionHeader(
        name=name,
        samples=samples,
        classes=tuple(classes),
        labels=labels,
        members=tuple(
            msgspec.structs.replace(members[number], chosen=len(own))
            for number, own in zip(kept, ids, strict=True)
        ),
        tables=tuple(Table(name=name, dtype=table.dtype.str) for name, table in tables.items()),
        draws=drawing,
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


def _merge_components(
    ids: Sequence[NDArray[np.int64]],
    components: Sequence[NDArray[np.int64]],
    shares: Sequence[int],
) -> tuple[list[NDArray[np.int64]], list[tuple[int, int, int]]]:
    """Return the row of each member's samples, and the first row, the end and the share of each
    component, those without samples left out."""
    rows = [np.empty(len(own), np.int64) for own in ids]
    parts = []
    first = 0
    for number, share in enumerate(shares):
        inside = [np.flatnonzero(own == number) for own in components]
        end = first + sum(map(len, inside))
        for own, at, merged in zip(rows, inside, merge_rows(inside), strict=True):
            own[at] = first + merged
        if end > first:
            parts.append((first, end, share))
        first = end
    return rows, parts
