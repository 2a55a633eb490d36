"""Makes a selection: which samples of some datasets, by criteria on what their indexes hold.

    DST…  ─► datasets, each once, and those of selections; a mask of samples for each
          ─► shard after shard, only those with samples left: criteria on its records and names
          ─► ids and labels ─► file

A sample that several DSTs have is chosen once, with the label of the last one. Memory is some bytes
a sample and the index of a shard.
"""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from feeder.choose.criteria import Criteria, SampleList
from feeder.choose.narrow import Input, Narrowing
from feeder.choose.sources import Sources, find_labels_of, open_sources
from feeder.choose.weigh import weigh
from feeder.choose.weights import BALANCES, Balance, WeightFile, Weighting, read_weighting
from feeder.dataset.files import local_folder
from feeder.dataset.opened import Dataset
from feeder.dataset.selection import (
    MEMBERS_MAX,
    SAMPLES_MAX,
    Member,
    Selection,
    is_selection,
)
from feeder.dataset.selection_writer import encode_selection
from feeder.errors import ConfigError
from feeder.plan.draws import WEIGHTED_SAMPLES_MAX
from feeder.plan.labels import LabelSpec
from feeder.process.output_file import explain_write_errors, replace_file
from feeder.process.path_text import path_to_text, printable
from feeder.process.stop_signals import stop_signals_blocked


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """What was written."""

    content: str
    samples: int
    members: tuple[Member, ...]
    classes: int
    labels: LabelSpec
    epoch_samples: int


def select(
    name: str,
    datasets: Mapping[str | os.PathLike[str], ArrayLike | None],
    out: str | Path,
    *,
    weights: Mapping[str | os.PathLike[str], ArrayLike] | None = None,
    balance: Balance | None = None,
    shares: Mapping[str | os.PathLike[str], float] | None = None,
    epoch_samples: int | None = None,
) -> str:
    """Write the selection ``name`` of samples of datasets to the file ``out``.

    ``datasets`` are folders, URLs or other selections, each with the ids of its samples, in any
    order and each once, or None for all. ``weights`` say how often an epoch draws each of these
    ids, ``balance`` "classes" or "sqrt" does so by the sizes of classes, ``shares`` are the parts
    of every batch that come from each of the datasets; an epoch has ``epoch_samples`` draws then,
    by default as many as samples. Returns the selection's content fingerprint. Serve it with
    ``feeder serve --data NAME=OUT``. Raises ConfigError, DatasetError and ResourceError.
    """
    where, texts = "feeder.select", [os.fspath(text) for text in datasets]
    if not texts:
        raise ConfigError(f"{where}: datasets is empty: give one at least")
    if len({*texts}) < len(texts):
        raise ConfigError(f"{where}: a dataset comes twice, as text and as a path")
    given = [None if ids is None else _as_ids(text, ids) for text, ids in datasets.items()]
    try:
        mix = [f"{os.fspath(text)}={float(share):.9f}" for text, share in (shares or {}).items()]
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: shares must be numbers, got {shares!r}") from None
    if weights is not None and balance is not None:
        raise ConfigError(f"{where}: weights and balance: give one of them, both say how often")
    if balance not in (None, *BALANCES):
        raise ConfigError(f"{where}: balance must be {' or '.join(BALANCES)}, got {balance!r}")
    weighting = read_weighting([], balance, mix, epoch_samples)
    with open_sources(texts) as sources:
        parts = [sources.parts[text] for text in texts]
        listed = [
            np.arange(part.layout.samples) if ids is None else ids
            for part, ids in zip(parts, given, strict=True)
        ]
        if weights is not None:
            by_text = {os.fspath(text): np.asarray(own) for text, own in weights.items()}
            values = []
            for text, part, ids in zip(texts, parts, listed, strict=True):
                own = by_text.pop(text, np.zeros(0))
                if own.shape != ids.shape or own.dtype.kind not in "iuf":
                    raise ConfigError(
                        f"{where}: weights of {text} must be an array of {len(ids)} numbers, one "
                        f"for each of its samples, got {own.dtype} {own.shape}"
                    )
                end = part.layout.samples
                if ids.min() < 0 or ids.max() >= end:
                    raise ConfigError(f"{where}: {text} has the ids 0 .. {end - 1} only")
                values.append(np.full(end, math.nan))  # of those that another dataset may choose
                values[-1][ids] = own
            if by_text:
                raise ConfigError(f"{where}: there are weights of {min(by_text)}, and no samples")
            column = WeightFile(where=where, values=np.concatenate(values), is_by_sample=True)
            base = weighting or Weighting(columns={})
            weighting = dataclasses.replace(base, columns={0: column})
        samples = SampleList(where=where, ids=dict(enumerate(map(np.sort, listed))))
        criteria = Criteria(listed=samples)
        return _write(name, sources, criteria, Path(out), {}, weighting).content


