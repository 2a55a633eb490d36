"""TFRecord files of tf.train.Example, as ImageNet's are: an image, its class and names in each.

A record is a u64 length, the masked CRC-32C of it, data, and the masked CRC-32C of these. Listing
checks the length's CRC, as behind a wrong length nothing can be found, reads the record's small
features, and skips the image: the data's CRC is checked when the item is read. It is checked while
listing, too, where a record introduces a class, a class's name or a form of labels, and where it
would be rejected. So a damaged record adds no class, and the intact ones are not compared with it.
Compressed files cannot be read in any order: their records are spilled as they are, with CRC, and
read in the same way.

ImageNet's labels count from 1, because 0 is its background. A label 0 without --label-base means
that all labels of a source are off by one: that is an error, not a bad sample.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import google_crc32c

from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.process.path_text import decode_name, printable
from feeder.source.decompress import Content, open_container
from feeder.source.item_bytes import FILE_BYTES_MAX, SourceError
from feeder.source.kinds import Kind
from feeder.source.listing import CLASSES_MAX, ItemListing
from feeder.source.raw_labels import BadLabel, Form, RawLabel, read_raw
from feeder.source.source import ContainerSource, Item, SourceSpec
from feeder.source.tf_example import BadExample, ExampleReader, Feature, ReadAt

_IMAGE: Final = "image/encoded"
_LABEL: Final = "image/class/label"
_FILE_NAME: Final = b"image/filename"
_FILE_NAME_BYTES_MAX: Final = 512
_NAMES_SHOWN: Final = 12
_HEADER_BYTES: Final = 12
_CRC_BYTES: Final = 4
_MEND: Final = "copy the file again, or leave it out"


class _Record(NamedTuple):
    """A record of a file, or of what a compressed file holds."""

    at: int
    """Of its first byte, that of the length."""
    size_bytes: int
    """Of its data."""
    read: ReadAt
    """Reads some of its data, behind which is the CRC."""

    @property
    def stored(self) -> bytes:
        """Its data with the CRC."""
        return self.read(0, self.size_bytes + _CRC_BYTES)

    def check(self) -> None:
        """Raise SourceError unless the CRC is that of the data."""
        if not is_intact(self.stored):
            raise _corrupt(self.at)


class TFRecords(ContainerSource):
    """TFRecord files; see ``Source``."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        """Raise ConfigError for --labels, ResourceError without a CRC-32C in C."""
        super().__init__(spec, work_folder)
        if spec.labels_file:
            raise ConfigError(
                "--labels has no meaning for tfrecord, which has its labels in its files: name "
                "their feature with --label"
            )
        if google_crc32c.implementation == "python":  # at 1 MB/s
            raise ResourceError(
                "google-crc32c has no C extension here, and checking TFRecords would take days: "
                "install a wheel of it (`pip install --force-reinstall google-crc32c`)"
            )
        self._image = (spec.image or _IMAGE).encode()
        label = spec.label or _LABEL
        self._label = b"" if spec.label_kind == "none" else label.encode()
        stem = label.removesuffix("label")
        self._class_name = f"{stem}text".encode() if self._label and stem != label else b""
        own_base = 1 if label == _LABEL else 0
        self._base = own_base if spec.label_base is None else spec.label_base
        self._known: set[object] = set()  # what intact records of the container have introduced
        self._wanted = {self._image, self._label, self._class_name, _FILE_NAME} - {b""}

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the records of a file; DatasetError where its framing is damaged."""
        prefix = self.prefix(container)
        path = self.path(container)
        with open_container(path, listing.stamp, is_plain=is_intact) as content:
            if content.size_bytes is None:
                listing.expect_spill(content.stored_bytes)
            listing.about.base = self._base
            listing.about.field = (
                f"feature {printable(self._label.decode())}" if self._label else ""
            )
            self._known.clear()
            for number, record in enumerate(_walk_records(content)):
                self._add(f"{prefix}{number:08d}", record, content.size_bytes is None, listing)

    def read_item(self, item: Item) -> bytes:
        """Return the image of a record, whose CRC is checked; see ``Source``."""
        data = super().read_item(item)
        if not is_intact(data):
            raise _corrupt(item.offset - _HEADER_BYTES)
        try:
            reader = ExampleReader.of(data, len(data) - _CRC_BYTES)
            feature = reader.find((self._image,), quick=True)[self._image]
            (image,) = reader.bytes_spans(feature)
        except (BadExample, LookupError, ValueError):  # the file has changed since it was listed
            raise SourceError("corrupt", "it is another record than the one listed") from None
        if image.stop == image.start:
            raise SourceError("empty", "its image has no bytes")
        return reader.read(image)

    def _add(self, name: str, record: _Record, is_copied: bool, listing: ItemListing) -> None:
        try:
            if record.size_bytes > FILE_BYTES_MAX:
                reason = f"its record has {record.size_bytes} bytes, more than {FILE_BYTES_MAX}"
                raise SourceError("too-large", reason)
            if is_copied:
                record.check()
            reader = ExampleReader(record.read, record.size_bytes)
            try:
                features = reader.find(self._wanted)
                name = self._item_name(name, reader, features)
                self._check_image(reader, features)
                label, class_names = self._read_label(name, reader, features)
                introduced = _claims(label, class_names) - self._known
            except (BadLabel, ConfigError, SourceError):
                record.check()  # what is damaged looks like any fault
                raise
            if introduced:
                record.check()
        except BadLabel as error:
            listing.reject(name, "bad-label", str(error))
            return
        except SourceError as fault:
            listing.reject(name, fault.kind, fault.reason)
            return
        for class_number, text in class_names.items():
            listing.name_class(class_number, text)
        offset = listing.spill(record.stored) if is_copied else record.at + _HEADER_BYTES
        items = listing.about.items
        listing.add(name, label, offset=offset, size_bytes=record.size_bytes + _CRC_BYTES)
        if listing.about.items > items and len(self._known) < CLASSES_MAX:
            self._known |= introduced

    def _item_name(
        self, name: str, reader: ExampleReader, features: Mapping[bytes, Feature]
    ) -> str:
        """Return NUMBER-FILENAME: file names alone may repeat, and do not give the position."""
        feature = features.get(_FILE_NAME)
        for span in reader.bytes_spans(feature, 1) if feature and feature.kind == "bytes" else ():
            if span.stop - span.start <= _FILE_NAME_BYTES_MAX:
                file_name = decode_name(reader.read(span)).rpartition("/")[2]
                return f"{name}-{file_name}" if file_name else name
        return name

    def _check_image(self, reader: ExampleReader, features: Mapping[bytes, Feature]) -> None:
        """Raise SourceError unless a record has one image; its bytes are not read."""
        feature = features.get(self._image)
        field = self._image.decode()
        if feature is None:
            raise SourceError("no-image", _missing(field, reader, "--image"))
        if feature.kind != "bytes":
            raise SourceError("no-image", f"its {field} is a list of {feature.kind or 'nothing'}")
        images = len(reader.bytes_spans(feature, 2))
        if not images:
            raise SourceError("no-image", f"its {field} has no values")
        if images > 1:
            raise SourceError("two-images", f"its {field} has several values")

    def _read_label(
        self, name: str, reader: ExampleReader, features: Mapping[bytes, Feature]
    ) -> tuple[RawLabel, dict[int, str]]:
        """Return a record's label, and the names of the classes in it."""
        kind, field = self._spec.label_kind, self._label.decode()
        if not field:
            return None, {}
        feature = features.get(self._label)
        if feature is None:
            raise SourceError("no-label", _missing(field, reader, "--label"))
        values: list[int] | list[float] | list[str] = []
        if feature.kind == "bytes":
            values = _texts(reader, feature)
        elif feature.kind == "float":
            values = reader.floats(feature)
        elif feature.kind == "int64":
            values = reader.integers(feature)
        if not values and kind != "multi":
            raise SourceError("no-label", f"its {field} has no value")
        if values == [0] and self._base == 1 and self._spec.label_base is None and kind != "float":
            raise ConfigError(
                f"{name}: its {field} is 0, but labels of that field count from 1, as ImageNet's "
                "do: give --label-base 0 if 0 is the first class of these, or --label-base 1 to "
                "leave such records out"
            )
        label: RawLabel = values[0] if len(values) == 1 and kind != "multi" else values
        if feature.kind != "int64" or kind == "float":
            return label, {}
        return label, self._class_names(label, reader, features)

    def _class_names(
        self, label: RawLabel, reader: ExampleReader, features: Mapping[bytes, Feature]
    ) -> dict[int, str]:
        feature = features.get(self._class_name)
        if feature is None or feature.kind != "bytes":
            return {}
        texts = _texts(reader, feature)
        numbers = label if isinstance(label, list) else [label]
        if len(texts) != len(numbers):
            return {}
        pairs = zip(numbers, texts, strict=True)
        return {number: text for number, text in pairs if text and isinstance(number, int)}


