"""Assembles a node process after its placement: sockets, datasets, cache, loop.

What goes wrong before the first client is a FeederError, which the supervisor reports.
"""

import logging
import os
import signal
import socket

from feeder.host.memory_bandwidth import measure_copy_bandwidth
from feeder.host.memory_budget import available_bytes
from feeder.host.placement import NodePlacement, restore_affinity
from feeder.jpeg.libraries import library_warnings
from feeder.metrics.records import CacheRecord
from feeder.node.claim_listener import ClaimListener
from feeder.node.datasets import NodeDatasets
from feeder.node.endpoint import parse_endpoint
from feeder.node.loop import NodeLoop
from feeder.node.messages import NodeConfig, NodeToSupervisor, SupervisorToNode
from feeder.node.router import Router, read_keys
from feeder.node.snapshots import begin_record
from feeder.process.channel import Channel, ChannelClosedError
from feeder.process.log_form import LineForm
from feeder.process.log_lines import start_logging
from feeder.process.stop_signals import SignalWakeup
from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import plan_cache

_log = logging.getLogger(__name__)


def serve_node(end: socket.socket, placement: NodePlacement, warning: str | None) -> None:
    """Run a node process to its end; ``warning`` is that of its placement, if any.

    Raises FeederError when it cannot start.
    """
    control: Channel[NodeToSupervisor, SupervisorToNode] = Channel(end, SupervisorToNode)
    try:
        config = control.receive()
        assert isinstance(config, NodeConfig), "NodeConfig comes before anything else"
        form = LineForm(process=f"node {config.number}", format=config.log_format)
        log = start_logging(config.log_level, form)
        warnings = (warning, restore_affinity(placement))
        cpus = len(os.sched_getaffinity(0))
        memory_bytes_a_s = measure_copy_bandwidth(cpus, available_bytes())
        wakeup = SignalWakeup([signal.SIGTERM])
        mode = config.socket_mode
        keys = read_keys(config)
        if keys is not None and not keys.clients:
            text = "%s lists no clients yet: put a client's public key there"
            _log.warning(text, keys.clients.path)
        router, claim_listener = (
            Router(keys, socket_mode=mode, connections_max=config.connections_max),
            ClaimListener(socket_mode=mode, callers_max=config.callers_max),
        )
        cache: DecodedCache | None = None
        try:
            wanted = [parse_endpoint(text) for text in config.endpoints]
            endpoints = router.bind(wanted)
            claim_listener.bind(wanted)
            datasets = NodeDatasets(config.datasets, is_successor=config.is_successor)
            sizes = datasets.open_all()
            plan = plan_cache(config.decoded_bytes, sizes, nodes=config.nodes)
            if plan is not None:
                cache = DecodedCache.create(plan)
            record = begin_record(config.number, config.name, endpoints, memory_bytes_a_s)
            if cache is not None:
                full_bytes = int(sum(size.total_bytes for size in sizes.values()))
                record.cache = CacheRecord(
                    budget_bytes=cache.plan.total_bytes, full_bytes=full_bytes
                )
            loop = NodeLoop(
                config, datasets, router, claim_listener, control, wakeup, log, cache, record
            )
            loop.run(endpoints, tuple(filter(None, warnings)), library_warnings())
        finally:
            router.close()
            claim_listener.close()
            if cache is not None:
                cache.close()
    except ChannelClosedError:
        pass  # the supervisor has ended
