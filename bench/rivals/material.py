"""The images that ``feeder-bench peers`` gives to all contenders: a folder, a list, a dataset.

A small sample is repeated under different names until there are enough images for shuffling to
matter: as links for loaders that read files, packed repeatedly for us, so that no contender reads
from a smaller set. Files that not every contender can read (other formats, CMYK, broken files) are
left out and counted: the bench compares speed.
"""

import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image

from feeder.errors import DatasetError
from feeder.pack.progress import ProgressLine

from ..data.material import pack, source_or_synthetic

_SYNTHETIC_IMAGES: Final = 256
"""Few, because drawing an image takes longer than repeating one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RivalMaterial:
    """The images, all below ``folder``."""

    folder: Path
    listing: Path
    """Path, label, width and height of each image, between tabs."""
    dataset: Path
    """The same images, packed."""
    images: int
    distinct: int
    left_out: int
    """Files of the source that not every contender can read."""
    mean_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    path: Path
    label: int
    size: tuple[int, int]


@contextmanager
def prepare_material(source: Path | None, *, images: int) -> Iterator[RivalMaterial]:
    """Yield at least ``images`` images of ``source`` (class folders), or of a synthetic set.

    They are removed afterwards. Raises DatasetError when ``source`` holds none.
    """
    with (
        source_or_synthetic(source, images=min(images, _SYNTHETIC_IMAGES)) as given,
        tempfile.TemporaryDirectory(prefix="feeder-bench-") as name,
    ):
        folder = Path(name)
        found, left_out = _find_images(given, images)
        linked = _link(found, folder / "source", images)
        listing = folder / "images.tsv"
        lines = [f"{each.path}\t{each.label}\t{each.size[0]}\t{each.size[1]}\n" for each in linked]
        listing.write_text("".join(lines), encoding="utf-8")
        yield RivalMaterial(
            folder=folder,
            listing=listing,
            dataset=pack(folder / "source", folder / "dataset"),
            images=len(linked),
            distinct=len(found),
            left_out=left_out,
            mean_bytes=sum(each.path.stat().st_size for each in found) / len(found),
        )


def _find_images(source: Path, limit: int) -> tuple[list[_Image], int]:
    """Return at most ``limit`` images that all can read, and the number of files left out."""
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
    found: list[_Image] = []
    left_out = 0
    progress = ProgressLine(sys.stderr)
    progress.begin("checking", "images", min(limit, len(files)))
    for path, label in files:
        size = _readable_size(path)
        if size is None:
            left_out += 1
        else:
            found.append(_Image(path=path, label=label, size=size))
            progress.add(1)
        if len(found) == limit:
            break
    progress.end()
    if not found:
        raise DatasetError(
            f"{source} holds no JPEGs in class folders that every loader can read: give a folder "
            "with a folder of JPEGs for each class"
        )
    return found, left_out


def _readable_size(path: Path) -> tuple[int, int] | None:
    """Return (width, height) of a whole RGB or grey JPEG, None for anything else."""
    try:
        with Image.open(path) as image:
            if image.format != "JPEG" or image.mode not in ("RGB", "L"):
                return None
            image.load()
            return image.size
    except (OSError, SyntaxError, ValueError):  # Pillow's errors for files that are no images
        return None


def _link(found: list[_Image], folder: Path, images: int) -> list[_Image]:
    """Link the images into ``folder``, as often as needed, and return the links."""
    linked = []
    for number in range(-(-images // len(found)) * len(found)):
        image = found[number % len(found)]
        path = folder / f"{image.label:05}" / f"{number:07}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(image.path.resolve())
        linked.append(_Image(path=path, label=image.label, size=image.size))
    return linked
