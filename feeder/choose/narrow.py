"""Narrows what is chosen of datasets by what their indexes hold: classes, names, sizes, flags.

Shards without a chosen sample are not read, and neither is any where no criterion needs it.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.choose.criteria import Criteria
from feeder.dataset.files import Location, local_folder
from feeder.dataset.opened import Dataset
from feeder.dataset.reader import ShardIndex
from feeder.errors import ConfigError
from feeder.plan.labels import LabelSpec
from feeder.plan.recipe_checks import hint_at_nearest
from feeder.process.path_text import decode_name, printable

FROM_MEMBER: Final = -1

_CANDIDATES_MAX: Final = 64
"""Names that are compared closely with an unknown one."""


@dataclass(slots=True, eq=False)
class Input:
    """A dataset of the selection, and what is chosen of it."""

    dataset: Dataset
    location: Location
    mask: NDArray[np.bool_]
    labels: NDArray[np.int32] | None = None
    """Class in the merged ones where it is not that of the dataset, else FROM_MEMBER."""

    @property
    def words(self) -> list[str]:
        """The parts of its folder's path or of its URL."""
        folder = local_folder(self.location)
        text = str(self.location if folder is None else folder.absolute())
        return [word for word in text.split("/") if word] or [text]

    def own_labels(self) -> NDArray[np.int32]:
        """Return ``labels``, made if there are none."""
        if self.labels is None:
            self.labels = np.full(len(self.mask), FROM_MEMBER, np.int32)
        return self.labels


