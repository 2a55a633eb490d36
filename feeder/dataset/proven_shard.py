"""A shard of a dataset, whose header and whole index are compared with the manifest.

The manifest holds a checksum of each shard's index: its records, label rows and names. So either a
record belongs to this row of this shard of this dataset, or proving the index fails: also when the
file was replaced in place, when records are swapped, and when every checksum inside the file is
right. Each record holds its blob's checksum.
"""

from feeder.dataset.files import DatasetFiles
from feeder.dataset.format import record_is_intact
from feeder.dataset.manifest import ShardEntry
from feeder.dataset.reader import ShardIndex, ShardReader
from feeder.errors import DatasetError


def compare_header(reader: ShardReader, entry: ShardEntry, number: int, label_bytes: int) -> str:
    """Return what of a shard is not as the manifest has it, such as "samples, size"; or "".

    ``label_bytes`` is LabelSpec.stored_bytes of the dataset's labels.
    """
    header = reader.header
    agrees = {
        "number": header.shard == number,
        "samples": header.samples == entry.samples,
        "size": reader.file.size_bytes == header.file_bytes == entry.bytes,
        "labels": header.label_bytes == label_bytes or not header.samples,
        "index": f"{header.index_checksum:016x}" == entry.index_xxh3,
    }
    return ", ".join(what for what, same in agrees.items() if not same)


class ProvenShard(ShardReader):
    """Shard ``number`` of the dataset in ``files``; DatasetError unless its header matches
    ``entry``.

    ``label_bytes`` is LabelSpec.stored_bytes of the dataset's labels.
    """

    def __init__(
        self, files: DatasetFiles, entry: ShardEntry, number: int, *, label_bytes: int = 0
    ) -> None:
        super().__init__(files.open(entry.name))
        self._dataset = files.where
        different = compare_header(self, entry, number, label_bytes)
        if different:
            self.close()
            raise self._mismatch(f"different {different}")

    def prove_index(self) -> ShardIndex:
        """Read the whole index; DatasetError unless it is the one that the manifest describes."""
        index = self.read_index()  # its checksum is the header's, which is the manifest's
        if not index.is_intact:
            for row, record in enumerate(index.records):
                if not record_is_intact(record.tobytes()):
                    raise self._mismatch(f"the record in row {row} is damaged")
            raise self._mismatch("its records, labels or names are not those that were packed")
        return index

    def _mismatch(self, how: str) -> DatasetError:
        return DatasetError(
            f"{self.file.where} does not match the manifest ({how}): run "
            f"`feeder verify {self._dataset}`, then restore the shard or pack again; if the "
            "dataset was packed again, restart the processes that read it"
        )
