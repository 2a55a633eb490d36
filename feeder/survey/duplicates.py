"""Finds samples with equal source bytes, by the checksums in their records.

A group is all samples of one checksum (xxh3_64; at 14 million samples, two different sources share
one by chance in 1 of 190,000 datasets). All groups are counted, also those with different labels.
As many are listed as a person may read.

Memory: 24 bytes a sample while sorting, 40 a duplicate, and the listed groups. No object a sample.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import checksum
from feeder.dataset.reader import ShardReader
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.process.output_file import write_output
from feeder.process.path_text import decode_name
from feeder.survey.facts import read_label_rows, read_records

DUPLICATES_NAME: Final = "duplicates.jsonl"
GROUPS_LISTED_MAX: Final = 10_000
MEMBERS_LISTED_MAX: Final = 50
"""Of one group; the group's size counts all."""

_LISTED_MAX: Final = 100_000  # members of all listed groups together
_LISTED_LABEL_BYTES_MAX: Final = 16 << 20

SampleLabel = int | tuple[int, ...] | tuple[float, ...]
"""A class, the classes of a sample, or its values; () where there are no labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateGroup:
    """Samples with the same source bytes."""

    sample_id: int
    """Of the first."""
    samples: int
    is_conflicting: bool
    """Whether their labels differ."""
    names: tuple[str, ...]
    """Of up to MEMBERS_LISTED_MAX samples, some of each label, in order; labels likewise."""
    labels: tuple[SampleLabel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Duplicates:
    """The duplicates of a dataset."""

    samples: int
    """How many samples have the same source bytes as an earlier one."""
    groups_found: int
    conflicting: int
    """How many groups have labels that differ."""
    groups: tuple[DuplicateGroup, ...]
    """The listed ones: conflicting ones first, then by size, then by their first sample."""


NO_DUPLICATES: Final = Duplicates(samples=0, groups_found=0, conflicting=0, groups=())


def find_duplicates(shards: Sequence[Path], labels: LabelSpec = INDEX_LABELS) -> Duplicates:
    """The duplicates of the dataset with these ``shards``, in order, and these ``labels``.

    Samples without a source checksum have no duplicates. Raises DatasetError for a shard that
    cannot be read.
    """
    keys, starts = _read_keys(shards)
    order = np.argsort(keys, kind="stable")  # members of a group stay in the order of samples
    keys = keys[order]
    is_repeat = np.zeros(len(keys) + 1, bool)  # of the sample before it in this order
    is_repeat[1:-1] = (keys[1:] == keys[:-1]) & (keys[1:] != 0)
    del keys
    is_first = is_repeat[1:] & ~is_repeat[:-1]
    members = order[is_first | is_repeat[:-1]]
    firsts = np.flatnonzero(is_first[is_first | is_repeat[:-1]])
    del order
    if not len(firsts):
        return NO_DUPLICATES
    by_sample = np.argsort(members)
    label_keys = np.empty(len(members), np.uint64)
    label_keys[by_sample] = _read_label_keys(shards, starts, members[by_sample], labels)
    edges = np.append(firsts, len(members))
    sizes = np.diff(edges)
    lowest, highest = (pick.reduceat(label_keys, firsts) for pick in (np.minimum, np.maximum))
    conflicting = lowest != highest

    # The list: conflicting groups first, then by size, then by their first sample, up to the room.
    ranked = np.lexsort((members[firsts], -sizes, ~conflicting))[:GROUPS_LISTED_MAX]
    total = np.cumsum(np.minimum(sizes[ranked], MEMBERS_LISTED_MAX))
    room = min(_LISTED_MAX, _LISTED_LABEL_BYTES_MAX // labels.row_bytes)
    ranked = ranked[: max(1, int(np.searchsorted(total, room, "right")))]
    chosen = [
        members[begin + _choose_members(label_keys[begin:end])].tolist()
        for begin, end in zip(edges[ranked].tolist(), edges[ranked + 1].tolist(), strict=True)
    ]
    samples = _read_samples(shards, starts, sorted(row for rows in chosen for row in rows), labels)
    return Duplicates(
        samples=len(members) - len(firsts),
        groups_found=len(firsts),
        conflicting=int(np.count_nonzero(conflicting)),
        groups=tuple(
            DuplicateGroup(
                sample_id=rows[0],
                samples=int(sizes[group]),
                is_conflicting=bool(conflicting[group]),
                names=tuple(samples[row][0] for row in rows),
                labels=tuple(samples[row][1] for row in rows),
            )
            for group, rows in zip(ranked.tolist(), chosen, strict=True)
        ),
    )


def write_duplicates(folder: Path, duplicates: Duplicates) -> None:
    """Write the listed groups beside the manifest, a line of JSON each; durable on return."""
    lines = (
        json.dumps(
            {"labels": group.labels, "names": group.names, "samples": group.samples},
            sort_keys=True,
        )
        for group in duplicates.groups
    )
    data = "".join(f"{line}\n" for line in lines).encode("ascii")
    write_output(folder / DUPLICATES_NAME, data)


def _read_keys(shards: Sequence[Path]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The source checksum of each sample (n,), and the first sample of each shard and n."""
    samples = []
    for path in shards:
        with closing(ShardReader(path)) as reader:
            samples.append(reader.header.samples)
    starts = np.cumsum([0, *samples])
    keys = np.empty(int(starts[-1]), np.uint64)
    for path, start in zip(shards, starts.tolist(), strict=False):
        with closing(ShardReader(path)) as reader:
            for first, records in read_records(reader):
                at = start + first
                keys[at : at + len(records)] = records["source_checksum"]
    return keys, starts


