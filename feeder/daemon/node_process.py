"""One node process as its supervisor sees it: started, heard, ended."""

import contextlib
import subprocess
import time
from typing import Final

import msgspec

from feeder.daemon.backoff import RestartPolicy
from feeder.host.placement import NodePlacement
from feeder.node.__main__ import encode_placement
from feeder.node.messages import (
    Drain,
    Neighbours,
    NodeConfig,
    NodeReady,
    NodeToSupervisor,
    SupervisorToNode,
)
from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError
from feeder.process.child import start_child

START_DEADLINE_S: Final = 120.0  # its workers have 60 s each, side by side
_EXIT_GRACE_S: Final = 0.3  # from the end of the channel to the end of the process
_REAP_DEADLINE_S: Final = 2.0


class NodeProcess:
    """A node process and its successors after crashes; ``config`` stays, the process changes."""

    def __init__(self, config: NodeConfig, placement: NodePlacement) -> None:
        """Remember what to start; ``start`` does."""
        self.config = config
        self.placement = placement
        self.ready: NodeReady | None = None
        """What it said when it could serve; None before."""
        self.due_s = float("inf")
        """When it is to be ready; or, where it does not run, to be started."""
        self.policy = RestartPolicy()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[SupervisorToNode, NodeToSupervisor] | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is a process that was not reaped."""
        return self._process is not None

    @property
    def pid(self) -> int | None:
        """Its process id, None where it does not run."""
        return None if self._process is None else self._process.pid

    @property
    def fd(self) -> int:
        """The descriptor to poll while it runs."""
        return -1 if self._channel is None else self._channel.fileno()

    def start(self) -> None:
        """Start the process and tell it its place and its configuration.

        Raises OSError where the machine has no process or descriptor left, ResourceError where the
        configuration is too long to be told.
        """
        self.config = msgspec.structs.replace(self.config, restarts=self.policy.crashes)
        self._process, ours = start_child("feeder.node")
        self._channel = Channel(ours, NodeToSupervisor)
        with contextlib.suppress(BrokenPipeError, ChannelClosedError):  # it will be read as closed
            ours.send(encode_placement(self.placement))
            self._channel.set_timeout(0)
            self._channel.send(self.config)
        self.ready = None
        self.due_s = time.monotonic() + START_DEADLINE_S

    def receive(self) -> NodeToSupervisor | None:
        """Return what it says; ChannelClosedError when it has ended."""
        if self._channel is None:
            return None
        return self._channel.receive()

    def prepare_successor(self, endpoints: tuple[str, ...]) -> None:
        """Have successors bind these, with the ports that the system chose: clients know them."""
        self.config = msgspec.structs.replace(self.config, endpoints=endpoints, is_successor=True)

    def introduce(self, neighbours: Neighbours) -> None:
        """Tell it where all node processes are: it takes clients then."""
        self._send(neighbours)

    def drain(self) -> None:
        """Ask it to finish and end."""
        self._send(Drain())

    def _send(self, message: SupervisorToNode) -> None:
        if self._channel is not None:
            try:
                self._channel.send(message)
            except (ChannelClosedError, ChannelFullError):
                self.kill()  # that it has ended is read from its channel

    def hang_up(self) -> None:
        """Close the channel: the process ends by itself, soon."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()

    def end(self) -> str:
        """Hang up, reap the process, killed if it does not end soon; return how it ended."""
        self.hang_up()
        process, self._process, self.ready = self._process, None, None
        if process is None:
            return "did not run"
        try:
            process.wait(_EXIT_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            try:
                process.wait(_REAP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                return "was killed and does not end: it waits for a disk"
        status = process.returncode
        return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
