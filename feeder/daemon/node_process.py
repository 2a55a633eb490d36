"""Starts a node process, exchanges messages with it, notices that it hangs, and ends it."""

import contextlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import msgspec

from feeder.host.placement import NodePlacement
from feeder.host.processes import look_at
from feeder.metrics.hangs import Policy, ProcessLook, Watch
from feeder.metrics.report import NodeReport, NodeState
from feeder.node.messages import NodeConfig, NodeReady, NodeToSupervisor, SupervisorToNode
from feeder.process.backoff import RestartPolicy
from feeder.process.channel import Channel, ChannelClosedError
from feeder.process.child import describe_ending, start_child, wait_for_exit

START_DEADLINE_S: Final = 120.0  # its workers have 60 s each, in parallel
HEARTBEATS: Final = Policy(look_s=2.0, silent_s=4.0, stopped_s=4.0, most_s=30.0)
"""They come twice a second."""

_STARTS: Final = replace(HEARTBEATS, look_s=START_DEADLINE_S, most_s=START_DEADLINE_S)

_EXIT_GRACE_S: Final = 0.3  # from the end of the channel to the end of the process
_REAP_DEADLINE_S: Final = 2.0


class NodeProcess:
    """A node process and, after crashes, its successors with the same number and endpoints."""

    def __init__(self, config: NodeConfig, placement: NodePlacement) -> None:
        """Take what ``start`` needs; nothing is started yet."""
        self.config = config
        self.name = f"node process {config.number}"
        self.placement = placement
        self.ready: NodeReady | None = None
        """Its report that it can serve; None before."""
        self.start_s = 0.0
        """When to start it, while it is not running."""
        self.watch = Watch(_STARTS)
        self.is_hung = False
        """It was found to hang, and has not ended yet."""
        self.hangs = 0
        self.process: subprocess.Popen[bytes] | None = None
        """None while there is none, or once it is reaped."""
        self.channel: Channel[SupervisorToNode, NodeToSupervisor] | None = None
        self._policy = RestartPolicy()

    @property
    def pid(self) -> int:
        """Its process id; 0 if it is not running."""
        return 0 if self.process is None else self.process.pid

    def start(self, board: int) -> None:
        """Start the process and send its placement, its configuration and the board.

        Raises OSError if the machine has no process or descriptor left, ResourceError if the
        configuration is too long for a message.
        """
        self.config = msgspec.structs.replace(self.config, restarts=self._policy.crashes)
        self.process, ours = start_child("feeder.node")
        self.channel = Channel(ours, NodeToSupervisor)
        self.watch = Watch(_STARTS, time.monotonic())
        with contextlib.suppress(BrokenPipeError, ChannelClosedError):  # receive() reports it
            ours.send(msgspec.json.encode(self.placement))
            self.channel.set_timeout(0)
            self.channel.send(self.config, board)

    def schedule_restart(self) -> float | None:
        """Set ``start_s`` after a crash; return the backoff in seconds, None to give up."""
        now_s = time.monotonic()
        backoff_s = self._policy.on_crash(now_s, has_served=self.config.is_successor)
        if backoff_s is not None:
            self.start_s = now_s + backoff_s
        return backoff_s

    def receive(self) -> NodeToSupervisor | None:
        """Receive its next message, None if there is none; ChannelClosedError when it has ended."""
        return None if self.channel is None else self.channel.receive()

    def send(self, message: SupervisorToNode) -> None:
        if self.channel is not None:
            with contextlib.suppress(ChannelClosedError):  # receive() reports it
                self.channel.send(message)

    def beat(self, now_s: float) -> None:
        """Record a heartbeat, or its readiness, from which on they are due."""
        self.watch = Watch(HEARTBEATS, now_s)

    def hangs_now(self, now_s: float, look: Callable[[int], ProcessLook | None] = look_at) -> bool:
        """Whether it is found to hang, given what ``look`` sees of its process now and then."""
        if self.watch.is_quiet(now_s) and (seen := look(self.pid)) is not None:
            self.watch.looks.append((now_s, seen))
        _, self.is_hung = self.watch.judge(now_s, self.watch.policy.stopped_s)
        return self.is_hung

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

    def close_channel(self) -> None:
        """Close the channel, on which the process ends soon."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def end(self) -> str:
        """Close the channel, reap the process, killed if necessary, and return how it ended."""
        self.close_channel()
        process, self.process, self.ready, self.is_hung = self.process, None, None, False
        if process is None:
            return "was not running"
        status = wait_for_exit(process, _EXIT_GRACE_S)
        if status is None:
            process.kill()
            status = wait_for_exit(process, _REAP_DEADLINE_S)
        return describe_ending(status)
