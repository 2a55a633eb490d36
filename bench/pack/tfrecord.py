"""Writes TFRecords as ImageNet's are: a tf.train.Example with image, class and name for each image.

Example   {features: {feature: map<string, Feature>}}        protobuf messages
Feature   {bytes_list | float_list | int64_list}             fields 1, 2, 3; values in field 1
record    length u64, its CRC, data, the data's CRC          little-endian, CRCs masked
"""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import google_crc32c

from .material import PackImage

_LENGTH_DELIMITED: Final = 2
_MASK_DELTA: Final = 0xA282EAD8


def write_tfrecord(path: Path, images: Iterable[PackImage], classes: tuple[str, ...]) -> None:
    """Write ``images`` to ``path`` with ImageNet's features; labels count from 1."""
    with path.open("wb") as file:
        for image in images:
            example = encode_example(
                {
                    "image/class/label": image.label + 1,
                    "image/class/text": classes[image.label].encode(),
                    "image/encoded": image.path.read_bytes(),
                    "image/filename": image.path.name.encode(),
                    "image/format": b"JPEG",
                }
            )
            file.write(frame_record(example))


def encode_example(features: Mapping[str, int | bytes]) -> bytes:
    """Return a tf.train.Example with one value in each feature."""
    entries = []
    for name, value in features.items():
        if isinstance(value, bytes):
            feature = _field(1, _field(1, value))
        else:
            feature = _field(3, _field(1, _varint(value)))
        entries.append(_field(1, _field(1, name.encode()) + _field(2, feature)))
    return _field(1, b"".join(entries))


def frame_record(data: bytes) -> bytes:
    """Return ``data`` as a record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + _masked_crc(length) + data + _masked_crc(data)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _LENGTH_DELIMITED) + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    digits = bytearray()
    while number > 0x7F:
        digits.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*digits, number])


def _masked_crc(data: bytes) -> bytes:
    crc = google_crc32c.value(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFF_FFFF)
