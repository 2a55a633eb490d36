"""The dataset that a bench runs on: the given one, or a synthetic one made for the run."""

import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from feeder.dataset.content import content_fingerprint
from feeder.dataset.format import HEADER_BYTES, decode_header, shard_name
from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.errors import DatasetError
from feeder.host.topology import usable_cpus
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset
from feeder.process.output_file import write_output

from .synthetic import write_synthetic

SYNTHETIC_CLASSES = 10
_IMAGES_PER_JOB = 64  # for fewer, starting another process takes longer than drawing them


@contextmanager
def dataset_or_synthetic(path: Path | None, *, images: int) -> Iterator[Path]:
    """Yield ``path``, or a synthetic dataset of ``images`` images that is removed afterwards."""
    if path is not None:
        yield path
        return
    with source_or_synthetic(None, images=images) as source:
        yield pack(source, source.parent / "dataset")


@contextmanager
def source_or_synthetic(path: Path | None, *, images: int) -> Iterator[Path]:
    """Yield ``path``, or a folder of ``images`` synthetic images that is removed afterwards."""
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        source = Path(folder) / "source"
        draw(source, images=images, classes=min(SYNTHETIC_CLASSES, images))
        yield source


@contextmanager
def large_dataset(path: Path | None, *, size_bytes: int, distinct: int) -> Iterator[Path]:
    """Yield ``path``, or a synthetic dataset of ``size_bytes`` that is removed afterwards.

    It repeats ``distinct`` images: to draw and to pack more would take longer.
    """
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="feeder-bench-") as folder:
        source = Path(folder, "source")
        draw(source, images=distinct, classes=SYNTHETIC_CLASSES)
        once = pack(source, Path(folder, "once"), shards=1)
        yield repeat(once, Path(folder, "dataset"), size_bytes)


def draw(destination: Path, *, images: int, classes: int, seed: int = 0) -> None:
    jobs = min(usable_cpus().count, -(-images // _IMAGES_PER_JOB))
    line = ProgressLine(sys.stderr)
    line.begin("drawing", "images", images)
    write_synthetic(
        destination, images=images, classes=classes, seed=seed, jobs=jobs, progress=line.add
    )
    line.end()


def pack(source: Path, destination: Path, *, shards: int | None = None) -> Path:
    options = PackOptions(jobs=usable_cpus().count, shards=shards)
    pack_dataset(source, destination, options, ProgressLine(sys.stderr))
    return destination


def repeat(dataset: Path, destination: Path, size_bytes: int) -> Path:
    """Write a dataset of at least ``size_bytes`` that holds the one shard of ``dataset`` again and
    again; copying takes a tenth of the time of packing."""
    manifest = load_manifest(dataset)
    (shard,) = manifest.shards
    data = (dataset / shard.name).read_bytes()
    header = decode_header(data[:HEADER_BYTES], shard.name)
    names = [shard_name(number) for number in range(-(-size_bytes // shard.bytes))]
    destination.mkdir()
    for number, name in enumerate(names):
        start = replace(header, shard=number).encode()
        write_output(destination / name, start + data[HEADER_BYTES:])
    samples = shard.samples * len(names)
    manifest = msgspec.structs.replace(
        manifest,
        samples=samples,
        shards=tuple(msgspec.structs.replace(shard, name=name) for name in names),
        content=content_fingerprint(
            destination, names, samples=samples, labels=manifest.labels, classes=manifest.classes
        ),
    )
    write_output(destination / MANIFEST_NAME, manifest.sealed().encode())
    return destination


def choose_images(
    source: Path, limit: int, what: str, read: Callable[[Path], Any]
) -> tuple[list[tuple[Path, int, Any]], list[str], int]:
    """Return at most ``limit`` images of class folders, in random order: path, label, ``read``'s.

    Also the names of the classes, and the number of files for which ``read`` has returned None.
    DatasetError, which names ``what`` was looked for, when none is left.
    """
    try:
        classes = sorted(path for path in source.iterdir() if path.is_dir())
    except OSError as error:
        raise DatasetError(f"{source} cannot be listed: {error.strerror}") from error
    files = [
        (path, label)
        for label, folder in enumerate(classes)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    random.Random(0).shuffle(files)
    chosen: list[tuple[Path, int, Any]] = []
    left_out = 0
    progress = ProgressLine(sys.stderr)
    progress.begin("checking", "images", min(limit, len(files)))
    for path, label in files:
        if len(chosen) == limit:
            break
        if (about := read(path)) is None:
            left_out += 1
        else:
            chosen.append((path, label, about))
            progress.add(1)
    progress.end()
    if not chosen:
        raise DatasetError(
            f"{source} holds no {what}: give a folder with a folder of them for each class"
        )
    return chosen, [folder.name for folder in classes], left_out
