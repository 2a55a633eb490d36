"""The messages between a node process and its workers, over their channel.

node process                                worker
Configure + fd       ──────────►
ShareIndexes + fd    ──────────►            (checks its libraries)
                     ◄──────────            Started, or CannotStart and it ends
OpenSession + fd     ──────────►            (maps the session's slots)
Fill                 ──────────►
                     ◄──────────            IndexProven + fd, for a shard that nobody has read yet
                     ◄──────────            Filled or FillFailed, in the order of the Fills
ReadNames            ──────────►
                     ◄──────────            NamesRead
ReadBlobs            ──────────►
                     ◄──────────            BlobsRead + fd
CloseSession         ──────────►            (unmaps the slots)
end of channel       ──────────►            (ends)
"""

import sys
from typing import Final

import msgspec

from feeder import errors
from feeder.jpeg.decoders import Decoder
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.plan.recipe import Recipe
from feeder.sample.cache_plan import CachePlan
from feeder.wire.chunk_work import Fill, Filled, FillFailed


def escape_surrogates(text: str) -> str:
    """Text that MessagePack can encode: bytes of file names that are not UTF-8, escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


class DatasetSource(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The folder of a served dataset, and the fingerprint that its manifest must have."""

    folder: bytes
    fingerprint: str
    is_cached: bool = False
    """It is a cached dataset: not all of its samples are there at any moment."""


MEMBER_PREFIX: Final = ":"
"""What the names begin with under which a node process has datasets that only selections need. No
configured name does, and clients are offered none of them."""


class SelectionSource(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The file of a served selection, the content fingerprint that it must have, and the names of
    its members among the datasets."""

    path: bytes
    content: str
    members: tuple[str, ...]


class Configure(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The first message: what will be served. The decoded cache, if any, is attached as fd."""

    datasets: dict[str, DatasetSource]
    """By name. A worker opens a dataset for its first chunk, and holds to its fingerprint."""
    open_shards: int
    """Most shards of a dataset that the worker holds open."""
    self_test: bool
    """Whether to decode one sample of each dataset before Started. Every worker hashes the built-in
    images: libraries can change between the first worker and its successor."""
    cache: CachePlan | None = None
    decoder: Decoder = "own"
    selections: dict[str, SelectionSource] = {}
    """By name; workers read them in the memory that ShareIndexes has."""
    page_cache_bytes: int = sys.maxsize
    """What the page cache may hold for this node process; workers keep no more samples in it."""


class ShareIndexes(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The second message; the memory that proven indexes are read from is attached as fd."""

    starts: dict[str, int]
    """Where each dataset's part begins, by name; none where it could not be opened."""
    selections: dict[str, tuple[int, int]] = {}
    """Where each selection begins and ends, likewise."""


class OpenSession(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """A session's slots and how to fill them; the slots' memory is attached as fd."""

    session: int
    dataset: str
    recipe: Recipe
    seed: int
    slots: int
    labels: LabelSpec = INDEX_LABELS
    """Labels of the dataset whose fingerprint Configure names."""


class CloseSession(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The session has ended; there are no more Fills for it."""

    session: int


class ReadNames(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Read the source names of samples, which the dataset has."""

    ticket: int
    dataset: str
    sample_ids: tuple[int, ...]


class ReadBlobs(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Read the blobs of samples, which the dataset has, for another feeder."""

    ticket: int
    dataset: str
    sample_ids: tuple[int, ...]


NodeToWorker = Configure | ShareIndexes | OpenSession | CloseSession | Fill | ReadNames | ReadBlobs


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The worker is ready for sessions, with these versions of all that shapes its bytes."""

    libraries: dict[str, str]
    self_test: str
    """Hash of the bytes that these libraries make: ``feeder.sample.self_test``."""
    decoder: str
    """What decodes, such as "own (avx512)"; of no consequence for the bytes."""


class CannotStart(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The worker or node process ends for this reason."""

    error: str
    """Name of its class in feeder.errors."""
    message: str

    @classmethod
    def of(cls, error: errors.FeederError) -> "CannotStart":
        """Carry an error to the parent process."""
        return cls(error=type(error).__name__, message=escape_surrogates(str(error)))

    def as_error(self) -> errors.FeederError:
        """The error that was carried."""
        return errors.named_error(self.error, self.message)


class IndexProven(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The index of a shard is that of the manifest; its records, then its label rows, are in an
    anonymous file, which is attached as fd."""

    dataset: str
    shard: int


class NamesRead(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The names of the first samples, as bytes: those that could be read in time, at least one."""

    ticket: int
    names: tuple[bytes, ...]
    busy_s: float
    """Wall-clock time."""
    problem: str = ""
    """Why there is none."""


class BlobsRead(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The blobs of the first samples, as many as could be read in time, are in an anonymous file,
    without gaps, which is attached as fd unless there is a ``problem``."""

    ticket: int
    sizes: tuple[int, ...]
    """Of each in bytes; 0: it is damaged, was evicted meanwhile, or is too large."""
    busy_s: float
    """Wall-clock time."""
    problem: str = ""
    """Why there is none."""


WorkerToNode = Started | CannotStart | Filled | FillFailed | IndexProven | NamesRead | BlobsRead
