"""TFRecord files of tf.train.Example, as ImageNet's are: an image, its class and names in each.

Listing reads each record's length and its small features, and skips the image: the data's CRC is
checked when the item is read. It is checked while listing, too, where a record introduces a class,
a class's name or a form of labels, and where it would be rejected. So a damaged record adds no
class, and the intact ones are not compared with it. Compressed files cannot be read in any order:
their records are spilled as they are, with CRC, and read in the same way.

ImageNet's labels count from 1, because 0 is its background. A label 0 without --label-base means
that all labels of a source are off by one: that is an error, not a bad sample.
"""

from collections.abc import Mapping
from typing import Final

from feeder.errors import ConfigError
from feeder.process.path_text import decode_name, printable
from feeder.source.decompress import OpenContainer
from feeder.source.extents import ContainerFiles
from feeder.source.item_bytes import FILE_BYTES_MAX, SourceError
from feeder.source.listing import CLASSES_MAX, ItemListing
from feeder.source.names import container_prefix
from feeder.source.raw_labels import BadLabel, Form, RawLabel, read_raw
from feeder.source.source import Item, SourceSpec
from feeder.source.tf_example import BadExample, ExampleReader, Feature, ReadAt
from feeder.source.tf_framing import (
    CRC_BYTES,
    HEADER_BYTES,
    Record,
    check_library,
    is_intact,
    walk_records,
)

_IMAGE: Final = "image/encoded"
_LABEL: Final = "image/class/label"
_FILE_NAME: Final = b"image/filename"
_FILE_NAME_BYTES_MAX: Final = 512
_NAMES_SHOWN: Final = 12


class TFRecords:
    """TFRecord files; see ``Source``."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        check_library()
        self._spec = spec
        self._files = ContainerFiles(spec, work_folder)
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
        prefix = container_prefix(self._spec, container)
        with OpenContainer(self._files.path(container), listing.stamp) as file:
            content = file.content

            def read(at: int, size: int) -> bytes:
                content.seek(at)
                return content.read(size)

            listing.base = self._base
            listing.field = f"feature {printable(self._label.decode())}" if self._label else ""
            self._known.clear()
            for number, record in enumerate(walk_records(content, file.where)):
                if number == 0 and record.data:
                    listing.expect_spill(file.stored_bytes)
                self._add(f"{prefix}{number:08d}", record, read, listing)

    def read_item(self, item: Item) -> bytes:
        """Return the image of a record, whose CRC is checked; see ``Source``."""
        data = self._files.read_item(item)
        if not is_intact(data):
            raise _corrupt(item.offset - HEADER_BYTES)
        try:
            reader = ExampleReader.of(data, len(data) - CRC_BYTES)
            feature = reader.find((self._image,), quick=True)[self._image]
            (image,) = reader.bytes_spans(feature)
        except (BadExample, LookupError, ValueError):  # the file has changed since it was listed
            raise SourceError("corrupt", "it is another record than the one listed") from None
        if image.stop == image.start:
            raise SourceError("empty", "its image has no bytes")
        return reader.read(image)

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    def _add(self, name: str, record: Record, read: ReadAt, listing: ItemListing) -> None:
        if record.size_bytes > FILE_BYTES_MAX:
            reason = f"its record has {record.size_bytes} bytes, more than {FILE_BYTES_MAX}"
            listing.reject(name, "too-large", reason)
            return
        if record.data:
            if not is_intact(record.data):
                refused = _corrupt(record.at)
                listing.reject(name, refused.kind, refused.reason)
                return
            reader = ExampleReader.of(record.data, record.size_bytes)
        else:
            start = record.at + HEADER_BYTES
            reader = ExampleReader(lambda at, size: read(start + at, size), record.size_bytes)
        try:
            features = reader.find(self._wanted)
            name = self._item_name(name, reader, features)
            self._check_image(reader, features)
            label, class_names = self._read_label(name, reader, features)
            introduced = _claims(label, class_names) - self._known
        except (BadExample, BadLabel, ConfigError, SourceError) as error:
            refused = _refused(record, read, error)
            listing.reject(name, refused.kind, refused.reason)
            return
        if introduced and not _is_record_intact(record, read):
            refused = _corrupt(record.at)
            listing.reject(name, refused.kind, refused.reason)
            return
        for class_number, text in class_names.items():
            listing.name_class(class_number, text)
        offset = listing.spill(record.data) if record.data else record.at + HEADER_BYTES
        items = listing.items
        listing.add(name, label, offset=offset, size_bytes=record.size_bytes + CRC_BYTES)
        if listing.items > items and len(self._known) < CLASSES_MAX:
            self._known |= introduced

    def _item_name(
        self, name: str, reader: ExampleReader, features: Mapping[bytes, Feature]
    ) -> str:
        """Return NUMBER-FILENAME: file names alone may repeat, and do not give the position."""
        feature = features.get(_FILE_NAME)
        if feature is None or feature.kind != "bytes":
            return name
        spans = reader.bytes_spans(feature, 1)
        if not spans or spans[0].stop - spans[0].start > _FILE_NAME_BYTES_MAX:
            return name
        file_name = decode_name(reader.read(spans[0])).rpartition("/")[2]
        return f"{name}-{file_name}" if file_name else name

    def _check_image(self, reader: ExampleReader, features: Mapping[bytes, Feature]) -> None:
        """Raise SourceError unless a record has one image; its bytes are not read."""
        feature = features.get(self._image)
        field = self._image.decode()
        if feature is None:
            raise SourceError("no-image", _missing(field, reader, "--image"))
        if feature.kind != "bytes":
            raise SourceError("no-image", f"its {field} is a list of {feature.kind or 'nothing'}")
        images = len(reader.bytes_spans(feature, 2))
        if images != 1:
            count = "several" if images else "no"
            raise SourceError(
                "two-images" if images else "no-image", f"its {field} has {count} values"
            )

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


def _corrupt(at: int) -> SourceError:
    return SourceError("corrupt", f"the CRC of the data of its record at byte {at} is wrong")


def _is_record_intact(record: Record, read: ReadAt) -> bool:
    if record.data:  # its CRC has been checked
        return True
    return is_intact(read(record.at + HEADER_BYTES, record.size_bytes + CRC_BYTES))


def _refused(
    record: Record, read: ReadAt, error: BadExample | BadLabel | ConfigError | SourceError
) -> SourceError:
    """Return why a record is rejected: ``error`` if it is intact; raise that if a ConfigError."""
    if not _is_record_intact(record, read):
        return _corrupt(record.at)
    if isinstance(error, ConfigError):
        raise error
    if isinstance(error, SourceError):
        return error
    return SourceError("bad-label" if isinstance(error, BadLabel) else "corrupt", str(error))


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
