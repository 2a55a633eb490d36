"""Reads tf.train.Example, the message in a TFRecord, and Caffe's Datum.

    Example     1: Features
    Features    1, for each feature: an entry of 1: its name, 2: Feature
    Feature     one of 1: BytesList, 2: FloatList, 3: Int64List
    each list   1: its values; floats and integers packed, or one by one
    Datum       4: data, 5: label, 7: whether the data are an image file, not pixels

That is protobuf: fields are a tag (number and wire type) and a value, in any order; unknown fields
are skipped. Positions count from the message's first byte. All functions raise BadExample.

Protobuf's own parser does not report at which byte damage is, nor does it give the offset at which
an image can be read again. Of what is there twice, the last counts, as it does there.
"""

import struct
from collections.abc import Collection, Iterator
from typing import Final, NamedTuple

from feeder.source.item_bytes import SourceError

VALUES_MAX: Final = 65_536
"""Most values of a feature that are read."""

_NAMES_MAX: Final = 64
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_KINDS: Final = {1: "bytes", 2: "float", 3: "int64"}
_DATUM_DATA, _DATUM_LABEL, _DATUM_FLOATS, _DATUM_ENCODED = 4, 5, 6, 7


class BadExample(SourceError):  # noqa: N818 -- names what happened
    """Raised for bytes that are no tf.train.Example."""

    def __init__(self, reason: str) -> None:
        super().__init__("corrupt", reason)


class Feature(NamedTuple):
    """A feature's list of values, between two positions."""

    kind: str
    """bytes, float or int64; "" without a list."""
    start: int
    stop: int


def find_features(
    data: bytes, size: int, wanted: Collection[bytes]
) -> tuple[dict[bytes, Feature], list[bytes]]:
    """Return the ``wanted`` features of the message in the first ``size`` bytes of ``data``.

    The names of the first 64 that there are come second.
    """
    found: dict[bytes, Feature] = {}
    names: list[bytes] = []
    for features in _values_of_1(data, 0, size):
        for entry in _values_of_1(data, *features):
            spans = {n: (start, stop) for n, w, start, stop in _fields(data, *entry) if w == _LEN}
            start, stop = spans.get(1, (0, 0))
            name = data[start:stop]
            if len(names) < _NAMES_MAX:
                names.append(name)
            if name in wanted:
                found[name] = _find_list(data, *spans.get(2, (0, 0)))
    return found, names


def read_datum(data: bytes) -> tuple[int, int, int | None, bool] | None:
    """Return start and stop of a Datum's data, its label, and whether the data are an image file.

    None for another message.
    """
    spans: dict[int, tuple[int, int]] = {}
    numbers: dict[int, int] = {}
    for number, wire, start, stop in _fields(data, 0, len(data)):
        spans[number] = start, stop
        if wire == _VARINT:
            numbers[number] = _signed(_varint(data, start, stop)[0])
        else:
            numbers.pop(number, None)
    if not spans.keys() <= {*range(1, 8)} or not spans.keys() & {_DATUM_DATA, _DATUM_FLOATS}:
        return None
    is_encoded = bool(numbers.get(_DATUM_ENCODED))
    return *spans.get(_DATUM_DATA, (0, 0)), numbers.get(_DATUM_LABEL), is_encoded


def find_values(data: bytes, feature: Feature) -> list[tuple[int, int]]:
    """Return start and stop of each value of a list of bytes."""
    spans = list(_values_of_1(data, feature.start, feature.stop))
    _check_count(len(spans))
    return spans


def read_values(data: bytes, feature: Feature) -> list[str] | list[int] | list[float]:
    """Return the values of a feature, bytes as texts; none without a list."""
    if feature.kind == "bytes":
        spans = find_values(data, feature)
        return [data[start:stop].decode("utf-8", "replace") for start, stop in spans]
    integers: list[int] = []
    floats: list[float] = []
    for number, wire, at, stop in _fields(data, feature.start, feature.stop):
        if number != 1:
            continue
        while feature.kind == "int64" and wire in (_VARINT, _LEN) and at < stop:
            value, at = _varint(data, at, stop)
            integers.append(_signed(value))
        if feature.kind == "float" and wire in (_I32, _LEN):
            count, rest = divmod(stop - at, 4)
            if rest:
                raise BadExample(f"a list of floats has {stop - at} bytes (at byte {at})")
            floats += struct.unpack_from(f"<{count}f", data, at)
        _check_count(len(integers or floats))
    return integers or floats


def _find_list(data: bytes, start: int, stop: int) -> Feature:
    feature = Feature("", stop, stop)
    for number, wire, *span in _fields(data, start, stop):
        if wire == _LEN and number in _KINDS:
            feature = Feature(_KINDS[number], *span)
    return feature


def _values_of_1(data: bytes, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield start and stop of each value of field 1 that has a length, between two positions."""
    for number, wire, start, stop in _fields(data, at, end):
        if number == 1 and wire == _LEN:
            yield start, stop


def _fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield number, wire type, start and stop of each field's value between two positions."""
    while at < end:
        tag, start = _varint(data, at, end)
        wire = tag & 7
        if wire == _LEN:
            size, start = _varint(data, start, end)
            stop = start + size
        elif wire == _VARINT:
            _, stop = _varint(data, start, end)
        elif wire in (_I32, _I64):
            stop = start + (4 if wire == _I32 else 8)
        else:
            stop = end + 1
        if not 8 <= tag < 1 << 32 or stop > end:
            raise _no_example(at)
        yield tag >> 3, wire, start, stop
        at = stop


def _varint(data: bytes, at: int, end: int) -> tuple[int, int]:
    """Return the number at a position and the position behind it."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= end:
            break
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise _no_example(at)


def _no_example(at: int) -> BadExample:
    return BadExample(f"it is no tf.train.Example (at byte {at} of the record's data)")


def _check_count(values: int) -> None:
    if values > VALUES_MAX:
        raise BadExample(f"a feature has more than {VALUES_MAX} values")


def _signed(value: int) -> int:
    return value - (value >> 63 << 64)
