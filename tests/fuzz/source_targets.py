"""Source files at packing: images of every format, damaged, and the EXIF orientation of JPEGs."""

import random
from typing import get_args

from feeder.convert.decode_picture import read_orientation
from feeder.convert.prepare import SourceOptions, prepare_sample
from feeder.jpeg.recode import TILE_WIDTHS_PX
from feeder.source.item_bytes import FaultKind, SourceError
from tests.fuzz.mutate import mutate_bytes
from tests.fuzz.native_targets import check_whole
from tests.fuzz.pictures import JPEG_TOKENS, damage_jpeg, jpegs, other_images
from tests.fuzz.target import Target

_NAMES = ("a/b.jpg", "a/b.png", "a/b.webp", "a/b.tif", "b", "a/\udcff.gif")


def _source(rng: random.Random) -> tuple[bytes, str, SourceOptions]:
    if rng.random() < 0.2:
        data = damage_jpeg(rng, rng.choice(jpegs()), jpegs())
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


def _check_exif(jpeg: bytes) -> bool:
    """One of the eight orientations."""
    orientation = read_orientation(jpeg)
    assert 1 <= orientation <= 8
    return orientation > 1


TARGETS = (
    Target(
        "source",
        _source,
        lambda given: prepare_sample(*given),
        30_000,
        SourceError,  # its reason is fit for quarantine.jsonl
        lambda sample, _: check_whole(sample.tiled),
        line_max=300,
        kinds=get_args(FaultKind),
        native=True,
        slow_s=30.0,
        memory_bytes=2 << 30,
    ),
    Target(
        "exif",
        lambda rng: mutate_bytes(rng, rng.choice(jpegs()), tokens=JPEG_TOKENS, edits_max=3),
        _check_exif,
        40_000,
    ),
)
