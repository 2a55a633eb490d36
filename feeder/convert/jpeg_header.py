"""Reads a JPEG's size and subsampling from its header, without decoding.

Damage ends the reading and is no error here: the decoder reports it.

Reference: ITU-T T.81 (JPEG) B.1.1 and B.2.2.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from feeder.jpeg.recode import PIXELS_MAX, Subsampling

APP1: Final = 0xE1  # EXIF and XMP

_STANDALONE: Final = frozenset({0x00, 0x01, 0xD8, *range(0xD0, 0xD8)})  # no length; 0 is stray
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Size in pixels and subsampling of a stored JPEG, before any EXIF rotation."""

    width: int
    height: int
    subsampling: Subsampling


def iterate_segments(jpeg: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the marker's second byte and the content of each segment before the first scan.

    Stray bytes between segments are skipped, as libjpeg and Pillow skip them.
    """
    at = 2
    while 0 <= (at := jpeg.find(b"\xff", at)) <= len(jpeg) - 4:
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
