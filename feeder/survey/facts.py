"""Reads what a survey shows of the samples: one pass over the shards' indexes, without their blobs.

Memory is 8 bytes a sample; 4 more for each value that is shown, where labels are numbers, and 8
where a sample may have several classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import Oddity
from feeder.dataset.opened import Dataset
from feeder.dataset.record_checks import find_inconsistent
from feeder.errors import DatasetError

EXAMPLES_MAX: Final = 6
VALUES_MAX: Final = 8
_PIECE_ROWS: Final = 65_536
_PIECE_LABEL_BYTES: Final = 8 << 20  # decoded


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the indexes of n samples show."""

    sizes: NDArray[np.void]
    """(n,), with the fields width, height and blob_bytes."""
    examples: dict[str, list[int]]
    """The first EXAMPLES_MAX samples of each oddity, by its name in the manifest."""
    class_samples: NDArray[np.int64]
    """How many samples have each class, (classes,)."""
    classes_of_sample: NDArray[np.int64]
    """How many classes each sample has; (0,) unless that can be any number."""
    values: NDArray[np.float32]
    """The first values of float labels, (n, up to VALUES_MAX); of other labels (0, 0)."""


def read_index(
    dataset: Dataset,
) -> Iterator[tuple[slice, NDArray[np.void], NDArray[np.uint8]]]:
    """Yield the index piece by piece: which samples, their records (m,) of dtype RECORD, and their
    label rows (m, stored_bytes).

    Raises DatasetError for a shard that cannot be read or is not that of the manifest.
    """
    labels = dataset.labels
    piece = min(_PIECE_ROWS, max(1, _PIECE_LABEL_BYTES // labels.row_bytes))
    start = 0
    for number, shard in enumerate(dataset.manifest.shards):
        index = dataset.open_shard(number).prove_index()
        for row in range(0, shard.samples, piece):
            rows = slice(row, min(row + piece, shard.samples))
            where = slice(start + rows.start, start + rows.stop)
            yield where, index.records[rows], index.label_rows[rows]
        start += shard.samples


def read_facts(dataset: Dataset) -> Facts:
    """Read the facts; errors are those of ``read_index``."""
    samples, classes, labels = dataset.layout.samples, len(dataset.classes), dataset.labels
    columns = min(labels.width, VALUES_MAX)
    facts = Facts(
        sizes=np.empty(samples, [("width", "<u2"), ("height", "<u2"), ("blob_bytes", "<u4")]),
        examples={flag.kinds()[0]: [] for flag in Oddity},
        class_samples=np.zeros(classes, np.int64),
        classes_of_sample=np.empty(samples if labels.kind == "multi" else 0, np.int64),
        values=np.empty((samples, columns) if labels.kind == "float" else (0, 0), np.float32),
    )
    for piece, records, label_rows in read_index(dataset):
        inconsistent = find_inconsistent(records, labels.count_record_labels(classes))
        if inconsistent is not None:
            raise DatasetError(
                f"the record of {dataset.describe(piece.start + inconsistent)} contradicts itself: "
                f"run `feeder verify {dataset.where}`, then restore the shard or pack again"
            )
        for name in ("width", "height", "blob_bytes"):
            facts.sizes[name][piece] = records[name]
        for flag in Oddity:
            examples = facts.examples[flag.kinds()[0]]
            if len(examples) < EXAMPLES_MAX:
                rows = np.flatnonzero(records["flags"] & flag)[: EXAMPLES_MAX - len(examples)]
                examples += (piece.start + rows).tolist()
        if labels.kind == "index":
            numbers, counts = np.unique(records["label"], return_counts=True)
            facts.class_samples[numbers] += counts
        elif labels.kind == "multi":
            bits = np.empty((len(records), labels.width), np.uint8)
            labels.decode_rows(label_rows, bits)
            facts.class_samples[:] += bits.sum(axis=0, dtype=np.int64)
            facts.classes_of_sample[piece] = bits.sum(axis=1, dtype=np.int64)
        elif labels.kind == "float":
            facts.values[piece] = label_rows.view("<f4")[:, :columns]
    return facts
