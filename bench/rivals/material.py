"""The images that ``feeder-bench peers`` gives to all contenders: a folder, a list, a dataset.

A small sample is repeated under different names until there are enough images for shuffling to
matter: as links for loaders that read files, packed repeatedly for us, so that no contender reads
from a smaller set. Files that not every contender can read (other formats, CMYK, broken files) are
left out and counted: the bench compares speed.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from PIL import Image

from ..data.material import choose_images, pack, source_or_synthetic

_SYNTHETIC_IMAGES: Final = 256  # few, because drawing an image takes longer than repeating one


class RivalMaterial(NamedTuple):
    """The images, all below ``folder``."""

    folder: Path
    listing: Path  # path, label, width and height of each image, between tabs
    dataset: Path  # the same images, packed
    images: int
    distinct: int
    left_out: int  # files of the source that not every contender can read
    mean_bytes: float


@contextmanager
def prepare_material(source: Path | None, *, images: int) -> Iterator[RivalMaterial]:
    """Yield at least ``images`` images of ``source`` (class folders), or of a synthetic set.

    They are removed afterwards. Raises DatasetError when ``source`` holds none.
    """
    with (
        source_or_synthetic(source, images=min(images, _SYNTHETIC_IMAGES)) as given,
        tempfile.TemporaryDirectory(prefix="feeder-bench-") as name,
    ):
        folder, what = Path(name), "JPEGs in class folders that every loader can read"
        chosen, _, left_out = choose_images(given, images, what, _readable_size)
        lines = []
        for number in range(-(-images // len(chosen)) * len(chosen)):
            path, label, (width, height) = chosen[number % len(chosen)]
            link = folder / "source" / f"{label:05}" / f"{number:07}.jpg"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
            lines.append(f"{link}\t{label}\t{width}\t{height}\n")
        listing = folder / "images.tsv"
        listing.write_text("".join(lines), encoding="utf-8")
        yield RivalMaterial(
            folder=folder,
            listing=listing,
            dataset=pack(folder / "source", folder / "dataset"),
            images=len(lines),
            distinct=len(chosen),
            left_out=left_out,
            mean_bytes=sum(path.stat().st_size for path, *_ in chosen) / len(chosen),
        )


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
