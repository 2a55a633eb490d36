"""The kinds of source that are packed, and how the bench writes each from the folder.

Each kind has as many files as sets of IMAGES_IN_FILE images. The libraries of a kind are imported
when it is written, because they are extras.
"""

import gzip
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from .material import PackImage, PackMaterial

IMAGES_IN_FILE: Final = 1000
"""About as many as ImageNet's TFRecords have."""
FOLDER: Final = "folder"
_GZIP_LEVEL: Final = 6  # gzip's default

_Write = Callable[[Path, Iterable[PackImage], tuple[str, ...]], None]


def write_source(kind: str, material: PackMaterial) -> Path:
    """Write ``material`` as ``kind`` and return the source to pack.

    Raises ModuleNotFoundError where its library is missing.
    """
    if kind == FOLDER:
        return material.source
    folder = material.folder / kind
    folder.mkdir()
    write, suffix = _WRITERS[kind]
    for number, first in enumerate(range(0, len(material.images), IMAGES_IN_FILE)):
        images = material.images[first : first + IMAGES_IN_FILE]
        write(folder / f"train-{number:05}{suffix}", images, material.classes)
    return folder


def _write_tar(path: Path, images: Iterable[PackImage], classes: tuple[str, ...]) -> None:
    """Write a WebDataset: a key's ``.cls`` and image, adjacent."""
    with _open_to_write(path) as file, tarfile.open(fileobj=file, mode="w|") as archive:
        for image in images:
            key = image.name.removesuffix(image.path.suffix)
            _add_member(archive, f"{key}.cls", str(image.label).encode())
            _add_member(archive, image.name, image.path.read_bytes())


def _add_member(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))


@contextmanager
def _open_to_write(path: Path) -> Iterator[IO[bytes] | Any]:
    """Open ``path``, compressed as its suffix says."""
    if path.suffix == ".gz":
        with gzip.open(path, "wb", _GZIP_LEVEL) as file:
            yield file
    elif path.suffix == ".zst":
        import zstandard

        with path.open("wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as file:
            yield file
    else:
        with path.open("wb") as file:
            yield file


def _write_tfrecord(path: Path, images: Iterable[PackImage], classes: tuple[str, ...]) -> None:
    from .tfrecord import write_tfrecord

    write_tfrecord(path, images, classes)


def _write_parquet(path: Path, images: Iterable[PackImage], classes: tuple[str, ...]) -> None:
    from .parquet import write_parquet

    write_parquet(path, images, classes)


_WRITERS: Final[dict[str, tuple[_Write, str]]] = {
    "tar": (_write_tar, ".tar"),
    "tar.gz": (_write_tar, ".tar.gz"),
    "tar.zst": (_write_tar, ".tar.zst"),
    "tfrecord": (_write_tfrecord, ".tfrecord"),
    "parquet": (_write_parquet, ".parquet"),
}
KINDS: Final = (FOLDER, *_WRITERS)
