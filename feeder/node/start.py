"""Assembles a node process after its placement: sockets, datasets, cache, loop.

What goes wrong before the first client is a FeederError, which the supervisor reports.
"""

import contextlib
import logging
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from feeder.dataset.first_read import check_readable
from feeder.dataset.loss import describe_loss
from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.host.memory_bandwidth import measure_copy_bandwidth
from feeder.host.memory_budget import available_bytes
from feeder.host.placement import NodePlacement, restore_affinity
from feeder.jpeg.libraries import library_warnings
from feeder.node.claim_listener import ClaimListener
from feeder.node.endpoint import parse_endpoint
from feeder.node.loop import NodeLoop
from feeder.node.messages import NodeConfig, NodeToSupervisor, SupervisorToNode
from feeder.node.router import Router, ServerKeys
from feeder.node.snapshots import NodeFacts
from feeder.node.zap_handler import KeyList
from feeder.process.channel import Channel, ChannelClosedError
from feeder.process.log_form import LineForm
from feeder.process.log_lines import start_logging
from feeder.process.path_text import path_from_bytes
from feeder.process.wakeup import SignalWakeup
from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import DecodedSize, aligned_bytes, plan_cache
from feeder.security.keys import read_secret_key
from feeder.session.admission import ServedDataset
from feeder.wire.messages import MAX_CLASSES, MAX_CLASSES_BYTES, MAX_TEXT_CHARACTERS
from feeder.worker.messages import escape_surrogates

_log = logging.getLogger(__name__)

_MEASURED_RECORDS: Final = 512
"""Their mean is within 3 % of that of all: ImageNet's sizes have a deviation of half the mean."""

_TYPICAL_PICTURE_BYTES: Final = 800_000
"""ImageNet's; used if no record of a dataset can be read."""


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
        router, claim_listener = (
            Router(read_keys(config), socket_mode=mode, connections_max=config.connections_max),
            ClaimListener(socket_mode=mode, callers_max=config.callers_max),
        )
        cache: DecodedCache | None = None
        try:
            wanted = [parse_endpoint(text) for text in config.endpoints]
            endpoints = router.bind(wanted)
            claim_listener.bind(wanted)
            if config.is_successor:  # else the supervisor has just checked
                folders = {name: path_from_bytes(path) for name, path in config.datasets.items()}
                check_readable(
                    {f"dataset {name} at {folder}": folder for name, folder in folders.items()}
                )
            served, sizes = open_datasets(config.datasets)
            plan = plan_cache(config.decoded_bytes, sizes, nodes=config.nodes)
            if plan is not None:
                cache = DecodedCache.create(plan)
            facts = NodeFacts(
                number=config.number,
                name=config.name,
                memory_bytes_a_s=memory_bytes_a_s,
                decoded_bytes=sum(size.total_bytes for size in sizes.values()),
            )
            loop = NodeLoop(
                config, served, router, claim_listener, control, wakeup, log, cache, facts
            )
            loop.run(endpoints, tuple(filter(None, warnings)), library_warnings())
        finally:
            router.close()
            claim_listener.close()
            if cache is not None:
                cache.close()
    except ChannelClosedError:
        pass  # the supervisor has ended


def read_keys(config: NodeConfig) -> ServerKeys | None:
    """Return the keys for tcp, None if it is plain; ConfigError if a key file is unusable."""
    if not config.secret_key:
        return None
    clients = KeyList(path_from_bytes(config.client_keys), may_wait=config.is_successor)
    if not clients:
        _log.warning("%s lists no clients yet: put a client's public key there", clients.path)
    return ServerKeys(read_secret_key(path_from_bytes(config.secret_key)), clients)


def open_datasets(
    folders: Mapping[str, bytes],
) -> tuple[dict[str, ServedDataset], dict[str, DecodedSize]]:
    """Return what sessions need of each dataset, and its decoded size.

    DatasetError when one is damaged, or its class names do not fit into a Welcome.
    """
    served: dict[str, ServedDataset] = {}
    sizes: dict[str, DecodedSize] = {}
    for name, path in folders.items():
        folder = path_from_bytes(path)
        with Dataset.open(folder) as dataset:
            classes = tuple(map(escape_surrogates, dataset.classes))
            check_classes(classes, str(folder))
            served[name] = ServedDataset(
                fingerprint=dataset.fingerprint,
                classes=classes,
                layout=dataset.layout,
                labels=dataset.labels,
                loss=describe_loss(dataset.manifest),
            )
            sizes[name] = measure_pictures(dataset)
    return served, sizes


def check_classes(classes: Sequence[str], folder: str) -> None:
    """Raise DatasetError where the class names of a dataset do not fit into a Welcome."""
    longest = max(map(len, classes), default=0)
    total_bytes = sum(len(text.encode()) + 5 for text in classes)
    if (
        len(classes) > MAX_CLASSES
        or longest > MAX_TEXT_CHARACTERS
        or total_bytes > MAX_CLASSES_BYTES
    ):
        raise DatasetError(
            f"{folder} cannot be served: {len(classes):,} class names of up to {longest:,} "
            f"characters, {total_bytes / 1e6:.1f} MB in all; the limits are {MAX_CLASSES:,} "
            f"of {MAX_TEXT_CHARACTERS:,}, {MAX_CLASSES_BYTES / 1e6:.1f} MB in all: pack it with "
            "shorter names"
        )


def measure_pictures(dataset: Dataset) -> DecodedSize:
    """Estimate a dataset's decoded size from its first records, which packing has shuffled.

    Stops at the first damaged record: each further read from its shard would check the whole shard
    again, and the damage is reported when a chunk is filled.
    """
    sizes_bytes: list[int] = []
    with contextlib.suppress(DatasetError):
        for sample_id in range(min(_MEASURED_RECORDS, dataset.layout.samples)):
            record = dataset.read_records(np.array([sample_id]))[0]
            sizes_bytes.append(aligned_bytes(4 * int(record["width"]) * int(record["height"])))
    mean_bytes = sum(sizes_bytes) / len(sizes_bytes) if sizes_bytes else _TYPICAL_PICTURE_BYTES
    return DecodedSize(samples=dataset.layout.samples, picture_bytes=mean_bytes)
