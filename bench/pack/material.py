"""The images that ``feeder-bench pack`` packs: a folder of classes, and the list of its files.

A small sample is repeated under other names until there are enough images for the start of a
process not to matter. Repetitions are copies, not links, so that a folder is read from as much
memory as the other kinds of source.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from feeder.errors import DatasetError
from feeder.source.item_bytes import sniff_file

from ..data.material import source_or_synthetic


@dataclass(frozen=True, slots=True, kw_only=True)
class PackImage:
    """One image of the folder."""

    path: Path
    label: int

    @property
    def name(self) -> str:
        """Class folder and file name."""
        return f"{self.path.parent.name}/{self.path.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackMaterial:
    """The images, all below ``folder``."""

    folder: Path
    """For this run alone; removed afterwards."""
    source: Path
    classes: tuple[str, ...]
    images: tuple[PackImage, ...]
    """In the order in which other kinds hold them: a compressor meets no image again soon."""
    distinct: int
    size_bytes: int
    """Of all images."""


@contextmanager
def prepare_material(source: Path | None, *, images: int, distinct: int) -> Iterator[PackMaterial]:
    """Yield ``images`` images of ``source`` (class folders), or of a synthetic set, as a folder.

    ``distinct`` is the number of synthetic images to draw. All is removed afterwards. Raises
    DatasetError when ``source`` holds no images.
    """
    with (
        source_or_synthetic(source, images=min(images, distinct)) as found_in,
        tempfile.TemporaryDirectory(prefix="feeder-bench-") as name,
    ):
        folder = Path(name)
        files = _find_images(found_in, images)
        classes = tuple(sorted({path.parent.name for path in files}))
        labels = {each: label for label, each in enumerate(classes)}
        copied = []
        for number in range(images):
            path = files[number % len(files)]
            to = folder / "source" / path.parent.name / f"{number:07}{path.suffix}"
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            copied.append(PackImage(path=to, label=labels[path.parent.name]))
        yield PackMaterial(
            folder=folder,
            source=folder / "source",
            classes=classes,
            images=tuple(copied),
            distinct=min(images, len(files)),
            size_bytes=sum(image.path.stat().st_size for image in copied),
        )


def _find_images(source: Path, limit: int) -> list[Path]:
    """Return at most ``limit`` image files in class folders, in random order."""
    try:
        files = sorted(path for path in source.glob("*/*") if path.is_file())
    except OSError as error:
        raise DatasetError(f"{source} cannot be listed: {error.strerror}") from error
    random.Random(0).shuffle(files)
    found: list[Path] = []
    for path in files:
        if len(found) == limit:
            break
        if sniff_file(bytes(path)) is not None:
            found.append(path)
    if not found:
        raise DatasetError(
            f"{source} holds no images in class folders: give a folder with a folder of images for "
            "each class"
        )
    return found
