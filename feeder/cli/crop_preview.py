"""The pictures of ``feeder preview``: crops as the model sees them, or outlined in their images.

Crops come from ``SampleReader``, so a sheet shows what a batch of the recipe contains.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from feeder.cli.captions import name_labels
from feeder.cli.contact_sheet import Note
from feeder.cli.sample_notes import note_samples
from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import whole_jpeg
from feeder.plan.crop import plan_crops
from feeder.plan.labels import LabelRows
from feeder.plan.packing import Pixels, pixel_layout_of, unpack_levels
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader

_MARGIN_LEVEL = 232  # of the margins around an image that is not square
_DIM = 0.45  # share of their brightness that pixels outside the crop keep


def draw_crops(
    dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64], *, seed: int, epoch: int
) -> tuple[NDArray[np.uint8], list[str]]:
    """Return the crops of n samples, (n, image_size, image_size, 3), and their labels."""
    count = len(sample_ids)
    layout = pixel_layout_of(recipe.packing)
    pixels: Pixels = np.empty((count, *layout.image_shape(recipe.image_size)), layout.dtype)
    labels = _label_rows(dataset, count)
    reader = SampleReader(dataset, recipe)
    reader.fill(sample_ids, seed=seed, epoch=epoch, pixels=pixels, labels=labels)
    return unpack_levels(pixels, layout), name_labels(dataset.labels, labels, dataset.classes)


def draw_boxes(
    dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64], *, seed: int, epoch: int
) -> tuple[NDArray[np.uint8], list[str]]:
    """Return the whole images of n samples with their crops outlined, and their labels.

    The pictures are (n, side, side, 3), the margins of images that are not square included.
    """
    records = dataset.read_records(sample_ids)
    crops = plan_crops(
        recipe,
        seed=seed,
        epoch=epoch,
        sample_ids=sample_ids,
        widths=records["width"].astype(np.int64),
        heights=records["height"].astype(np.int64),
    )
    labels = _label_rows(dataset, len(sample_ids))
    dataset.read_labels(sample_ids, records, labels)
    side = max(recipe.image_size, 128)
    pictures = np.full((len(sample_ids), side, side, 3), _MARGIN_LEVEL, np.uint8)
    rows = zip(sample_ids.tolist(), records, crops.boxes.tolist(), pictures, strict=True)
    for sample_id, record, box, square in rows:
        image = _outline_box(_decode_whole(dataset, sample_id, record), box, side)
        y, x = (side - image.height) // 2, (side - image.width) // 2
        square[y : y + image.height, x : x + image.width] = np.asarray(image)
    return pictures, name_labels(dataset.labels, labels, dataset.classes)


def note_crops(
    dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64], *, seed: int, epoch: int
) -> list[Note]:
    """Return what n samples of a dataset are and what the recipe does to them."""
    records = dataset.read_records(sample_ids)
    return note_samples(
        recipe,
        seed=seed,
        epoch=epoch,
        sample_ids=sample_ids,
        widths=records["width"].astype(np.int64),
        heights=records["height"].astype(np.int64),
    )


def note_boxes(
    dataset: Dataset, recipe: Recipe, sample_ids: NDArray[np.int64], *, seed: int, epoch: int
) -> list[Note]:
    """Return the same without the operations, which are not done to outlined images."""
    notes = note_crops(dataset, recipe, sample_ids, seed=seed, epoch=epoch)
    return [Note(facts=note.facts) for note in notes]


def _label_rows(dataset: Dataset, count: int) -> LabelRows:
    return np.empty((count, *dataset.labels.row_shape), dataset.labels.dtype)


def _decode_whole(dataset: Dataset, sample_id: int, record: np.void) -> Image.Image:
    blob = np.empty(int(record["blob_bytes"]), np.uint8)
    (location,) = dataset.find_blobs(np.array([sample_id]), record.reshape(1))
    dataset.read_blob(location, blob)
    jpeg = whole_jpeg(blob, record)
    return Image.open(io.BytesIO(jpeg)).convert("RGB")


def _outline_box(image: Image.Image, box: list[float], side: int) -> Image.Image:
    """Return the image fitted into ``side``, dimmed outside ``box`` (x, y, w, h) and outlined."""
    shrink = side / max(image.size)
    size = tuple(max(1, round(length * shrink)) for length in image.size)
    fitted = image.resize((size[0], size[1]), Image.Resampling.LANCZOS)
    x, y, w, h = (length * shrink for length in box)
    left, top = round(x), round(y)
    right = min(max(round(x + w), left + 1), fitted.width)
    bottom = min(max(round(y + h), top + 1), fitted.height)
    dimmed = fitted.point([round(level * _DIM) for level in range(256)] * 3)
    dimmed.paste(fitted.crop((left, top, right, bottom)), (left, top))
    draw = ImageDraw.Draw(dimmed)
    draw.rectangle((left, top, right - 1, bottom - 1), outline=(255, 255, 255))
    return dimmed
