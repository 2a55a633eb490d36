"""An open dataset: samples by id, read from shards that are opened on first use.

Opening reads the manifest only. Records and label rows are those of an index that was proven once
(``proven_shard``) and is kept in memory (``proven_index``), blobs are compared with their records'
checksums. So whatever happens to the files meanwhile, what is read is what was packed.
"""

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.files import DatasetFiles, Location, files_at
from feeder.dataset.format import checksum
from feeder.dataset.manifest import MANIFEST_NAME, Manifest, load_manifest
from feeder.dataset.proven_index import ProvenIndex
from feeder.dataset.proven_shard import ProvenShard
from feeder.dataset.reader import ShardIndex
from feeder.dataset.record_checks import find_inconsistent
from feeder.errors import DatasetError, ResourceError, SampleError
from feeder.plan.labels import NO_LABEL, LabelRows
from feeder.process.path_text import decode_name, printable

_OPEN_SHARDS = 512  # half of the usual soft limit of 1024 descriptors a process


class BlobLocation(NamedTuple):
    """The location of a sample's blob."""

    sample_id: int
    shard: int
    offset: int
    blob_bytes: int
    checksum: int


class Samples(Protocol):
    """Packed samples by id, as the sample path needs them; usually a ``Dataset``."""

    @property
    def where(self) -> str:
        """Their location, for messages."""

    def read_records(self, sample_ids: NDArray[np.int64]) -> NDArray[np.void]:
        """See ``Dataset.read_records``."""

    def read_labels(
        self, sample_ids: NDArray[np.int64], records: NDArray[np.void], out: LabelRows
    ) -> None:
        """See ``Dataset.read_labels``."""

    def find_blobs(
        self, sample_ids: NDArray[np.int64], records: NDArray[np.void]
    ) -> list[BlobLocation]:
        """See ``Dataset.find_blobs``."""

    def read_blob(self, location: BlobLocation, into: NDArray[np.uint8]) -> memoryview:
        """See ``Dataset.read_blob``."""

    def describe(self, sample_id: int) -> str:
        """See ``Dataset.describe``."""


