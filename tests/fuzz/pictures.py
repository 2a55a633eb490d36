"""Small valid images of every kind, for targets to damage; created once in a process."""

from collections.abc import Sequence
from functools import cache
from shutil import which
from typing import Any

import numpy as np
from PIL import Image, features

from feeder.jpeg.recode import TILE_WIDTHS_PX, TiledJpeg, tile_jpeg
from tests.support.jpegs import SAMPLINGS, cjpeg, encode, picture
from tests.support.sources import encoded

_SIZES = ((1, 1), (17, 9), (40, 30), (70, 50), (120, 33))

JPEG_TOKENS: Sequence[bytes] = (
    *(b"\xff" + bytes([marker]) for marker in (0x00, 0x01, 0xC0, 0xC1, 0xC2, 0xC4, 0xC9, 0xCC)),
    *(b"\xff" + bytes([marker]) for marker in (0xD0, 0xD7, 0xD8, 0xD9, 0xDA, 0xDB, 0xDD, 0xFE)),
    b"\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x44\x00\x02\x11\x01\x03\x11\x01",
    b"\xff\xdd\x00\x04\x00\x01",
    b"\xff\xe1\x00\x20Exif\x00\x00II*\x00\x08\x00\x00\x00\x01\x00\x12\x01\x03\x00\x01\x00",
    b"\xff\xee\x00\x0eAdobe\x00d\x00\x00\x00\x00\x02",
    b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00",
    b"\xff\xff\xff\xff",
)


@cache
def jpegs() -> tuple[bytes, ...]:
    """Return JPEGs that can be re-coded: all samplings and codings available on this machine."""
    made = []
    for number, (width, height) in enumerate(_SIZES):
        shown = Image.fromarray(picture(width, height, number))
        made += [encoded(shown, quality=quality, subsampling=2) for quality in (10, 80)]
        made += [encoded(shown, progressive=True), encoded(shown.convert("L"), optimize=True)]
        made.append(encoded(shown, exif=_turned(number + 2)))
    if which("cjpeg"):
        small = picture(53, 37)
        made += [encode(small, sampling) for sampling in SAMPLINGS]
        made += [cjpeg(small, "-arithmetic"), cjpeg(small, "-arithmetic", "-progressive")]
        made += [cjpeg(small, "-restart", "1"), cjpeg(small, "-restart", "2B", "-progressive")]
        made.append(cjpeg(small, "-rgb"))
    return tuple(made)


@cache
def other_images() -> tuple[bytes, ...]:
    """Return images in other formats, which packing converts or refuses."""
    made = []
    for number, (width, height) in enumerate(_SIZES):
        shown = Image.fromarray(picture(width, height, number))
        made += [encoded(shown.convert("CMYK"), quality=70), encoded(shown, "BMP")]
        made += [encoded(shown, "PNG"), encoded(shown.convert("RGBA"), "PNG")]
        made += [encoded(shown.convert("P"), "PNG"), encoded(shown.convert("P"), "GIF")]
        made += [encoded(shown, "TIFF"), encoded(shown.convert("1"), "BMP")]
        if features.check("webp"):
            made += [encoded(shown, "WEBP"), encoded(shown, "WEBP", lossless=True)]
        if features.check("libtiff"):
            made += [encoded(shown, "TIFF", compression="tiff_lzw")]
        deep = np.asarray(shown.convert("L")).astype(np.uint16) * 257
        made += [encoded(Image.fromarray(deep), "PNG"), encoded(Image.fromarray(deep), "TIFF")]
        frames: Any = [shown.convert("P"), shown.rotate(90).convert("P")]
        made.append(encoded(frames[0], "GIF", save_all=True, append_images=frames[1:]))
    return tuple(made)


@cache
def tiled_jpegs() -> tuple[TiledJpeg, ...]:
    """Return all JPEGs as packing stores them, at various tile widths."""
    return tuple(
        tile_jpeg(jpeg, TILE_WIDTHS_PX[number % len(TILE_WIDTHS_PX)])
        for number, jpeg in enumerate(jpegs())
    )


def _turned(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()
