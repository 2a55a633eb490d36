"""Small packed datasets of synthetic images, for the tests of bench and preview."""

import io
from pathlib import Path

from bench.data.synthetic import write_synthetic
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset


def pack_synthetic(folder: Path, *, images: int, classes: int = 3) -> Path:
    """Draw and pack a set inside ``folder``; return the dataset's folder."""
    source = folder / "source"
    write_synthetic(source, images=images, classes=classes, jobs=1)
    pack_dataset(source, folder / "dataset", PackOptions(), ProgressLine(io.StringIO()))
    return folder / "dataset"
