"""Starts a node process, exchanges messages with it, notices that it hangs, and ends it."""

from dataclasses import replace
from typing import Final

import msgspec

from feeder.daemon.child_process import ChildProcess
from feeder.host.placement import NodePlacement
from feeder.metrics.hangs import Policy, Watch
from feeder.metrics.report import NodeReport, NodeState
from feeder.node.messages import NodeConfig, NodeReady, NodeToSupervisor, SupervisorToNode

START_DEADLINE_S: Final = 120.0  # its workers have 60 s each, in parallel
HEARTBEATS: Final = Policy(look_s=2.0, silent_s=4.0, stopped_s=4.0, most_s=30.0)
"""They come twice a second."""

_STARTS: Final = replace(HEARTBEATS, look_s=START_DEADLINE_S, most_s=START_DEADLINE_S)


class NodeProcess(ChildProcess[SupervisorToNode, NodeToSupervisor]):
    """A node process and, after crashes, its successors with the same number and endpoints."""

    def __init__(self, config: NodeConfig, placement: NodePlacement) -> None:
        """Take what ``start`` needs; nothing is started yet."""
        super().__init__(f"node process {config.number}", "feeder.node", NodeToSupervisor, _STARTS)
        self.config = config
        self.placement = placement
        self.ready: NodeReady | None = None
        """Its report that it can serve; None before."""
        self.hangs = 0

    @property
    def has_served(self) -> bool:
        return self.config.is_successor

    def start(self, board: int) -> None:
        """Start the process and send its placement, its configuration and the board.

        Raises OSError if the machine has no process or descriptor left, ResourceError if the
        configuration is too long for a message.
        """
        self.config = msgspec.structs.replace(self.config, restarts=self.crashes)
        self.spawn(msgspec.json.encode(self.placement))
        self.send(self.config, board)

    def beat(self, now_s: float) -> None:
        """Record a heartbeat, or its readiness, from which on they are due."""
        self.watch = Watch(HEARTBEATS, now_s)

    def report(self, now_s: float, *, is_draining: bool) -> NodeReport:
        """Its state, as if it had just begun, and the counts of its predecessors."""
        state: NodeState
        if self.is_hung:
            state = "hung"
        elif self.ready is None:
            state = "restarting" if self.config.is_successor else "starting"
        elif is_draining:
            state = "draining"
        else:
            state = "silent" if self.watch.is_silent(now_s) else "ready"
        return NodeReport(
            number=self.config.number,
            state=state,
            since_s=now_s,
            restarts=self.config.restarts,
            hangs=self.hangs,
        )

    def end(self) -> str:
        """Close the channel, reap the process, killed if necessary, and return how it ended."""
        self.ready = None
        return super().end()
