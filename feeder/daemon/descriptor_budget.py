"""Divides the limit of open files between connections, sessions and shards.

A session takes three descriptors in its node process (its slots, their mapping, the client's claim
connection) and two in each worker; its connection takes one more. libzmq aborts a process that
runs out of descriptors on a new connection, so everything that clients can use is bounded here,
with a reserve.
"""

import resource
from dataclasses import dataclass
from typing import Final

from feeder.errors import ResourceError
from feeder.remedies import more_files
from feeder.session.admission import MEMORIES_A_SESSION, SessionLimits

_NODE_FILES: Final = 24
"""Open in a node process without workers, endpoints and clients: libzmq's, channels, keys, the
cache. test_descriptors.py counts them."""

_RESERVE_FILES: Final = 16
"""For a worker that is starting, key lists, statistics and descriptors on their way."""

_ENDPOINT_FILES: Final = 3
"""Its listener, its claim listener, and one connection over the cap until it is cut."""

_WORKER_FILES: Final = 16
"""Open in a worker besides shards and slots, with some to spare."""

_SESSION_FILES: Final = 3
_SESSION_WORKER_FILES: Final = 2
_CALLERS_MAX: Final = 64
_CONNECTIONS_A_CLIENT: Final = 4
_CONNECTIONS_SPARE: Final = 64
"""For clients that reconnect before their old connection is found dead, and for `feeder status`."""

_UNLIMITED_FILES: Final = 1 << 20
"""If the limit is infinite: the kernel's default of fs.nr_open."""


def raise_file_limit() -> int:
    """Raise the soft limit of open files to the hard one, and return it; children inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return _UNLIMITED_FILES if hard == resource.RLIM_INFINITY else hard


@dataclass(frozen=True, slots=True, kw_only=True)
class DescriptorPlan:
    """How many descriptors may be used for what."""

    connections_max: int
    memories_max: int
    """Sessions with slots, including ended ones that are still mapped."""
    callers_max: int
    """Connections to the claim listener that have not claimed yet."""
    open_shards: int
    """In each worker, of each dataset."""


def plan_descriptors(
    limit: int, *, endpoints: int, workers: int, datasets: int, clients_max: int, open_shards: int
) -> DescriptorPlan:
    """Divide ``limit`` descriptors; ResourceError where they are too few for one session."""
    fixed = _NODE_FILES + _RESERVE_FILES + _ENDPOINT_FILES * endpoints + workers
    free = max(0, limit - fixed)
    callers = min(_CALLERS_MAX, max(1, free // 16))
    remaining = free - callers
    spare = min(_CONNECTIONS_SPARE, max(1, remaining // 4))
    memories = min(MEMORIES_A_SESSION * clients_max, (remaining - spare) // (_SESSION_FILES + 1))
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
            remaining - _SESSION_FILES * memories,
        ),
        memories_max=memories,
        callers_max=callers,
        open_shards=min(open_shards, shards),
    )


def describe_shortage(files_max: int, limits: SessionLimits) -> str | None:
    """Return in one line which configured limits the descriptors do not allow for, or None."""
    if limits.sessions_max <= limits.memories_max:
        return None  # client_sessions_max, even if larger, admits no more
    keys = {"clients_max": limits.sessions_max, "client_sessions_max": limits.client_sessions_max}
    beyond = [f"{key} = {value:,}" for key, value in keys.items() if value > limits.memories_max]
    s = "" if limits.memories_max == 1 else "s"
    return (
        f"{files_max:,} open files are enough for {limits.memories_max:,} session{s} of a node "
        f"process, not for {' and '.join(beyond)}: {more_files()}, or lower these"
    )