def _as_ids(text: str | os.PathLike[str], given: ArrayLike) -> NDArray[np.int64]:
    ids = np.asarray(given)
    if ids.ndim != 1 or ids.dtype.kind not in "iu" or not len(ids):
        raise ConfigError(f"feeder.select: the ids of {text} are no whole numbers (n,)")
    if len(np.unique(ids)) < len(ids):
        raise ConfigError(f"feeder.select: an id of {text} comes twice: give each once")
    return ids.astype(np.int64)


def make_selection(
    name: str,
    texts: Sequence[str],
    criteria: Criteria,
    out: Path,
    options: Mapping[str, str],
    weighting: Weighting | None = None,
) -> Chosen:
    """Write what ``criteria`` choose of the DSTs to ``out``, drawn by ``weighting``; ``options``
    are kept for people.

    Raises ConfigError for what the datasets do not have and where nothing is chosen.
    """
    with open_sources(texts) as sources:
        return _write(name, sources, criteria, out, options, weighting)


def _write(
    name: str,
    sources: Sources,
    criteria: Criteria,
    out: Path,
    options: Mapping[str, str],
    weighting: Weighting | None = None,
) -> Chosen:
    """Apply the criteria and write the file."""
    if not name.isprintable() or not 1 <= len(name) <= 128:
        raise ConfigError(f"the name {printable(name)!r} must have 1 .. 128 printable characters")
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
    samples_max = SAMPLES_MAX if weighting is None else WEIGHTED_SAMPLES_MAX
    if not 1 <= samples <= samples_max:
        what = "no sample is left" if not samples else f"{samples:,} are over {samples_max:,}"
        raise ConfigError(f"nothing is written to {out}: {what}: check the options")
    labels, own = sources.labels, None
    if any(given.labels is not None for given in inputs):
        own = [
            find_labels_of(given, chosen, merged) for given, chosen in zip(inputs, ids, strict=True)
        ]
    members = [
        _describe(given, called, len(chosen), out)
        for given, called, chosen in zip(inputs, _name_all(inputs), ids, strict=True)
    ]
    draws = None
    if weighting is not None:
        draws = weigh(sources, weighting, ids, merged)
    parts = encode_selection(
        name,
        members,
        ids,
        classes=merged,
        labels=labels,
        own_labels=own,
        draws=draws,
        options=options,
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
        epoch_samples=written.layout.samples,
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


def _apply_ids(sources: Sources, criteria: Criteria) -> None:
    """Keep the samples that are listed by id, and leave out those that are excluded by id."""
    for samples in (criteria.listed, criteria.excluded):
        if samples is None or samples.names:
            continue
        named = {content: np.zeros_like(i.mask) for content, i in sources.inputs.items()}
        if samples.selection is None:
            _mark_ids(sources, samples, named)
        else:
            _mark_selected(sources, samples.selection, samples.where, named)
        for content, given in sources.inputs.items():
            given.mask &= named[content] if samples is criteria.listed else ~named[content]


def _mark_selected(
    sources: Sources, selection: Selection, where: str, named: Mapping[str, NDArray[np.bool_]]
) -> None:
    """Mark the samples of a selection, of those datasets that ``named`` has by content.

    ConfigError where datasets are missing on either side: one may be another, packed again.
    """
    listed = {member.content: member.name for member in selection.members}
    absent = [name for content, name in listed.items() if content not in named]
    others = [str(i.location) for content, i in sources.inputs.items() if content not in listed]
    if absent and others:
        raise ConfigError(
            f"{where}: it is of {printable(absent[0])}, which is not here, and has nothing of "
            f"{printable(others[0])}: if that is the same dataset, packed again, list names "
            "instead (feeder names DST ID…); else list a selection of what is here"
        )
    for number, member in enumerate(selection.members):
        if member.content in named:
            named[member.content][selection.rows_of(number)[1]] = True


def _mark_ids(
    sources: Sources, samples: SampleList, named: Mapping[str, NDArray[np.bool_]]
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
