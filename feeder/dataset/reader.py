"""Reads one shard by offset, with pread. Only the header is checked.

pread, not mmap: a process that serves terabytes keeps the resident memory of its scratch, and a
file that shrinks is an error that names it, not a SIGBUS.
"""

import errno
import os
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.format import (
    HEADER_BYTES,
    RECORD,
    RECORD_BYTES,
    VERSION,
    ShardHeader,
    checksum,
    decode_header,
)
from feeder.errors import DatasetError, ResourceError
from feeder.process.regular_file import open_regular

_READ_AHEAD_BYTES: Final = 128 * 1024
"""Of one larger request the kernel may read only this much, the usual ``read_ahead_kb``."""


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
    """An open shard. Opening reads its 64-byte header; ``close`` is idempotent.

    ``feeder repack`` reads shards of format ``version`` 2; their records have another dtype.
    """

    def __init__(self, path: Path, *, version: int = VERSION) -> None:
        self.path = path
        try:
            self._descriptor = open_regular(path)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise ResourceError(
                    f"too many open files at {path}: lower open_shards, or raise the limit "
                    "(ulimit -n)"
                ) from error
            raise DatasetError(f"{path} cannot be opened: {error.strerror}") from error
        try:
            self.file_bytes = os.fstat(self._descriptor).st_size
            self.header: ShardHeader = decode_header(
                os.pread(self._descriptor, HEADER_BYTES, 0), str(path), version
            )
            if self.file_bytes < self.header.file_bytes:
                raise DatasetError(
                    f"{path} is truncated: {self.file_bytes} of {self.header.file_bytes} bytes; "
                    "restore it or pack again"
                )
        except OSError as error:
            self.close()
            raise DatasetError(f"{path} cannot be read: {error.strerror}") from error
        except DatasetError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def read_into(self, offset: int, out: memoryview) -> None:
        """Fill ``out`` from ``offset``; DatasetError where the file ends before it is full."""
        done = 0
        while done < len(out):
            try:
                remaining = out[done:] if done else out
                count = os.preadv(self._descriptor, [remaining], offset + done)
            except OSError as error:
                raise DatasetError(
                    f"{self.path} cannot be read at byte {offset}: {error.strerror}"
                ) from error
            if count == 0:
                raise DatasetError(
                    f"{self.path} is truncated: it ends before byte {offset + len(out)}; "
                    "restore it or pack again"
                )
            done += count

    def read_index(self) -> ShardIndex:
        """Return all records, label rows and names, and whether they are intact."""
        header = self.header
        start = header.records_offset
        index = bytearray(header.file_bytes - start)
        self.read_into(start, memoryview(index))
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
        self.read_into(offset, records.view(np.uint8).data)
        return records

    def read_label_rows(self, first: int, count: int) -> NDArray[np.uint8]:
        """Return the label rows (count, label_bytes) from row ``first`` on, not checked."""
        rows = np.empty((count, self.header.label_bytes), np.uint8)
        offset = self.header.labels_offset + first * self.header.label_bytes
        self.read_into(offset, rows.reshape(-1).data)
        return rows

    def read_ahead(self, offset: int, size_bytes: int) -> None:
        """Request read-ahead of these bytes into the page cache; does not wait for them.

        If many, and the middle one is there, all are taken to be: requests would cost 0.5 % of
        decoding. At either end may be a page that is there for what is beside it.
        """
        if size_bytes > _READ_AHEAD_BYTES and self._is_cached(offset + size_bytes // 2):
            return
        for start in range(offset, offset + size_bytes, _READ_AHEAD_BYTES):
            part = min(_READ_AHEAD_BYTES, offset + size_bytes - start)
            os.posix_fadvise(self._descriptor, start, part, os.POSIX_FADV_WILLNEED)

    def _is_cached(self, offset: int) -> bool:
        try:
            return os.preadv(self._descriptor, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
        except OSError:  # it is not cached, or the file system cannot answer
            return False

    def drop(self, offset: int, size_bytes: int) -> None:
        """Drop these bytes from the page cache, except for pages that hold others as well."""
        if size_bytes:  # else it would be the rest of the file
            os.posix_fadvise(self._descriptor, offset, size_bytes, os.POSIX_FADV_DONTNEED)

    def read_blob(self, record: np.void) -> bytearray:
        """Read the blob of a record; ValueError with the reason where it is not what was written.

        Raises DatasetError where the file cannot be read.
        """
        offset, blob_bytes = int(record["offset"]), int(record["blob_bytes"])
        if not self.holds_blob(offset, blob_bytes):
            raise ValueError("its record points out of the shard")
        blob = bytearray(blob_bytes)
        self.read_into(offset, memoryview(blob))
        if checksum(blob) != int(record["checksum"]):
            raise ValueError("its checksum does not match")
        return blob

    def holds_blob(self, offset: int, blob_bytes: int) -> bool:
        """Return whether the blob lies between the header and the records."""
        return offset >= HEADER_BYTES and offset + blob_bytes <= self.header.records_offset
