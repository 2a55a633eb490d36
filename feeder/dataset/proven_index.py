"""Records and label rows of a dataset's proven shards, in memory that does not change.

A shard's index is proven against the manifest once, as a whole (``proven_shard``). From then on its
records and label rows are read here, where a sample's row is its id:

    [a word for each shard: 1 once its rows are here][records][label rows]

A process by itself has them in memory of its own, which takes room only as shards are proven, 64
bytes a sample and the label rows. Workers share that of their node process
(``feeder.worker.index_memory``).
"""

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import RECORD
from feeder.dataset.reader import ShardIndex
from feeder.jpeg import _native
from feeder.plan.epoch import ShardLayout


class ProvenIndex:
    """The index of one dataset."""

    def __init__(
        self, layout: ShardLayout, label_bytes: int, memory: memoryview | None = None
    ) -> None:
        """In ``memory``, of ``index_bytes(layout, label_bytes)``, or else in this process's own.

        ``label_bytes`` is LabelSpec.stored_bytes of the dataset's labels.
        """
        if memory is None:
            content = np.zeros(index_bytes(layout, label_bytes), np.uint8)
        else:
            content = np.frombuffer(memory, np.uint8)
        records_at = 8 * layout.shards
        labels_at = records_at + RECORD.itemsize * layout.samples
        self._layout = layout
        self.is_here: NDArray[np.uint64] = content[:records_at].view(np.uint64)
        """(shards,): 1 where the rows of a shard can be read. To be looked at before they are."""
        self.records: NDArray[np.void] = content[records_at:labels_at].view(RECORD)
        """(samples,) of dtype RECORD."""
        self.label_rows = content[labels_at:].reshape(layout.samples, label_bytes)
        """(samples, label_bytes)."""

    def add(self, shard: int, index: ShardIndex) -> None:
        """Keep the index of a shard, which is proven."""
        rows = self._layout.rows(shard)
        self.records[rows] = index.records
        self.label_rows[rows] = index.label_rows
        self.publish(shard)

    def views(self, shard: int) -> tuple[memoryview, memoryview]:
        """The memory of a shard's records and of its label rows, to be filled."""
        rows = self._layout.rows(shard)
        labels = self.label_rows[rows].reshape(-1)
        return self.records[rows].view(np.uint8).data, labels.data

    def publish(self, shard: int) -> None:
        """Let the rows of a shard be read, which are written and never change."""
        _native.store_word(self.is_here, shard, 1)  # after them, for other processes as well


def index_bytes(layout: ShardLayout, label_bytes: int) -> int:
    """The size of a ProvenIndex."""
    return 8 * layout.shards + (RECORD.itemsize + label_bytes) * layout.samples
