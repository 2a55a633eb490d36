"""Writes small datasets whose records are what a test wants, without packing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

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
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from tests.support.sources import encoded, image

_PLAIN = Oddity(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample to write."""

    name: str
    source: int = 0
    """The checksum of its source."""
    label: int = 0
    row: bytes = b""
    flags: Oddity = _PLAIN
    size: tuple[int, int] = (40, 30)


@cache
def _tiled(size: tuple[int, int]) -> TiledJpeg:
    return tile_jpeg(encoded(image(*size, seed=sum(size))), 32)


def write_set(
    folder: Path,
    samples: Sequence[Sample],
    *,
    labels: LabelSpec = INDEX_LABELS,
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
            for _ in range(samples_in_shard(len(samples), shards, number)):
                sample = next(waiting)
                writer.append(
                    _tiled(sample.size),
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
        subsampling=dict(
            Counter(_tiled(sample.size).subsampling.name.lower() for sample in samples)
        ),
        quarantined=quarantined,
        quarantine_xxh3=f"{checksum(b''):016x}",
        source_bytes=1,
        shards=tuple(entries),
        content=content_fingerprint(
            [folder / entry.name for entry in entries],
            samples=len(samples),
            labels=labels,
            classes=classes,
        ),
    ).sealed()
    (folder / QUARANTINE_NAME).write_bytes(b"")
    if with_manifest:
        (folder / MANIFEST_NAME).write_bytes(manifest.encode())
    return manifest


def shard_paths(folder: Path, manifest: Manifest) -> list[Path]:
    """Return the shards of a dataset, in order."""
    return [folder / entry.name for entry in manifest.shards]
