"""Parquet files with an image in each row, as Hugging Face's datasets writes them, or plain.

A Parquet file cannot be read in any order, so its images are copied to the work folder while it is
listed: a batch of rows at a time, straight from pyarrow's buffer. Only listing needs pyarrow.
"""

import sys
from typing import TYPE_CHECKING, Final

from feeder.errors import DatasetError, ResourceError
from feeder.process.path_text import decode_name, printable
from feeder.source.extents import ContainerFiles
from feeder.source.item_bytes import FILE_BYTES_MAX, SourceError
from feeder.source.listing import ItemListing
from feeder.source.names import container_prefix
from feeder.source.raw_labels import RawLabel
from feeder.source.source import Item, SourceSpec

if TYPE_CHECKING:
    from feeder.source.parquet_rows import Row

_PATH_BYTES_MAX: Final = 512


class ParquetFiles:
    """Parquet files; see ``Source``."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        self._spec = spec
        self._files = ContainerFiles(spec, work_folder)

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the rows of a file and spill their images; DatasetError where it is damaged."""
        _check_installed()
        from feeder.source.parquet_rows import ParquetRows

        path = printable(self._spec.containers[container])
        prefix = container_prefix(self._spec, container)
        file = self._files.path(container)
        with ParquetRows(file, path, self._spec, listing.stamp) as rows:
            listing.expect_spill(rows.image_bytes)
            columns = rows.columns
            listing.base = self._spec.label_base or 0
            listing.field = f"column {printable(columns.label)}" if columns.label else ""
            for number, text in enumerate(columns.class_names):
                listing.name_class(number, text)
            listing.is_declared = bool(columns.class_names)
            count, nulls, file_name = 0, 0, b""
            for batch in rows.batches():
                taken = [row for row in batch if self._spec.split in ("", row.split)]
                offset = listing.spill(batch.images) if taken and batch.images else 0
                count += len(taken)
                for row in taken:
                    if row.size_bytes is None:
                        nulls += 1
                        file_name = file_name or row.path
                    self._add(prefix, row, offset, columns.label, listing)
            if nulls and nulls == count:
                raise _no_bytes(path, columns.image, decode_name(file_name))

    def read_item(self, item: Item) -> bytes:
        """Return an image from the spilled copy; see ``Source``."""
        return self._files.read_item(item)

    def close(self) -> None:
        """Close all files."""
        self._files.close()

    def _add(self, prefix: str, row: "Row", offset: int, field: str, listing: ItemListing) -> None:
        path = decode_name(row.path)
        name = f"{prefix}{row.number:08d}"
        if len(row.path) <= _PATH_BYTES_MAX and (file_name := path.rpartition("/")[2]):
            name = f"{name}-{file_name}"  # file names alone may repeat
        try:
            if row.size_bytes is None:
                detail = f", and has only the path {printable(path[:200])}" if path else ""
                raise SourceError("no-image", f"its image is null{detail}")
            if row.size_bytes == 0:
                raise SourceError("empty", "its image has no bytes")
            if row.size_bytes > FILE_BYTES_MAX:
                raise SourceError(
                    "too-large", f"{row.size_bytes} bytes, more than {FILE_BYTES_MAX}"
                )
            if field and row.label is None:
                raise SourceError("no-label", f"its {printable(field)} is null")
        except SourceError as error:
            listing.reject(name, error.kind, error.reason)
        else:
            label = _decoded(row.label)
            listing.add(name, label, offset=offset + row.start, size_bytes=row.size_bytes)


def _check_installed() -> None:
    """Raise ResourceError with the command to run where pyarrow is missing."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ModuleNotFoundError as error:
        raise ResourceError(
            f"reading Parquet needs {error.name}, which is not installed: "
            f"`{sys.executable} -m pip install pyarrow` (the extra parquet)"
        ) from None


def _decoded(value: object) -> RawLabel:
    """Return a label whose bytes are texts."""
    if isinstance(value, list):
        return [_decoded(each) for each in value]  # type: ignore[return-value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value  # type: ignore[return-value]


def _no_bytes(path: str, column: str, file_name: str) -> DatasetError:
    from feeder.source.parquet_columns import WRITE_CSV

    column = printable(column)
    if not file_name:
        return DatasetError(f"{path}: the column {column} has no image bytes, only nulls")
    return DatasetError(
        f"{path}: the column {column} has no image bytes, only paths such as "
        f"{printable(file_name[:200])}: embed the files in it (docs/sources.md says how), or "
        f"{WRITE_CSV}"
    )
