"""Counts what a survey shows: one pass over the shards' indexes, in numpy, without their blobs.

Each index is compared with the manifest before it is counted. Memory is bounded by the number of
classes, not by that of samples: an index is read in pieces. Floats take a second pass over their
rows, because a histogram needs their range first.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import Oddity
from feeder.dataset.manifest import Manifest
from feeder.dataset.proven_shard import ProvenShard
from feeder.dataset.reader import ShardReader
from feeder.dataset.record_checks import find_inconsistent
from feeder.errors import DatasetError
from feeder.survey.charts import BARS_MAX
from feeder.survey.counts import Counts, even_counts, octave_counts

EXAMPLES_MAX: Final = 6
COLUMNS_MAX: Final = 8
"""Of float labels: how many values are shown."""

_SIDE_LIMIT: Final = 65_536
_PIECE_ROWS: Final = 65_536
_PIECE_VALUES: Final = 8 << 20
"""Bytes of label rows, or bits of them as bytes, that are in memory at a time."""


def read_records(reader: ShardReader) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Yield the first row and the records (n,) of dtype RECORD of each piece, in order."""
    for first in range(0, reader.header.samples, _PIECE_ROWS):
        yield first, reader.read_records(first, min(_PIECE_ROWS, reader.header.samples - first))


def read_label_rows(reader: ShardReader, values: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the first row and the label rows (n, label_bytes) of each piece, in order.

    ``values`` is how many values a row has once it is decoded; it bounds the size of a piece.
    """
    row_bytes = reader.header.label_bytes
    piece = max(1, _PIECE_VALUES // max(row_bytes, values))
    for first in range(0, reader.header.samples if row_bytes else 0, piece):
        yield first, reader.read_label_rows(first, min(piece, reader.header.samples - first))


class Extreme(NamedTuple):
    """A sample with the least or the most of something."""

    key: float
    sample_id: int
    size: tuple[int, int]


class Facts:
    """What the survey shows of the samples, added piece by piece."""

    def __init__(self, manifest: Manifest) -> None:
        classes = len(manifest.classes)
        self._labels = manifest.labels
        self.class_samples = np.zeros(classes, np.int64)
        """How many samples have each class (classes,)."""
        self.classes_of_sample = Counts(classes + 1)
        """Only counted where a sample may have any number of classes."""
        self.columns: list[Counts] = []
        """Of float labels: the first COLUMNS_MAX values."""
        self.longer_side, self.shorter_side = Counts(_SIDE_LIMIT), Counts(_SIDE_LIMIT)
        self.pixels, self.aspect, self.blob_bytes = (
            octave_counts(),
            octave_counts(),
            octave_counts(),
        )
        self.examples: dict[Oddity, list[int]] = {flag: [] for flag in Oddity}
        """The first EXAMPLES_MAX samples of each oddity."""
        self.extremes: dict[str, Extreme] = {}

    def add_records(self, start: int, records: NDArray[np.void]) -> None:
        """Count ``records`` (n,); the first is sample ``start``."""
        width, height = records["width"], records["height"]
        pixels, aspect = width.astype(np.float64) * height, width / height.astype(np.float64)
        self.longer_side.add(np.maximum(width, height))
        self.shorter_side.add(np.minimum(width, height))
        self.pixels.add(pixels)
        self.aspect.add(aspect)
        self.blob_bytes.add(records["blob_bytes"].astype(np.float64))
        for what, keys in (
            ("Fewest pixels", -pixels),
            ("Most pixels", pixels),
            ("Widest", aspect),
            ("Tallest", -aspect),
        ):
            row = int(np.argmax(keys))
            if what not in self.extremes or keys[row] > self.extremes[what].key:
                size = int(width[row]), int(height[row])
                self.extremes[what] = Extreme(float(keys[row]), start + row, size)
        for flag, samples in self.examples.items():
            if len(samples) < EXAMPLES_MAX:
                rows = np.flatnonzero(records["flags"] & flag)[: EXAMPLES_MAX - len(samples)]
                samples += (rows + start).tolist()
        if self._labels.kind == "index":
            labels, counts = np.unique(records["label"], return_counts=True)
            self.class_samples[labels] += counts

    def add_class_rows(self, stored: NDArray[np.uint8]) -> None:
        """Count the classes in label rows (n, stored_bytes)."""
        bits = np.empty((len(stored), self._labels.width), np.uint8)
        self._labels.decode_rows(stored, bits)
        self.class_samples += bits.sum(axis=0, dtype=np.int64)
        self.classes_of_sample.add(bits.sum(axis=1, dtype=np.int64))


def gather_facts(folder: Path, manifest: Manifest) -> Facts:
    """Count the samples of the dataset in ``folder``.

    Raises DatasetError for a shard that cannot be read or is not that of ``manifest``.
    """
    facts = Facts(manifest)
    bound = manifest.labels.count_record_labels(len(manifest.classes))
    shown = min(manifest.labels.width, COLUMNS_MAX)
    low, high = np.full(shown, np.inf), np.full(shown, -np.inf)
    start = 0
    for reader in _open_shards(folder, manifest):
        for first, records in read_records(reader):
            inconsistent = find_inconsistent(records, bound)
            if inconsistent is not None:
                raise DatasetError(
                    f"{reader.path} has a record in row {first + inconsistent} that contradicts "
                    f"itself: run `feeder verify {folder}`, then restore the shard or pack again"
                )
            facts.add_records(start + first, records)
        for _, rows in read_label_rows(reader, manifest.labels.width):
            if manifest.labels.kind == "multi":
                facts.add_class_rows(rows)
            else:
                values = _first_columns(rows)
                low = np.minimum(low, values.min(axis=0))
                high = np.maximum(high, values.max(axis=0))
        start += reader.header.samples
    if manifest.labels.kind == "float":
        ranges = zip(low.tolist(), high.tolist(), strict=True)
        facts.columns = [even_counts(*ends, BARS_MAX) for ends in ranges]
        for reader in _open_shards(folder, manifest):
            for _, rows in read_label_rows(reader, manifest.labels.width):
                for column, values in zip(facts.columns, _first_columns(rows).T, strict=True):
                    column.add(values)
    return facts


def _open_shards(folder: Path, manifest: Manifest) -> Iterator[ProvenShard]:
    for number, entry in enumerate(manifest.shards):
        label_bytes = manifest.labels.stored_bytes
        with closing(ProvenShard(folder, entry, number, label_bytes=label_bytes)) as reader:
            yield reader


def _first_columns(stored: NDArray[np.uint8]) -> NDArray[np.float64]:
    """The values (n, up to COLUMNS_MAX) of rows of floats (n, stored_bytes)."""
    return stored.view("<f4")[:, :COLUMNS_MAX].astype(np.float64)
