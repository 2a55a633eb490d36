"""A shard of a dataset, with every record, label row and name verified against the manifest.

The manifest holds a checksum of each shard's index (its records, label rows and names). On first
use the whole index is read, compared with it, and hashed in blocks. Later reads copy whole blocks
and compare their hashes before using the copy. So either a record belongs to this row of this shard
of this dataset, or reading it fails: also when the file is replaced in place while it is served,
when records are swapped, and when every checksum inside the file is right. Each record holds its
blob's checksum.

The hashes take 8 bytes for each 2 KiB of index, half a byte a sample without label rows, and
outlive the descriptor: a shard that is closed and opened again needs no second pass over its index.
"""

from array import array
from pathlib import Path
from typing import Final

import numpy as np
import xxhash

from feeder.dataset.format import RECORD, RECORD_BYTES, checksum, record_is_intact
from feeder.dataset.manifest import ShardEntry
from feeder.dataset.reader import ShardReader
from feeder.errors import DatasetError
from feeder.process.path_text import decode_name

BLOCK_BYTES: Final = 2048
"""A multiple of RECORD_BYTES. Reading and hashing one takes 0.5 µs more than reading a record."""

_PIECE_BYTES: Final = 512 * BLOCK_BYTES
"""How much of an index is in memory at a time while it is verified."""


def compare_header(reader: ShardReader, entry: ShardEntry, number: int, label_bytes: int) -> str:
    """Return what of a shard is not as the manifest has it, such as "samples, size"; or "".

    ``label_bytes`` is LabelSpec.stored_bytes of the dataset's labels.
    """
    header = reader.header
    agrees = {
        "number": header.shard == number,
        "samples": header.samples == entry.samples,
        "size": reader.file_bytes == header.file_bytes == entry.bytes,
        "labels": header.label_bytes == label_bytes or not header.samples,
        "index": f"{header.index_checksum:016x}" == entry.index_xxh3,
    }
    return ", ".join(what for what, same in agrees.items() if not same)


class ProvenShard(ShardReader):
    """Shard ``number`` of the dataset in ``folder``; DatasetError unless it matches ``entry``.

    ``label_bytes`` is LabelSpec.stored_bytes of the dataset's labels. ``block_hashes`` come from an
    earlier ProvenShard of the same entry; with them, opening reads the header only.
    """

    def __init__(
        self,
        folder: Path,
        entry: ShardEntry,
        number: int,
        block_hashes: "array[int] | None" = None,
        *,
        label_bytes: int = 0,
    ) -> None:
        super().__init__(folder / entry.name)
        try:
            different = compare_header(self, entry, number, label_bytes)
            if different:
                raise self._mismatch(f"different {different}")
            if block_hashes is None:
                block_hashes = self._prove_index(entry)
            elif len(block_hashes) != -(-self._index_bytes // BLOCK_BYTES):
                raise self._mismatch("its index has another size")
        except BaseException:
            self.close()
            raise
        self.block_hashes = block_hashes
        self._block = memoryview(bytearray(BLOCK_BYTES))

    def copy_record(self, row: int, out: memoryview) -> bool:
        """Fill ``out`` (64 bytes) with record ``row``; return False if the index has changed."""
        block, start = divmod(row * RECORD_BYTES, BLOCK_BYTES)
        copied = self._copy_block(block)
        if copied is None:
            return False
        out[:] = copied[start : start + RECORD_BYTES]
        return True

    def copy_label_row(self, row: int, out: memoryview) -> bool:
        """Fill ``out`` (label_bytes) with label row ``row``; return False if the index changed."""
        start = self.header.labels_offset - self.header.records_offset + row * len(out)
        return self._copy_range(start, out)

    def extent(self, row: int, rows: int) -> tuple[int, int]:
        """Return offset and size of the blobs of ``rows`` rows from ``row`` on, which are adjacent.

        DatasetError if the index has changed.
        """
        start, end = self._blob_offset(row), self._blob_offset(row + rows)
        return start, end - start

    def _blob_offset(self, row: int) -> int:
        if row == self.header.samples:
            return self.header.records_offset
        record = np.empty(1, RECORD)
        if not self.copy_record(row, record.view(np.uint8).data):
            raise self.changed()
        return min(int(record[0]["offset"]), self.header.records_offset)

    def read_name(self, record: np.void) -> str:
        """Return the source name of a record; DatasetError if the index has changed."""
        names_start = self.header.names_offset - self.header.records_offset
        start, name = names_start + int(record["name_offset"]), bytearray(record["name_bytes"])
        if start + len(name) > self._index_bytes:
            raise DatasetError(f"{self.path} has a record whose name is out of the file")
        if not self._copy_range(start, memoryview(name)):
            raise self.changed()
        return decode_name(bytes(name))

    def changed(self) -> DatasetError:
        """Return the error for a shard whose index is not the verified one any more."""
        return DatasetError(
            f"{self.path} has changed since it was first read: restore it, or pack again and "
            "restart the processes that read it"
        )

    @property
    def _index_bytes(self) -> int:
        return self.header.file_bytes - self.header.records_offset

    def _copy_range(self, start: int, out: memoryview) -> bool:
        """Fill ``out`` with the index from ``start`` on; return False if the index has changed."""
        done = 0
        while done < len(out):
            block, skipped = divmod(start + done, BLOCK_BYTES)
            copied = self._copy_block(block)
            if copied is None:
                return False
            piece = copied[skipped : skipped + len(out) - done]
            out[done : done + len(piece)] = piece
            done += len(piece)
        return True

    def _copy_block(self, number: int) -> memoryview | None:
        """Return a copy of block ``number`` of the index; None if it has changed."""
        start = number * BLOCK_BYTES
        block = self._block[: self._index_bytes - start]
        self.read_into(self.header.records_offset + start, block)
        return block if checksum(block) == self.block_hashes[number] else None

    def _prove_index(self, entry: ShardEntry) -> "array[int]":
        """Read the whole index; return the hashes of its blocks if it matches ``entry``."""
        whole, hashes = xxhash.xxh3_64(), array("Q")
        for first in range(0, self._index_bytes, _PIECE_BYTES):
            piece = memoryview(bytearray(min(_PIECE_BYTES, self._index_bytes - first)))
            self.read_into(self.header.records_offset + first, piece)
            whole.update(piece)
            for start in range(0, len(piece), BLOCK_BYTES):
                hashes.append(checksum(piece[start : start + BLOCK_BYTES]))
        if f"{whole.intdigest():016x}" != entry.index_xxh3:
            raise self._mismatch(self._describe_index())
        return hashes

    def _describe_index(self) -> str:
        """Return what is wrong with an index that does not match the manifest."""
        record = memoryview(bytearray(RECORD_BYTES))
        for row in range(self.header.samples):
            self.read_into(self.header.records_offset + row * RECORD_BYTES, record)
            if not record_is_intact(record):
                return f"the record in row {row} is damaged"
        return "its records, labels or names are not those that were packed"

    def _mismatch(self, how: str) -> DatasetError:
        return DatasetError(
            f"{self.path} does not match the manifest ({how}): run "
            f"`feeder verify {self.path.parent}`, then restore the shard or pack again; if the "
            "dataset was packed again, restart the processes that read it"
        )
