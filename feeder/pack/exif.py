"""Reads the EXIF orientation of a JPEG from its APP1 segment, without decoding.

Reference: CIPA DC-008 (Exif 2.3) 4.5.2 and 4.6.4.A, tag 0x0112.
"""

import struct
from typing import Final

from feeder.pack.jpeg_header import iterate_segments

UPRIGHT: Final = 1
_ORIENTATION_TAG = 0x0112
_SHORT = 3  # the EXIF type of a 16-bit number
_EXIF = b"Exif\x00\x00"
_APP1 = 0xE1


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