def _read_label_keys(
    shards: Sequence[Path],
    starts: NDArray[np.int64],
    members: NDArray[np.int64],
    labels: LabelSpec,
) -> NDArray[np.uint64]:
    """A number for each of ``members`` that is equal where labels are equal."""
    keys = np.zeros(len(members), np.uint64)
    for reader, within, start in _open_holders(shards, starts, members):
        rows = members[within] - start
        pieces: Iterator[tuple[int, NDArray[Any]]]
        pieces = read_label_rows(reader, 1) if labels.stored_bytes else read_records(reader)
        for first, piece in pieces:
            begin, end = np.searchsorted(rows, (first, first + len(piece))).tolist()
            wanted: Any = piece[rows[begin:end] - first]
            keys[within][begin:end] = (
                [checksum(row.data) for row in wanted] if labels.stored_bytes else wanted["label"]
            )
    return keys


def _choose_members(label_keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Which members of a group to list, in order: the first of each label, then others."""
    _, of_each_label = np.unique(label_keys, return_index=True)
    kept = np.sort(of_each_label)[:MEMBERS_LISTED_MAX]
    others = np.setdiff1d(np.arange(min(len(label_keys), MEMBERS_LISTED_MAX)), kept)
    return np.sort(np.concatenate((kept, others[: MEMBERS_LISTED_MAX - len(kept)])))


def _open_holders(
    shards: Sequence[Path], starts: NDArray[np.int64], members: NDArray[np.int64]
) -> Iterator[tuple[ShardReader, slice, int]]:
    """Yield each shard with some of ``members`` (sorted), their slice, and its first sample."""
    edges = np.searchsorted(members, starts).tolist()
    for shard, (begin, end) in enumerate(pairwise(edges)):
        if begin < end:
            with closing(ShardReader(shards[shard])) as reader:
                yield reader, slice(begin, end), int(starts[shard])


def _read_samples(
    shards: Sequence[Path], starts: NDArray[np.int64], members: Sequence[int], labels: LabelSpec
) -> dict[int, tuple[str, SampleLabel]]:
    """The names and labels of ``members`` (sorted), by sample."""
    samples: dict[int, tuple[str, SampleLabel]] = {}
    for reader, within, start in _open_holders(shards, starts, np.array(members, np.int64)):
        for sample in members[within]:
            row = sample - start
            record = reader.read_records(row, 1)[0]
            name = bytearray(int(record["name_bytes"]))
            offset = reader.header.names_offset + int(record["name_offset"])
            reader.read_into(offset, memoryview(name))
            samples[sample] = decode_name(bytes(name)), _read_label(reader, row, record, labels)
    return samples


def _read_label(reader: ShardReader, row: int, record: np.void, labels: LabelSpec) -> SampleLabel:
    if labels.kind == "index":
        return int(record["label"])
    if labels.kind == "none":
        return ()
    values = np.empty((1, *labels.row_shape), labels.dtype)
    labels.decode_rows(reader.read_label_rows(row, 1), values)
    if labels.kind == "multi":
        return tuple(np.flatnonzero(values[0]).tolist())
    return tuple(float(str(value)) for value in values[0])  # as short as float32 allows
