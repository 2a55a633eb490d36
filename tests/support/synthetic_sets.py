"""Small datasets of synthetic images: packed, or written with the records that a test wants."""

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.data.synthetic import write_synthetic
from feeder.dataset.content import content_fingerprint
from feeder.dataset.format import Oddity, checksum, shard_name
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    QUARANTINE_NAME,
    Manifest,
    ShardEntry,
    samples_in_shard,
)
from feeder.dataset.writer import ShardWriter
from feeder.jpeg.recode import TiledJpeg, tile_jpeg
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset
from feeder.plan.labels import LabelRows, LabelSpec
from tests.support.sources import encoded, image

INDEX = LabelSpec()
MULTI = LabelSpec(kind="multi", width=11)
FLOATS = LabelSpec(kind="float", width=3)
ONE_FLOAT = LabelSpec(kind="float")
NONE = LabelSpec(kind="none")
EVERY_KIND = (INDEX, MULTI, FLOATS, ONE_FLOAT, NONE)
_PLAIN = Oddity(0)


def pack_synthetic(folder: Path, *, images: int, classes: int = 3) -> Path:
    """Draw and pack a set inside ``folder``; return the dataset's folder."""
    source = folder / "source"
    write_synthetic(source, images=images, classes=classes, jobs=1)
    pack_dataset(source, folder / "dataset", PackOptions(), ProgressLine(io.StringIO()))
    return folder / "dataset"


def class_names(labels: LabelSpec) -> tuple[str, ...]:
    """Return the classes of a dataset with these labels: three where a sample has one."""
    count = {"index": 3, "multi": labels.width}.get(labels.kind, 0)
    return tuple(f"class{number}" for number in range(count))


def classes_of(sample: int, labels: LabelSpec) -> list[int]:
    """Return the classes of a sample with several; every fifth sample has none."""
    return sorted({sample % labels.width, sample**2 % labels.width}) if sample % 5 else []


def values_of(sample: int, labels: LabelSpec) -> list[float]:
    """Return the values of a sample with floats."""
    return [sample / 3 - place for place in range(labels.width)]


def expected_rows(sample_ids: NDArray[np.int64], labels: LabelSpec) -> LabelRows:
    """Return the rows of a batch on the wire; an id of -1 is padding."""
    rows = np.full((len(sample_ids), *labels.row_shape), labels.padding, labels.dtype)
    for row, sample in enumerate(sample_ids.tolist()):
        if sample < 0:
            continue
        match labels.kind:
            case "index":
                rows[row] = sample % 3
            case "multi":
                rows[row] = np.isin(np.arange(labels.width), classes_of(sample, labels))
            case "float":
                rows[row] = np.array(values_of(sample, labels), np.float32)
            case "none":
                rows[row] = -1
    return rows


@cache
def tiled_image(width: int = 40, height: int = 30, seed: int = 0) -> TiledJpeg:
    return tile_jpeg(encoded(image(width, height, seed)), 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample to write."""

    name: str
    tiled: TiledJpeg = field(default_factory=tiled_image)
    source: int = 0
    """The checksum of its source."""
    label: int = 0
    row: bytes = b""
    flags: Oddity = _PLAIN


def write_set(
    folder: Path,
    samples: Sequence[Sample],
    *,
    labels: LabelSpec = INDEX,
    classes: tuple[str, ...] = (),
    shards: int = 2,
    quarantined: int = 0,
    with_manifest: bool = True,
) -> Manifest:
    """Write the samples, in order, as a dataset; return its manifest."""
    folder.mkdir(parents=True, exist_ok=True)
    waiting = iter(samples)
    entries = []
    for number in range(shards):
        path = folder / shard_name(number)
        with ShardWriter(path, shard=number, label_bytes=labels.stored_bytes) as writer:
            for sample in islice(waiting, samples_in_shard(len(samples), shards, number)):
                writer.append(
                    sample.tiled,
                    label=sample.label,
                    name=sample.name,
                    flags=sample.flags,
                    label_row=sample.row,
                    source_checksum=sample.source,
                )
            header = writer.finish()
        entries.append(
            ShardEntry(
                name=path.name,
                samples=header.samples,
                bytes=header.file_bytes,
                index_xxh3=f"{header.index_checksum:016x}",
            )
        )
    manifest = Manifest(
        samples=len(samples),
        classes=classes,
        labels=labels,
        tile_width_px=32,
        seed=0,
        options={"apply_exif": False, "quality": 95},
        odd=dict(Counter(kind for sample in samples for kind in sample.flags.kinds())),
        subsampling=dict(Counter(sample.tiled.subsampling.name.lower() for sample in samples)),
        quarantined=quarantined,
        quarantine_xxh3=f"{checksum(b''):016x}",
        source_bytes=1,
        shards=tuple(entries),
        content=content_fingerprint(
            folder,
            [entry.name for entry in entries],
            samples=len(samples),
            labels=labels,
            classes=classes,
        ),
    ).sealed()
    (folder / QUARANTINE_NAME).write_bytes(b"")
    if with_manifest:
        (folder / MANIFEST_NAME).write_bytes(manifest.encode())
    return manifest


def write_labelled(
    folder: Path, labels: LabelSpec, *, samples: int = 23, shards: int = 3, name: str = "s{:03}"
) -> Manifest:
    """Write a dataset whose sample ``i`` has the labels of ``expected_rows``."""
    written = [
        Sample(
            name=name.format(sample),
            tiled=tiled_image(40, 32, sample),
            source=1 + sample,
            label=sample % 3 if labels.kind == "index" else 0,
            row=_encode(sample, labels),
        )
        for sample in range(samples)
    ]
    return write_set(folder, written, labels=labels, classes=class_names(labels), shards=shards)


def _encode(sample: int, labels: LabelSpec) -> bytes:
    if labels.kind == "multi":
        return labels.encode_multi(classes_of(sample, labels))
    if labels.kind == "float":
        return labels.encode_floats(values_of(sample, labels))
    return b""
