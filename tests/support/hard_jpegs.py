"""JPEGs that are hard to decode exactly: sums that clamp, long codes, every kind and size.

Coefficients are in the range that encoders write; packing converts others. The encoders run in this
process, so thousands of images are cheap.
"""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile
from turbojpeg import (
    TJPF_RGB,
    TJSAMP_411,
    TJSAMP_420,
    TJSAMP_422,
    TJSAMP_440,
    TJSAMP_444,
    TJSAMP_GRAY,
)

from feeder.jpeg.decode import turbojpeg
from tests.support.jpegs import picture

SAMPLINGS = {
    "4:4:4": TJSAMP_444,
    "4:2:2": TJSAMP_422,
    "4:2:0": TJSAMP_420,
    "4:4:0": TJSAMP_440,
    "4:1:1": TJSAMP_411,
    "grey": TJSAMP_GRAY,
}
KINDS = (*SAMPLINGS, "rgb", "16-bit tables")
"""Of images: YCbCr in each subsampling, RGB, and 4:2:0 with quantisers of up to 16 bits."""

_Pixels = NDArray[np.uint8]


def _noise(rng: np.random.Generator, height: int, width: int) -> _Pixels:
    return rng.integers(0, 256, (height, width, 3), np.uint8)


def _extremes(rng: np.random.Generator, height: int, width: int) -> _Pixels:
    return rng.integers(0, 2, (height, width, 3), np.uint8) * np.uint8(255)


def _bars(rng: np.random.Generator, height: int, width: int) -> _Pixels:
    """Return full contrast with periods of a few pixels, which is each basis function's most."""
    y, x = np.mgrid[0:height, 0:width]
    periods, phases = rng.integers(1, 9, (2, 3)), rng.integers(0, 8, 3)
    waves = [((x + p) // a + (y + p) // b) % 2 for a, b, p in zip(*periods, phases, strict=True)]
    return (np.stack(waves, axis=-1) * 255).astype(np.uint8)


def _sparse(rng: np.random.Generator, height: int, width: int) -> _Pixels:
    """Return a flat colour with some single pixels: long runs of zeros."""
    pixels = np.full((height, width, 3), rng.integers(0, 256, 3), np.uint8)
    dots = rng.random((height, width)) < 0.01
    pixels[dots] = rng.integers(0, 256, (int(dots.sum()), 3), np.uint8)
    return pixels


def _ordinary(rng: np.random.Generator, height: int, width: int) -> _Pixels:
    return picture(width, height, int(rng.integers(1 << 30)))


_CONTENTS: tuple[Callable[[np.random.Generator, int, int], _Pixels], ...] = (
    _noise,
    _extremes,
    _bars,
    _sparse,
    _ordinary,
)


def hard_jpeg(seed: int, kind: str, width: int, height: int, quality: int) -> bytes:
    """Return a JPEG of a kind of KINDS; content and coding (one of three) are drawn by ``seed``."""
    rng = np.random.Generator(np.random.Philox(seed))
    pixels = _CONTENTS[int(rng.integers(len(_CONTENTS)))](rng, height, width)
    if kind == "16-bit tables":
        factor = int(rng.integers(1, 9))
        pixels = (128 + (pixels - 128.0) / factor).astype(np.uint8)
    options: dict[str, Any] = {
        "optimize": bool(rng.integers(2)),
        "progressive": bool(rng.integers(3) == 0),
    }
    if kind in ("4:4:0", "4:1:1") or (kind in SAMPLINGS and not options["optimize"]):
        return bytes(turbojpeg().encode(pixels, quality, TJPF_RGB, SAMPLINGS[kind]))
    if kind == "rgb":
        options["keep_rgb"] = True
    shown = Image.fromarray(pixels)
    if kind == "grey":
        shown = shown.convert("L")
    subsampling = {"4:2:2": 1, "4:2:0": 2, "16-bit tables": 2}.get(kind, 0)
    ImageFile.MAXBLOCK = 1 << 20  # else noise does not fit the buffer of Pillow's encoder
    buffer = io.BytesIO()
    shown.save(buffer, "JPEG", quality=quality, subsampling=subsampling, **options)
    if kind == "16-bit tables":
        return _with_wide_tables(buffer.getvalue(), factor)
    return buffer.getvalue()


def _with_wide_tables(jpeg: bytes, factor: int) -> bytes:
    """Return the JPEG with all quantisers multiplied, as values of 16 bits."""
    out, at = [jpeg[:2]], 2
    while jpeg[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(jpeg[at + 2 : at + 4])
        segment = jpeg[at:end]
        if segment[1] == 0xDB:
            tables = [segment[first : first + 65] for first in range(4, len(segment), 65)]
            segment = b"".join(_wide_table(table, factor) for table in tables)
        elif segment[1] == 0xC0:  # baseline has 8 bits
            segment = b"\xff\xc1" + segment[2:]
        out.append(segment)
        at = end
    return b"".join(out) + jpeg[at:]


def _wide_table(table: bytes, factor: int) -> bytes:
    numbers = (np.frombuffer(table, np.uint8, offset=1) * np.uint16(factor)).astype(">u2")
    return b"\xff\xdb\x00\x83" + bytes([16 | table[0]]) + numbers.tobytes()
