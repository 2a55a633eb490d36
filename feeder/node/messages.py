"""The messages between the supervisor and its node processes, over their channel, and the board.

supervisor                         node process
placement (JSON)  ──────────►      (pins itself before it imports anything large)
NodeConfig, board ──────────►      (binds, starts its workers)
                  ◄──────────      NodeReady, or CannotStart and it ends
Neighbours        ──────────►      (takes clients)
                  ◄──────────      Heartbeat, twice a second, from NodeReady on
Drain             ──────────►      (finishes requested batches and ends)
end of channel    ──────────►      (ends)

The board is a memfd, to which the supervisor writes each new report of the host. Node processes
read it for clients that ask, and repeat its verdict in their Pongs; nobody is woken up for it.
"""

import os
import zlib

import msgspec

from feeder.metrics.records import NodeRecord
from feeder.process.log_lines import LogFormat
from feeder.session.admission import SessionLimits
from feeder.worker.messages import CannotStart, Configure, Started


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The configuration of a node process; units as in the configuration file."""

    is_successor: bool = False
    """Whether an earlier process has served; if so, a missing list of clients does not end it."""
    restarts: int = 0
    """How many processes before it have crashed."""
    number: int
    """0-based among the daemon's node processes."""
    name: str
    """The feeder's name, or else the host's, and the number."""
    is_named: bool
    """Whether the feeder has a name; if not, a Welcome appends the first bound endpoint."""
    endpoints: tuple[str, ...]
    workers: int
    worker: Configure
    """What its workers get, without the cache; the datasets have the fingerprints that the daemon
    has found at its start."""
    limits: SessionLimits
    weights: dict[str, dict[str, float]]
    """By account and job; a weight of 1 is left out."""
    decoded_bytes: int
    """Budget of the decoded cache; 0 is none."""
    fetcher: bytes = b""
    """Where the fetcher listens, if a dataset is a cached one."""
    nodes: int
    """How many node processes the daemon has."""
    secret_key: bytes
    """File of the key for tcp; empty where tcp is plain."""
    client_keys: bytes
    socket_mode: int
    drain_s: float
    connections_max: int
    callers_max: int
    log_level: str
    log_format: LogFormat


class Neighbours(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The endpoints of all node processes of the daemon; sent once all of them are ready."""

    endpoints: tuple[tuple[str, ...], ...]
    """As bound, by number; its own included."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Take nothing new, finish requested batches, end within the configured drain_s."""


SupervisorToNode = NodeConfig | Neighbours | Drain


class NodeReady(Started, frozen=True, kw_only=True, tag=True, array_like=True):
    """All workers are up and have reported the same; those of a first process have decoded a sample
    of each dataset."""

    endpoints: tuple[str, ...]
    """As bound, with the ports that the system chose."""
    worker_pids: tuple[int, ...]
    warnings: tuple[str, ...]
    """Of placement and libraries, a line each."""


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The node process's event loop works; what it has measured."""

    snapshot: NodeRecord


NodeToSupervisor = NodeReady | CannotStart | Heartbeat


class Board(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """What the board says."""

    clock_s: float = float("-inf")
    """When it was written, on the machine's monotonic clock."""
    verdict: str = ""
    frame: bytes = b""
    """HostStats with the report, ready for clients."""


def write_board(fd: int, board: Board) -> None:
    # Stored, not compressed, and with a checksum: it may be read while it is written.
    os.pwrite(fd, zlib.compress(msgspec.msgpack.encode(board), level=0), 0)


def read_board(fd: int) -> Board | None:
    """None if nothing is on it yet, or it is just being written."""
    try:
        data = zlib.decompress(os.pread(fd, os.fstat(fd).st_size, 0))
    except zlib.error:
        return None
    return msgspec.msgpack.decode(data, type=Board)
