"""Small valid images of every kind, created once in a process, and what damages a JPEG."""

import random
from collections.abc import Sequence
from functools import cache
from shutil import which
from typing import Any

import numpy as np
from PIL import Image, features

from feeder.jpeg.recode import TILE_WIDTHS_PX, TiledJpeg, tile_jpeg
from tests.fuzz.mutate import mutate_bytes
from tests.support.jpegs import SAMPLINGS, cjpeg, encode, picture
from tests.support.sources import encoded

_PIXELS_MAX = 1 << 19  # of a damaged frame header: larger ones only take time
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


def damage_jpeg(rng: random.Random, jpeg: bytes, others: Sequence[bytes] = ()) -> bytes:
    """Return a damaged JPEG: bits of codes, header or tables, other quantisers, or any edits."""
    segments = _segments(jpeg)
    codes = segments[-1][2] if segments else 2
    kind = rng.choice(("codes", "header", "tables", "quantisers", "any", "any"))
    if kind == "codes":
        return _flip(rng, jpeg, codes, len(jpeg) - 2)
    if kind == "header":
        return _bound_size(_flip(rng, jpeg, 2, codes))
    if kind == "tables":
        tables = [segment for segment in segments if segment[0] in (0xC4, 0xCC, 0xDB)]
        return _flip(rng, jpeg, *rng.choice(tables)[1:]) if tables else jpeg
    if kind == "quantisers":
        return _alter_quantisers(rng, jpeg, segments)
    return _bound_size(mutate_bytes(rng, jpeg, tokens=JPEG_TOKENS, others=others))


def _segments(jpeg: bytes) -> list[tuple[int, int, int]]:
    """Return marker, start of the content and end of each segment before the first scan's codes."""
    segments, at = [], 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
        segments.append((jpeg[at + 1], at + 4, end))
        at = end
        if segments[-1][0] == 0xDA:
            break
    return segments


def _flip(rng: random.Random, jpeg: bytes, first: int, end: int) -> bytes:
    out = bytearray(jpeg)
    for _ in range(rng.randint(1, 4)):
        if first < min(end, len(out)):
            out[rng.randrange(first, min(end, len(out)))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _alter_quantisers(
    rng: random.Random, jpeg: bytes, segments: Sequence[tuple[int, int, int]]
) -> bytes:
    """Write other quantisation tables, of 8 or 16 bits, and for the latter the frame's marker."""
    is_wide = rng.random() < 0.5
    most = 65_535 if is_wide else 255
    out = bytearray(jpeg)
    for marker, first, end in reversed(segments):
        if marker == 0xC0 and is_wide:
            out[first - 3] = 0xC1
        if marker != 0xDB or end - first < 65 or out[first] > 3:
            continue
        values = list(out[first + 1 : first + 65])
        kind = rng.choice(("equal", "any", "one", "scaled", "some"))
        if kind == "equal":
            values = [rng.choice((most, most // 2 + 1, 255))] * 64
        elif kind == "any":
            values = [rng.randint(0, most) for _ in values]
        elif kind == "one":
            values[rng.choice((0, 0, rng.randrange(64)))] = rng.choice((0, 255, most, most // 2))
        elif kind == "scaled":
            factor = rng.choice((0, 2, 3, 5, 9, 40))
            values = [min(value * factor, most) for value in values]
        else:
            values = [rng.choice((value, value, value, 0, most)) for value in values]
        table = bytes([out[first] | is_wide << 4])
        table += b"".join(value.to_bytes(1 + is_wide) for value in values)
        table += bytes(out[first + 65 : end])  # further tables
        out[first - 2 : end] = (2 + len(table)).to_bytes(2) + table
    return bytes(out)


def _bound_size(jpeg: bytes) -> bytes:
    out = bytearray(jpeg)
    for marker, first, _ in _segments(jpeg):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC) and first + 5 <= len(out):
            height, width = (int.from_bytes(out[first + at : first + at + 2]) for at in (1, 3))
            if height * width > _PIXELS_MAX:
                out[first + 1] &= 1
                out[first + 3] &= 1
    return bytes(out)
