"""The self-test: a hash of the batches that this feeder makes of a few built-in images.

Feeders give the same batches if they run the same code on libraries that give the same bytes.
Version numbers do not show that: distributions patch libraries, and most versions agree. So every
worker makes the same small batches when it starts, in memory and along the sample path, and hashes
them with the order of a small epoch. Feeders that serve together must have the same hash.

Invariant: the hash depends only on Feeder's code and the libraries; not on the CPU, the host, the
time, the locale or any dataset. It may differ between versions of Feeder.
"""

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import RECORD
from feeder.dataset.opened import BlobLocation
from feeder.dataset.writer import record_of
from feeder.errors import DatasetError, ResourceError
from feeder.jpeg.decode import VERSIONS
from feeder.jpeg.decoders import Decoder
from feeder.jpeg.recode import RecodeError, TiledJpeg, tile_jpeg
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.labels import LabelRows
from feeder.plan.packing import pixel_layout_of
from feeder.plan.recipe import Recipe, Split
from feeder.sample.reader import SampleReader

IMAGE_FOLDER: Final = Path(__file__).with_name("self_test_images")
IMAGES: Final = ("444", "422", "420-large", "440", "411", "grey", "progressive", "tiny")
"""Named for their chroma or coding. No side is a multiple of an MCU's, and the large one is large
enough to be decoded at 1/8 size."""

KEYS: Final = ((0, 0), (2**64 - 1, 7))
"""Seed and epoch of each batch."""

_TILE_WIDTH_PX: Final = 32
_LAYOUT: Final = ShardLayout(samples=97, shards=7)


def _recipe(split: Split, image_size: int, **fields: object) -> Recipe:
    return Recipe.for_split(split, batch_size=len(IMAGES), image_size=image_size, **fields)


DECODES: Final = (
    _recipe("train", 56),
    _recipe("val", 48, resize_size=56),
    _recipe("train", 40, interpolation="bicubic"),
    _recipe("train", 40, interpolation="box"),
    # Crops of nearly the whole image: the large one is decoded at 1/8 size.
    _recipe("train", 32, scale=(0.8, 1.0), ratio=(1.0, 1.3), packing="uint8-chw-rgbx"),
    _recipe("train", 32, vertical_flip_probability=0.5),  # resized to a picture, not to a batch
)
"""They cover all of which there are versions: every scale of decoding, and resizing."""

FINISHES: Final = (
    _recipe("train", 40, interpolation="bilinear-no-antialias"),
    _recipe(
        "train",
        32,
        auto_augment="rand-augment",
        rand_augment_ops=5,
        brightness=0.4,
        contrast=0.4,
        saturation=0.4,
        hue=0.3,
        greyscale_probability=0.2,
        erasing_probability=0.5,
        erasing_value="noise",
    ),
    _recipe(
        "train",
        32,
        auto_augment="augmix",
        blur_probability=0.5,
        blur_kernel_size=23,
        solarise_probability=0.2,
    ),
    _recipe("train", 32, auto_augment="auto-augment"),
)
"""They cover what is done to decoded images in only one way, with every operation."""

CROPS: Final = _recipe("train", 48, crops=((2, 48, (0.4, 1.0)), (4, 24, (0.05, 0.4))))
"""Several crops that share decodes. They are compared with others, but no part of the hash: each
has the bytes of a recipe with one crop."""


def compute_self_test(decoder: Decoder = "own") -> str:
    """Return 32 hexadecimal digits, whatever the decoder; takes about 200 ms.

    Every version of decoding and resizing that this CPU has makes batches, and TurboJPEG does.
    Raises ResourceError if a built-in image cannot be read or decoded, or if two of them differ.
    """
    packed = PackedImages.built_in()
    hashes: dict[str, str] = {}
    for version in VERSIONS:
        batches = _make_batches(packed, DECODES, decoder, version)
        hashes[f"{decoder} ({version})"] = _hash(batches)
    if decoder == "own":
        hashes["turbojpeg"] = _hash(_make_batches(packed, DECODES, "turbojpeg", VERSIONS[-1]))
    (first, expected), *others = hashes.items()
    for name, found in others:
        if found != expected:
            raise ResourceError(
                f"the self-test's images have other pixels with {name} than with {first}: install "
                'Feeder again (`make setup`); if that does not help, set decoder = "turbojpeg" '
                "under [serve] and report it with the CPU's model"
            )
    _check_crops(packed, decoder)
    finished = _make_batches(packed, FINISHES, decoder, VERSIONS[-1])
    return _hash(itertools.chain(_batch_orders(), finished), expected)


def _hash(arrays: Iterable[NDArray[Any]], before: str = "") -> str:
    digest = hashlib.blake2b(before.encode(), digest_size=16)
    try:
        for array in arrays:
            digest.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
    except DatasetError as error:
        raise _damaged(error) from error
    return digest.hexdigest()


