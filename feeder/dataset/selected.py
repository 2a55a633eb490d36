"""An open selection with its members: samples by their id in the selection.

The members are datasets, which read their own samples. What a sample of a selection is, and what
its records say, is what its member says, but for its id and its label.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Self

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import RECORD
from feeder.dataset.opened import Dataset
from feeder.dataset.selection import Selection
from feeder.plan.draws import DENSE
from feeder.plan.labels import LabelRows


class SelectedDataset:
    """A selection whose members are opened at their first use; they belong to the caller."""

    def __init__(self, selection: Selection, members: Sequence[Callable[[], Dataset]]) -> None:
        """``members`` open the dataset of each member."""
        self.selection = selection
        self._openers = members
        self._open: dict[int, Dataset] = {}
        self.where = selection.where
        self.content = selection.content
        self.classes = selection.classes
        self.labels = selection.labels
        self.layout = selection.layout

    def member(self, number: int) -> Dataset:
        """Return the dataset of a member; DatasetError if it cannot be opened."""
        if number not in self._open:
            self._open[number] = self._openers[number]()
        return self._open[number]

    def find(self, sample_id: int) -> tuple[Dataset, int]:
        """Return the dataset that has a sample, and the sample's id in it."""
        (group,) = self.selection.locate(np.array([sample_id], np.int64))
        return self.member(group.member), int(group.sample_ids[0])

    def read_records(self, sample_ids: NDArray[np.int64]) -> NDArray[np.void]:
        """See ``Dataset.read_records``."""
        records = np.empty(len(sample_ids), RECORD)
        for group in self.selection.locate(sample_ids):
            records[group.rows] = self.member(group.member).read_records(group.sample_ids)
        return records

    def read_labels(
        self, sample_ids: NDArray[np.int64], records: NDArray[np.void], out: LabelRows
    ) -> None:
        """See ``Dataset.read_labels``."""
        for group in self.selection.locate(sample_ids):
            member = self.member(group.member)
            labels = np.empty((len(group.rows), *member.labels.row_shape), member.labels.dtype)
            member.read_labels(group.sample_ids, records[group.rows], labels)
            self.selection.take_labels(sample_ids, group, labels, out)

    def read_name(self, sample_id: int) -> str:
        """See ``Dataset.read_name``."""
        member, own_id = self.find(sample_id)
        return member.read_name(own_id)

    def shard_path(self, sample_id: int) -> str:
        """See ``Dataset.shard_path``."""
        member, own_id = self.find(sample_id)
        return member.shard_path(own_id)

    def advise(self, ranges: Iterable[tuple[int, int]], *, needed: bool) -> None:
        """See ``Dataset.advise``: of members of which most samples of a range are chosen."""
        for first, end in ranges:
            for group in self.selection.locate(np.arange(first, end)):
                begin, stop = int(group.sample_ids[0]), int(group.sample_ids[-1]) + 1
                if len(group.rows) >= DENSE * (stop - begin):
                    self.member(group.member).advise([(begin, stop)], needed=needed)

    def close(self) -> None:
        """Close the shards of the members, which are opened again when they are needed."""
        for member in self._open.values():
            member.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
