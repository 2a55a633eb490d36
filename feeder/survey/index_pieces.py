"""Reads a shard's index in pieces, so that memory is bounded whatever the shard's size."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import RECORD, RECORD_BYTES
from feeder.dataset.reader import ShardReader
from feeder.process.path_text import decode_name

_PIECE_ROWS: Final = 65_536
_PIECE_VALUES: Final = 8 << 20
"""Bytes of label rows, or bits of them as bytes, that are in memory at a time."""


def read_records(reader: ShardReader) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Yield the first row and the records (n,) of dtype RECORD of each piece, in order."""
    for first in range(0, reader.header.samples, _PIECE_ROWS):
        records = np.empty(min(_PIECE_ROWS, reader.header.samples - first), RECORD)
        reader.read_into(
            reader.header.records_offset + first * RECORD_BYTES, records.view(np.uint8).data
        )
        yield first, records


def read_label_rows(reader: ShardReader, values: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the first row and the label rows (n, label_bytes) of each piece, in order.

    ``values`` is how many values a row has once it is decoded; it bounds the size of a piece.
    """
    row_bytes = reader.header.label_bytes
    piece = max(1, _PIECE_VALUES // max(row_bytes, values))
    for first in range(0, reader.header.samples if row_bytes else 0, piece):
        rows = np.empty((min(piece, reader.header.samples - first), row_bytes), np.uint8)
        reader.read_into(reader.header.labels_offset + first * row_bytes, rows.reshape(-1).data)
        yield first, rows


def read_record(reader: ShardReader, row: int) -> np.void:
    """Return one record of dtype RECORD."""
    record = np.empty(1, RECORD)
    offset = reader.header.records_offset + row * RECORD_BYTES
    reader.read_into(offset, record.view(np.uint8).data)
    return record[0]  # type: ignore[no-any-return]


def read_label_row(reader: ShardReader, row: int) -> NDArray[np.uint8]:
    """Return one label row (label_bytes,)."""
    stored = np.empty(reader.header.label_bytes, np.uint8)
    reader.read_into(reader.header.labels_offset + row * len(stored), stored.data)
    return stored


def read_name(reader: ShardReader, record: np.void) -> str:
    """Return the source name of a record; DatasetError where it is out of the file."""
    name = bytearray(int(record["name_bytes"]))
    reader.read_into(reader.header.names_offset + int(record["name_offset"]), memoryview(name))
    return decode_name(bytes(name))
