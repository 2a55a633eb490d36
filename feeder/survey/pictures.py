"""Makes small JPEGs of packed samples, as data: URIs for the page."""

import base64
import io
import struct
import warnings
from dataclasses import dataclass
from typing import Final

import numpy as np
from PIL import Image

from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.jpeg.crop_decode import whole_jpeg

SIDE_PX: Final = 128
_BYTES_MAX: Final = 5_000
_QUALITIES: Final = (75, 60, 45, 30, 15)
_PILLOW_ERRORS: Final = (OSError, SyntaxError, ValueError, struct.error)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A sample's name and its picture."""

    name: str
    source: str
    """A data: URI; empty where Pillow cannot decode the sample."""
    width: int
    """Of the sample, in pixels; likewise the height."""
    height: int


def draw_picture(dataset: Dataset, sample_id: int) -> Picture:
    """A sample's picture, its longer side at most SIDE_PX; DatasetError if it is damaged."""
    ids = np.array([sample_id], np.int64)
    records = dataset.read_records(ids)
    location = dataset.find_blobs(ids, records)[0]
    blob = dataset.read_blob(location, np.empty(location.blob_bytes, np.uint8))
    try:
        jpeg = whole_jpeg(blob, records[0])
    except ValueError as error:
        raise DatasetError(
            f"{dataset.describe(sample_id)} of {dataset.path} is damaged ({error}): run `feeder "
            f"verify {dataset.path}`, then restore the shard or pack again"
        ) from None
    return Picture(
        name=dataset.name_of(sample_id) or "",
        source=_make_thumbnail(jpeg),
        width=int(records[0]["width"]),
        height=int(records[0]["height"]),
    )


def _make_thumbnail(jpeg: bytes) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # very large images: packing checked their size
            image = Image.open(io.BytesIO(jpeg))
            image.draft(None, (2 * SIDE_PX, 2 * SIDE_PX))  # decodes at 1/8 where that is enough
            image.thumbnail((SIDE_PX, SIDE_PX))
            small = image.convert("RGB")
    except _PILLOW_ERRORS:
        return ""
    for quality in _QUALITIES:
        encoded = io.BytesIO()
        small.save(encoded, "JPEG", quality=quality, optimize=True)
        if encoded.tell() <= _BYTES_MAX:
            break
    return "data:image/jpeg;base64," + base64.b64encode(encoded.getvalue()).decode("ascii")


def picture_html(picture: Picture) -> str:
    if not picture.source:
        return '<div class="picture">no picture</div>'
    return f'<div class="picture"><img src="{picture.source}" alt=""></div>'
