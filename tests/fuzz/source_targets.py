"""Source files at packing: images of every format, damaged, and the EXIF orientation of JPEGs."""

import random

from feeder.convert.decode_picture import read_orientation
from feeder.convert.prepare import SourceOptions, prepare_sample
from feeder.jpeg.recode import TILE_WIDTHS_PX
from feeder.source.item_bytes import SourceError
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.native_targets import check_whole, damage_jpeg
from tests.fuzz.pictures import JPEG_TOKENS, jpegs, other_images
from tests.fuzz.target import Target, refusal

_KINDS = frozenset(("not-image", "truncated", "corrupt", "unsupported", "too-large"))
_NAMES = ("a/b.jpg", "a/b.png", "a/b.webp", "a/b.tif", "b", "a/\udcff.gif")


def _source(rng: random.Random) -> tuple[bytes, str, SourceOptions]:
    if rng.random() < 0.2:
        data = damage_jpeg(rng, rng.choice(jpegs()))
    else:
        images = other_images()
        data = rng.choice(images)
        if rng.random() < 0.95:
            head = 128 if rng.random() < 0.5 else len(data)  # most of the structure
            data = mutate_bytes(rng, data[:head], others=images, edits_max=3) + data[head:]
    options = SourceOptions(
        tile_width_px=rng.choice(TILE_WIDTHS_PX), apply_exif=rng.random() < 0.5, quality=95
    )
    return data, rng.choice(_NAMES), options


def _check_source(given: tuple[bytes, str, SourceOptions]) -> bool:
    """A sample that can be served, or SourceError with a reason fit for quarantine.jsonl."""
    try:
        sample = prepare_sample(*given)
    except SourceError as error:
        return refusal(error, line_max=300, kinds=_KINDS)
    check_whole(sample.tiled)
    return True


def _check_exif(jpeg: bytes) -> bool:
    """One of the eight orientations."""
    orientation = read_orientation(jpeg)
    assert 1 <= orientation <= 8
    return orientation > 1


TARGETS = (
    Target(
        "source", _source, _check_source, 30_000, native=True, slow_s=30.0, memory_bytes=2 << 30
    ),
    Target(
        "exif",
        lambda rng: mutate_bytes(rng, rng.choice(jpegs()), tokens=JPEG_TOKENS, edits_max=3),
        _check_exif,
        40_000,
    ),
)
