"""The sample path of a selection: each row is made by the reader of its member.

So a sample of a selection has the bytes that it has in its dataset, and shares its dataset's part
of the decoded cache: both, and all randomness, are by the member and its own sample id.
"""

import operator
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.dataset.selected import SelectedDataset
from feeder.errors import SampleError
from feeder.plan.labels import LabelRows
from feeder.plan.packing import Pixels
from feeder.plan.recipe import Recipe
from feeder.sample.cache import COUNTS
from feeder.sample.reader import STAGES, SampleReader


def make_reader(
    dataset: Dataset | SelectedDataset, recipe: Recipe
) -> "SampleReader | SelectedReader":
    """Return a reader of what ``open_samples`` opened, without a cache of decoded images."""
    if isinstance(dataset, Dataset):
        return SampleReader(dataset, recipe)
    return SelectedReader(dataset, lambda number: SampleReader(dataset.member(number), recipe))


class SelectedReader:
    """As ``SampleReader``, for samples of a selection."""

    def __init__(self, dataset: SelectedDataset, reader_of: Callable[[int], SampleReader]) -> None:
        """``reader_of`` returns the reader of a member, by number; all are of one recipe."""
        self._dataset = dataset
        self._reader_of = reader_of
        self._readers: dict[int, SampleReader] = {}
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.fill_seconds = 0.0
        self.decoded_bytes = 0
        self.fallbacks = 0
        self.cache_counts = (0,) * len(COUNTS)

    def fill(
        self,
        sample_ids: NDArray[np.int64],
        *,
        draws: NDArray[np.int64] | None = None,
        seed: int,
        epoch: int,
        pixels: Pixels,
        labels: LabelRows,
        further: Sequence[Pixels] = (),
    ) -> None:
        """See ``SampleReader.fill``. The ids are those of the selection, also in a SampleError,
        whose message names the sample by its dataset."""
        selection = self._dataset.selection
        for group in selection.locate(sample_ids):
            if group.member not in self._readers:
                self._readers[group.member] = self._reader_of(group.member)
            reader = self._readers[group.member]
            member = selection.members[group.member].labels
            own_labels = np.empty((len(group.rows), *member.row_shape), member.dtype)
            seconds, counts = dict(reader.seconds), reader.cache_counts
            rows = group.rows.tolist()
            before = reader.fill_seconds, reader.decoded_bytes, reader.fallbacks
            try:
                reader.fill(
                    group.sample_ids,
                    draws=None if draws is None else draws[group.rows],
                    seed=seed,
                    epoch=epoch,
                    pixels=[pixels[row] for row in rows],
                    labels=own_labels,
                    further=[[crop[row] for row in rows] for crop in further],
                )
            except SampleError as error:
                if error.sample_id is not None:
                    row = group.rows[np.flatnonzero(group.sample_ids == error.sample_id)[0]]
                    error.sample_id = int(sample_ids[row])
                raise
            # Sessions on the dataset itself use the reader as well, so only differences count.
            for stage in STAGES:
                self.seconds[stage] += reader.seconds[stage] - seconds[stage]
            self.fill_seconds += reader.fill_seconds - before[0]
            self.decoded_bytes += reader.decoded_bytes - before[1]
            self.fallbacks += reader.fallbacks - before[2]
            new = map(operator.sub, reader.cache_counts, counts)
            self.cache_counts = tuple(map(operator.add, self.cache_counts, new))
            selection.take_labels(sample_ids, group, own_labels, labels)
