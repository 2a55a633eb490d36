"""Reads the images and labels of a Parquet file's rows, a batch at a time.

Memory: pyarrow reads a column chunk through a buffer of 1 MiB, a page at a time; without that
buffer it would hold whole row groups, of GBs. A batch takes about 2 MiB more.

An encrypted column's metadata may not be touched: pyarrow aborts the process. So one row is read
first, which raises an ordinary error.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feeder.errors import DatasetError, FeederError
from feeder.process.path_text import path_from_text, printable
from feeder.process.regular_file import open_regular
from feeder.source.item_bytes import check_listed
from feeder.source.label_files.split_column import SplitColumn
from feeder.source.parquet_columns import Columns, find_columns
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
    start: int
    """Of its image in the batch's ``images``."""
    size_bytes: int | None
    """None where the image is null."""
    path: bytes
    """The name of the image's file; empty without one."""
    label: object
    """As pyarrow has it; None without labels, too."""
    split: str
    """The cell of the column of splits; empty without one."""


class RowBatch:
    """Some rows, whose images lie behind each other in ``images``."""

    def __init__(self, first: int, batch: pa.RecordBatch, columns: Columns) -> None:
        image = batch.column(0)
        self._paths: list[bytes | None] = [None] * batch.num_rows
        if columns.path_field:
            fields = dict(zip((field.name for field in image.type), image.flatten(), strict=True))
            self._paths = _as_bytes(fields[columns.path_field])
            image = fields[columns.bytes_field]
        elif columns.bytes_field:
            (image,) = image.flatten()
        image = _plain(image)
        if not (pa.types.is_binary(image.type) or pa.types.is_large_binary(image.type)):
            image = image.cast(pa.large_binary())
        dtype = np.int64 if pa.types.is_large_binary(image.type) else np.int32
        _, offsets, data = image.buffers()
        ends: NDArray[Any] = np.frombuffer(offsets, dtype)[image.offset :][: len(image) + 1]
        self._ends = (ends - ends[0]).tolist()
        self.images = memoryview(data or b"")[int(ends[0]) : int(ends[-1])]
        self._is_valid = image.is_valid().to_pylist() if image.null_count else [True] * len(image)
        self._first = first
        self._labels = _values(batch.column(1)) if columns.label else [None] * batch.num_rows
        self._splits = _read_splits(batch, columns)

    def __iter__(self) -> Iterator[Row]:
        start = 0
        for index, stop in enumerate(self._ends[1:]):
            size_bytes = stop - start if self._is_valid[index] else None
            path = self._paths[index] or b""
            label, split = self._labels[index], self._splits[index]
            yield Row(self._first + index, start, size_bytes, path, label, split)
            start = stop


