"""Starts a node process, exchanges messages with it, notices that it hangs, and ends it."""

import contextlib
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from feeder.host.placement import NodePlacement
from feeder.metrics.hangs import SUSPENDED_S, Policy, ProcessLook, Watch
from feeder.metrics.report import HostReport
from feeder.node.__main__ import encode_placement
from feeder.node.messages import (
    Diagnosed,
    NodeConfig,
    NodeReady,
    NodeToSupervisor,
    ReportPart,
    SupervisorToNode,
)
from feeder.process.backoff import RestartPolicy
from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError
from feeder.process.child import describe_ending, start_child, wait_for_exit

START_DEADLINE_S: Final = 120.0  # its workers have 60 s each, in parallel
HUNG_S: Final = 4.0
"""Without a heartbeat, for a process that is stopped, asleep or looping all the time."""

HEARTBEATS: Final = Policy(look_s=2.0, silent_s=HUNG_S, stopped_s=HUNG_S, most_s=30.0)
"""They come twice a second."""

PART_BYTES: Final = 64 * 1024
"""Size of a part of a report: half of the largest packet of a channel."""

_EXIT_GRACE_S: Final = 0.3  # from the end of the channel to the end of the process
_REAP_DEADLINE_S: Final = 2.0
_REPORTS_MAX: Final = 2  # one that is being sent, and one for what is asked meanwhile


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
        self._policy = RestartPolicy()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[SupervisorToNode, NodeToSupervisor] | None = None
        self._outbox: deque[SupervisorToNode] = deque()  # what the channel had no room for

    @property
    def has_unsent(self) -> bool:
        """Whether to call ``flush`` when ``fd`` can be written to."""
        return bool(self._outbox)

    @property
    def is_running(self) -> bool:
        """Whether there is a process, not yet reaped."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Its process id; None if it is not running."""
        return None if self._process is None else self._process.pid

    @property
    def fd(self) -> int:
        """The descriptor to poll; -1 if it is not running."""
        return -1 if self._channel is None else self._channel.fileno()

    def start(self) -> None:
        """Start the process and send its placement and its configuration.

        Raises OSError if the machine has no process or descriptor left, ResourceError if the
        configuration is too long for a message.
        """
        self.config = msgspec.structs.replace(self.config, restarts=self._policy.crashes)
        self._process, ours = start_child("feeder.node")
        self._channel = Channel(ours, NodeToSupervisor)
        with contextlib.suppress(BrokenPipeError, ChannelClosedError):  # receive() reports it
            ours.send(encode_placement(self.placement))
            self._channel.set_timeout(0)
            self._channel.send(self.config)
        self.ready = None
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

    def prepare_successor(self, endpoints: tuple[str, ...]) -> None:
        """Have successors bind the same endpoints, with the ports that clients know."""
        self.config = msgspec.structs.replace(self.config, endpoints=endpoints, is_successor=True)

    def send(self, message: SupervisorToNode) -> None:
        """Send a message after those that wait, without blocking.

        A process that does not read sends no heartbeats either, and is ended for that.
        """
        if self._channel is not None:
            self._outbox.append(message)
            self.flush()

    def send_report(self, report: HostReport) -> None:
        """Send the host's report, in parts; left out where two others are waiting to be sent.

        The second of them was asked for as this one, and is hardly older.
        """
        waiting = [message for message in self._outbox if isinstance(message, ReportPart)]
        if sum(part.is_last for part in waiting) >= _REPORTS_MAX:
            return
        data = msgspec.msgpack.encode(report)
        for start in range(0, len(data), PART_BYTES):
            end = start + PART_BYTES
            self.send(ReportPart(is_last=end >= len(data), data=data[start:end]))

    def send_verdict(self, diagnosed: Diagnosed) -> None:
        """Send the verdict for clients; left out while the channel has no room: others follow."""
        if not self._outbox:
            self.send(diagnosed)

    def flush(self) -> None:
        """Send what the channel had no room for, as far as it has now."""
        while self._outbox and self._channel is not None:
            try:
                self._channel.send(self._outbox[0])
            except ChannelFullError:
                return
            except ChannelClosedError:
                self._outbox.clear()  # receive() reports the end
                return
            self._outbox.popleft()

    def close_channel(self) -> None:
        """Close the channel, on which the process ends soon."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
            self._outbox.clear()

    def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> str:
        """Close the channel, reap the process, killed if necessary, and return how it ended."""
        self.close_channel()
        process, self._process, self.ready = self._process, None, None
        if process is None:
            return "was not running"
        status = wait_for_exit(process, _EXIT_GRACE_S)
        if status is None:
            process.kill()
            status = wait_for_exit(process, _REAP_DEADLINE_S)
        return describe_ending(status)


@dataclass(slots=True, eq=False)
class _Watched(Watch):
    pid: int = 0
    due_s: float = 0.0


class HeartbeatWatch:
    """The node processes from which heartbeats are due: silent or hung ones. Pure.

    A check that is late means that the supervisor did not run (``metrics.hangs``): all silences
    start again.
    """

    def __init__(self, look: Callable[[int], ProcessLook | None]) -> None:
        """``look`` returns what the process with this id does, None if that is unknown."""
        self._look = look
        self._watched: dict[int, _Watched] = {}
        self._hung: set[int] = set()  # until they have ended

    @property
    def due_s(self) -> float:
        """When to call ``check``; heartbeats postpone it, so that none costs a wake-up."""
        return min((watched.due_s for watched in self._watched.values()), default=float("inf"))

    def begin(self, number: int, pid: int, now_s: float) -> None:
        """Expect heartbeats from a node process from now on."""
        self._watched[number] = _Watched(HEARTBEATS, pid=pid)
        self.beat(number, now_s)

    def beat(self, number: int, now_s: float) -> None:
        """Record a heartbeat."""
        watched = self._watched.get(number)
        if watched is not None:
            watched.progress_s, watched.looks = now_s, None
            watched.due_s = watched.check_at_s(now_s)

    def end(self, number: int) -> None:
        """Expect none any more: the process drains or has ended."""
        self._watched.pop(number, None)
        self._hung.discard(number)

    def silence_of(self, number: int, now_s: float) -> Literal["silent", "hung"] | None:
        """Whether a node process is silent, or hung and about to end; None for neither."""
        if number in self._hung:
            return "hung"
        watched = self._watched.get(number)
        return "silent" if watched is not None and watched.is_silent(now_s) else None

    def check(self, now_s: float) -> list[tuple[int, float, str]]:
        """Find the node processes to replace, which are no longer watched: each one's number, the
        seconds without a heartbeat, and its kernel state in words."""
        hung: list[tuple[int, float, str]] = []
        late_s = now_s - self.due_s
        for number, watched in list(self._watched.items()) if late_s >= 0 else ():
            if late_s > SUSPENDED_S:
                self.beat(number, now_s)
                continue
            if watched.is_quiet(now_s):
                watched.add_look(self._look(watched.pid), now_s)
                if watched.judge(now_s, HUNG_S)[1]:
                    hung.append((number, now_s - watched.progress_s, watched.describe()))
                    del self._watched[number]
                    self._hung.add(number)
            watched.due_s = watched.check_at_s(now_s)
        return hung
