"""What the batches of a session are in terms of datasets, which have the files.

A session on a dataset reads samples of that one, by the ids of its batches. One on a selection
reads those of its members, by their ids.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.selection import Selection
from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.ranges import Range, find_runs
from feeder.session.admission import ServedDataset
from feeder.wire.messages import MAX_TEXT_CHARACTERS, Sources, SourcesRequest
from feeder.worker.messages import escape_surrogates

_SPARSE: Final = 20
"""Where less than one sample in so many of a piece is chosen, samples are fetched alone."""


class SelectedParts:
    """The served selections, and the names under which this node process has their members."""

    def __init__(
        self,
        selections: Mapping[str, Selection],
        members: Mapping[str, tuple[str, ...]],
        cached: Mapping[str, CachedDataset],
    ) -> None:
        """``members`` has the names of each selection's; ``cached`` the datasets in a store."""
        self.selections = selections
        self._members = members
        self._cached = cached
        self._dense_pieces = functools.cache(self._find_dense_pieces)

    def split(
        self, name: str, sample_ids: NDArray[np.int64]
    ) -> Iterator[tuple[str, NDArray[np.int64], bool]]:
        """Yield the cached datasets that samples of a dataset or selection are of, the ids that
        they have there, and whether to fetch them alone, as those beside them are not chosen."""
        if name not in self.selections:
            yield name, sample_ids, False
            return
        for group in self.selections[name].locate(sample_ids):
            dataset = self._members[name][group.member]
            if dataset not in self._cached:
                continue
            pieces = group.sample_ids // self._cached[dataset].piece
            is_dense = self._dense_pieces(name, group.member)[pieces]
            for are_alone in (False, True):
                if len(ids := group.sample_ids[is_dense != are_alone]):
                    yield dataset, ids, are_alone

    def spread(self, name: str, ranges: Iterable[Range]) -> dict[str, list[Range]]:
        """Return the ranges of the datasets to fetch from for ``ranges`` of a dataset or selection:
        the same ones for a range at every call.

        Pieces whose samples are fetched alone are left out, as are datasets of such pieces only.
        """
        if name not in self.selections:
            return {name: [*ranges]}
        names, selection = self._members[name], self.selections[name]
        dense = {
            number: self._dense_pieces(name, number)
            for number, dataset in enumerate(names)
            if dataset in self._cached and self._dense_pieces(name, number).any()
        }
        spread: dict[str, list[Range]] = {names[number]: [] for number in dense}
        for first, end in ranges:
            for number, (start, stop) in selection.spans(first, end).items():
                if number in dense:
                    piece = self._cached[names[number]].piece
                    here = np.arange(start // piece, -(-stop // piece))
                    runs = find_runs(here[dense[number][here]])
                    spread[names[number]] += [
                        (max(start, run * piece), min(stop, after * piece)) for run, after in runs
                    ]
        return spread

    def find_sources(
        self, request: SourcesRequest, served: Mapping[str, ServedDataset | str]
    ) -> Sources:
        """Answer a request that was not refused: where its samples are from."""
        ids = np.array(request.sample_ids, np.int64)
        selection = self.selections.get(request.dataset)
        if selection is None:
            dataset = served[request.dataset]
            assert isinstance(dataset, ServedDataset), "else it was refused"
            own = request.dataset, dataset.content
            return Sources(datasets=(own,), rows=tuple((0, number) for number in ids.tolist()))
        numbers, own_ids = selection.split(ids)
        return Sources(
            datasets=tuple(
                (escape_surrogates(member.name)[:MAX_TEXT_CHARACTERS], member.content)
                for member in selection.members
            ),
            rows=tuple(zip(numbers.tolist(), own_ids.tolist(), strict=True)),
            is_drawn=selection.layout.draws is not None,
        )

    def _find_dense_pieces(self, name: str, member: int) -> NDArray[np.bool_]:
        """Return which pieces of a member, (pieces,), are fetched whole for a selection."""
        cached = self._cached[self._members[name][member]]
        _, ids = self.selections[name].rows_of(member)
        counts = np.bincount(ids // cached.piece, minlength=cached.pieces)
        there = cached.manifest.samples - np.arange(cached.pieces) * cached.piece
        return counts * _SPARSE >= np.minimum(cached.piece, there)
