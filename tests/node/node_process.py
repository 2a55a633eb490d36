"""A real node process, with the test in the place of its supervisor."""

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from feeder.daemon.config import load_config
from feeder.daemon.node_plan import plan_nodes
from feeder.dataset.manifest import load_manifest
from feeder.host.placement import NodePlacement
from feeder.metrics.records import NodeRecord
from feeder.node.messages import (
    Heartbeat,
    Neighbours,
    NodeReady,
    NodeToSupervisor,
    SupervisorToNode,
)
from feeder.process.channel import Channel
from feeder.process.child import start_child
from tests.support.daemon import DEADLINE_S

Message = TypeVar("Message", bound=NodeToSupervisor)


class NodeUnderTest:
    """A running node process that takes clients at ``endpoint``."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        control: Channel[SupervisorToNode, NodeToSupervisor],
        board: int,
    ) -> None:
        self.process = process
        self.control = control
        self.board = board
        self.received: list[NodeToSupervisor] = []
        control.set_timeout(DEADLINE_S)
        self.ready = self.receive(NodeReady)
        self.endpoint = self.ready.endpoints[0]

    def receive(self, kind: type[Message]) -> Message:
        """Return the next message of a kind; the others are kept in ``received``."""
        while True:
            message = self.control.receive()
            assert message is not None, f"no {kind.__name__} in {DEADLINE_S:g} s"
            self.received.append(message)
            if isinstance(message, kind):
                return message

    def snapshot(self) -> NodeRecord:
        return self.receive(Heartbeat).snapshot

    def snapshot_when(self, holds: Callable[[NodeRecord], bool], what: str) -> NodeRecord:
        """Return the first snapshot for which ``holds`` is true."""
        give_up_s = time.monotonic() + DEADLINE_S
        while not holds(snapshot := self.snapshot()):
            assert time.monotonic() < give_up_s, f"not within {DEADLINE_S:g} s: {what}"
        return snapshot


@contextlib.contextmanager
def running_node(
    dataset: Path,
    folder: Path,
    *,
    workers: int = 1,
    are_neighbours_sent: bool = True,
    **keys: object,
) -> Iterator[NodeUnderTest]:
    """Run a node process that serves ``dataset`` as d on a socket in ``folder``.

    ``keys`` are further ones of the configuration, with "_" for the dots.
    """
    config = load_config(
        None,
        {
            "data": {"d": str(dataset)},
            "serve.bind": (f"ipc://{folder}/f",),
            "serve.slots_bytes": 64 << 20,
            "cache.decoded_bytes": 0,
            **{name.replace("_", ".", 1): value for name, value in keys.items()},
        },
    )
    cpus = frozenset(os.sched_getaffinity(0))
    placement = NodePlacement(node_id=0, cpus=cpus, memory_node=None, workers=workers, pinned=False)
    fingerprints = {"d": load_manifest(dataset).fingerprint}
    (node_config,) = plan_nodes(config, fingerprints, [placement], 4096)
    board = os.memfd_create("board")
    process, end = start_child("feeder.node")
    try:
        end.send(msgspec.json.encode(placement))
        control: Channel[SupervisorToNode, NodeToSupervisor] = Channel(end, NodeToSupervisor)
        control.send(msgspec.structs.replace(node_config, workers=workers), board)
        node = NodeUnderTest(process, control, board)
        if are_neighbours_sent:
            control.send(Neighbours(endpoints=(node.ready.endpoints,)))
        yield node
    finally:
        os.close(board)
        end.close()
        try:
            process.wait(DEADLINE_S)
        finally:
            process.kill()
            process.wait()