def is_intact(data: bytes) -> bool:
    """Return whether the masked CRC-32C in the last four of ``data`` is that of the others."""
    crc: int = google_crc32c.value(data[:-_CRC_BYTES])
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF
    return masked == int.from_bytes(data[-_CRC_BYTES:], "little")


def _walk_records(content: Content) -> Iterator[_Record]:
    """Yield the records of a TFRecord file, whose data are read only if it is a stream.

    Raises DatasetError for what is no TFRecord file or has no records, for a wrong CRC of a length,
    and for a file that ends within a record; behind the latter two nothing can be read.
    """
    where, at = content.where, 0
    header = content.read(_HEADER_BYTES)
    if not header:
        raise DatasetError(f"{where} is empty: {_MEND}")
    while header:
        size = int.from_bytes(header[:8], "little")
        start = at + _HEADER_BYTES
        stop = start + size + _CRC_BYTES
        if len(header) < _HEADER_BYTES:
            raise _truncated(at, where)
        if not is_intact(header):
            raise DatasetError(
                f"{where} is damaged: the length of the record at byte {at} has a wrong CRC, so "
                f"nothing behind it can be read: {_MEND}"
                if at
                else f"{where} is no TFRecord file, or its start is damaged: the CRC of the first "
                "record's length is wrong"
            )
        if content.size_bytes is not None and stop > content.size_bytes:
            raise _truncated(at, where)
        data: bytes | None = None
        if content.size_bytes is None and size <= FILE_BYTES_MAX:
            data = content.read(size + _CRC_BYTES)
            if len(data) < size + _CRC_BYTES:
                raise _truncated(at, where)
        yield _Record(at, size, _reader(content, start, data))
        if content.seek(stop) < stop:
            raise _truncated(at, where)
        at = stop
        header = content.read(_HEADER_BYTES)


