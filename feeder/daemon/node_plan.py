"""The configuration of each node process, from the daemon's: limits shared out among them.

A session takes three descriptors in its node process (its slots, their mapping, the client's claim
connection) and two in each worker; its connection takes one more. libzmq aborts a process that
runs out of descriptors on a new connection, so everything that clients can use is bounded here,
with a reserve.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from feeder.daemon.config import Config
from feeder.disk_cache.cached import is_cached
from feeder.errors import ResourceError
from feeder.host.memory_budget import (
    CACHE_SHARE,
    CLIENT_SHARE,
    PAGE_CACHE_SHARE,
    SLOTS_SHARE,
    available_bytes,
    cacheable_bytes,
    share_of,
)
from feeder.host.placement import NodePlacement, parse_pin, plan_placement
from feeder.host.topology import UsableCpus, read_topology, usable_cpus
from feeder.node.blob_requests import SENDING_MAX
from feeder.node.endpoint import parse_endpoint
from feeder.node.messages import NodeConfig
from feeder.remedies import more_files
from feeder.session.admission import MEMORIES_A_SESSION, SessionLimits
from feeder.worker.messages import Configure, DatasetSource

# Open in a node process without workers, endpoints and clients: libzmq's, channels, the board,
# keys, the cache. test_descriptors.py counts them.
_NODE_FILES: Final = 24
_RESERVE_FILES: Final = 16  # a worker that is starting, key lists, descriptors on their way
_ENDPOINT_FILES: Final = 3  # a listener, a claim listener, a connection over the cap
_WORKER_FILES: Final = 16  # besides shards and slots, with some to spare
_SESSION_FILES: Final = 3
_SESSION_WORKER_FILES: Final = 2
_CALLERS_MAX: Final = 64
_CONNECTIONS_A_CLIENT: Final = 4
# For clients that reconnect before their old connection is found dead, and for `feeder status`.
_CONNECTIONS_SPARE: Final = 64


def plan_placements(config: Config) -> tuple[UsableCpus, tuple[NodePlacement, ...]]:
    """Plan where each node process runs, within the CPUs that this process may use."""
    serve = config.serve
    root = Path(serve.topology_root)
    usable = usable_cpus(root)
    workers = None if serve.workers == "auto" else serve.workers
    return usable, plan_placement(read_topology(root), usable, workers, parse_pin(serve.pin))


def plan_nodes(
    config: Config,
    fingerprints: Mapping[str, str],
    placements: Sequence[NodePlacement],
    files_max: int,
    fetcher: bytes = b"",
) -> list[NodeConfig]:
    """Plan each node process's configuration; the first one binds the endpoints as configured.

    ``fingerprints`` are those of the datasets' manifests, by name; ``fetcher`` is where that of the
    cached ones listens. Each process may open
    ``files_max`` files; ResourceError if these are too few.
    """
    serve = config.serve
    base = [parse_endpoint(text) for text in serve.bind]
    root = Path(serve.topology_root)
    nodes, available = len(placements), available_bytes(root)
    page_cache_bytes = share_of("auto", PAGE_CACHE_SHARE, cacheable_bytes(root), nodes)
    slots_bytes = share_of(serve.slots_bytes, SLOTS_SHARE, available, nodes)
    files = plan_descriptors(files_max, config, max(place.workers for place in placements))
    limits = SessionLimits(
        sessions_max=serve.clients_max,
        window_max=serve.window_max,
        chunk_images=serve.chunk_images,
        slots_bytes=slots_bytes,
        lease_s=serve.lease_s,
        memories_max=files.memories_max,
        recipes_max=serve.recipes_max,
        client_sessions_max=serve.client_sessions_max,
        client_slots_bytes=share_of(serve.client_slots_bytes, CLIENT_SHARE, slots_bytes),
        client_recipes_max=serve.client_recipes_max,
    )
    decoded_bytes = share_of(config.cache.decoded_bytes, CACHE_SHARE, available, nodes)
    return [
        NodeConfig(
            number=number,
            name=f"{serve.name or socket.gethostname()}/{number}",
            is_named=bool(serve.name),
            endpoints=tuple(str(endpoint.for_node(number)) for endpoint in base),
            workers=placement.workers,
            worker=Configure(
                datasets={
                    name: DatasetSource(
                        folder=os.fsencode(config.data[name]),
                        fingerprint=digest,
                        is_cached=is_cached(Path(config.data[name])),
                    )
                    for name, digest in fingerprints.items()
                },
                selections=dict(config.selections),
                open_shards=files.open_shards,
                self_test=True,
                decoder=serve.decoder,
                page_cache_bytes=max(0, page_cache_bytes - decoded_bytes),
            ),
            limits=limits,
            weights={client: dict(jobs) for client, jobs in config.weights.items()},
            decoded_bytes=decoded_bytes,
            fetcher=fetcher,
            nodes=nodes,
            secret_key=os.fsencode(serve.secret_key),
            client_keys=os.fsencode(serve.client_keys),
            socket_mode=int(serve.socket_mode, 8),
            drain_s=serve.drain_s,
            connections_max=files.connections_max,
            callers_max=files.callers_max,
            log_level=config.log_level,
            log_format=config.log_format,
        )
        for number, placement in enumerate(placements)
    ]


class DescriptorPlan(NamedTuple):
    """How many descriptors may be used for what."""

    connections_max: int
    memories_max: int  # sessions with slots, including ended ones that are still mapped
    callers_max: int  # connections to the claim listener that have not claimed yet
    open_shards: int  # in each worker, of each dataset


def plan_descriptors(limit: int, config: Config, workers: int) -> DescriptorPlan:
    """Divide ``limit`` descriptors; ResourceError where they are too few for one session."""
    serve, datasets = config.serve, len(config.data)
    fixed = _NODE_FILES + _RESERVE_FILES + SENDING_MAX + workers
    fixed += _ENDPOINT_FILES * len(serve.bind)
    free = max(0, limit - fixed)
    callers = min(_CALLERS_MAX, max(1, free // 16))
    remaining = free - callers
    spare = min(_CONNECTIONS_SPARE, max(1, remaining // 4))
    memories = min(
        MEMORIES_A_SESSION * serve.clients_max,
        (remaining - spare) // (_SESSION_FILES + 1),
        (limit - _WORKER_FILES - datasets) // _SESSION_WORKER_FILES,
    )
    if memories < 1:
        need = max(fixed + 2 + _SESSION_FILES + 1, _WORKER_FILES + datasets + _SESSION_WORKER_FILES)
        raise ResourceError(
            f"this process may open {limit:,} files, and each node process needs {need:,} for one "
            f"session: {more_files()}"
        )
    shards = (limit - _WORKER_FILES - _SESSION_WORKER_FILES * memories) // max(1, datasets)
    return DescriptorPlan(
        connections_max=min(
            _CONNECTIONS_A_CLIENT * serve.clients_max + _CONNECTIONS_SPARE,
            remaining - _SESSION_FILES * memories,
        ),
        memories_max=memories,
        callers_max=callers,
        open_shards=min(serve.open_shards, shards),
    )


def describe_shortage(files_max: int, limits: SessionLimits) -> str | None:
    """Name in a line the configured limits that the descriptors do not allow for, or None."""
    if limits.sessions_max <= limits.memories_max:
        return None  # client_sessions_max, even if larger, admits no more
    keys = {"clients_max": limits.sessions_max, "client_sessions_max": limits.client_sessions_max}
    beyond = [f"{key} = {value:,}" for key, value in keys.items() if value > limits.memories_max]
    s = "" if limits.memories_max == 1 else "s"
    return (
        f"{files_max:,} open files are enough for {limits.memories_max:,} session{s} of a node "
        f"process, not for {' and '.join(beyond)}: {more_files()}, or lower these"
    )
