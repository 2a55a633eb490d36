"""How many connections and sessions the limit of open files allows for.

A session takes three descriptors of its node process (its slots, their mapping, the client's hold
on them) and two of each worker; its connection is one more. libzmq aborts a process that has none
left for a connection, so all that clients can take is bounded here, with a reserve.
"""

import resource
from dataclasses import dataclass
from typing import Final

from feeder.errors import ResourceError
from feeder.node.messages import NodeConfig
from feeder.remedies import more_files
from feeder.session.admission import MEMORIES_A_SESSION

_NODE_FILES: Final = 24
"""What a node process has open without workers, endpoints and clients: libzmq's, channels, keys,
the cache. test_descriptors.py counts them."""

_RESERVE_FILES: Final = 16
"""For a worker that is being started, lists of keys, statistics and hand-overs."""

_ENDPOINT_FILES: Final = 3
"""Its listener, the one for claims, and a connection more than may stay."""

_WORKER_FILES: Final = 16
"""What a worker has open besides shards and slots, with some to spare."""

_SESSION_FILES: Final = 3
_SESSION_WORKER_FILES: Final = 2
_CALLERS_MAX: Final = 64
_CONNECTIONS_A_CLIENT: Final = 4
_CONNECTIONS_SPARE: Final = 64
"""For clients that reconnect before their old connection is found dead, and for `feeder status`."""


_UNLIMITED_FILES: Final = 1 << 20
"""Where the limit is none: the kernel's own, unless fs.nr_open was raised."""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _UNLIMITED_FILES if hard == resource.RLIM_INFINITY else hard


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorPlan:
    """What a node process may give to clients."""

    connections_max: int
    memories_max: int
    """Sessions with slots, ended ones whose slots are still mapped included."""
    callers_max: int
    """Of connections to the slots' door, those that have not claimed."""
    open_shards: int
    """In each worker, of each dataset."""


def plan_descriptors(
    limit: int, *, endpoints: int, workers: int, datasets: int, clients_max: int, open_shards: int
) -> DescriptorPlan:
    """Divide ``limit`` descriptors; ResourceError where they are too few for one session."""
    fixed = _NODE_FILES + _RESERVE_FILES + _ENDPOINT_FILES * endpoints + workers
    free = max(0, limit - fixed)
    callers = min(_CALLERS_MAX, max(1, free // 16))
    left = free - callers
    spare = min(_CONNECTIONS_SPARE, max(1, left // 4))
    memories = min(MEMORIES_A_SESSION * clients_max, (left - spare) // (_SESSION_FILES + 1))
    memories = min(memories, (limit - _WORKER_FILES - datasets) // _SESSION_WORKER_FILES)
    if memories < 1:
        need = max(fixed + 2 + _SESSION_FILES + 1, _WORKER_FILES + datasets + _SESSION_WORKER_FILES)
        raise ResourceError(
            f"this process may open {limit:,} files, and each node process needs {need:,} for one "
            f"session: {more_files()}"
        )
    shards = (limit - _WORKER_FILES - _SESSION_WORKER_FILES * memories) // max(1, datasets)
    return DescriptorPlan(
        connections_max=min(
            _CONNECTIONS_A_CLIENT * clients_max + _CONNECTIONS_SPARE,
            left - _SESSION_FILES * memories,
        ),
        memories_max=memories,
        callers_max=callers,
        open_shards=min(open_shards, shards),
    )


def describe_shortage(limit: int, config: NodeConfig) -> str | None:
    """Return in one line which configured limits the descriptors do not allow for, or None."""
    if config.clients_max <= config.memories_max:
        return None  # there are never more sessions than clients_max, whatever one client may have
    wanted = {"clients_max": config.clients_max, "client_sessions_max": config.client_sessions_max}
    beyond = [
        f"{name} = {value:,}" for name, value in wanted.items() if value > config.memories_max
    ]
    s = "" if config.memories_max == 1 else "s"
    return (
        f"{limit:,} open files are enough for {config.memories_max:,} session{s} of a node "
        f"process, not for {' and '.join(beyond)}: {more_files()}, or lower these"
    )
