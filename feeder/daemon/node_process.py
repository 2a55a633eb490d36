"""Starts a node process, exchanges messages with it, notices that it hangs, and ends it."""

import contextlib
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from feeder.host.placement import NodePlacement
from feeder.metrics.hangs import SUSPENDED_S, Policy, ProcessLook, Watch
from feeder.metrics.report import NodeReport, NodeState
from feeder.node.__main__ import encode_placement
from feeder.node.messages import NodeConfig, NodeReady, NodeToSupervisor, SupervisorToNode
from feeder.process.backoff import RestartPolicy
from feeder.process.channel import Channel, ChannelClosedError
from feeder.process.child import describe_ending, start_child, wait_for_exit

START_DEADLINE_S: Final = 120.0  # its workers have 60 s each, in parallel
HUNG_S: Final = 4.0
"""Without a heartbeat, for a process that is stopped, asleep or looping all the time."""

HEARTBEATS: Final = Policy(look_s=2.0, silent_s=HUNG_S, stopped_s=HUNG_S, most_s=30.0)
"""They come twice a second."""

_EXIT_GRACE_S: Final = 0.3  # from the end of the channel to the end of the process
_REAP_DEADLINE_S: Final = 2.0


@dataclass(slots=True, eq=False)
class Heartbeats(Watch):
    """The heartbeats of a node process, expected from ``begin`` to ``end``. Pure."""

    due_s: float = float("inf")
    """When to call ``check``; heartbeats postpone it, so that none costs a wake-up."""
    is_hung: bool = False
    """It was found to hang, and has not ended yet."""

    def begin(self, now_s: float) -> None:
        self.progress_s, self.looks = now_s, None
        self.due_s = self.check_at_s(now_s)

    def beat(self, now_s: float) -> None:
        """Record a heartbeat, unless none is expected."""
        if self.due_s < float("inf"):
            self.begin(now_s)

    def end(self) -> None:
        """Expect none any more: the process drains or has ended."""
        self.due_s, self.is_hung = float("inf"), False

    def are_missing(self, now_s: float) -> bool:
        """Whether the process is silent, and not judged yet or spared."""
        return self.due_s < float("inf") and self.is_silent(now_s)

    def check(self, look: Callable[[], ProcessLook | None], now_s: float) -> bool:
        """Whether the process is found to hang; ``look`` returns what it does, None if unknown."""
        late_s = now_s - self.due_s
        if late_s < 0:
            return False
        if late_s > SUSPENDED_S:  # the supervisor did not run, nor perhaps the process
            self.begin(now_s)
            return False
        if self.is_quiet(now_s):
            self.add_look(look(), now_s)
            self.is_hung = self.judge(now_s, HUNG_S)[1]
        self.due_s = float("inf") if self.is_hung else self.check_at_s(now_s)
        return self.is_hung


class NodeProcess:
    """A node process and, after crashes, its successors with the same number and endpoints."""

    def __init__(self, config: NodeConfig, placement: NodePlacement) -> None:
        """Take what ``start`` needs; nothing is started yet."""
        self.config = config
        self.name = f"node process {config.number}"
        self.placement = placement
        self.ready: NodeReady | None = None
        """Its report that it can serve; None before."""
        self.due_s = float("inf")
        """The deadline for its readiness or, if it is not running, the time to start it."""
        self.heartbeats = Heartbeats(HEARTBEATS)
        self.hangs = 0
        self._policy = RestartPolicy()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[SupervisorToNode, NodeToSupervisor] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process, not yet reaped."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """Its process id; 0 if it is not running."""
        return 0 if self._process is None else self._process.pid

    @property
    def fd(self) -> int:
        """The descriptor to poll; -1 if it is not running."""
        return -1 if self._channel is None else self._channel.fileno()

    def start(self, board: int) -> None:
        """Start the process and send its placement, its configuration and the board.

        Raises OSError if the machine has no process or descriptor left, ResourceError if the
        configuration is too long for a message.
        """
        self.config = msgspec.structs.replace(self.config, restarts=self._policy.crashes)
        self._process, ours = start_child("feeder.node")
        self._channel = Channel(ours, NodeToSupervisor)
        with contextlib.suppress(BrokenPipeError, ChannelClosedError):  # receive() reports it
            ours.send(encode_placement(self.placement))
            self._channel.set_timeout(0)
            self._channel.send(self.config, board)
        self.due_s = time.monotonic() + START_DEADLINE_S

    def schedule_restart(self) -> float | None:
        """Set ``due_s`` after a crash; return the backoff in seconds, None to give up."""
        now_s = time.monotonic()
        backoff_s = self._policy.on_crash(now_s, has_served=self.config.is_successor)
        if backoff_s is not None:
            self.due_s = now_s + backoff_s
        return backoff_s

    def receive(self) -> NodeToSupervisor | None:
        """Receive its next message, None if there is none; ChannelClosedError when it has ended."""
        return None if self._channel is None else self._channel.receive()

    def send(self, message: SupervisorToNode) -> None:
        if self._channel is not None:
            with contextlib.suppress(ChannelClosedError):  # receive() reports it
                self._channel.send(message)

    def report(self, now_s: float, *, is_draining: bool) -> NodeReport:
        """Its state and the counts of its predecessors, without a snapshot."""
        state: NodeState = "restarting" if self.config.is_successor else "starting"
        if self.heartbeats.is_hung:
            state = "hung"
        elif self.heartbeats.are_missing(now_s):
            state = "silent"
        elif self.ready is not None:
            state = "draining" if is_draining else "ready"
        return NodeReport(
            number=self.config.number,
            state=state,
            restarts=self.config.restarts,
            hangs=self.hangs,
        )

    def close_channel(self) -> None:
        """Close the channel, on which the process ends soon."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    def end(self) -> str:
        """Close the channel, reap the process, killed if necessary, and return how it ended."""
        self.close_channel()
        self.heartbeats.end()
        process, self._process, self.ready = self._process, None, None
        if process is None:
            return "was not running"
        status = wait_for_exit(process, _EXIT_GRACE_S)
        if status is None:
            process.kill()
            status = wait_for_exit(process, _REAP_DEADLINE_S)
        return describe_ending(status)
