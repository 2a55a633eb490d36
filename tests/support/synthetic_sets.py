"""Small datasets of synthetic images: packed, or written with labels of any kind."""

import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.data.synthetic import write_synthetic
from feeder.dataset.content import content_fingerprint
from feeder.dataset.format import checksum, shard_name
from feeder.dataset.manifest import (
    MANIFEST_NAME,
    QUARANTINE_NAME,
    Manifest,
    ShardEntry,
    samples_in_shard,
)
from feeder.dataset.writer import ShardWriter
from feeder.jpeg.recode import tile_jpeg
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


def write_labelled(
    folder: Path, labels: LabelSpec, *, samples: int = 23, shards: int = 3, name: str = "s{:03}"
) -> Manifest:
    """Write a dataset whose sample ``i`` has the labels of ``expected_rows``."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    sample = 0
    for number in range(shards):
        path = folder / shard_name(number)
        with ShardWriter(path, shard=number, label_bytes=labels.stored_bytes) as writer:
            for _ in range(samples_in_shard(samples, shards, number)):
                writer.append(
                    tile_jpeg(encoded(image(40, 32, seed=sample)), 32),
                    label=sample % 3 if labels.kind == "index" else 0,
                    name=name.format(sample),
                    flags=0,
                    label_row=_encode(sample, labels),
                    source_checksum=1 + sample,
                )
                sample += 1
            header = writer.finish()
        entries.append(
            ShardEntry(
                name=path.name,
                samples=header.samples,
                bytes=header.file_bytes,
                index_xxh3=f"{header.index_checksum:016x}",
            )
        )
    (folder / QUARANTINE_NAME).write_bytes(b"")
    manifest = Manifest(
        samples=samples,
        classes=class_names(labels),
        labels=labels,
        tile_width_px=32,
        seed=0,
        options={},
        odd={},
        subsampling={"s420": samples},
        quarantined=0,
        quarantine_xxh3=f"{checksum(b''):016x}",
        source_bytes=1,
        shards=tuple(entries),
        content=content_fingerprint(
            [folder / entry.name for entry in entries],
            samples=samples,
            labels=labels,
            classes=class_names(labels),
        ),
    ).sealed()
    (folder / MANIFEST_NAME).write_bytes(manifest.encode())
    return manifest


def _encode(sample: int, labels: LabelSpec) -> bytes:
    if labels.kind == "multi":
        return labels.encode_multi(classes_of(sample, labels))
    if labels.kind == "float":
        return labels.encode_floats(values_of(sample, labels))
    return b""
