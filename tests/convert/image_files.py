"""Image files that Pillow cannot write, and what packing makes of an image file."""

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from feeder.convert.prepare import SourceOptions, SourceSample, prepare_sample
from feeder.source.item_bytes import SourceError
from tests.support.jpegs import ordinary
from tests.support.sources import encoded, image, pixels

FORMATS = ("JPEG", "PNG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
ORIENTATION = 0x0112
"""The tag of EXIF."""


def prepare(data: bytes, name: str = "a/b.jpg", **options: Any) -> SourceSample:
    """Prepare a file with tiles of 32 pixels, and at quality 95 where it must be encoded."""
    chosen = {"tile_width_px": 32, "apply_exif": False, "quality": 95, **options}
    return prepare_sample(data, name, SourceOptions(**chosen))


def outcome(data: bytes, **options: Any) -> SourceSample | tuple[str, str]:
    """What becomes of a file: a sample, or the kind and the reason of its fault."""
    try:
        return prepare(data, **options)
    except SourceError as error:
        fault = error.kind, error.reason
    assert fault[1]
    assert " at 0x" not in fault[1]
    return fault


def refusal(data: bytes, **options: Any) -> str:
    """The kind of the fault for which a file is refused."""
    fault = outcome(data, **options)
    assert not isinstance(fault, SourceSample)
    return fault[0]


def stored(sample: SourceSample) -> NDArray[np.uint8]:
    """The pixels of the ordinary JPEG that a sample unpacks to."""
    return pixels(ordinary(sample.tiled))


def as_packed(picture: Image.Image | NDArray[Any], **options: Any) -> NDArray[np.uint8]:
    """The pixels of a picture (or of levels) that was encoded once, as packing encodes it."""
    if not isinstance(picture, Image.Image):
        levels = np.asarray(picture).round().astype(np.uint8)
        rgb = np.broadcast_to(levels, (*levels.shape[:2], 3))
        picture = Image.fromarray(np.ascontiguousarray(rgb))
    picture = picture if picture.mode in ("L", "RGB") else picture.convert("RGB")
    return pixels(encoded(picture, **{"quality": 95, "subsampling": 0, **options}))


def turned(orientation: int, width: int = 64, height: int = 48, **options: Any) -> bytes:
    """A JPEG, or a file of another ``format_name``, with an orientation in EXIF."""
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(image(width, height), exif=exif, **{"quality": 90, **options})


def damaged(data: bytes, changes: Sequence[tuple[int, int]], first: int) -> bytes:
    """A file with other bytes (position, value) from ``first`` on."""
    changed = bytearray(data)
    for position, value in changes:
        changed[first + position % (len(changed) - first)] = value
    return bytes(changed)


def png16(levels: NDArray[np.uint16], colour_type: int) -> bytes:
    """A PNG of levels (height, width, channels)."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        checked = kind + body
        return struct.pack(">I", len(body)) + checked + struct.pack(">I", zlib.crc32(checked))

    height, width, _ = levels.shape
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in levels)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + chunks


def tiff16(levels: NDArray[np.uint16], order: str, bits: int = 16) -> bytes:
    """An uncompressed TIFF of RGB levels (height, width, 3), or of grey ones of ``bits``."""
    height, width, channels = levels.shape
    body = levels.astype(order + "u2").tobytes()
    if bits == 12:  # two samples in three bytes
        even, odd = levels.reshape(-1, 2).T
        packed = np.stack([even >> 4, (even & 15) << 4 | odd >> 8, odd & 255], 1)
        body = packed.astype(np.uint8).tobytes()
    colour = 2 if channels == 3 else 1
    tags = {256: [width], 257: [height], 258: [bits] * channels, 259: [1], 262: [colour]}
    tags |= {273: [8], 277: [channels], 278: [height], 279: [len(body)]}
    entries, beyond = b"", b""
    at = 8 + len(body) + 2 + 12 * len(tags) + 4
    for tag, values in sorted(tags.items()):
        data = struct.pack(f"{order}{len(values)}I", *values)
        place = data if len(data) == 4 else struct.pack(order + "I", at + len(beyond))
        beyond += data if len(data) > 4 else b""
        entries += struct.pack(order + "HHI", tag, 4, len(values)) + place
    directory = struct.pack(order + "H", len(tags)) + entries + bytes(4)
    mark = b"II*\0" if order == "<" else b"MM\0*"
    return mark + struct.pack(order + "I", 8 + len(body)) + body + directory + beyond