def _check_crops(packed: "PackedImages", decoder: Decoder) -> None:
    """Raise ResourceError unless crops are the same from tiles they share as from whole images."""
    whole = msgspec.structs.replace(CROPS, partial_decode=False)
    shared, expected = (_make_crops(packed, recipe, decoder) for recipe in (CROPS, whole))
    for number, (crop, want) in enumerate(zip(shared, expected, strict=True)):
        if not np.array_equal(crop, want):
            raise ResourceError(
                f"crop {number} of the self-test's images has other pixels where crops share tiles "
                "than from whole images: install Feeder again (`make setup`); if that does not "
                "help, report it with the CPU's model"
            )


def _make_crops(packed: "PackedImages", recipe: Recipe, decoder: Decoder) -> list[NDArray[np.int8]]:
    count, (seed, epoch) = len(IMAGES), KEYS[-1]
    crops = [np.empty((count, size, size, 3), np.int8) for size in recipe.crop_sizes]
    labels = np.empty(count, np.int64)
    try:
        SampleReader(packed, recipe, decoder=decoder).fill(
            np.arange(count),
            seed=seed,
            epoch=epoch,
            pixels=crops[0],
            labels=labels,
            further=crops[1:],
        )
    except DatasetError as error:
        raise _damaged(error) from error
    return crops


def _damaged(error: DatasetError) -> ResourceError:
    return ResourceError(
        f"a built-in image of the self-test does not decode ({error.__cause__ or error}): "
        "install the daemon's libraries again (`make setup`)"
    )


def _batch_orders() -> Iterator[NDArray[Any]]:
    for seed, epoch in KEYS:
        for shuffle, last_batch in ((True, LastBatch.DROP), (False, LastBatch.PAD)):
            plan = EpochPlan(
                _LAYOUT,
                batch_size=11,
                seed=seed,
                epoch=epoch,
                shuffle=shuffle,
                last_batch=last_batch,
            )
            yield from (plan.samples(index) for index in range(plan.batches))


def _make_batches(
    packed: "PackedImages", recipes: Iterable[Recipe], decoder: Decoder, vectors: str
) -> Iterator[NDArray[Any]]:
    """Yield pixels and labels of the built-in images, in arrays that are used again."""
    ids = np.arange(len(IMAGES))
    for recipe in recipes:
        reader = SampleReader(packed, recipe, decoder=decoder, vectors=vectors)
        layout = pixel_layout_of(recipe.packing)
        pixels = np.empty((len(IMAGES), *layout.image_shape(recipe.image_size)), layout.dtype)
        labels = np.empty(len(IMAGES), np.int64)
        for seed, epoch in KEYS:
            reader.fill(ids, seed=seed, epoch=epoch, pixels=pixels, labels=labels)
            yield pixels
            yield labels


class PackedImages:
    """Images packed in memory, as ``feeder.dataset.opened.Samples``; ids are their positions."""

    where: Final = str(IMAGE_FOLDER)

    def __init__(self, images: Sequence[TiledJpeg]) -> None:
        """Take re-coded images; the label of each is its position."""
        self._blobs = [image.blob for image in images]
        records = (
            record_of(image, offset=0, label=label, name_offset=0, name_bytes=0, flags=0)
            for label, image in enumerate(images)
        )
        self._records = np.frombuffer(b"".join(record.encode() for record in records), RECORD)

    @classmethod
    def built_in(cls) -> Self:
        """Return the built-in images, re-coded as in packing; ResourceError if one is missing."""
        images: list[TiledJpeg] = []
        for name in IMAGES:
            path = IMAGE_FOLDER / f"{name}.jpg"
            try:
                images.append(tile_jpeg(path.read_bytes(), _TILE_WIDTH_PX))
            except (OSError, RecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise ResourceError(
                    f"{path}, a part of feeder, is damaged or missing ({reason}): install Feeder "
                    "again"
                ) from error
        return cls(images)

    def read_records(self, sample_ids: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the records of samples."""
        return self._records[sample_ids]

    def read_labels(
        self, sample_ids: NDArray[np.int64], records: NDArray[np.void], out: LabelRows
    ) -> None:
        """Write the labels of samples into ``out`` (n,)."""
        out[:] = records["label"]

    def find_blobs(
        self, sample_ids: NDArray[np.int64], records: NDArray[np.void]
    ) -> list[BlobLocation]:
        """Return the locations of samples' blobs, with only the id and the size in use."""
        extents = records[["blob_bytes", "checksum"]].tolist()
        return [
            BlobLocation(sample_id, 0, 0, blob_bytes, expected)
            for sample_id, (blob_bytes, expected) in zip(sample_ids.tolist(), extents, strict=True)
        ]

    def read_blob(self, location: BlobLocation, into: NDArray[np.uint8]) -> memoryview:
        """Copy a blob to the start of ``into``; return that part."""
        blob = into.data[: location.blob_bytes]
        blob[:] = self._blobs[location.sample_id]
        return blob

    def describe(self, sample_id: int) -> str:
        """Return a sample's name."""
        return f"image {IMAGES[sample_id]}"
