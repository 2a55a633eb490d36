"""Makes small JPEGs of packed samples, as data: URIs on the page."""

import base64
import io
import warnings
from html import escape
from typing import Final

import numpy as np
from PIL import Image

from feeder.dataset.opened import Dataset
from feeder.jpeg.crop_decode import whole_jpeg
from feeder.survey.markup import escape_path

_SIDE_PX: Final = 128
_BYTES_MAX: Final = 5_000
_QUALITIES: Final = (75, 60, 45, 30, 15)


def make_figure(dataset: Dataset, sample_id: int, *notes: str) -> str:
    """A sample's picture above the ``notes``, which are text, and its name."""
    lines = "".join(f'<span class="line">{escape(note)}</span>' for note in notes)
    name = escape_path(dataset.name_of(sample_id) or "")
    return (
        f"<figure>{make_picture(dataset, sample_id)}"
        f'<figcaption>{lines}<span class="name">{name}</span></figcaption></figure>'
    )


def make_picture(dataset: Dataset, sample_id: int) -> str:
    """A sample's picture, its longer side at most 128 px; SampleError if its blob is damaged."""
    try:
        image = open_image(dataset, sample_id)
        image.draft(None, (2 * _SIDE_PX, 2 * _SIDE_PX))  # decodes at 1/8 where that is enough
        image.thumbnail((_SIDE_PX, _SIDE_PX))
        small = image.convert("RGB")
    except (OSError, ValueError):  # Pillow cannot decode it
        return '<div class="picture">no picture</div>'
    for quality in _QUALITIES:
        encoded = io.BytesIO()
        small.save(encoded, "JPEG", quality=quality, optimize=True)
        if encoded.tell() <= _BYTES_MAX:
            break
    data = base64.b64encode(encoded.getvalue()).decode("ascii")
    return f'<div class="picture"><img src="data:image/jpeg;base64,{data}" alt=""></div>'


def open_image(dataset: Dataset, sample_id: int) -> Image.Image:
    """A sample's whole image, for Pillow to decode."""
    ids = np.array([sample_id], np.int64)
    records = dataset.read_records(ids)
    location = dataset.find_blobs(ids, records)[0]
    blob = dataset.read_blob(location, np.empty(location.blob_bytes, np.uint8))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of very large images: packing checked their size
        return Image.open(io.BytesIO(whole_jpeg(blob, records[0])))
