"""Finds samples with equal source bytes, by the checksums in their records.

A group is all samples of one checksum (xxh3_64; at 14 million samples, two different sources share
one by chance in 1 of 190,000 datasets). All groups are counted, also those with different labels.
As many are listed as a person may read.

Memory: 16 bytes a sample while sorting, 40 a duplicate, and the listed groups. No object a sample.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import checksum
from feeder.dataset.reader import ShardReader
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.process.output_file import write_output
from feeder.survey.index_pieces import read_label_rows, read_name, read_records

DUPLICATES_NAME: Final = "duplicates.jsonl"
GROUPS_LISTED_MAX: Final = 10_000
MEMBERS_LISTED_MAX: Final = 50
"""Of one group; the group's size counts all."""

_LISTED_MAX: Final = 100_000  # members of all listed groups together
_LISTED_LABEL_BYTES_MAX: Final = 16 << 20
_SEARCH_PIECE: Final = 1 << 20

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
    """Return the duplicates of the dataset with these ``shards``, in order, and these ``labels``.

    Samples without a source checksum have no duplicates. Raises DatasetError for a shard that
    cannot be read.
    """
    keys, starts = _read_keys(shards)
    repeated = _find_repeated(keys)
    if not len(repeated):
        return NO_DUPLICATES
    members, groups = _find_members(keys, repeated)
    del keys
    label_keys = _read_label_keys(shards, starts, members, labels)

    order = np.argsort(groups, kind="stable")  # members of a group stay in the order of samples
    found = _Groups(
        members=members[order],
        label_keys=label_keys[order],
        edges=np.concatenate(([0], np.cumsum(np.bincount(groups, minlength=len(repeated))))),
    )
    return Duplicates(
        samples=len(members) - len(repeated),
        groups_found=len(repeated),
        conflicting=int(np.count_nonzero(found.conflicting)),
        groups=tuple(_read_groups(shards, starts, found, labels)),
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
    """Return the source checksum of each sample (n,), and the first sample of each shard and n."""
    samples = []
    for path in shards:
        reader = ShardReader(path)
        reader.close()
        samples.append(reader.header.samples)
    starts = np.cumsum([0, *samples])
    keys = np.empty(int(starts[-1]), np.uint64)
    for path, start in zip(shards, starts.tolist(), strict=False):
        reader = ShardReader(path)
        try:
            for first, records in read_records(reader):
                at = start + first
                keys[at : at + len(records)] = records["source_checksum"]
        finally:
            reader.close()
    return keys, starts


def _find_repeated(keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the keys that occur more than once, sorted; not 0, which means unknown."""
    ordered = np.sort(keys)
    return np.unique(ordered[1:][(ordered[1:] == ordered[:-1]) & (ordered[1:] != 0)])


def _find_members(
    keys: NDArray[np.uint64], repeated: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the samples with a repeated key, in order, and the position of that key."""
    members, groups = [], []
    for first in range(0, len(keys), _SEARCH_PIECE):
        piece = keys[first : first + _SEARCH_PIECE]
        at = np.minimum(np.searchsorted(repeated, piece), len(repeated) - 1)
        found = np.flatnonzero(repeated[at] == piece)
        members.append(found + first)
        groups.append(at[found])
    return np.concatenate(members), np.concatenate(groups)


def _read_label_keys(
    shards: Sequence[Path],
    starts: NDArray[np.int64],
    members: NDArray[np.int64],
    labels: LabelSpec,
) -> NDArray[np.uint64]:
    """Return a number for each of ``members`` that is equal where labels are equal."""
    keys = np.zeros(len(members), np.uint64)
    for shard, within in _by_shard(starts, members):
        rows = members[within] - starts[shard]
        reader = ShardReader(shards[shard])
        try:
            if labels.stored_bytes:
                for first, stored in read_label_rows(reader, 1):
                    begin, end = np.searchsorted(rows, (first, first + len(stored))).tolist()
                    keys[within][begin:end] = [
                        checksum(stored[row].data) for row in (rows[begin:end] - first).tolist()
                    ]
            else:
                for first, records in read_records(reader):
                    begin, end = np.searchsorted(rows, (first, first + len(records))).tolist()
                    keys[within][begin:end] = records["label"][rows[begin:end] - first]
        finally:
            reader.close()
    return keys


def _by_shard(starts: NDArray[np.int64], members: NDArray[np.int64]) -> Iterator[tuple[int, slice]]:
    """Yield each shard that holds some of ``members`` (sorted), and the slice of those."""
    edges = np.searchsorted(members, starts).tolist()
    for shard, (begin, end) in enumerate(pairwise(edges)):
        if begin < end:
            yield shard, slice(begin, end)


class _Groups:
    """All groups: the members of group g are those from ``edges[g]`` to ``edges[g + 1]``."""

    def __init__(
        self,
        members: NDArray[np.int64],
        label_keys: NDArray[np.uint64],
        edges: NDArray[np.int64],
    ) -> None:
        self._members, self._label_keys, self._edges = members, label_keys, edges
        self.sizes, firsts = np.diff(edges), edges[:-1]
        self.conflicting: NDArray[np.bool_] = np.minimum.reduceat(
            label_keys, firsts
        ) != np.maximum.reduceat(label_keys, firsts)
        self._first_members = members[firsts]

    def choose(self, labels: LabelSpec) -> list[int]:
        """Return the groups to list, in the order of the list."""
        order = np.lexsort((self._first_members, -self.sizes, ~self.conflicting))
        order = order[:GROUPS_LISTED_MAX]
        total = np.cumsum(np.minimum(self.sizes[order], MEMBERS_LISTED_MAX))
        room = min(_LISTED_MAX, _LISTED_LABEL_BYTES_MAX // labels.row_bytes)
        chosen: list[int] = order[: max(1, int(np.searchsorted(total, room, "right")))].tolist()
        return chosen

    def choose_members(self, group: int) -> list[int]:
        """Return the samples to list of a group, in order: the first of each label, then others."""
        begin, end = self._edges[group : group + 2].tolist()
        _, of_each_label = np.unique(self._label_keys[begin:end], return_index=True)
        kept = np.sort(of_each_label)[:MEMBERS_LISTED_MAX]
        others = np.setdiff1d(np.arange(min(end - begin, MEMBERS_LISTED_MAX)), kept)
        rows = np.sort(np.concatenate((kept, others[: MEMBERS_LISTED_MAX - len(kept)])))
        chosen: list[int] = self._members[begin + rows].tolist()
        return chosen


def _read_groups(
    shards: Sequence[Path], starts: NDArray[np.int64], groups: _Groups, labels: LabelSpec
) -> Iterator[DuplicateGroup]:
    """Yield the groups to list, with names and labels."""
    listed = groups.choose(labels)
    shown = [groups.choose_members(group) for group in listed]
    wanted = np.array(sorted(sample for samples in shown for sample in samples), np.int64)
    found: dict[int, tuple[str, SampleLabel]] = {}
    for shard, within in _by_shard(starts, wanted):
        reader = ShardReader(shards[shard])
        try:
            for sample in wanted[within].tolist():
                found[sample] = _read_sample(reader, sample - int(starts[shard]), labels)
        finally:
            reader.close()
    for group, samples in zip(listed, shown, strict=True):
        names, group_labels = zip(*(found[sample] for sample in samples), strict=True)
        yield DuplicateGroup(
            sample_id=samples[0],
            samples=int(groups.sizes[group]),
            is_conflicting=bool(groups.conflicting[group]),
            names=names,
            labels=group_labels,
        )


def _read_sample(reader: ShardReader, row: int, labels: LabelSpec) -> tuple[str, SampleLabel]:
    """Return a sample's name and label."""
    record = reader.read_records(row, 1)[0]
    name = read_name(reader, record)
    if labels.kind == "index":
        return name, int(record["label"])
    if labels.kind == "none":
        return name, ()
    values = np.empty((1, *labels.row_shape), labels.dtype)
    labels.decode_rows(reader.read_label_rows(row, 1), values)
    if labels.kind == "multi":
        return name, tuple(np.flatnonzero(values[0]).tolist())
    return name, tuple(float(str(value)) for value in values[0])  # as short as float32 allows
