"""Reads the images and labels of a Parquet file's rows, a batch at a time.

Memory: pyarrow reads a column chunk through a buffer of 1 MiB, a page at a time; without that
buffer it would hold whole row groups, of GBs. A batch takes about 4 MiB more.

An encrypted column's metadata may not be touched, or pyarrow aborts the process: reading a row
raises an ordinary error.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from feeder.errors import DatasetError, FeederError
from feeder.process.path_text import path_from_text, printable
from feeder.source.label_files.columns import SplitColumn
from feeder.source.location.storage import StoredFile
from feeder.source.parquet_columns import WRITE_CSV as WRITE_CSV
from feeder.source.parquet_columns import find_columns
from feeder.source.source import SourceSpec

_MAGIC: Final = b"PAR1"
_ENCRYPTED_MAGIC: Final = b"PARE"
_TAIL_BYTES: Final = 8
_BATCH_BYTES: Final = 2 << 20
_BATCH_ROWS_MAX: Final = 1024
_SPLIT_ROWS: Final = 65_536
_BUFFER_BYTES: Final = 1 << 20
_MEND: Final = "copy or make the file again, or leave it out"
_ENCRYPTED: Final = "is encrypted, and Feeder has no keys: write it again without encryption"


class Row(NamedTuple):
    """A row of a file."""

    number: int
    image: memoryview | None
    """Bytes in pyarrow's memory."""
    path: bytes
    """The name of the image's file; empty without one."""
    label: object
    """As pyarrow has it; None without labels, too."""
    split: str
    """The cell of the column of splits; empty without one."""


class ParquetRows:
    """An open Parquet file."""

    def __init__(self, stored: StoredFile, spec: SourceSpec, name: str) -> None:
        """Find the columns; raises DatasetError and what ``find_columns`` does."""
        self.name = name
        _check_ends(stored, name)
        try:
            self._file = pq.ParquetFile(
                pa.OSFile(f"/proc/self/fd/{stored.descriptor}"),  # for names of any bytes
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
            )
        except (OSError, pa.ArrowException) as error:
            raise self._fault("its footer", error) from None
        self.columns = find_columns(self._file.schema_arrow, spec, name)
        self.count: int = self._file.metadata.num_rows
        self.stored_bytes = stored.size_bytes

    def rows(self) -> Iterator[Row]:
        """Yield all rows; DatasetError where they cannot be read."""
        number = 0
        for group in range(self._file.metadata.num_row_groups):
            metadata = self._file.metadata.row_group(group)
            row_bytes = max(metadata.total_byte_size // max(metadata.num_rows, 1), 1)
            size = max(1, min(_BATCH_BYTES // row_bytes, _BATCH_ROWS_MAX))
            for batch in self._read(group, size, self.columns.leaves):
                nothing = [None] * batch.num_rows
                images, paths = self._images(batch.column(self.columns.image))
                label = self.columns.label
                labels = _values(batch.column(label)) if label else nothing
                for image, path, value, split in zip(
                    images, paths or nothing, labels, self._splits(batch), strict=True
                ):
                    yield Row(number, image, path or b"", value, split)
                    number += 1

    def count_splits(self) -> Mapping[str, int]:
        """Return the number of rows of each split; their column alone is read."""
        counts: Counter[str] = Counter()
        for group in range(self._file.metadata.num_row_groups):
            for batch in self._read(group, _SPLIT_ROWS, [self.columns.split]):
                counts.update(self._splits(batch))
        return counts

    def _images(
        self, column: pa.Array
    ) -> tuple[list[memoryview | None], list[bytes | None] | None]:
        """Return the images of a column, and the names of their files where it has them."""
        if not pa.types.is_struct(column.type):
            return _as_views(column), None
        fields = dict(zip((field.name for field in column.type), column.flatten(), strict=True))
        path = self.columns.path_field
        return _as_views(fields["bytes"]), _as_bytes(fields[path]) if path else None

    def _splits(self, batch: pa.RecordBatch) -> list[str]:
        if not self.columns.split:
            return [""] * batch.num_rows
        column = SplitColumn(self.columns.split)
        return [column.read(value) for value in _values(batch.column(self.columns.split))]

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


@contextlib.contextmanager
def open_rows(spec: SourceSpec, container: int, listed: int | None = None) -> Iterator[ParquetRows]:
    """Open a container; raises what ``ParquetRows`` does.

    At the end SourceChangedError is raised unless the file has the stamp ``listed``.
    """
    path = spec.containers[container]
    name = printable(path)
    try:
        stored = StoredFile(path_from_text(path), listed)
    except OSError as error:
        raise DatasetError(f"{name} cannot be read: {error.strerror}") from None
    with stored:
        yield ParquetRows(stored, spec, name)


def count_splits(spec: SourceSpec) -> tuple[str, Mapping[str, int]]:
    """Return the column of the files that holds splits, and the rows of each; "" without one.

    Files that cannot be read have none: listing reports them.
    """
    column = ""
    counts: Counter[str] = Counter()
    try:
        for number in range(len(spec.containers)):
            with open_rows(spec, number) as rows:
                if rows.columns.split:
                    column = rows.columns.split
                    counts.update(rows.count_splits())
                elif not number:
                    return "", {}
                else:
                    counts[""] += rows.count
    except FeederError:
        return "", {}
    return (column, counts) if SplitColumn(column).holds_splits(counts) else ("", {})


def _check_ends(stored: StoredFile, name: str) -> None:
    """Raise DatasetError unless a file begins and ends as an unencrypted Parquet file."""
    size_bytes = stored.size_bytes
    start = stored.read(0, len(_MAGIC))
    end = stored.read(max(size_bytes - _TAIL_BYTES, 0), _TAIL_BYTES)
    if not size_bytes:
        raise DatasetError(f"{name} is empty: {_MEND}")
    if _ENCRYPTED_MAGIC in (start, end[-len(_MAGIC) :]):
        raise DatasetError(f"{name} {_ENCRYPTED}")
    if start != _MAGIC:
        raise DatasetError(f"{name} is no Parquet file")
    footer_bytes = int.from_bytes(end[:4], "little")
    if end[-len(_MAGIC) :] != _MAGIC or footer_bytes + len(_MAGIC) + _TAIL_BYTES > size_bytes:
        raise DatasetError(f"{name} is cut: its last bytes are no Parquet footer: {_MEND}")


def _values(array: pa.Array) -> list[object]:
    """Return an array's values; texts that are not UTF-8 as bytes."""
    try:
        return list(array.to_pylist())
    except UnicodeDecodeError:
        return [_value(scalar) for scalar in array]


def _value(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        values = getattr(scalar, "values", None)  # of a list
        return scalar.cast(pa.binary()).as_py() if values is None else _as_bytes(values)


def _as_views(array: pa.Array) -> list[memoryview | None]:
    """Return the bytes of images where pyarrow has them."""
    buffers = [scalar.as_buffer() for scalar in _plain(array)]
    return [None if buffer is None else memoryview(buffer) for buffer in buffers]


def _as_bytes(texts: pa.Array) -> list[bytes | None]:
    return list(_plain(texts).cast(pa.large_binary()).to_pylist())


def _plain(array: pa.Array) -> pa.Array:
    """Return an array without a dictionary."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
