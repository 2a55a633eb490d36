"""TFRecord files of tf.train.Example, as ImageNet's are: an image, its class and names in each.

A record is a u64 length, the masked CRC-32C of it, data, and the masked CRC-32C of these. Listing
checks both: behind a wrong length nothing can be found, and a damaged record adds neither a class
nor an image. An image is then read at its own offset, without its record. Compressed files cannot
be read in any order: their images are copied.

ImageNet's labels count from 1, because 0 is its background. A label 0 without --label-base means
that all labels of a source are off by one: that is an error, not a bad sample.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import google_crc32c

from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.process.path_text import decode_name, printable
from feeder.source.decompress import Content, open_container
from feeder.source.item_bytes import FILE_BYTES_MAX, FaultKind, SourceError, check_size
from feeder.source.kinds import Kind
from feeder.source.listing import ItemListing
from feeder.source.raw_labels import RawLabel
from feeder.source.source import ContainerSource, SourceSpec, number_name
from feeder.source.tf_example import Feature, find_features, find_values, read_values

_IMAGE: Final = "image/encoded"
_LABEL: Final = "image/class/label"
_FILE_NAME: Final = b"image/filename"
_CHARACTERS_SHOWN: Final = 500
_HEADER_BYTES: Final = 12
_CRC_BYTES: Final = 4
_MEND: Final = "copy the file again, or leave it out"


class TFRecords(ContainerSource):
    """TFRecord files; see ``Source``."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        """Raise ResourceError without a CRC-32C in C."""
        super().__init__(spec, work_folder)
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
        self._wanted = {self._image, self._label, self._class_name, _FILE_NAME} - {b""}

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the records of a file; DatasetError where its framing is damaged."""
        prefix, path = self.prefix(container), listing.copy or self.path(container)
        where = self.where(container)
        with open_container(path, listing.stamp, where=where, is_plain=is_intact) as content:
            is_copied = content.size_bytes is None
            if is_copied:
                listing.expect_spill(content.stored_bytes)
            listing.about.base = self._base
            if self._label:
                listing.about.field = f"feature {printable(self._label.decode())}"
            for number, (at, data, size) in enumerate(_walk_records(content)):
                name = number_name(prefix, number)
                try:
                    check_size(size, "its record has no bytes")
                    if not is_intact(data):
                        reason = f"the CRC of the data of its record at byte {at} is wrong"
                        raise SourceError("corrupt", reason)
                    features, names = find_features(data, size, self._wanted)
                    feature = features.get(_FILE_NAME)
                    if feature is not None and feature.kind == "bytes":
                        for first, end in find_values(data, feature)[:1]:
                            name = number_name(prefix, number, data[first:end])
                    start, stop = self._find_image(data, features, names)
                    label = self._read_label(name, data, features, names)
                except SourceError as fault:
                    listing.reject(name, fault.kind, fault.reason)
                    continue
                for class_number, text in self._class_names(label, data, features):
                    listing.name_class(class_number, text)
                offset = (
                    listing.spill(data[start:stop]) if is_copied else at + _HEADER_BYTES + start
                )
                listing.add(name, label, offset=offset, size_bytes=stop - start)

    def _find_image(
        self, data: bytes, features: Mapping[bytes, Feature], names: list[bytes]
    ) -> tuple[int, int]:
        """Return where the one image of a record is in its data."""
        feature, field = features.get(self._image), self._image.decode()
        if feature is None:
            raise SourceError("no-image", _missing(field, names, "--image"))
        images = find_values(data, feature) if feature.kind == "bytes" else []
        if len(images) != 1:
            kind: FaultKind = "two-images" if images else "no-image"
            raise SourceError(kind, f"its {field} has {len(images)} values of bytes, not one")
        check_size(images[0][1] - images[0][0], "its image has no bytes")
        return images[0]

    def _read_label(
        self, name: str, data: bytes, features: Mapping[bytes, Feature], names: list[bytes]
    ) -> RawLabel:
        kind, field = self._spec.label_kind, self._label.decode()
        if not field:
            return None
        feature = features.get(self._label)
        if feature is None:
            raise SourceError("no-label", _missing(field, names, "--label"))
        values = read_values(data, feature)
        if not values and kind != "multi":
            raise SourceError("no-label", f"its {field} has no value")
        if values == [0] and self._base == 1 and self._spec.label_base is None and kind != "float":
            raise ConfigError(
                f"{name}: its {field} is 0, but labels of that field count from 1, as ImageNet's "
                "do: give --label-base 0 if 0 is the first class of these, or --label-base 1 to "
                "leave such records out"
            )
        return values[0] if len(values) == 1 and kind != "multi" else values

    def _class_names(
        self, label: RawLabel, data: bytes, features: Mapping[bytes, Feature]
    ) -> Iterator[tuple[int, str]]:
        """Yield the numbers and the names of the classes in a label."""
        feature = features.get(self._class_name)
        if feature is None or feature.kind != "bytes" or self._spec.label_kind == "float":
            return
        numbers, texts = label if isinstance(label, list) else [label], read_values(data, feature)
        if len(numbers) == len(texts):
            for number, text in zip(numbers, texts, strict=True):
                if text and isinstance(number, int):
                    yield number, str(text)


