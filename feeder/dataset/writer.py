"""Writes one shard: append samples, then ``finish``.

Invariant: a file with the final name is whole, whenever the process or the machine dies. The shard
is written under a temporary name beside the final one and renamed after fsync.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from feeder.dataset.format import (
    ALIGNMENT_BYTES,
    HEADER_BYTES,
    RECORD_BYTES,
    SampleRecord,
    ShardHeader,
    aligned,
    checksum,
)
from feeder.process.output_file import fsync_folder, temporary_path
from feeder.process.path_text import encode_name

if TYPE_CHECKING:
    from feeder.jpeg.recode import TiledJpeg

_BUFFER_BYTES = 1 << 20  # ten images a write, in no more memory than one large image


class ShardWriter:
    """An open shard under a temporary name; a context manager that removes an unfinished file."""

    def __init__(self, path: Path, *, shard: int, label_bytes: int = 0) -> None:
        """``label_bytes`` is the size of each sample's label row: LabelSpec.stored_bytes."""
        self._path = path
        self._shard = shard
        self._temporary = temporary_path(path)
        self._file = self._temporary.open("wb", buffering=_BUFFER_BYTES)
        self._file.write(bytes(HEADER_BYTES))
        self._offset = HEADER_BYTES
        self._records = bytearray()
        self._label_bytes = label_bytes
        self._labels = bytearray()
        self._names = bytearray()
        self._finished = False

    @property
    def samples(self) -> int:
        """Number of samples appended so far."""
        return len(self._records) // RECORD_BYTES

    def append(
        self,
        tiled: "TiledJpeg",
        *,
        label: int,
        name: str,
        flags: int,
        label_row: bytes = b"",
        source_checksum: int = 0,
    ) -> None:
        """Append one re-coded image with its label, source name and Oddity flags.

        ``label`` is the class where the labels are of kind "index", else 0. ``label_row`` is what
        LabelSpec encodes of kinds "multi" and "float", else empty. ``source_checksum`` is xxh3_64
        of the source's bytes, 0 where that is unknown.
        """
        stored_name = encode_name(name)
        record = record_of(
            tiled,
            offset=self._offset,
            label=label,
            name_offset=len(self._names),
            name_bytes=len(stored_name),
            flags=flags,
            source_checksum=source_checksum,
        )
        self._append(record.encode(), tiled.blob, stored_name, label_row)

    def append_copy(
        self,
        record: np.void,
        blob: bytes | memoryview,
        stored_name: bytes,
        label_row: bytes = b"",
    ) -> None:
        """Append a sample of another shard, unchanged but for its offsets."""
        fields = {name: int(record[name]) for name in SampleRecord.__slots__}
        fields["offset"] = self._offset
        fields["name_offset"] = len(self._names)
        self._append(SampleRecord(**fields).encode(), blob, stored_name, label_row)

    def _append(
        self, record: bytes, blob: bytes | memoryview, stored_name: bytes, label_row: bytes
    ) -> None:
        if len(label_row) != self._label_bytes:
            raise ValueError(
                f"a label row of {len(label_row)} bytes in a shard of {self._label_bytes} each"
            )
        self._file.write(blob)
        self._offset += len(blob)
        self._pad()
        self._records += record
        self._labels += label_row
        self._names += stored_name

    def _pad(self) -> None:
        padding = aligned(self._offset) - self._offset
        self._file.write(bytes(ALIGNMENT_BYTES)[:padding])
        self._offset += padding

    def finish(self) -> ShardHeader:
        """Write index and header, make them durable, and give the file its final name."""
        index = bytes(self._records + self._labels + self._names)
        header = ShardHeader(
            shard=self._shard,
            samples=self.samples,
            records_offset=self._offset,
            names_offset=self._offset + len(self._records) + len(self._labels),
            names_bytes=len(self._names),
            index_checksum=checksum(index),
        )
        self._file.write(index)
        self._file.seek(0)
        self._file.write(header.encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self._path)
        fsync_folder(self._path.parent)
        self._finished = True
        return header

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._finished:
            return
        try:
            self._file.close()
        except OSError:
            if error is None:
                raise
            # close() flushes, which fails again if the first error was a full disk
        finally:
            self._temporary.unlink(missing_ok=True)


def record_of(
    tiled: "TiledJpeg",
    *,
    offset: int,
    label: int,
    name_offset: int,
    name_bytes: int,
    flags: int,
    source_checksum: int = 0,
) -> SampleRecord:
    """Return the record of a re-coded image whose blob and name are at these offsets."""
    return SampleRecord(
        offset=offset,
        checksum=checksum(tiled.blob),
        content_checksum=tiled.content_checksum,
        source_checksum=source_checksum,
        blob_bytes=len(tiled.blob),
        label=label,
        name_offset=name_offset,
        flags=flags,
        name_bytes=name_bytes,
        width=tiled.width,
        height=tiled.height,
        subsampling=int(tiled.subsampling),
    )
