"""Reads a JPEG's size, subsampling and EXIF orientation from its header, without decoding.

Damage ends the reading and is no error here: the decoder reports it.

References: ITU-T T.81 (JPEG) B.1.1 and B.2.2; CIPA DC-008 (Exif 2.3) 4.5.2 and 4.6.4.A, tag 0x0112.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from feeder.jpeg.recode import PIXELS_MAX, Subsampling

UPRIGHT: Final = 1

_STANDALONE: Final = frozenset({0x01, 0xD8, *range(0xD0, 0xD8)})  # markers without a length
_SOS, _EOI = 0xDA, 0xD9
_SEQUENTIAL: Final = (0xC0, 0xC1)  # SOF0 and SOF1: Huffman codes, not progressive
_FRAMES: Final = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})  # SOF0 to SOF15
_FRAME = struct.Struct(">BHHB")  # bits a sample, height, width, components
_COLOUR: Final = {
    0x11: Subsampling.S444,
    0x21: Subsampling.S422,
    0x22: Subsampling.S420,
    0x12: Subsampling.S440,
    0x41: Subsampling.S411,
}
"""By the sampling factors of the first component, where those of the others are 1."""

_APP1 = 0xE1
_EXIF = b"Exif\x00\x00"
_ORIENTATION_TAG = 0x0112
_SHORT = 3  # the EXIF type of a 16-bit number


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Size in pixels and subsampling of a stored JPEG, before any EXIF rotation."""

    width: int
    height: int
    subsampling: Subsampling


def iterate_segments(jpeg: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the marker's second byte and the content of each segment before the first scan."""
    at = 2
    while at + 4 <= len(jpeg) and jpeg[at] == 0xFF:
        marker = jpeg[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker in (_SOS, _EOI):
            return
        else:
            segment_bytes = int.from_bytes(jpeg[at + 2 : at + 4], "big")
            yield marker, jpeg[at + 4 : at + 2 + segment_bytes]
            at += 2 + max(segment_bytes, 2)


def read_frame(jpeg: bytes) -> Frame | None:
    """Return the frame of an ordinary JPEG: grey or colour, sequential, Huffman-coded, 8 bits.

    None for any other, for unusual sampling factors, and for more than PIXELS_MAX pixels.
    """
    for marker, body in iterate_segments(jpeg):
        if marker not in _FRAMES:
            continue
        if marker not in _SEQUENTIAL or len(body) < _FRAME.size:
            return None
        bits, height, width, components = _FRAME.unpack_from(body)
        factors = body[_FRAME.size + 1 :: 3]  # each component: id, factors, quantisation table
        subsampling = Subsampling.GREY if components == 1 else None
        if components == 3 and len(factors) == 3 and factors[1:] == b"\x11\x11":
            subsampling = _COLOUR.get(factors[0])
        if bits != 8 or subsampling is None or not 0 < width * height <= PIXELS_MAX:
            return None
        return Frame(width=width, height=height, subsampling=subsampling)
    return None


def read_orientation(jpeg: bytes) -> int:
    """Return the orientation of ``jpeg``, 1..8.

    An orientation that is missing or cannot be parsed counts as 1 (upright), as in every viewer.
    """
    for marker, body in iterate_segments(jpeg):
        if marker == _APP1 and body.startswith(_EXIF):
            return _orientation_of_tiff(body[len(_EXIF) :])
    return UPRIGHT


def _orientation_of_tiff(tiff: bytes) -> int:
    order = {b"II*\x00": "<", b"MM\x00*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 8:
        return UPRIGHT
    (directory,) = struct.unpack_from(order + "I", tiff, 4)
    if directory + 2 > len(tiff):
        return UPRIGHT
    (entries,) = struct.unpack_from(order + "H", tiff, directory)
    for entry in range(directory + 2, directory + 2 + 12 * entries, 12):
        if entry + 12 > len(tiff):
            break
        tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, entry)
        if tag == _ORIENTATION_TAG and kind == _SHORT and count == 1:
            return value if 1 <= value <= 8 else UPRIGHT
    return UPRIGHT
