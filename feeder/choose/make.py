"""Makes a selection: which samples of some datasets, by criteria on what their indexes hold.

    DST…  ─► datasets, each once, and those of selections; a mask of samples for each
          ─► shard after shard, only those with samples left: criteria on its records and names
          ─► ids and labels ─► file

A sample that several DSTs have is chosen once, with the label of the last one. Memory is some bytes
a sample and the index of a shard.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feeder.choose.criteria import Criteria, SampleList
from feeder.choose.members import check_member, find_member
from feeder.choose.narrow import FROM_MEMBER, Input, Narrowing
from feeder.dataset.files import Location, local_folder, parse_location
from feeder.dataset.opened import Dataset
from feeder.dataset.selection import (
    MEMBERS_MAX,
    SAMPLES_MAX,
    Member,
    Selection,
    is_selection,
    merge_labels,
)
from feeder.dataset.selection_writer import encode_selection, merge_classes
from feeder.errors import ConfigError
from feeder.plan.labels import LabelSpec
from feeder.process.output_file import explain_write_errors, replace_file
from feeder.process.path_text import path_to_text
from feeder.process.stop_signals import stop_signals_blocked

_OPEN_SHARDS: Final = 2  # they are read one after the other
_LABELS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What was written."""

    content: str
    samples: int
    members: tuple[Member, ...]
    classes: int
    labels: LabelSpec


@dataclass(slots=True, eq=False)
class _Sources:
    """What the DSTs of a command are: ``parts`` by text, and the datasets that these need."""

    parts: dict[str, Dataset | Selection]
    inputs: dict[str, Input]
    """By content fingerprint, in the order of their first appearance."""
    classes: tuple[str, ...]
    labels: LabelSpec

    def rows(self, part: Dataset | Selection) -> Iterator[tuple[Input, NDArray[np.int64], Any]]:
        """Yield the datasets of a part, the ids that it has of each, and their own labels."""
        if isinstance(part, Dataset):
            yield self.inputs[part.content], np.arange(part.layout.samples), FROM_MEMBER
            return
        numbers = {name: number for number, name in enumerate(self.classes)}
        merged = np.array([numbers[name] for name in part.classes], np.int32)
        for number, member in enumerate(part.members):
            rows, ids = part.rows_of(number)
            labels = part.own_labels
            own = FROM_MEMBER if labels is None else merged[labels[rows]]
            yield self.inputs[member.content], ids, own


def select(
    name: str, datasets: Mapping[str | os.PathLike[str], ArrayLike | None], out: str | Path
) -> str:
    """Write the selection ``name`` of samples of datasets to the file ``out``.

    ``datasets`` are folders, URLs or other selections, each with the ids of its samples, in any
    order and each once, or None for all. Returns the selection's content fingerprint. Serve it
    with ``feeder serve --data NAME=OUT``. Raises ConfigError, DatasetError and ResourceError.
    """
    texts, listed = [os.fspath(text) for text in datasets], dict[int, NDArray[np.int64]]()
    for place, (text, given) in enumerate(zip(texts, datasets.values(), strict=True)):
        if given is not None:
            ids = np.asarray(given)
            if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
                raise ConfigError(f"feeder.select: the ids of {text} are no whole numbers (n,)")
            listed[place] = np.unique(ids.astype(np.int64))
            if len(listed[place]) < len(ids):
                raise ConfigError(f"feeder.select: an id of {text} comes twice: give each once")
    if len({*texts}) < len(texts):
        raise ConfigError("feeder.select: a dataset comes twice, as text and as a path")
    samples = SampleList(where="feeder.select", ids=listed)
    with _open_all(texts) as sources:
        for place in range(len(texts)):  # those with None are listed wholly
            if place not in listed:
                listed[place] = np.arange(sources.parts[texts[place]].layout.samples)
        criteria = Criteria(listed=samples)
        return _write(name, sources, criteria, Path(out), {}).content


def make_selection(
    name: str, texts: Sequence[str], criteria: Criteria, out: Path, options: Mapping[str, str]
) -> Chosen:
    """Write what ``criteria`` choose of the DSTs to ``out``; ``options`` are kept for people.

    Raises ConfigError for what the datasets do not have and where nothing is chosen.
    """
    with _open_all(texts) as sources:
        return _write(name, sources, criteria, out, options)


@contextlib.contextmanager
def _open_all(texts: Sequence[str]) -> Iterator[_Sources]:
    """Open the DSTs, with all of their samples chosen."""
    parts: dict[str, Dataset | Selection] = {}
    inputs: dict[str, Input] = {}
    with contextlib.ExitStack() as stack:

        def open_dataset(location: Location) -> Dataset:
            dataset = Dataset.open(location, open_shards=_OPEN_SHARDS)
            stack.enter_context(dataset)
            mask = np.zeros(dataset.layout.samples, np.bool_)
            inputs.setdefault(dataset.content, Input(dataset, location, mask))
            return dataset

        for text in dict.fromkeys(texts):
            location = parse_location(text)
            folder = local_folder(location)
            if folder is None or not is_selection(folder):
                parts[text] = open_dataset(location)
                continue
            selection = parts[text] = Selection.open(folder)
            for member in selection.members:
                if member.content not in inputs:
                    opened = open_dataset(find_member(selection, member))
                    check_member(selection, member, opened.content, opened.where)
        classes = merge_classes(part.classes for part in parts.values())
        labels = merge_labels({text: part.labels for text, part in parts.items()}, classes)
        sources = _Sources(parts, inputs, classes, labels)
        for part in parts.values():
            for given, ids, own in sources.rows(part):
                given.mask[ids] = True
                if given.labels is not None or not isinstance(own, int):
                    given.own_labels()[ids] = own
        yield sources


