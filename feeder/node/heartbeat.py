"""Sends the supervisor a snapshot twice a second: it also proves that the event loop runs."""

from collections.abc import Callable
from typing import Final

from feeder.metrics.records import NodeRecord
from feeder.node.messages import Heartbeat, NodeToSupervisor, SupervisorToNode
from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError

INTERVAL_S: Final = 0.5


class Heartbeats:
    """The schedule of one node process's heartbeats.

    They stay on a grid of INTERVAL_S; those that a stall has made late are left out, so a process
    that was suspended does not send a burst.
    """

    def __init__(
        self,
        control: Channel[NodeToSupervisor, SupervisorToNode],
        take_snapshot: Callable[[float], NodeRecord],
    ) -> None:
        """The channel must not block; ``take_snapshot`` gets the time."""
        self._control = control
        self._take_snapshot = take_snapshot
        self.deadline_s = float("inf")
        """When ``run_due`` is due."""

    def start(self, now_s: float) -> None:
        """Send the first one at once, and the others from now on."""
        self.deadline_s = now_s

    def run_due(self, now_s: float) -> None:
        """Send a heartbeat if one is due; leave it out while the supervisor reads nothing."""
        if now_s < self.deadline_s:
            return
        late = int((now_s - self.deadline_s) // INTERVAL_S)
        self.deadline_s += (late + 1) * INTERVAL_S
        try:
            self._control.send(Heartbeat(snapshot=self._take_snapshot(now_s)))
        except ChannelFullError:
            pass  # it is stopped or overloaded: the next one carries the same totals
        except ChannelClosedError:
            self.deadline_s = float("inf")  # the loop reads the end of the channel, and ends
