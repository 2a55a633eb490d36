"""The messages of a fetcher: with its supervisor, and with node processes.

supervisor                                  fetcher
FetcherConfig + fd   ──────────►            (opens the cached datasets; fd is a listening socket)
                     ◄──────────            FetcherBeat twice a second, or CannotFetch and it ends
end of channel       ──────────►            (ends)

node process                                fetcher
connect              ──────────►            (SOCK_SEQPACKET on the listening socket)
                     ◄──────────            Serving, once it runs
Owned, Ahead, Behind ──────────►
Want                 ──────────►
                     ◄──────────            Here or Absent, in any order
Forget               ──────────►            (no answer follows, unless it was on its way)
end of connection    ──────────►            (forgets all that it wanted)

Samples are named by ranges (first, end) of the packed order. ``dataset`` is a name in
FetcherConfig. A connection that sends anything else, or a range that the dataset has not, is
closed.
"""

from typing import Final

import msgspec

from feeder.disk_cache.ranges import Ranges
from feeder.errors import FeederError, named_error
from feeder.metrics.records import StoreRecord
from feeder.process.log_lines import LogFormat

DISK_KINDS: Final = ("disk-full", "disk-read-only", "disk-failing")


class FetcherConfig(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The first message; the listening socket is attached as fd."""

    datasets: dict[str, bytes]
    """By name, the folder that ``prepare`` returned."""
    disk_path: bytes
    """As ``cache.disk_path``: the folder that has or gets the cache's own."""
    disk_bytes: int = 0
    """Budget for all datasets of the folder, whoever fetched them; 0: by the room that there is."""
    peers: tuple[str, ...] = ()
    """As ``serve.peers``; keys for them are of ``server_key``, their public one, and in the file
    ``peer_key``."""
    name: str = ""
    """As ``serve.name``."""
    server_key: str = ""
    peer_key: bytes = b""
    log_level: str = "info"
    log_format: LogFormat = "text"


class FetcherBeat(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The fetcher runs; the first one says that it takes connections."""

    record: StoreRecord


class CannotFetch(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The fetcher ends for this reason."""

    error: str
    """Name of its class in feeder.errors."""
    message: str

    def as_error(self) -> FeederError:
        """The error that was carried."""
        return named_error(self.error, self.message)


class Want(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """These samples are needed now. Wants are served in the order of their arrival."""

    number: int
    """Chosen by the node process; it replaces a Want of this number that waits."""
    dataset: str
    ranges: Ranges
    whole: bool = True
    """Whether to fetch the pieces of those that are missing, or these samples alone."""
    lanes: int = 0
    """Of the order, where the batch is one that another feeder owns: that one is asked first, by
    ``Ownership.order`` of ``lane`` and ``index``. 0: no other feeder is asked."""
    lane: int = 0
    index: int = 0
    doubted: bool = False
    """A worker found one of them damaged: what the disk has of their pieces is compared with its
    checksums before the answer."""


class Forget(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The Want of this number is not needed any more."""

    number: int


class Ahead(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """These samples will be wanted: they are fetched when no Want waits, and kept until as many
    Behinds have named them."""

    dataset: str
    ranges: Ranges


class Behind(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """These samples, with the ranges of an Ahead, will not be wanted again in their epoch."""

    dataset: str
    ranges: Ranges


class Owned(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All samples that this host owns; replaces the connection's last one. Without any from any
    connection, all are owned."""

    dataset: str
    ranges: Ranges


class Serving(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The fetcher is running. A connection alone does not show that: the supervisor keeps the
    socket listening while there is no fetcher."""


class Here(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All samples of a Want are there. They stay if their pieces were pinned before; else whoever
    pins them looks again, and sends another Want if need be."""

    number: int


class Absent(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The samples of a Want cannot be had."""

    number: int
    kind: str
    """Of StoreError, one of DISK_KINDS, or "damaged": the store has other bytes than were packed.
    "timeout" is also of another process that fetches them, and is stopped."""
    message: str


SupervisorToFetcher = FetcherConfig
FetcherToSupervisor = FetcherBeat | CannotFetch
NodeToFetcher = Want | Forget | Ahead | Behind | Owned
FetcherToNode = Serving | Here | Absent
