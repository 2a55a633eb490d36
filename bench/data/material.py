"""The dataset that a bench runs on: the given one, or a synthetic one made for the run."""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feeder.host.topology import usable_cpus
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset

from .synthetic import write_synthetic

SYNTHETIC_CLASSES = 10
_IMAGES_PER_JOB = 64
"""For fewer, starting another process takes longer than drawing them."""


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


def draw(destination: Path, *, images: int, classes: int, seed: int = 0) -> None:
    """Draw a synthetic set with a line of progress."""
    jobs = min(usable_cpus().count, -(-images // _IMAGES_PER_JOB))
    line = ProgressLine(sys.stderr)
    line.begin("drawing", "images", images)
    write_synthetic(
        destination, images=images, classes=classes, seed=seed, jobs=jobs, progress=line.add
    )
    line.end()


def pack(source: Path, destination: Path) -> Path:
    """Pack ``source`` with the default options and return ``destination``."""
    options = PackOptions(jobs=usable_cpus().count)
    pack_dataset(source, destination, options, ProgressLine(sys.stderr))
    return destination
