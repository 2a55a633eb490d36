"""The configuration of each node process, from the daemon's: limits shared out among them."""

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from feeder.daemon.config import Config
from feeder.daemon.descriptor_budget import plan_descriptors
from feeder.host.memory_budget import (
    available_bytes,
    cache_budget,
    client_slots_budget,
    slots_budget,
)
from feeder.host.placement import NodePlacement
from feeder.node.endpoint import parse_endpoint
from feeder.node.messages import NodeConfig
from feeder.session.admission import SessionLimits
from feeder.worker.messages import DatasetSource


def plan_nodes(
    config: Config,
    fingerprints: Mapping[str, str],
    placements: Sequence[NodePlacement],
    files_max: int,
) -> list[NodeConfig]:
    """Return each node process's configuration; the first one binds the endpoints as configured.

    ``fingerprints`` are those of the datasets, by name. Each process may open ``files_max`` files;
    ResourceError if these are too few.
    """
    serve = config.serve
    base = [parse_endpoint(text) for text in serve.bind]
    nodes, available = len(placements), available_bytes(Path(serve.topology_root))
    slots_bytes = slots_budget(serve.slots_bytes, nodes=nodes, available=available)
    files = plan_descriptors(
        files_max,
        endpoints=len(base),
        workers=max(placement.workers for placement in placements),
        datasets=len(config.data),
        clients_max=serve.clients_max,
        open_shards=serve.open_shards,
    )
    limits = SessionLimits(
        sessions_max=serve.clients_max,
        window_max=serve.window_max,
        chunk_images=serve.chunk_images,
        slots_bytes=slots_bytes,
        lease_s=serve.lease_s,
        memories_max=files.memories_max,
        recipes_max=serve.recipes_max,
        client_sessions_max=serve.client_sessions_max,
        client_slots_bytes=client_slots_budget(serve.client_slots_bytes, slots_bytes),
        client_recipes_max=serve.client_recipes_max,
    )
    decoded_bytes = cache_budget(config.cache.decoded_bytes, nodes=nodes, available=available)
    return [
        NodeConfig(
            is_successor=False,
            restarts=0,
            number=number,
            name=f"{serve.name or socket.gethostname()}/{number}",
            is_named=bool(serve.name),
            endpoints=tuple(str(endpoint.for_node(number)) for endpoint in base),
            workers=placement.workers,
            datasets={
                name: DatasetSource(folder=os.fsencode(config.data[name]), fingerprint=fingerprint)
                for name, fingerprint in fingerprints.items()
            },
            limits=limits,
            weights={client: dict(jobs) for client, jobs in config.weights.items()},
            decoded_bytes=decoded_bytes,
            nodes=nodes,
            secret_key=os.fsencode(serve.secret_key),
            client_keys=os.fsencode(serve.client_keys),
            socket_mode=int(serve.socket_mode, 8),
            drain_s=serve.drain_s,
            connections_max=files.connections_max,
            callers_max=files.callers_max,
            decoder=serve.decoder,
            open_shards=files.open_shards,
            log_level=config.log_level,
            log_format=config.log_format,
        )
        for number, placement in enumerate(placements)
    ]
