"""Writes tf.train.Example and TFRecord in Python, also as no TensorFlow would write them."""

import struct
from collections.abc import Sequence

import google_crc32c

Values = tuple[str, list[bytes] | list[int] | list[float]]


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, value: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(value)) + value


def encode_list(kind: str, values: Sequence[bytes | int | float], *, packed: bool = True) -> bytes:
    """Return a Feature; protobuf's own writers pack numbers."""
    number = {"bytes": 1, "float": 2, "int64": 3}[kind]
    if kind == "bytes":
        body = b"".join(field(1, value) for value in values if isinstance(value, bytes))
    else:
        coded = [
            struct.pack("<f", value) if kind == "float" else varint(int(value)) for value in values
        ]
        tag = b"\x0d" if kind == "float" else b"\x08"
        body = field(1, b"".join(coded)) if packed else b"".join(tag + each for each in coded)
    return field(number, body)


def encode_example(
    features: Sequence[tuple[bytes, Values]], *, packed: bool = True, junk: bytes = b""
) -> bytes:
    """Return an Example, with fields of ``junk`` that a reader has to skip everywhere."""
    body = b""
    for name, values in features:
        feature = field(2, junk + encode_list(*values, packed=packed))
        body += field(1, junk + field(1, name) + junk + feature)
    return junk + field(1, junk + body) + junk


def encode_datum(
    data: bytes, label: int | None, *, encoded: bool = True, junk: bytes = b""
) -> bytes:
    """Return Caffe's Datum, with its fields in the order that protobuf writes them."""
    size = b"".join(varint(number << 3) + varint(8) for number in (1, 2, 3))
    labelled = b"" if label is None else varint(5 << 3) + varint(label)
    return size + field(4, data) + labelled + varint(7 << 3) + varint(encoded) + junk


def masked_crc(data: bytes) -> bytes:
    """Return the checksum that follows a length and a record's data."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFF_FFFF).to_bytes(4, "little")


def frame(data: bytes) -> bytes:
    """Return a record of a TFRecord file."""
    length = len(data).to_bytes(8, "little")
    return length + masked_crc(length) + data + masked_crc(data)
