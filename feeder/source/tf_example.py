"""Reads tf.train.Example, the message in a TFRecord, without reading the image in it.

    Example     1: Features
    Features    1, for each feature: an entry of 1: its name, 2: Feature
    Feature     one of 1: BytesList, 2: FloatList, 3: Int64List
    each list   1: its values; floats and integers packed, or one by one

That is protobuf: fields are a tag (number and wire type) and a value, in any order; unknown fields
are skipped. Positions count from the message's first byte. Only what is asked for is read, in
windows of 2 KiB: the walk jumps over a feature's value from its size alone.

Protobuf's own parser needs the whole record. With it, listing ImageNet's took 38 µs of a CPU for a
record, and 84 here; but it read all of its 110 KB, of which this reads 8 where classes are few. It
also takes the last of two features of one name, and does not report at which byte damage is.
"""

import struct
from collections.abc import Callable, Collection, Iterator
from typing import Final, Literal, NamedTuple

from feeder.source.item_bytes import SourceError

ReadAt = Callable[[int, int], bytes]
"""Returns ``size`` bytes at a position, all of which exist."""

ListKind = Literal["bytes", "float", "int64", ""]
VALUES_MAX: Final = 65_536
"""Most values of a feature that are read."""

_WINDOW_BYTES: Final = 2048
_WINDOWS_MAX: Final = 8
_NAME_BYTES_MAX: Final = 1024
_NAMES_MAX: Final = 64
_VARINT_BYTES_MAX: Final = 10
_VARINT, _I64, _LEN, _I32 = 0, 1, 2, 5
_NAME_TAG: Final = 1 << 3 | _LEN
_VALUE_TAG: Final = 2 << 3 | _LEN
_DATUM: Final = frozenset(range(1, 8))
_DATUM_DATA, _DATUM_LABEL, _DATUM_FLOATS, _DATUM_ENCODED = 4, 5, 6, 7
_KINDS: Final[dict[int, ListKind]] = {1: "bytes", 2: "float", 3: "int64"}


class BadExample(SourceError):  # noqa: N818 -- names what happened
    """Raised for bytes that are no tf.train.Example."""

    def __init__(self, reason: str) -> None:
        super().__init__("corrupt", reason)


class Span(NamedTuple):
    """Where something lies in the message."""

    start: int
    stop: int


class Feature(NamedTuple):
    """A feature of the message: its list of values, which is not read yet."""

    kind: ListKind
    """"" without a list."""
    list: Span


