"""Reads a shard's index in pieces, so that memory is bounded whatever the shard's size."""

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.reader import ShardReader
from feeder.process.path_text import decode_name

_PIECE_ROWS: Final = 65_536
_PIECE_VALUES: Final = 8 << 20
"""Bytes of label rows, or bits of them as bytes, that are in memory at a time."""


def read_records(reader: ShardReader) -> Iterator[tuple[int, NDArray[np.void]]]:
    """Yield the first row and the records (n,) of dtype RECORD of each piece, in order."""
    for first in range(0, reader.header.samples, _PIECE_ROWS):
        yield first, reader.read_records(first, min(_PIECE_ROWS, reader.header.samples - first))


def read_label_rows(reader: ShardReader, values: int) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Yield the first row and the label rows (n, label_bytes) of each piece, in order.

    ``values`` is how many values a row has once it is decoded; it bounds the size of a piece.
    """
    row_bytes = reader.header.label_bytes
    piece = max(1, _PIECE_VALUES // max(row_bytes, values))
    for first in range(0, reader.header.samples if row_bytes else 0, piece):
        yield first, reader.read_label_rows(first, min(piece, reader.header.samples - first))


def read_name(reader: ShardReader, record: np.void) -> str:
    """Return the source name of a record; DatasetError where it is out of the file."""
    name = bytearray(int(record["name_bytes"]))
    reader.read_into(reader.header.names_offset + int(record["name_offset"]), memoryview(name))
    return decode_name(bytes(name))
