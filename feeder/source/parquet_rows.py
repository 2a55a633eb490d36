"""Reads the images and labels of a Parquet file's rows, a batch at a time.

    image    Hugging Face's struct {bytes: binary, path: string}, or a binary column
    label    integers, texts, floats, or lists of these; the names of Hugging Face's ClassLabel

A column is found by the schema alone, where there is no choice: one of a well-known name, or the
only one that can be it. Else the user has to make the choice.

Memory: pyarrow reads a column chunk through a buffer of 1 MiB, a page at a time; without that
buffer it would hold whole row groups, of GBs. A batch takes about 4 MiB more.

An encrypted column's metadata may not be touched, or pyarrow aborts the process: reading a row
raises an ordinary error.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq

from feeder.errors import ConfigError, DatasetError, FeederError, StoreError
from feeder.process.path_text import decode_name, printable
from feeder.source.item_bytes import SourceError, check_size
from feeder.source.label_files.columns import SplitColumn, choose_label
from feeder.source.listing import ItemListing
from feeder.source.location.objects import ObjectFile, StoredObject
from feeder.source.location.storage import StoredFile, open_stored
from feeder.source.raw_labels import RawLabel
from feeder.source.source import SourceSpec, number_name

_IMAGE_NAMES: Final = (
    *("image", "img", "image_bytes", "img_bytes", "image_data", "jpg", "jpeg", "png", "webp"),
    *("bytes", "content", "picture", "photo", "encoded"),
)
_BYTES: Final = ("binary", "large_binary", "binary_view")
_TEXTS: Final = ("string", "large_string", "string_view")
_LISTS: Final = ("list", "large_list", "fixed_size_list")
_SHOWN_MAX: Final = 20
_PATH_SHOWN: Final = 200
_WRITE_CSV: Final = (
    "write the columns of paths and labels as CSV (pandas.read_parquet(…).to_csv(…)) and pack the "
    "files' folder with --labels FILE.csv"
)
_BATCH_BYTES: Final = 2 << 20
_BATCH_ROWS_MAX: Final = 1024
_SPLIT_ROWS: Final = 65_536
_BUFFER_BYTES: Final = 1 << 20
_MEND: Final = "copy or make the file again, or leave it out"
_ENCRYPTED: Final = "is encrypted, and Feeder has no keys: write it again without encryption"


def list_rows(spec: SourceSpec, container: int, prefix: str, listing: ItemListing) -> None:
    """Add the rows of a file to ``listing``, and spill their images.

    Raises DatasetError for a file that is damaged or without images, ConfigError where options do
    not fit or are missing.
    """
    count = nulls = 0
    file_name = ""  # of an image that is null
    with _open_file(spec, container, listing.copy, listing.stamp) as file:
        listing.expect_spill(file.stored_bytes)
        listing.about.base = spec.label_base or 0
        if file.label:
            listing.about.field = f"column {printable(file.label)}"
        for number, text in enumerate(file.class_names):
            listing.name_class(number, text)
        listing.about.is_declared = bool(file.class_names)
        for number, (image, path, label, split) in enumerate(file.rows()):
            if spec.split not in ("", split):
                continue
            count += 1
            name = number_name(prefix, number, path)
            try:
                if image is None:
                    nulls += 1
                    shown = printable(decode_name(path)[:_PATH_SHOWN])
                    file_name = file_name or shown
                    detail = f", and has only the path {shown}" if shown else ""
                    raise SourceError("no-image", f"its image is null{detail}")
                check_size(len(image), "its image has no bytes")
            except SourceError as error:
                listing.reject(name, error.kind, error.reason)
                continue
            listing.add(name, _decode(label), offset=listing.spill(image), size_bytes=len(image))
        if nulls and nulls == count:
            column = f"{file.name}: the column {printable(file.image)} has no image bytes"
            if not file_name:
                raise DatasetError(f"{column}, only nulls")
            raise DatasetError(
                f"{column}, only paths such as {file_name}: embed the files in it (docs/sources.md "
                f"says how), or {_WRITE_CSV}"
            )


def count_splits(spec: SourceSpec) -> tuple[str, Mapping[str, int]]:
    """Return the column of the files that holds splits, and the rows of each; "" without one.

    Files that cannot be read have none: listing reports them.
    """
    column = ""
    counts: Counter[str] = Counter()
    try:
        for number in range(len(spec.containers)):
            with _open_file(spec, number) as file:
                if file.split:
                    column = file.split
                    counts.update(file.count_splits())
                elif not number:
                    return "", {}
                else:
                    counts[""] += file.count
    except StoreError:
        raise
    except FeederError:
        return "", {}
    return (column, counts) if SplitColumn(column).holds_splits(counts) else ("", {})


class _ParquetFile:
    """An open Parquet file."""

    def __init__(self, stored: StoredFile | StoredObject, spec: SourceSpec, name: str) -> None:
        """Find the columns.

        Raises ConfigError where options do not fit or are missing, DatasetError for a file that is
        damaged or without images.
        """
        self.name = name
        self.stored_bytes = stored.size_bytes
        try:
            self._file = pq.ParquetFile(
                pa.OSFile(f"/proc/self/fd/{stored.descriptor}")  # for names of any bytes
                if isinstance(stored, StoredFile)
                else pa.PythonFile(ObjectFile(stored), "r"),
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
            )
        except (OSError, pa.ArrowException) as error:
            raise self._fault("its footer", error) from None
        self.count: int = self._file.metadata.num_rows
        self._schema: pa.Schema = self._file.schema_arrow
        classes = _read_class_names(self._schema)
        image = self._find_image(spec)
        self.image: str = image.name
        self.label = ""
        """Empty where there are no labels."""
        if spec.label_kind != "none":
            self.label = self._find_label(spec.label, classes)
        self.class_names = classes.get(self.label, ())
        self.split = self._find_split()
        """Empty where no column is called like one that holds splits."""
        self._leaves = [self.image]
        if pa.types.is_struct(image.type):
            self._leaves = [f"{self.image}.bytes"]
            path = image.type.get_field_index("path")
            if path >= 0 and _is(image.type.field(path).type, *_TEXTS):
                self._leaves.append(f"{self.image}.path")
        self._leaves += filter(None, (self.label, self.split))

    def rows(self) -> Iterator[tuple[memoryview | None, bytes, object, str]]:
        """Yield the image of each row, the name of its file, its label, and its split.

        The image's bytes are in pyarrow's memory. Name and split are empty where there are none.
        Raises DatasetError for rows that cannot be read.
        """
        for group in range(self._file.metadata.num_row_groups):
            metadata = self._file.metadata.row_group(group)
            row_bytes = max(metadata.total_byte_size // max(metadata.num_rows, 1), 1)
            size = max(1, min(_BATCH_BYTES // row_bytes, _BATCH_ROWS_MAX))
            for batch in self._read(group, size, self._leaves):
                nothing: list[Any] = [None] * batch.num_rows
                images, paths = batch.column(self.image), nothing
                if pa.types.is_struct(images.type):
                    names = [field.name for field in images.type]
                    fields = dict(zip(names, images.flatten(), strict=True))
                    images = fields["bytes"]
                    if "path" in fields:  # as bytes: it may be no UTF-8
                        paths = _plain(fields["path"]).cast(pa.large_binary()).to_pylist()
                buffers = [scalar.as_buffer() for scalar in _plain(images)]
                labels = self._values(batch, self.label) if self.label else nothing
                for buffer, path, value, split in zip(
                    buffers, paths, labels, self._splits(batch), strict=True
                ):
                    image = None if buffer is None else memoryview(buffer)
                    yield image, path or b"", value, split

    def count_splits(self) -> Mapping[str, int]:
        """Return the number of rows of each split; their column alone is read."""
        counts: Counter[str] = Counter()
        for group in range(self._file.metadata.num_row_groups):
            for batch in self._read(group, _SPLIT_ROWS, [self.split]):
                counts.update(self._splits(batch))
        return counts

    def _splits(self, batch: pa.RecordBatch) -> list[str]:
        if not self.split:
            return [""] * batch.num_rows
        return list(map(SplitColumn(self.split).read, self._values(batch, self.split)))

    def _values(self, batch: pa.RecordBatch, column: str) -> list[object]:
        try:
            return list(batch.column(column).to_pylist())
        except UnicodeDecodeError as error:
            raise self._fault(f"the column {printable(column)}", error) from None

    def _read(self, group: int, rows: int, leaves: list[str]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._file.iter_batches(
                rows, row_groups=[group], columns=leaves, use_threads=False
            )
        except (OSError, pa.ArrowException) as error:
            raise self._fault(f"row group {group}", error) from None

    def _fault(self, where: str, error: Exception) -> DatasetError:
        text = printable((str(error).strip() or type(error).__name__).splitlines()[0][:200])
        if "decrypt" in text.lower():
            return DatasetError(f"{self.name} {_ENCRYPTED}")
        return DatasetError(f"{self.name}: {where} cannot be read ({text}): {_MEND}")

    def _find_image(self, spec: SourceSpec) -> pa.Field:
        if spec.image:
            field = self._field(spec.image, "--image")
            if not _has_image(field):
                raise ConfigError(
                    f"{self.name}: the column {printable(spec.image)} is {field.type}, not the "
                    f"bytes of one image: choose another with --image ({self._describe_columns()})"
                )
            return field
        fields = [each for each in self._schema if _has_image(each) and each.name != spec.label]
        if not spec.label:
            fields = [each for each in fields if not choose_label([each.name], self.name)]
        fields = [each for each in fields if pa.types.is_struct(each.type)] or fields
        known = [each for each in fields if each.name.lower() in _IMAGE_NAMES]
        if len(fields) == 1 or len(known) == 1:
            return self._field((known or fields)[0].name, "--image")
        if fields:
            names = ", ".join(printable(each.name) for each in fields)
            raise ConfigError(
                f"{self.name} has several columns of bytes: choose one with --image ({names})"
            )
        raise DatasetError(
            f"{self.name} has no column of image bytes: {self._describe_columns()}; if one has "
            f"paths of files that you have, {_WRITE_CSV}; if it has URLs, download the images "
            "first (img2dataset writes shards that Feeder packs)"
        )

    def _find_label(self, chosen: str, classes: Mapping[str, object]) -> str:
        others = [name for name in self._schema.names if name != self.image]
        label = chosen or choose_label(others, self.name, classes)
        if not label:
            raise ConfigError(
                f"{self.name}: no column is called label: choose one with --label, or give "
                f"--label-kind none ({self._describe_columns()})"
            )
        kind = self._field(label, "--label").type
        value_kind = kind.value_type if _is(kind, *_LISTS) else kind
        if not _is(value_kind, *_TEXTS, *_BYTES, "integer", "floating", "boolean"):
            raise ConfigError(
                f"{self.name}: the column {printable(label)} is {kind}, which is no label: choose "
                f"another with --label ({self._describe_columns()})"
            )
        return label

    def _find_split(self) -> str:
        names = [
            field.name
            for field in self._schema
            if SplitColumn(field.name).is_usual
            and field.name not in (self.image, self.label)
            and self._schema.names.count(field.name) == 1
            and _is(field.type, *_TEXTS, "boolean", "integer")
        ]
        return min(names, key=lambda name: name.lower() != "split", default="")

    def _field(self, name: str, option: str) -> pa.Field:
        """Return the column that an option, or its name, has chosen."""
        count = self._schema.names.count(name)
        if count != 1:
            raise ConfigError(
                f"{self.name} has {count or 'no'} columns {printable(name)} ({option}), not one: "
                f"{self._describe_columns()}"
            )
        return self._schema.field(name)

    def _describe_columns(self) -> str:
        shown = [f"{printable(field.name)} ({field.type})" for field in self._schema][:_SHOWN_MAX]
        more = len(self._schema) - _SHOWN_MAX
        return f"its columns are {', '.join(shown)}{f' and {more} more' if more > 0 else ''}"


@contextlib.contextmanager
def _open_file(
    spec: SourceSpec, container: int, copy: Path | None = None, listed: int | None = None
) -> Iterator[_ParquetFile]:
    """Open a container, or the copy of it; raises what ``_ParquetFile`` does.

    At the end SourceChangedError is raised unless the file has the stamp ``listed``.
    """
    path = spec.containers[container]
    name = printable(path)
    try:
        stored = open_stored(copy or path, listed)
    except OSError as error:
        raise DatasetError(f"{name} cannot be read: {error.strerror}") from None
    with stored:
        yield _ParquetFile(stored, spec, name)


def _has_image(field: pa.Field) -> bool:
    if not pa.types.is_struct(field.type):
        return _is(field.type, *_BYTES)
    at = field.type.get_field_index("bytes")
    return at >= 0 and _is(field.type.field(at).type, *_BYTES)


def _is(kind: pa.DataType, *names: str) -> bool:
    """Return whether values of a type, also in a dictionary, are of one of these of pyarrow's."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(getattr(pa.types, f"is_{name}")(kind) for name in names)


def _read_class_names(schema: pa.Schema) -> Mapping[str, tuple[str, ...]]:
    """Return the class names of each column that Hugging Face's datasets declared a ClassLabel."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        classes = {name: _class_names(features.get(name)) for name in schema.names}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return {}
    return {name: names for name, names in classes.items() if names}


def _class_names(described: Any) -> tuple[str, ...]:
    """Return the names of a ClassLabel, or of a list of these."""
    if isinstance(described, list) and described:  # as older versions of datasets wrote a list
        described = described[0]
    if isinstance(described, dict):
        described = described.get("feature", described)
    if not isinstance(described, dict) or described.get("_type") != "ClassLabel":
        return ()
    names = described.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names)


def _plain(array: pa.Array) -> pa.Array:
    """Return an array without a dictionary."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _decode(value: object) -> RawLabel:
    """Return a label whose bytes are texts."""
    if isinstance(value, list):
        return cast(RawLabel, [_decode(each) for each in value])
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else cast(RawLabel, value)
