"""What the supervisor and its node processes say to each other over their channel.

supervisor                         node process
placement (JSON)  ──────────►      (pins itself before it imports anything large)
NodeConfig        ──────────►      (binds, starts its workers)
                  ◄──────────      NodeReady, or CannotStart and it ends
Neighbours        ──────────►      (takes clients)
Drain             ──────────►      (finishes what was asked for and ends)
end of channel    ──────────►      (ends)
"""

import msgspec

from feeder.worker.messages import CannotStart


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """All that a node process is told; units as in the configuration file."""

    is_successor: bool
    """Whether one before it has served: then it does not end for want of the list of clients."""
    restarts: int
    """How many before it have crashed."""
    number: int
    """0-based among the daemon's node processes."""
    name: str
    """Host name and number; clients are told the first endpoint as bound with it."""
    endpoints: tuple[str, ...]
    workers: int
    datasets: dict[str, bytes]
    """Folder of each dataset by its name."""
    window_max: int
    chunk_images: int
    slots_bytes: int
    decoded_bytes: int
    """Budget of the decoded cache; 0 is none."""
    nodes: int
    """How many node processes the daemon has."""
    clients_max: int
    secret_key: bytes
    """File of the key for tcp; empty where tcp is plain."""
    client_keys: bytes
    socket_mode: int
    client_sessions_max: int
    client_slots_bytes: int
    recipes_max: int
    client_recipes_max: int
    lease_s: float
    drain_s: float
    connections_max: int
    memories_max: int
    callers_max: int
    """These three are what the limit of open files allows for: DescriptorPlan."""
    open_shards: int
    log_level: str


class Neighbours(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Where all node processes of the daemon are; told once all of them have been ready."""

    endpoints: tuple[tuple[str, ...], ...]
    """As bound, by number; its own included."""


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Take nothing new, finish what was asked for, end within the configured drain_s."""


SupervisorToNode = NodeConfig | Neighbours | Drain


class NodeReady(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """All workers are up and have decoded a sample of each dataset."""

    endpoints: tuple[str, ...]
    """As bound, with the ports that the system chose."""
    worker_pids: tuple[int, ...]
    libraries: dict[str, str]
    self_test: str
    """Of all workers alike."""
    warnings: tuple[str, ...]
    """What people should know of this process's placement, a line each."""
    library_warnings: tuple[str, ...] = ()
    """And of the libraries that it has."""


NodeToSupervisor = NodeReady | CannotStart
