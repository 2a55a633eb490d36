"""Puts a node process together once it is on its place: socket, datasets, loop.

What can go wrong before the first client is a FeederError here, which the supervisor shows.
"""

import contextlib
import resource
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

from feeder.admission import ServedDataset
from feeder.channel import Channel, ChannelClosedError
from feeder.dataset import Dataset
from feeder.endpoint import parse_endpoint
from feeder.errors import FeederError
from feeder.log_lines import start_logging
from feeder.node_loop import NodeLoop
from feeder.node_messages import NodeConfig, NodeToSupervisor, SupervisorToNode
from feeder.placement import NodePlacement, restore_affinity
from feeder.router import Router
from feeder.slot_door import SlotDoor
from feeder.wakeup import SignalWakeup
from feeder.worker_messages import CannotStart, printable


def serve_node(end: socket.socket, placement: NodePlacement, warning: str | None) -> None:
    """Run a node process to its end; ``warning`` is what was said when it was placed.

    Raises FeederError when it cannot start.
    """
    control: Channel[NodeToSupervisor, SupervisorToNode] = Channel(end, SupervisorToNode)
    try:
        config = control.receive()
        assert isinstance(config, NodeConfig), "NodeConfig comes before anything else"
        start_logging(config.log_level, f"node {config.number}: ")
        _allow_descriptors()
        warnings = (warning, restore_affinity(placement))
        wakeup = SignalWakeup([signal.SIGTERM])
        router, door = Router(), SlotDoor()
        try:
            wanted = [parse_endpoint(text) for text in config.endpoints]
            endpoints = router.bind(wanted)
            door.bind(wanted)
            loop = NodeLoop(config, open_datasets(config.datasets), router, door, control, wakeup)
            loop.run(endpoints, tuple(line for line in warnings if line))
        finally:
            router.close()
            door.close()
    except ChannelClosedError:
        pass  # the supervisor is gone


def open_datasets(folders: Mapping[str, str]) -> dict[str, ServedDataset]:
    """Return what sessions need to know of each dataset; DatasetError when one is damaged."""
    served: dict[str, ServedDataset] = {}
    for name, folder in folders.items():
        with Dataset.open(Path(folder)) as dataset:
            served[name] = ServedDataset(
                fingerprint=dataset.fingerprint,
                classes=tuple(map(printable, dataset.classes)),
                layout=dataset.layout,
            )
    return served


def _allow_descriptors() -> None:
    """Raise the soft limit to the hard one: sessions, connections and shards all take some."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def report_failure(end: socket.socket, error: FeederError) -> None:
    """Tell the supervisor why this process ends."""
    control: Channel[NodeToSupervisor, SupervisorToNode] = Channel(end, SupervisorToNode)
    with contextlib.suppress(ChannelClosedError):  # the supervisor is gone
        control.send(CannotStart.of(error))
