"""The images that ``feeder-bench pack`` packs, as a folder of classes and as each other kind.

A small sample is repeated under other names until there are enough images for the start of a
process not to matter. Repetitions are copies, not links, so that a folder is read from as much
memory as the other kinds of source. Other kinds have as many files as sets of IMAGES_IN_FILE
images. Their libraries are imported when they are written, because they are extras.
"""

import gzip
import io
import itertools
import json
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

from feeder.source.item_bytes import sniff_file

from ..data.material import choose_images, source_or_synthetic

IMAGES_IN_FILE: Final = 1000  # about as many as ImageNet's TFRecords have
FOLDER: Final = "folder"
_GZIP_LEVEL: Final = 6  # gzip's default
_ROWS_IN_GROUP: Final = 100  # what Hugging Face's datasets chooses for images
_MASK_DELTA: Final = 0xA282EAD8

Image = tuple[Path, int]  # a file in the folder of its class, and its label


@dataclass(frozen=True, slots=True, kw_only=True)
class PackMaterial:
    """The images, all below ``folder``, which is for this run alone."""

    folder: Path
    classes: tuple[str, ...]
    images: tuple[Image, ...]
    """In the order in which other kinds hold them: a compressor meets no image again soon."""
    distinct: int

    @property
    def source(self) -> Path:
        """The images as a folder of classes."""
        return self.folder / "source"


@contextmanager
def prepare_material(source: Path | None, *, images: int, distinct: int) -> Iterator[PackMaterial]:
    """Yield ``images`` images of ``source`` (class folders), or of a synthetic set, as a folder.

    ``distinct`` is the number of synthetic images to draw. All is removed afterwards. Raises
    DatasetError when ``source`` holds no images.
    """
    with (
        source_or_synthetic(source, images=min(images, distinct)) as given,
        tempfile.TemporaryDirectory(prefix="feeder-bench-") as name,
    ):
        chosen, classes, _ = choose_images(given, images, "images in class folders", _sniff)
        repeated = itertools.islice(itertools.cycle(chosen), images)
        copied = []
        for number, (path, label, _) in enumerate(repeated):
            to = Path(name, "source", classes[label], f"{number:07}{path.suffix}")
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, to)
            copied.append((to, label))
        yield PackMaterial(
            folder=Path(name),
            classes=tuple(classes),
            images=tuple(copied),
            distinct=min(images, len(chosen)),
        )


def _sniff(path: Path) -> object:
    return sniff_file(bytes(path))


def write_source(kind: str, material: PackMaterial) -> Path:
    """Write ``material`` as ``kind``; ModuleNotFoundError where its library is missing."""
    if kind == FOLDER:
        return material.source
    folder = material.folder / kind
    folder.mkdir()
    for number, first in enumerate(range(0, len(material.images), IMAGES_IN_FILE)):
        images = material.images[first : first + IMAGES_IN_FILE]
        _WRITERS[kind](folder / f"train-{number:05}.{kind}", images, material.classes)
    return folder


def _write_tar(path: Path, images: Sequence[Image], classes: tuple[str, ...]) -> None:
    """Write a WebDataset: a key's ``.cls`` and image, adjacent."""
    with _open_to_write(path) as file, tarfile.open(fileobj=file, mode="w|") as archive:
        for image, label in images:
            key = f"{image.parent.name}/{image.stem}"
            members = {".cls": str(label).encode(), image.suffix: image.read_bytes()}
            for suffix, content in members.items():
                entry = tarfile.TarInfo(key + suffix)
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


@contextmanager
def _open_to_write(path: Path) -> Iterator[IO[bytes] | Any]:
    """Open ``path``, compressed as its suffix says."""
    with path.open("wb") as raw:
        if path.suffix == ".gz":
            with gzip.open(raw, "wb", _GZIP_LEVEL) as file:
                yield file
        elif path.suffix == ".zst":
            import zstandard

            with zstandard.ZstdCompressor().stream_writer(raw) as file:
                yield file
        else:
            yield raw


def _write_parquet(path: Path, images: Sequence[Image], classes: tuple[str, ...]) -> None:
    """Write as Hugging Face's datasets does: a struct of bytes and path, and a ClassLabel."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    features = {
        "image": {"_type": "Image"},
        "label": {"names": list(classes), "_type": "ClassLabel"},
    }
    image_type = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    schema = pa.schema({"image": image_type, "label": pa.int64()}).with_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    with pq.ParquetWriter(path, schema) as writer:
        for first in range(0, len(images), _ROWS_IN_GROUP):
            group = images[first : first + _ROWS_IN_GROUP]
            pictures = [{"bytes": image.read_bytes(), "path": image.name} for image, _ in group]
            labels = [label for _, label in group]
            columns = [pa.array(pictures, image_type), pa.array(labels, pa.int64())]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))


def _write_tfrecord(path: Path, images: Sequence[Image], classes: tuple[str, ...]) -> None:
    """Write a tf.train.Example with ImageNet's features for each image; labels count from 1.

    Example   {features: {feature: map<string, Feature>}}        protobuf messages
    Feature   {bytes_list | float_list | int64_list}             fields 1, 2, 3; values in field 1
    record    length u64, its CRC, data, the data's CRC          little-endian, CRCs masked
    """
    with path.open("wb") as file:
        for image, label in images:
            features = {
                "image/class/label": _field(3, _field(1, _varint(label + 1))),
                "image/class/text": _field(1, _field(1, classes[label].encode())),
                "image/encoded": _field(1, _field(1, image.read_bytes())),
                "image/filename": _field(1, _field(1, image.name.encode())),
                "image/format": _field(1, _field(1, b"JPEG")),
            }
            entries = (_field(1, key.encode()) + _field(2, each) for key, each in features.items())
            data = _field(1, b"".join(_field(1, entry) for entry in entries))
            length = struct.pack("<Q", len(data))
            file.write(length + _masked_crc(length) + data + _masked_crc(data))


def _field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field of a protobuf message."""
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _masked_crc(data: bytes) -> bytes:
    import google_crc32c

    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF)


_WRITERS: Final[dict[str, Callable[[Path, Sequence[Image], tuple[str, ...]], None]]] = {
    "tar": _write_tar,
    "tar.gz": _write_tar,
    "tar.zst": _write_tar,
    "tfrecord": _write_tfrecord,
    "parquet": _write_parquet,
}
KINDS: Final = (FOLDER, *_WRITERS)
