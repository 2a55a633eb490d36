"""The messages between the supervisor and its node processes, over their channel.

supervisor                         node process
placement (JSON)  ──────────►      (pins itself before it imports anything large)
NodeConfig        ──────────►      (binds, starts its workers)
                  ◄──────────      NodeReady, or CannotStart and it ends
Neighbours        ──────────►      (takes clients)
                  ◄──────────      Heartbeat, twice a second, from NodeReady on
                  ◄──────────      ReportAsked, for a client's HostStatsRequest
ReportPart …      ──────────►      (answers that client)
Diagnosed         ──────────►      (repeats the verdict in its Pongs)
Drain             ──────────►      (finishes requested batches and ends)
end of channel    ──────────►      (ends)
"""

import msgspec

from feeder.jpeg.decoders import Decoder
from feeder.metrics.records import NodeRecord
from feeder.process.log_lines import LogFormat
from feeder.session.admission import SessionLimits
from feeder.worker.messages import CannotStart, DatasetSource


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The configuration of a node process; units as in the configuration file."""

    is_successor: bool
    """Whether an earlier process has served; if so, a missing list of clients does not end it."""
    restarts: int
    """How many processes before it have crashed."""
    number: int
    """0-based among the daemon's node processes."""
    name: str
    """The feeder's name, or else the host's, and the number."""
    is_named: bool
    """Whether the feeder has a name; if not, a Welcome appends the first bound endpoint."""
    endpoints: tuple[str, ...]
    workers: int
    datasets: dict[str, DatasetSource]
    """By name, each with the fingerprint that the daemon has found at its start."""
    limits: SessionLimits
    weights: dict[str, dict[str, float]]
    """By client and job; a weight of 1 is left out."""
    decoded_bytes: int
    """Budget of the decoded cache; 0 is none."""
    nodes: int
    """How many node processes the daemon has."""
    secret_key: bytes
    """File of the key for tcp; empty where tcp is plain."""
    client_keys: bytes
    socket_mode: int
    drain_s: float
    connections_max: int
    callers_max: int
    decoder: Decoder
    open_shards: int
    log_level: str
    log_format: LogFormat
    worker_module: str = "feeder.worker"
    """What its workers run."""


class Neighbours(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The endpoints of all node processes of the daemon; sent once all of them are ready."""

    endpoints: tuple[tuple[str, ...], ...]
    """As bound, by number; its own included."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Take nothing new, finish requested batches, end within the configured drain_s."""


class ReportPart(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """A piece of the host's report, which may be longer than a packet; they come in order."""

    is_last: bool
    data: bytes
    """A part of the report in MessagePack."""


class Diagnosed(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The supervisor's verdict on the host has changed."""

    text: str


SupervisorToNode = NodeConfig | Neighbours | Drain | ReportPart | Diagnosed


class NodeReady(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """All workers are up; those of a first process have decoded a sample of each dataset."""

    endpoints: tuple[str, ...]
    """As bound, with the ports that the system chose."""
    worker_pids: tuple[int, ...]
    libraries: dict[str, str]
    self_test: str
    """The same for all workers."""
    decoder: str
    """What the workers decode with, such as "own (avx512)"."""
    warnings: tuple[str, ...]
    """Warnings about this process's placement, a line each."""
    library_warnings: tuple[str, ...] = ()


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """The node process's event loop works; what it has measured."""

    snapshot: NodeRecord


class ReportAsked(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Some client wants the host's report."""


NodeToSupervisor = NodeReady | CannotStart | Heartbeat | ReportAsked
