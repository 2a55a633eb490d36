"""Finds samples with equal source bytes, by the checksums in their records.

A group is all samples of one checksum (xxh3_64; at 14 million samples, two different sources share
one by chance in 1 of 190,000 datasets). All groups are counted, also those with different labels.
As many are listed as a person may read.

Memory: 20 bytes a sample while sorting, and the listed groups. No object a sample.
"""

import json
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import checksum
from feeder.dataset.opened import Dataset
from feeder.plan.labels import LabelSpec
from feeder.process.output_file import write_output
from feeder.process.path_text import decode_name
from feeder.survey.facts import read_index

DUPLICATES_NAME: Final = "duplicates.jsonl"
GROUPS_LISTED_MAX: Final = 10_000
MEMBERS_LISTED_MAX: Final = 50
"""Of one group; the group's size counts all."""

_LISTED_MAX: Final = 100_000  # members of all listed groups together
_LISTED_LABEL_BYTES_MAX: Final = 16 << 20

SampleLabel = int | tuple[int, ...] | tuple[float, ...]
"""A class, the classes of a sample, or its values; () where there are no labels."""


class DuplicateGroup(NamedTuple):
    """Samples with the same source bytes."""

    sample_id: int
    """Of the first."""
    samples: int
    is_conflicting: bool
    """Whether their labels differ."""
    names: tuple[str, ...]
    """Of up to MEMBERS_LISTED_MAX samples, some of each label, in order; labels likewise."""
    labels: tuple[SampleLabel, ...]


class Duplicates(NamedTuple):
    """The duplicates of a dataset."""

    samples: int = 0
    """How many samples have the same source bytes as an earlier one."""
    groups_found: int = 0
    conflicting: int = 0
    """How many groups have labels that differ."""
    groups: tuple[DuplicateGroup, ...] = ()
    """The listed ones: conflicting ones first, then by size, then by their first sample."""


def find_duplicates(dataset: Dataset) -> Duplicates:
    """The duplicates of a dataset, whose manifest need not be written or sealed yet.

    Samples without a source checksum have no duplicates. Raises DatasetError for a shard that
    cannot be read.
    """
    keys = np.empty(dataset.layout.samples, np.uint64)
    for piece, records, _ in read_index(dataset):
        keys[piece] = records["source_checksum"]
    order = np.argsort(keys, kind="stable")  # members of a group stay in the order of samples
    keys.sort()  # in place, unlike keys[order]
    # Places in this order where the next sample repeats the one there.
    earlier = np.flatnonzero((keys[1:] == keys[:-1]) & (keys[1:] != 0))
    del keys
    if not len(earlier):
        return Duplicates()
    starts = earlier[np.diff(earlier, prepend=-2) > 1]
    ends = earlier[np.diff(earlier, append=len(order) + 1) > 1] + 2
    labels = _read_label_keys(dataset, np.union1d(order[earlier], order[earlier + 1]))
    differs = earlier[labels[order[earlier]] != labels[order[earlier + 1]]]
    is_conflicting = np.zeros(len(starts), bool)
    is_conflicting[np.searchsorted(starts, differs, "right") - 1] = True

    sizes = ends - starts
    ranked = np.lexsort((order[starts], -sizes, ~is_conflicting))[:GROUPS_LISTED_MAX]
    lengths = np.cumsum(np.minimum(sizes[ranked], MEMBERS_LISTED_MAX))
    room = min(_LISTED_MAX, _LISTED_LABEL_BYTES_MAX // dataset.labels.row_bytes)
    ranked = ranked[: max(1, int(np.searchsorted(lengths, room, "right")))]
    members = [order[starts[group] : ends[group]] for group in ranked.tolist()]
    listed = [samples[_choose_members(labels[samples])] for samples in members]
    shown = _read_members(dataset, np.concatenate(listed))
    return Duplicates(
        samples=len(earlier),
        groups_found=len(starts),
        conflicting=int(np.count_nonzero(is_conflicting)),
        groups=tuple(
            DuplicateGroup(
                sample_id=int(samples[0]),
                samples=len(samples),
                is_conflicting=bool(is_conflicting[group]),
                names=tuple(shown[sample][0] for sample in some.tolist()),
                labels=tuple(shown[sample][1] for sample in some.tolist()),
            )
            for group, samples, some in zip(ranked.tolist(), members, listed, strict=True)
        ),
    )


def _read_label_keys(dataset: Dataset, duplicates: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A number for each sample, (n,), that is equal where the labels of ``duplicates`` are."""
    keys = np.zeros(dataset.layout.samples, np.uint64)
    for piece, records, label_rows in read_index(dataset):
        if not dataset.labels.stored_bytes:
            keys[piece] = records["label"]
            continue
        first, end = np.searchsorted(duplicates, (piece.start, piece.stop)).tolist()
        for sample in duplicates[first:end].tolist():
            keys[sample] = checksum(label_rows[sample - piece.start].data)
    return keys


def _choose_members(label_keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Which members of a group to list, in order: the first of each label, then others."""
    _, of_each_label = np.unique(label_keys, return_index=True)
    kept = np.sort(of_each_label)[:MEMBERS_LISTED_MAX]
    others = np.setdiff1d(np.arange(min(len(label_keys), MEMBERS_LISTED_MAX)), kept)
    return np.sort(np.concatenate((kept, others[: MEMBERS_LISTED_MAX - len(kept)])))


def _read_members(
    dataset: Dataset, sample_ids: NDArray[np.int64]
) -> dict[int, tuple[str, SampleLabel]]:
    """The name and the label of each sample, with one shard's index in memory at a time."""
    members: dict[int, tuple[str, SampleLabel]] = {}
    shards, rows = dataset.layout.locate(sample_ids)
    for shard in np.unique(shards).tolist():
        index = dataset.open_shard(shard).prove_index()
        for at in np.flatnonzero(shards == shard).tolist():
            record, label_row = index.records[rows[at]], index.label_rows[rows[at]]
            name = decode_name(index.name(record))
            label: SampleLabel = int(record["label"])
            if dataset.labels.kind != "index":
                label = _list_values(dataset.labels, label_row)
            members[int(sample_ids[at])] = name, label
    return members


def _list_values(
    labels: LabelSpec, stored: NDArray[np.uint8]
) -> tuple[int, ...] | tuple[float, ...]:
    if labels.kind == "none":
        return ()
    row = np.empty((1, *labels.row_shape), labels.dtype)
    labels.decode_rows(stored[None], row)
    if labels.kind == "multi":
        return tuple(np.flatnonzero(row).tolist())
    return tuple(float(str(value)) for value in row[0])  # as short as float32 allows


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