def is_intact(data: bytes) -> bool:
    """Return whether the masked CRC-32C in the last four of ``data`` is that of the others."""
    crc: int = google_crc32c.value(data[:-_CRC_BYTES])
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFF_FFFF
    return masked == int.from_bytes(data[-_CRC_BYTES:], "little")


def _walk_records(content: Content) -> Iterator[tuple[int, bytes, int]]:
    """Yield where each record begins, its data with their CRC, and their size without it.

    The data are empty where they have over FILE_BYTES_MAX. Raises DatasetError for what is no
    TFRecord file or has no records, for a wrong CRC of a length, and for a file that ends within a
    record; behind the latter two nothing can be read.
    """
    where, at = content.where, 0
    while header := content.read(_HEADER_BYTES):
        size = int.from_bytes(header[:8], "little")
        stop = at + _HEADER_BYTES + size + _CRC_BYTES
        if len(header) == _HEADER_BYTES and not is_intact(header):
            raise DatasetError(
                f"{where} is damaged: the length of the record at byte {at} has a wrong CRC, so "
                f"nothing behind it can be read: {_MEND}"
                if at
                else f"{where} is no TFRecord file, or its start is damaged: the CRC of the first "
                "record's length is wrong"
            )
        data = content.read(size + _CRC_BYTES) if size <= FILE_BYTES_MAX else b""
        if len(header) < _HEADER_BYTES or content.seek(stop) < stop:
            raise DatasetError(f"{where} ends within the record that begins at byte {at}: {_MEND}")
        yield at, data, size
        at = stop
    if not at:
        raise DatasetError(f"{where} is empty: {_MEND}")


def _missing(field: str, names: list[bytes], option: str) -> str:
    shown = ", ".join(map(decode_name, sorted(names)))[:_CHARACTERS_SHOWN]
    there = f"there are {shown} ({option})" if shown else "there are none"
    return printable(f"it has no feature {field}: {there}")


def _begins_with_record(start: bytes, _: str) -> bool:
    return len(start) >= _HEADER_BYTES and is_intact(start[:_HEADER_BYTES])


KINDS: Final = {
    "tfrecord": Kind(
        open=TFRecords,
        labels="in its files (--label FEATURE)",
        takes="image label label-base float",
        what="a TFRecord file",
        plural="TFRecord files",
        suffixes=("tfrecords?", "tfrec", "records?"),
        names=r"\.(tfrecords?|tfrec)(\.(gz|zst))?([-_.]\d+)*(-of-\d+)?(\.(gz|zst))?$|-\d{5}-of-\d{5}$",
        matches=_begins_with_record,
        is_streamable=True,
    )
}