class Dataset:
    """A packed dataset, for one thread of one process; a context manager."""

    def __init__(
        self, location: Location | DatasetFiles, manifest: Manifest, open_shards: int
    ) -> None:
        self._files = files_at(location)
        self.where = self._files.where
        self.manifest = manifest
        self.content = manifest.content
        self.classes = manifest.classes
        self.labels = manifest.labels
        self._record_labels = self.labels.count_record_labels(len(self.classes))
        self.layout = manifest.layout
        self._rows, self._long_shards = divmod(manifest.samples, len(manifest.shards))
        self._readers: OrderedDict[int, ProvenShard] = OrderedDict()
        self._readers_max = open_shards
        self._own: dict[int, ShardIndex] = {}  # proven, on its way into the index
        self._last_index: tuple[int, ShardIndex] | None = None  # of this shard, for names

    @classmethod
    def open(
        cls, location: Location, *, open_shards: int = _OPEN_SHARDS, fingerprint: str | None = None
    ) -> Self:
        """Open the dataset in a folder or store, with at most ``open_shards`` open at a time.

        Raises DatasetError when it is missing, damaged, unfinished, of another version, or not the
        one whose manifest has ``fingerprint``.
        """
        files = files_at(location)
        manifest = load_manifest(files)
        if fingerprint not in (None, manifest.fingerprint):
            raise DatasetError(
                f"{files.locate(MANIFEST_NAME)} is of another dataset than the one that is "
                f"served: its fingerprint is {manifest.fingerprint}, it was {fingerprint}; restore "
                "the old one or restart the daemon"
            )
        return cls(files, manifest, open_shards)

    @functools.cached_property
    def index(self) -> ProvenIndex:
        """The index of the shards used so far: this process's own, unless a shared one was set."""
        return ProvenIndex(self.layout, self.labels.stored_bytes)

    def read_records(self, sample_ids: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the records (n,) of dtype RECORD of the ids (n,), in the same order.

        Raises SampleError that names the sample if its record is inconsistent (``record_checks``),
        DatasetError that names the shard if it cannot be opened, verified or read, ResourceError if
        too many files are open.
        """
        records = self._read_rows(sample_ids, "records")
        inconsistent = find_inconsistent(records, self._record_labels)
        if inconsistent is not None:
            raise self._damaged(int(sample_ids[inconsistent]), "its record contradicts itself")
        return records

    def read_labels(
        self, sample_ids: NDArray[np.int64], records: NDArray[np.void], out: LabelRows
    ) -> None:
        """Write the labels of ``read_records(sample_ids)`` into ``out`` (n, *labels.row_shape).

        Errors are those of a shard, as ``read_records`` raises them.
        """
        if self.labels.kind == "index":
            out[:] = records["label"]
        elif self.labels.kind == "none":
            out[:] = NO_LABEL
        else:
            self.labels.decode_rows(self._read_rows(sample_ids, "label_rows"), out)

    def _read_rows(
        self, sample_ids: NDArray[np.int64], what: Literal["records", "label_rows"]
    ) -> NDArray[Any]:
        shards, rows = self.layout.locate(sample_ids)
        if self._own:
            self._own = {n: own for n, own in self._own.items() if not self.index.is_here[n]}
        missing = self.index.is_here[shards] == 0  # before their rows are read
        found: NDArray[Any] = getattr(self.index, what).take(sample_ids, axis=0)
        if missing.any():
            for shard in np.unique(shards[missing]).tolist():
                wanted = shards == shard
                found[wanted] = getattr(self._prove(shard), what)[rows[wanted]]
        return found

    def _prove(self, shard: int) -> ShardIndex:
        own = self._own.get(shard)
        if own is None:
            own = self._read_index(shard)
            self.index.add(shard, own)
            if not self.index.is_here[shard]:
                self._own[shard] = own
        return own

    def _read_index(self, shard: int) -> ShardIndex:
        if self._last_index is None or self._last_index[0] != shard:
            self._last_index = shard, self.open_shard(shard).prove_index()
        return self._last_index[1]

    def find_blobs(
        self, sample_ids: NDArray[np.int64], records: NDArray[np.void]
    ) -> list[BlobLocation]:
        """Return the locations of the blobs of ``read_records(sample_ids)``.

        Requests read-ahead, so that the disk reads the next samples while one decodes. Raises
        SampleError that names a sample whose record points out of its shard; errors of a shard are
        those of ``read_records``.
        """
        locations = []
        extents = records[["offset", "blob_bytes", "checksum"]].tolist()
        for sample_id, (offset, blob_bytes, expected) in zip(
            sample_ids.tolist(), extents, strict=True
        ):
            shard = self._locate(sample_id)[0]
            reader = self.open_shard(shard)
            if not reader.holds_blob(offset, blob_bytes):
                raise self._damaged(sample_id, "its record points out of the shard")
            reader.file.read_ahead(offset, blob_bytes)
            locations.append(BlobLocation(sample_id, shard, offset, blob_bytes, expected))
        return locations

    def read_blob(self, location: BlobLocation, into: NDArray[np.uint8]) -> memoryview:
        """Read a sample's blob into the scratch ``into`` and return the part that it fills.

        ``into`` holds at least ``location.blob_bytes`` bytes. Raises SampleError that names the
        sample if the blob's checksum is wrong; errors of a shard are those of ``read_records``.
        """
        sample_id, shard, offset, blob_bytes, expected = location
        blob = into.data[:blob_bytes]
        if len(blob) < blob_bytes:
            raise ValueError(f"the scratch holds {len(blob)} bytes, the blob has {blob_bytes}")
        self.open_shard(shard).file.read_into(offset, blob)
        if checksum(blob) != expected:
            raise self._damaged(sample_id, "its checksum does not match")
        return blob

    def advise(self, ranges: Iterable[tuple[int, int]], *, needed: bool) -> None:
        """Advise the kernel about ranges of samples (first, end): to read them ahead, as they are
        ``needed``, or to drop them from the page cache.

        Only the pace depends on it, so errors are left to whoever reads these samples.
        """
        for first, end in ranges:
            while first < end:
                shard, row = self._locate(first)
                rows = min(end - first, self.manifest.shards[shard].samples - row)
                with contextlib.suppress(DatasetError, ResourceError, OSError):
                    reader = self.open_shard(shard)
                    ends = self._read_rows(np.array([first, first + rows - 1]), "records")
                    start, last = np.minimum(ends["offset"], reader.header.records_offset).tolist()
                    size_bytes = last + int(ends["blob_bytes"][1]) - start
                    (reader.file.read_ahead if needed else reader.file.drop)(start, size_bytes)
                first += rows

    def shard_path(self, sample_id: int) -> str:
        """Return the path or URL of the shard that holds a sample."""
        return self._files.locate(self.manifest.shards[self._locate(sample_id)[0]].name)

    def describe(self, sample_id: int) -> str:
        """Return e.g. ``sample 17 (n01440764/x.JPEG) in shard-00003.fds``, for messages.

        The name is "name unreadable" where the shard is damaged or cannot be opened.
        """
        shard, _ = self._locate(sample_id)
        name = self.name_of(sample_id) or "name unreadable"
        return f"sample {sample_id} ({name}) in {self.manifest.shards[shard].name}"

    def name_of(self, sample_id: int) -> str | None:
        """Return the sample's printable name, or None where its shard is damaged or unreadable."""
        try:
            return printable(self.read_name(sample_id))
        except (DatasetError, ResourceError):
            return None

    def read_name(self, sample_id: int) -> str:
        """Return the name that the sample's source had, as ``path_text.decode_name`` returns it.

        Reads and verifies the whole index of its shard, unless the name before was from it. Raises
        IndexError for an id that the dataset has not; errors of a shard are those of
        ``read_records``.
        """
        shard, row = self._locate(sample_id)
        index = self._read_index(shard)
        record = index.records[row]
        if int(record["name_offset"]) + int(record["name_bytes"]) > len(index.names):
            path = self.shard_path(sample_id)
            raise DatasetError(f"{path} has a record whose name is out of the file")
        return decode_name(index.name(record))

    def close(self) -> None:
        """Close all shards."""
        while self._readers:
            self._readers.popitem()[1].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _locate(self, sample_id: int) -> tuple[int, int]:
        """Return shard number and row: ``layout.locate`` for one id, without numpy's overhead."""
        if not 0 <= sample_id < self.layout.samples:
            raise IndexError(f"sample {sample_id} is not within 0 .. {self.layout.samples - 1}")
        long_samples = self._long_shards * (self._rows + 1)
        if sample_id < long_samples:
            return divmod(sample_id, self._rows + 1)
        shard, row = divmod(sample_id - long_samples, self._rows)
        return shard + self._long_shards, row

    def open_shard(self, shard: int) -> ProvenShard:
        """Return shard number ``shard``, which the dataset closes; errors as ``read_records``."""
        reader = self._readers.get(shard)
        if reader is not None:
            self._readers.move_to_end(shard)
            return reader
        while len(self._readers) >= self._readers_max:
            self._readers.popitem(last=False)[1].close()
        reader = self._readers[shard] = ProvenShard(
            self._files,
            self.manifest.shards[shard],
            shard,
            label_bytes=self.labels.stored_bytes,
        )
        return reader

    def _damaged(self, sample_id: int, what: str) -> SampleError:
        return SampleError(
            f"{self.describe(sample_id)} of {self.where} is damaged ({what}): run "
            f"`feeder verify {self.where}`, then restore the shard or pack again",
            sample_id,
        )