class Narrowing:
    """One use of criteria on datasets with these merged ``classes`` and ``labels``."""

    def __init__(
        self,
        inputs: Sequence[Input],
        classes: Sequence[str],
        labels: LabelSpec,
        criteria: Criteria,
    ) -> None:
        """Raises ConfigError for criteria that the datasets cannot have."""
        self._inputs = inputs
        self._criteria = criteria
        self._labels = labels
        self._numbers = {name: number for number, name in enumerate(classes)}
        self._missing = {where: {*names} for where, names in _named(criteria) if names}
        self._is_in: NDArray[np.bool_] | None = None
        if criteria.needs_classes:
            if criteria.relabel and labels.kind != "index":
                raise ConfigError(
                    f"{criteria.relabel_where}: samples with labels of kind {labels.kind} have not "
                    "one class each"
                )
            if not classes:
                raise ConfigError(
                    f"the samples have labels of kind {labels.kind}, and no classes to choose by"
                )
            self._is_in = np.full(len(classes), criteria.classes is None)
            self._is_in[self._find_classes("--classes", criteria.classes or ())] = True
            excluded = self._find_classes("--exclude-classes", criteria.exclude_classes)
            self._is_excluded = np.zeros(len(classes), np.bool_)
            self._is_excluded[excluded] = True

    def apply(self) -> None:
        """Narrow the masks; ConfigError for names that no dataset has."""
        criteria = self._criteria
        if not (criteria.needs_names or criteria.needs_classes or criteria.where):
            return
        for given in self._inputs:
            layout, kinds = given.dataset.layout, self._numbers
            merged = np.array([kinds[name] for name in given.dataset.classes], np.int64)
            for shard in range(layout.shards):
                rows = layout.rows(shard)
                if given.mask[rows].any():
                    index = given.dataset.open_shard(shard).prove_index()
                    given.mask[rows] &= self._choose(given, rows, index, merged)
        for where, missing in self._missing.items():
            if missing:
                raise self._unknown(where, missing)

    def _choose(
        self, given: Input, rows: slice, index: ShardIndex, merged: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return which samples of a shard are chosen, (n,)."""
        criteria, mask = self._criteria, given.mask[rows].copy()
        if criteria.needs_names:
            at = np.flatnonzero(mask)
            names = _names_at(index, at)
            for missing in self._missing.values():
                missing.difference_update(names)
            if criteria.relabel:
                self._relabel(given, rows.start + at, names)
            for samples in (criteria.listed, criteria.excluded):
                if samples is not None and samples.names:
                    is_listed = [name in samples.names for name in names]
                    mask[at] &= np.array(is_listed) == (samples is criteria.listed)
            if criteria.fraction is not None:
                mask[at] &= criteria.fraction.has(names)
        if criteria.where is not None:
            mask &= criteria.where(index.records)
        if self._is_in is not None:
            mask &= self._has_classes(given, rows, index, merged)
        return mask

    def _relabel(self, given: Input, ids: NDArray[np.int64], names: Sequence[bytes]) -> None:
        for sample_id, name in zip(ids.tolist(), names, strict=True):
            own = self._criteria.relabel.get(name)
            if own is not None:
                given.own_labels()[sample_id] = self._numbers[own]

    def _has_classes(
        self, given: Input, rows: slice, index: ShardIndex, merged: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        assert self._is_in is not None, "there are criteria on classes"
        if self._labels.kind == "multi":
            bits = np.unpackbits(
                index.label_rows, axis=1, count=len(merged), bitorder="little"
            ).astype(np.bool_)
            has_excluded = bits[:, self._is_excluded[merged]].any(axis=1)
            if self._criteria.classes is None:  # also those without any class
                return np.logical_not(has_excluded)
            return np.logical_and(bits[:, self._is_in[merged]].any(axis=1), ~has_excluded)
        labels = merged[index.records["label"]]
        if given.labels is not None:
            own = given.labels[rows]
            labels = np.where(own == FROM_MEMBER, labels, own)
        chosen: NDArray[np.bool_] = self._is_in[labels] & ~self._is_excluded[labels]
        return chosen

    def _find_classes(self, option: str, names: Sequence[str]) -> list[int]:
        for name in names:
            if name not in self._numbers:
                hint = hint_at_nearest(name, self._numbers, "", printable)
                raise ConfigError(
                    f"{option}: there is no class {printable(name)} in these datasets{hint}"
                )
        return [self._numbers[name] for name in names]

    def _unknown(self, where: str, missing: set[bytes]) -> ConfigError:
        """Name the first of the missing names, and the nearest of all names."""
        first = min(missing)
        scored: list[tuple[int, bytes]] = []
        for given in self._inputs:
            for shard in range(given.dataset.layout.shards):
                index = given.dataset.open_shard(shard).prove_index()
                names = _names_at(index, np.arange(len(index.records)))
                if first in names:
                    return ConfigError(
                        f"{where}: {printable(decode_name(first))} is in {given.dataset.where}, "
                        "but not in the selections of it that are given"
                    )
                pairs = [(_alike(first, name), name) for name in names]
                scored = heapq.nlargest(_CANDIDATES_MAX, [*scored, *pairs])
        known = [decode_name(name) for _, name in scored]
        hint = hint_at_nearest(decode_name(first), known, "", printable)
        more = f", and {len(missing) - 1:,} more are missing" if len(missing) > 1 else ""
        return ConfigError(
            f"{where}: no sample is called {printable(decode_name(first))}{hint}{more}"
        )


def _named(criteria: Criteria) -> list[tuple[str, Sequence[bytes]]]:
    """Return what names samples, and the names."""
    lists = [given for given in (criteria.listed, criteria.excluded) if given is not None]
    named = [(samples.where, [*samples.names]) for samples in lists]
    return [*named, (criteria.relabel_where, [*criteria.relabel])]


def read_names(given: Input, ids: NDArray[np.int64]) -> Iterator[list[bytes]]:
    """Yield the names of samples (n,) of an input, ascending, shard after shard."""
    layout = given.dataset.layout
    for shard in range(layout.shards):
        rows = layout.rows(shard)
        own = ids[slice(*np.searchsorted(ids, [rows.start, rows.stop]))] - rows.start
        if len(own):
            yield _names_at(given.dataset.open_shard(shard).prove_index(), own)


def _names_at(index: ShardIndex, rows: NDArray[np.int64]) -> list[bytes]:
    names, places = index.names, index.records[["name_offset", "name_bytes"]][rows].tolist()
    return [names[at : at + size_bytes] for at, size_bytes in places]


def _alike(first: bytes, second: bytes) -> int:
    """Return how many bytes two names share at their beginning and their end."""
    return _shared(first, second) + _shared(first[::-1], second[::-1])


def _shared(first: bytes, second: bytes) -> int:
    pairs = zip(first, second, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))
