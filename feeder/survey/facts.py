"""Counts what a survey shows: one pass over the shards' indexes, in numpy, without their blobs.

Each index is compared with the manifest before it is counted. Memory is bounded by the number of
classes, not by that of samples. Floats take a second pass over their rows, because a histogram
needs their range first.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import Oddity
from feeder.dataset.manifest import Manifest
from feeder.dataset.proven_shard import ProvenShard
from feeder.dataset.record_checks import find_inconsistent
from feeder.errors import DatasetError
from feeder.plan.labels import LabelSpec
from feeder.survey.counts import Distribution, EvenCounts, OctaveCounts, WholeCounts
from feeder.survey.index_pieces import read_label_rows, read_records

EXAMPLES_MAX: Final = 6
COLUMNS_MAX: Final = 8
"""Of float labels: how many values are shown."""

_SIDE_LIMIT: Final = 65_536
_COLUMN_BINS: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Column:
    """One value of float labels."""

    low: float
    mean: float
    high: float
    counts: NDArray[np.int64]
    """In bins of the same width from ``low`` to ``high``."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClassCounts:
    """Labels that are classes."""

    samples: NDArray[np.int64]
    """By class (classes,)."""
    per_sample: Distribution | None
    """How many classes a sample has; None where that is always one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Extreme:
    """The sample with the least or the most of something."""

    what: str
    sample_id: int
    width: int
    height: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """What the survey shows of the samples."""

    classes: ClassCounts | None
    columns: tuple[Column, ...]
    longer_side: Distribution
    shorter_side: Distribution
    pixels: Distribution
    aspect: Distribution
    """Width by height."""
    blob_bytes: Distribution
    examples: dict[Oddity, tuple[int, ...]]
    """The first EXAMPLES_MAX samples of each oddity."""
    extremes: tuple[Extreme, ...]
    """None where all samples have the same size."""


def gather_facts(folder: Path, manifest: Manifest) -> Facts:
    """Count the samples of the dataset in ``folder``.

    Raises DatasetError for a shard that cannot be read or is not that of ``manifest``.
    """
    pictures = _PictureCounts()
    labels = _LabelCounts(manifest.labels, len(manifest.classes))
    bound = manifest.labels.count_record_labels(len(manifest.classes))
    start = 0
    for reader in _open_shards(folder, manifest):
        for first, records in read_records(reader):
            inconsistent = find_inconsistent(records, bound)
            if inconsistent is not None:
                raise DatasetError(
                    f"{reader.path} has a record in row {first + inconsistent} that contradicts "
                    f"itself: run `feeder verify {folder}`, then restore the shard or pack again"
                )
            pictures.add(start + first, records)
            labels.add_records(records)
        for _, rows in read_label_rows(reader, manifest.labels.width):
            labels.add_rows(rows)
        start += reader.header.samples
    return Facts(
        classes=labels.classes(),
        columns=_count_columns(folder, manifest, labels),
        longer_side=pictures.longer.distribution(),
        shorter_side=pictures.shorter.distribution(),
        pixels=pictures.pixels.distribution(),
        aspect=pictures.aspect.distribution(),
        blob_bytes=pictures.blob_bytes.distribution(),
        examples={flag: tuple(found) for flag, found in pictures.examples.items()},
        extremes=tuple(pictures.extremes.values()) if pictures.are_different() else (),
    )


def _open_shards(folder: Path, manifest: Manifest) -> Iterator[ProvenShard]:
    for number, entry in enumerate(manifest.shards):
        label_bytes = manifest.labels.stored_bytes
        with closing(ProvenShard(folder, entry, number, label_bytes=label_bytes)) as reader:
            yield reader


class _PictureCounts:
    """Counts of what records hold besides labels."""

    def __init__(self) -> None:
        self.longer, self.shorter = WholeCounts(_SIDE_LIMIT), WholeCounts(_SIDE_LIMIT)
        self.pixels, self.aspect, self.blob_bytes = OctaveCounts(), OctaveCounts(), OctaveCounts()
        self.examples: dict[Oddity, list[int]] = {}
        self.extremes: dict[str, Extreme] = {}
        self._extreme_keys: dict[str, float] = {}

    def add(self, start: int, records: NDArray[np.void]) -> None:
        """Count ``records`` (n,); the first is sample ``start``."""
        width, height = records["width"], records["height"]
        shorter, longer = np.minimum(width, height), np.maximum(width, height)
        pixels = width.astype(np.float64) * height
        aspect = width / height.astype(np.float64)
        self.longer.add(longer)
        self.shorter.add(shorter)
        self.pixels.add(pixels)
        self.aspect.add(aspect)
        self.blob_bytes.add(records["blob_bytes"].astype(np.float64))
        for what, keys in (
            ("Fewest pixels", -pixels),
            ("Most pixels", pixels),
            ("Widest", aspect),
            ("Tallest", -aspect),
        ):
            self._note_extreme(what, start, keys, records)
        flags = records["flags"]
        present = int(np.bitwise_or.reduce(flags))
        for flag in Oddity:
            found = self.examples.setdefault(flag, [])
            if flag & present and len(found) < EXAMPLES_MAX:
                rows = np.flatnonzero(flags & flag)[: EXAMPLES_MAX - len(found)]
                found += (rows + start).tolist()

    def are_different(self) -> bool:
        """Return whether there are two sizes."""
        return len({(each.width, each.height) for each in self.extremes.values()}) > 1

    def _note_extreme(
        self, what: str, start: int, keys: NDArray[np.float64], records: NDArray[np.void]
    ) -> None:
        row = int(np.argmax(keys))
        if keys[row] > self._extreme_keys.get(what, -np.inf):
            self._extreme_keys[what] = float(keys[row])
            self.extremes[what] = Extreme(
                what=what,
                sample_id=start + row,
                width=int(records["width"][row]),
                height=int(records["height"][row]),
            )


class _LabelCounts:
    """Counts of labels of any kind; of floats their range."""

    def __init__(self, spec: LabelSpec, classes: int) -> None:
        self._spec = spec
        self._samples = np.zeros(classes, np.int64)
        self._per_sample = WholeCounts(classes + 1)
        shown = min(spec.width, COLUMNS_MAX)
        self.low, self.high = np.full(shown, np.inf), np.full(shown, -np.inf)
        self.sum = np.zeros(shown)

    def add_records(self, records: NDArray[np.void]) -> None:
        """Count the labels that are in records."""
        if self._spec.kind == "index":
            found, counts = np.unique(records["label"], return_counts=True)
            self._samples[found] += counts

    def add_rows(self, stored: NDArray[np.uint8]) -> None:
        """Count the labels that are in label rows (n, stored_bytes)."""
        if self._spec.kind == "multi":
            bits = np.empty((len(stored), self._spec.width), np.uint8)
            self._spec.decode_rows(stored, bits)
            self._samples += bits.sum(axis=0, dtype=np.int64)
            self._per_sample.add(bits.sum(axis=1, dtype=np.int64))
        else:
            values = first_columns(stored)
            self.low = np.minimum(self.low, values.min(axis=0))
            self.high = np.maximum(self.high, values.max(axis=0))
            self.sum += values.sum(axis=0)

    def classes(self) -> ClassCounts | None:
        """Return the counts of classes; None where labels are something else."""
        if self._spec.kind == "index":
            return ClassCounts(samples=self._samples, per_sample=None)
        if self._spec.kind == "multi":
            return ClassCounts(samples=self._samples, per_sample=self._per_sample.distribution())
        return None


def first_columns(stored: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return the values (n, up to COLUMNS_MAX) of rows of floats (n, stored_bytes)."""
    return stored.view("<f4")[:, :COLUMNS_MAX].astype(np.float64)


def _count_columns(folder: Path, manifest: Manifest, labels: _LabelCounts) -> tuple[Column, ...]:
    """Return the values of float labels, with histograms; () where labels are something else."""
    if manifest.labels.kind != "float":
        return ()
    ranges = list(zip(labels.low.tolist(), labels.high.tolist(), strict=True))
    counts = [EvenCounts(low, high, _COLUMN_BINS) for low, high in ranges]
    for reader in _open_shards(folder, manifest):
        for _, rows in read_label_rows(reader, manifest.labels.width):
            values = first_columns(rows)
            for number, column in enumerate(counts):
                column.add(values[:, number])
    means = (labels.sum / manifest.samples).tolist()
    return tuple(
        Column(low=low, mean=mean, high=high, counts=column.counts)
        for (low, high), mean, column in zip(ranges, means, counts, strict=True)
    )