def _reader(content: Content, start: int, data: bytes | None) -> ReadAt:
    """Return what reads in the data of a record, which are at ``start`` if not read yet."""

    def read(at: int, size: int) -> bytes:
        if data is not None:
            return data[at : at + size]
        content.seek(start + at)
        return content.read(size)

    return read


def _truncated(at: int, where: str) -> DatasetError:
    return DatasetError(f"{where} ends within the record that begins at byte {at}: {_MEND}")


def _corrupt(at: int) -> SourceError:
    return SourceError("corrupt", f"the CRC of the data of its record at byte {at} is wrong")


def _claims(label: RawLabel, class_names: Mapping[int, str]) -> set[object]:
    """Return what an item asserts of its whole container: form, length, classes and their names.

    Raises BadLabel.
    """
    form, value = read_raw(label)
    if form == Form.NONE:
        return set()
    values = value if isinstance(value, list) else [value]
    shape = (form, len(values))
    if form in (Form.REAL, Form.REALS):
        return {shape}
    return {shape, *values, *class_names.items()}


def _missing(field: str, reader: ExampleReader, option: str) -> str:
    names = ", ".join(decode_name(name) for name in sorted(reader.names[:_NAMES_SHOWN]))
    more = " and more" if len(reader.names) > _NAMES_SHOWN else ""
    there = f"there are {names}{more} ({option})" if names else "there are none"
    return printable(f"it has no feature {field}: {there}")


def _texts(reader: ExampleReader, feature: Feature) -> list[str]:
    spans = reader.bytes_spans(feature)
    return [reader.read(span).decode("utf-8", "replace") for span in spans]


def _begins_with_record(start: bytes, _: str) -> bool:
    return len(start) >= _HEADER_BYTES and is_intact(start[:_HEADER_BYTES])


KINDS: Final = {
    "tfrecord": Kind(
        open=TFRecords,
        what="a TFRecord file",
        plural="TFRecord files",
        suffixes=("tfrecords?", "tfrec", "records?"),
        names=r"\.(tfrecords?|tfrec)(\.(gz|zst))?([-_.]\d+)*(-of-\d+)?(\.(gz|zst))?$|-\d{5}-of-\d{5}$",
        matches=_begins_with_record,
        is_streamable=True,
    )
}