def _write(
    name: str, sources: _Sources, criteria: Criteria, out: Path, options: Mapping[str, str]
) -> Chosen:
    """Apply the criteria and write the file."""
    if out.exists() and not is_selection(out):
        raise ConfigError(f"--out {out} exists and is no selection: choose another name")
    if len(sources.inputs) > MEMBERS_MAX:
        raise ConfigError(
            f"{len(sources.inputs)} datasets: a selection has {MEMBERS_MAX} at most; pack small "
            "ones together"
        )
    merged = tuple(dict.fromkeys([*sources.classes, *criteria.relabel.values()]))
    sources.classes = merged
    Narrowing([*sources.inputs.values()], merged, sources.labels, criteria).apply()
    _apply_ids(sources, criteria)
    inputs = list(sources.inputs.values())
    ids = [np.flatnonzero(given.mask) for given in inputs]
    samples = sum(map(len, ids))
    if not 1 <= samples <= SAMPLES_MAX:
        what = "no sample is left" if not samples else f"{samples:,} are over {SAMPLES_MAX:,}"
        raise ConfigError(f"nothing is written to {out}: {what}: check the options")
    labels, own = sources.labels, None
    if any(given.labels is not None for given in inputs):
        own = [
            _own_labels(given, chosen, merged) for given, chosen in zip(inputs, ids, strict=True)
        ]
    members = [
        _describe(given, called, len(chosen), out)
        for given, called, chosen in zip(inputs, _name_all(inputs), ids, strict=True)
    ]
    parts = encode_selection(
        name, members, ids, classes=merged, labels=labels, own_labels=own, options=options
    )
    remedy = "choose another --out, or make room"
    with explain_write_errors(str(out), remedy), stop_signals_blocked(), replace_file(out) as file:
        for part in parts:
            file.write(part)
    written = Selection.open(out)
    return Chosen(
        content=written.content,
        samples=samples,
        members=tuple(members),
        classes=len(merged),
        labels=labels,
    )


def _name_all(inputs: Sequence[Input]) -> list[str]:
    """Return what the folders or URLs are called, with as much before it as tells them apart."""
    words = [given.words for given in inputs]
    depths = range(1, max(map(len, words)) + 1)
    names = (["/".join(path[-depth:]) for path in words] for depth in depths)
    return next((each for each in names if len({*each}) == len(each)), ["/".join(w) for w in words])


def _describe(given: Input, name: str, chosen: int, out: Path) -> Member:
    dataset, folder = given.dataset, local_folder(given.location)
    hint = str(given.location)
    if folder is not None:
        hint = path_to_text(os.path.relpath(folder.resolve(), out.resolve().parent))
    return Member(
        name=path_to_text(name),
        content=dataset.content,
        samples=dataset.layout.samples,
        chosen=chosen,
        size_bytes=dataset.layout.size_bytes,
        classes=dataset.classes,
        labels=dataset.labels,
        hint=hint,
    )


def _own_labels(given: Input, ids: NDArray[np.int64], classes: Sequence[str]) -> NDArray[np.int32]:
    """Return the classes of the samples, those of the dataset where they have none of their own."""
    own = np.full(len(ids), FROM_MEMBER, np.int32) if given.labels is None else given.labels[ids]
    missing = np.flatnonzero(own == FROM_MEMBER)
    numbers = {name: number for number, name in enumerate(classes)}
    merged = np.array([numbers[name] for name in given.dataset.classes], np.int32)
    for first in range(0, len(missing), _LABELS_AT_ONCE):
        part = missing[first : first + _LABELS_AT_ONCE]
        own[part] = merged[given.dataset.read_records(ids[part])["label"]]
    return own


def _apply_ids(sources: _Sources, criteria: Criteria) -> None:
    """Keep the samples that are listed by id, and leave out those that are excluded by id."""
    for samples in (criteria.listed, criteria.excluded):
        if samples is None or samples.names:
            continue
        named = {content: np.zeros_like(i.mask) for content, i in sources.inputs.items()}
        if samples.selection is None:
            _mark_ids(sources, samples, named)
        else:
            _mark_selected(samples.selection, samples.where, named)
        for content, given in sources.inputs.items():
            given.mask &= named[content] if samples is criteria.listed else ~named[content]


def _mark_selected(
    selection: Selection, where: str, named: Mapping[str, NDArray[np.bool_]]
) -> None:
    """Mark the samples of a selection, of those datasets that ``named`` has by content."""
    if named.keys().isdisjoint(member.content for member in selection.members):
        raise ConfigError(f"{where}: it is a selection of other datasets than these")
    for number, member in enumerate(selection.members):
        if member.content in named:
            named[member.content][selection.rows_of(number)[1]] = True


def _mark_ids(
    sources: _Sources, samples: SampleList, named: Mapping[str, NDArray[np.bool_]]
) -> None:
    """Mark the samples that are listed by the position of their DST and their id in it."""
    texts = list(sources.parts)
    for place, ids in samples.ids.items():
        part = sources.parts[texts[place]]
        beyond = ids[(ids < 0) | (ids >= part.layout.samples)]
        if len(beyond):
            raise ConfigError(
                f"{samples.where}: {texts[place]} has no sample {beyond[0]}, it has 0 .. "
                f"{part.layout.samples - 1}"
            )
        if isinstance(part, Dataset):
            named[part.content][ids] = True
        else:
            for group in part.locate(ids):
                named[part.members[group.member].content][group.sample_ids] = True