class ExampleReader:
    """Reads one message of ``size_bytes``; all methods raise BadExample."""

    def __init__(self, read: ReadAt, size_bytes: int, *, start: bytes = b"") -> None:
        """Take ``start``, the message's first bytes, if they have been read already."""
        self._read_at = read
        self._size = size_bytes
        self._buffer = start
        self._base = 0
        self._windows = [(0, start)]  # those before and behind the image, which are used again
        self.names: list[bytes] = []
        """The features there are, the first 64, after ``find``."""

    @classmethod
    def of(cls, data: bytes, size_bytes: int | None = None) -> "ExampleReader":
        """Return a reader of a message in memory, of the first ``size_bytes`` of ``data``."""
        size_bytes = len(data) if size_bytes is None else size_bytes
        return cls(lambda at, size: data[at : at + size], size_bytes, start=data)

    def find(self, wanted: Collection[bytes], *, quick: bool = False) -> dict[bytes, Feature]:
        """Return the ``wanted`` features that there are; BadExample if one is there twice.

        ``quick``: end when all of them are found, where a second one is known not to exist.
        """
        found: dict[bytes, Feature] = {}
        for number, wire, *features in self._fields(0, self._size):
            if number != 1 or wire != _LEN:
                continue
            for entry, entry_wire, start, stop in self._fields(*features):
                if entry != 1 or entry_wire != _LEN:
                    continue
                name, value = self._entry(start, stop)
                if len(self.names) < _NAMES_MAX:
                    self.names.append(name)
                if name in wanted:
                    if name in found:
                        raise BadExample(f"it has the feature {_text(name)} twice")
                    found[name] = self._feature(value)
                    if quick and len(found) == len(wanted):
                        return found
        return found

    def datum(self) -> tuple[Span, int | None, bool] | None:
        """Return the data of Caffe's Datum, its label, and whether the data are an image file.

        None for another message; of a field that is there twice, the last counts.
        """
        fields = {
            number: (wire, start, stop) for number, wire, start, stop in self._fields(0, self._size)
        }
        if not fields.keys() <= _DATUM or not fields.keys() & {_DATUM_DATA, _DATUM_FLOATS}:
            return None
        numbers = {
            number: _signed(self._varint(*span)[0])
            for number, (wire, *span) in fields.items()
            if wire == _VARINT
        }
        _, *data = fields.get(_DATUM_DATA, (_LEN, 0, 0))
        return Span(*data), numbers.get(_DATUM_LABEL), bool(numbers.get(_DATUM_ENCODED))

    def read(self, span: Span) -> bytes:
        """Return the bytes of a span."""
        index = self._index(span.start, span.stop - span.start)
        return self._buffer[index : index + span.stop - span.start]

    def bytes_spans(self, feature: Feature, values_max: int = VALUES_MAX) -> list[Span]:
        """Return where each value of a list of bytes is, without reading them."""
        spans: list[Span] = []
        for number, wire, start, stop in self._fields(*feature.list):
            if number == 1 and wire == _LEN:
                if len(spans) == values_max:
                    raise BadExample(f"a feature has more than {values_max} values")
                spans.append(Span(start, stop))
        return spans

    def integers(self, feature: Feature) -> list[int]:
        """Return the values of a list of integers."""
        values: list[int] = []
        for number, wire, start, stop in self._fields(*feature.list):
            at = start
            while number == 1 and wire in (_VARINT, _LEN) and at < stop:
                value, at = self._varint(at, stop)
                values.append(_signed(value))
                if len(values) > VALUES_MAX:
                    raise BadExample(f"a feature has more than {VALUES_MAX} values")
        return values

    def floats(self, feature: Feature) -> list[float]:
        """Return the values of a list of floats."""
        values: list[float] = []
        for number, wire, start, stop in self._fields(*feature.list):
            if number == 1 and wire in (_I32, _LEN):
                count, rest = divmod(stop - start, 4)
                if len(values) + count > VALUES_MAX:
                    raise BadExample(f"a feature has more than {VALUES_MAX} values")
                if rest:
                    raise BadExample(f"a list of floats has {stop - start} bytes (at byte {start})")
                values += struct.unpack(f"<{count}f", self.read(Span(start, stop)))
        return values

    def _entry(self, start: int, stop: int) -> tuple[bytes, Span]:
        """Return the name of a feature and where its message is."""
        usual = self._usual_entry(start, stop)
        if usual is not None:
            return usual
        name, value = b"", Span(stop, stop)
        for number, wire, *span in self._fields(start, stop):
            if wire == _LEN and number == 1:
                if span[1] - span[0] > _NAME_BYTES_MAX:
                    raise BadExample(f"a feature's name has over {_NAME_BYTES_MAX} bytes")
                name = self.read(Span(*span))
            elif wire == _LEN and number == 2:
                value = Span(*span)
        return name, value

    def _usual_entry(self, start: int, stop: int) -> tuple[bytes, Span] | None:
        """Return what ``_entry`` does, in half the time, for an entry as protobuf writes it."""
        index, buffer = start - self._base, self._buffer
        if index < 0 or index + 2 > len(buffer) or buffer[index] != _NAME_TAG:
            return None
        name_stop = index + 2 + buffer[index + 1]
        if buffer[index + 1] > 127 or name_stop >= len(buffer) or buffer[name_stop] != _VALUE_TAG:
            return None
        if self._base + name_stop + 1 >= stop:
            return None
        size, value = self._varint(self._base + name_stop + 1, stop)
        return (buffer[index + 2 : name_stop], Span(value, stop)) if value + size == stop else None

    def _feature(self, message: Span) -> Feature:
        feature = Feature("", Span(message.stop, message.stop))
        for number, wire, start, stop in self._fields(*message):
            if wire == _LEN and number in _KINDS:
                if feature.kind:
                    raise BadExample(f"a feature has two lists of values (at byte {start})")
                feature = Feature(_KINDS[number], Span(start, stop))
        return feature

    def _fields(self, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield number, wire type, start and stop of each field's value between two positions."""
        while at < end:
            tag, start = self._varint(at, end)
            wire = tag & 7
            if wire == _LEN:
                size, start = self._varint(start, end)
                stop = start + size
            elif wire == _VARINT:
                _, stop = self._varint(start, end)
            elif wire in (_I32, _I64):
                stop = start + (4 if wire == _I32 else 8)
            else:
                stop = end + 1
            if not 8 <= tag < 1 << 32 or stop > end:
                raise BadExample(f"it is no tf.train.Example (at byte {at} of the record's data)")
            yield tag >> 3, wire, start, stop
            at = stop

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        """Return the number at a position and the position behind it."""
        index = at - self._base
        if 0 <= index < len(self._buffer) and at < end and (byte := self._buffer[index]) < 128:
            return byte, at + 1  # nearly all are
        index = self._index(at, min(_VARINT_BYTES_MAX, end - at))
        buffer = self._buffer
        value = shift = 0
        while at < end and shift < 7 * _VARINT_BYTES_MAX:
            byte = buffer[index]
            at += 1
            if byte < 128:
                return (value | byte << shift) & 0xFFFF_FFFF_FFFF_FFFF, at
            value |= (byte & 127) << shift
            shift += 7
            index += 1
        raise BadExample(f"it is no tf.train.Example (at byte {at} of the record's data)")

    def _index(self, at: int, size: int) -> int:
        """Return the index in the buffer of ``size`` bytes at a position, after reading them."""
        index = at - self._base
        if index < 0 or index + size > len(self._buffer):
            self._choose_window(at, size)
            index = at - self._base
        return index

    def _choose_window(self, at: int, size: int) -> None:
        for base, buffer in self._windows:
            if base <= at and at + size <= base + len(buffer):
                self._base, self._buffer = base, buffer
                return
        wanted = min(max(size, _WINDOW_BYTES), self._size - at)
        self._base, self._buffer = at, self._read_at(at, wanted)
        if len(self._windows) < _WINDOWS_MAX:
            self._windows.append((at, self._buffer))


def _signed(value: int) -> int:
    return value - (value >> 63 << 64)


def _text(name: bytes) -> str:
    return ascii(name.decode("utf-8", "replace"))[1:-1]
