"""Reads one shard by offset. Only the header is checked."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.files import ShardFile
from feeder.dataset.format import (
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    VERSION,
    ShardHeader,
    checksum,
    decode_header,
)
from feeder.errors import DatasetError


class ShardIndex(NamedTuple):
    """All that a shard holds beside its blobs."""

    records: NDArray[np.void]
    """(n,) of dtype RECORD."""
    label_rows: NDArray[np.uint8]
    """(n, label_bytes): for LabelSpec.decode_rows."""
    names: bytes
    is_intact: bool
    """Whether their common checksum is right."""

    def name(self, record: np.void) -> bytes:
        """The name of a record's sample, as it is stored."""
        start = int(record["name_offset"])
        return self.names[start : start + int(record["name_bytes"])]


class ShardReader:
    """An open shard, which closes ``file``. Opening reads its 64-byte header.

    ``feeder repack`` reads shards of format ``version`` 2; their records have another dtype.
    """

    def __init__(self, file: ShardFile, *, version: int = VERSION) -> None:
        self.file = file
        try:
            head = bytearray(min(HEADER_BYTES, file.size_bytes))
            file.read_into(0, memoryview(head))
            self.header: ShardHeader = decode_header(bytes(head), file.where, version)
            if file.size_bytes < self.header.file_bytes:
                raise DatasetError(
                    f"{file.where} is truncated: {file.size_bytes} of {self.header.file_bytes} "
                    "bytes; restore it or pack again"
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def read_index(self) -> ShardIndex:
        """Return all records, label rows and names, and whether they are intact."""
        header = self.header
        start = header.records_offset
        index = bytearray(header.file_bytes - start)
        self.file.read_into(start, memoryview(index))
        labels = np.frombuffer(
            index, np.uint8, header.samples * header.label_bytes, header.labels_offset - start
        )
        return ShardIndex(
            records=np.frombuffer(index, RECORD, count=header.samples),
            label_rows=labels.reshape(header.samples, header.label_bytes),
            names=bytes(index[header.names_offset - start :]),
            is_intact=checksum(index) == header.index_checksum,
        )

    def read_records(self, first: int, count: int) -> NDArray[np.void]:
        """Return ``count`` records of dtype RECORD from row ``first`` on; they are not checked."""
        records = np.empty(count, RECORD)
        offset = self.header.records_offset + first * RECORD_BYTES
        self.file.read_into(offset, records.view(np.uint8).data)
        return records

    def read_label_rows(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return the label rows (count, label_bytes) from row ``first`` on, not checked."""
        rows = np.empty((count, self.header.label_bytes), np.uint8)
        offset = self.header.labels_offset + first * self.header.label_bytes
        self.file.read_into(offset, rows.reshape(-1).data)
        return rows

    def read_blob(self, record: np.void) -> bytearray:
        """Read the blob of a record; ValueError with the reason where it is not what was written.

        Raises DatasetError where the file cannot be read.
        """
        offset, blob_bytes = int(record["offset"]), int(record["blob_bytes"])
        if not self.holds_blob(offset, blob_bytes):
            raise ValueError("its record points out of the shard")
        blob = bytearray(blob_bytes)
        self.file.read_into(offset, memoryview(blob))
        if checksum(blob) != int(record["checksum"]):
            raise ValueError("its checksum does not match")
        return blob

    def holds_blob(self, offset: int, blob_bytes: int) -> bool:
        """Return whether the blob lies between the header and the records."""
        return offset >= HEADER_BYTES and offset + blob_bytes <= self.header.records_offset
