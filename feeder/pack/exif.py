"""Reads the EXIF orientation of a JPEG from its APP1 segment, without decoding.

References: ITU-T T.81 (JPEG) B.1.1; CIPA DC-008 (Exif 2.3) 4.5.2 and 4.6.4.A, tag 0x0112.
"""

import struct
from typing import Final

UPRIGHT: Final = 1
_ORIENTATION_TAG = 0x0112
_SHORT = 3  # the EXIF type of a 16-bit number
_EXIF = b"Exif\x00\x00"
_STANDALONE = frozenset({0x01, 0xD8, *range(0xD0, 0xD8)})  # markers without a length
_SOS, _EOI, _APP1 = 0xDA, 0xD9, 0xE1


def read_orientation(jpeg: bytes) -> int:
    """Return the orientation of ``jpeg``, 1..8.

    An orientation that is missing or cannot be parsed counts as 1 (upright), as in every viewer.
    """
    at = 2
    while at + 4 <= len(jpeg):
        if jpeg[at] != 0xFF:
            return UPRIGHT  # no marker where one must be: the decoder reports the damage
        marker = jpeg[at + 1]
        if marker == 0xFF:  # fill byte
            at += 1
        elif marker in _STANDALONE:
            at += 2
        elif marker in (_SOS, _EOI):
            return UPRIGHT
        else:
            segment_bytes = int.from_bytes(jpeg[at + 2 : at + 4], "big")
            if marker == _APP1 and jpeg[at + 4 : at + 10] == _EXIF:
                return _orientation_of_tiff(jpeg[at + 10 : at + 2 + segment_bytes])
            at += 2 + max(segment_bytes, 2)
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