class ParquetRows:
    """An open Parquet file; a context manager. ``name`` is its path for messages."""

    def __init__(self, path: Path, name: str, spec: SourceSpec, listed: int | None = None) -> None:
        """Find the columns; raises DatasetError and what ``find_columns`` does.

        At the end SourceChangedError is raised unless the file has the stamp ``listed``.
        """
        self._path, self._name, self._listed = path, name, listed
        try:
            self._descriptor = open_regular(path)
        except OSError as error:
            raise DatasetError(f"{name} cannot be read: {error.strerror}") from None
        try:
            self._check_ends()
            try:
                source = pa.OSFile(f"/proc/self/fd/{self._descriptor}")  # for names of any bytes
                self._file = pq.ParquetFile(
                    source,
                    buffer_size=_BUFFER_BYTES,
                    pre_buffer=False,
                    page_checksum_verification=True,
                )
            except (OSError, pa.ArrowException) as error:
                raise self._fault("its footer", error) from None
            self.columns = find_columns(self._file.schema_arrow, spec, name)
            self.count: int = self._file.metadata.num_rows
            self.image_bytes = self._estimate_image_bytes()
        except BaseException:
            os.close(self._descriptor)
            raise

    def batches(self) -> Iterator[RowBatch]:
        """Yield all rows; DatasetError where they cannot be read."""
        first = 0
        for group in range(self._file.metadata.num_row_groups):
            metadata = self._file.metadata.row_group(group)
            if not metadata.num_rows:
                continue
            row_bytes = max(metadata.total_byte_size // metadata.num_rows, 1)
            rows = max(1, min(_BATCH_BYTES // row_bytes, _BATCH_ROWS_MAX))
            for batch in self._read(group, rows):
                yield RowBatch(first, batch, self.columns)
                first += batch.num_rows

    def count_splits(self) -> Mapping[str, int]:
        """Return the number of rows of each split; their column alone is read."""
        counts: Counter[str] = Counter()
        for group in range(self._file.metadata.num_row_groups):
            for batch in self._read(group, _SPLIT_ROWS, [self.columns.split]):
                counts.update(_read_splits(batch, self.columns))
        return counts

    def _read(
        self, group: int, rows: int, names: list[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        batches = self._file.iter_batches(
            rows, row_groups=[group], columns=names or self.columns.leaves, use_threads=False
        )
        while True:
            try:
                batch = next(batches, None)
                if batch is not None:
                    batch = batch.select(names or self.columns.names)
            except (OSError, pa.ArrowException) as error:
                raise self._fault(f"row group {group}", error) from None
            if batch is None:
                return
            yield batch

    def _estimate_image_bytes(self) -> int:
        """Return about how many bytes all images have, after reading a row."""
        metadata = self._file.metadata
        groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
        total = sum(group.total_byte_size for group in groups)
        leaves = [self._file.schema.column(leaf).path for leaf in range(metadata.num_columns)]
        leaf = leaves.index(self.columns.leaves[0])
        for number, group in enumerate(groups):
            if group.num_rows:
                for _ in self._read(number, 1):
                    break
                image = group.column(leaf).total_uncompressed_size
                return int(total * image / max(group.total_byte_size, image, 1))
        return 0

    def _check_ends(self) -> None:
        """Raise DatasetError unless the file begins and ends as an unencrypted Parquet file."""
        size_bytes = os.fstat(self._descriptor).st_size
        start = os.pread(self._descriptor, len(_MAGIC), 0)
        end = os.pread(self._descriptor, _TAIL_BYTES, max(size_bytes - _TAIL_BYTES, 0))
        if not size_bytes:
            raise DatasetError(f"{self._name} is empty: {_MEND}")
        if _ENCRYPTED_MAGIC in (start, end[-len(_MAGIC) :]):
            raise DatasetError(f"{self._name} {_ENCRYPTED}")
        if start != _MAGIC:
            raise DatasetError(f"{self._name} is no Parquet file")
        footer_bytes = int.from_bytes(end[:4], "little")
        if end[-len(_MAGIC) :] != _MAGIC or footer_bytes + len(_MAGIC) + _TAIL_BYTES > size_bytes:
            raise DatasetError(
                f"{self._name} is cut: its last bytes are no Parquet footer: {_MEND}"
            )

    def _fault(self, where: str, error: Exception) -> DatasetError:
        text = printable((str(error).strip() or type(error).__name__).splitlines()[0][:200])
        if "decrypt" in text.lower():
            return DatasetError(f"{self._name} {_ENCRYPTED}")
        return DatasetError(f"{self._name}: {where} cannot be read ({text}): {_MEND}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            check_listed(os.fsencode(self._path), self._listed, self._descriptor)
        finally:
            os.close(self._descriptor)


def count_splits(spec: SourceSpec) -> tuple[str, Mapping[str, int]]:
    """Return the column of the files that holds splits, and the rows of each; "" without one.

    Files that cannot be read have none: listing reports them.
    """
    column = ""
    counts: Counter[str] = Counter()
    try:
        for number, container in enumerate(spec.containers):
            with ParquetRows(path_from_text(container), printable(container), spec) as rows:
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


def _read_splits(batch: pa.RecordBatch, columns: Columns) -> list[str]:
    if not columns.split:
        return [""] * batch.num_rows
    column = SplitColumn(columns.split)
    return [column.read(value) for value in _values(batch.column(columns.split))]


def _plain(array: pa.Array) -> pa.Array:
    """Return an array without a dictionary."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _values(array: pa.Array) -> list[object]:
    """Return an array's values; texts that are not UTF-8 as bytes."""
    array = _plain(array)
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


def _as_bytes(texts: pa.Array) -> list[bytes | None]:
    return list(_plain(texts).cast(pa.binary()).to_pylist())
