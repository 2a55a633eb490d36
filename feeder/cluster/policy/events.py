"""What happens in a cluster, and what its plan asks for. Pure.

A launch is one attempt to run the feeder of a slot on a host; its number is never used again.
"""

from dataclasses import dataclass

from feeder.cluster.policy.start_facts import StartFacts


@dataclass(frozen=True, slots=True)
class Host:
    """A host that offers the resource."""

    id: str
    """Ray's id of the node; a host that restarts gets another one."""
    address: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The number of feeders is to be this one."""

    feeders: int


@dataclass(frozen=True, slots=True)
class HostsSeen:
    """All hosts that offer the resource now."""

    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True)
class Adopted:
    """A feeder was found that an earlier controller launched."""

    launch: int
    slot: int
    host: Host


@dataclass(frozen=True, slots=True)
class Placed:
    """The launch's process runs on its host, and the daemon is being started."""

    launch: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The launch's daemon serves."""

    launch: int
    facts: StartFacts


@dataclass(frozen=True, slots=True)
class Failed:
    """The launch's daemon could not start, or ended by itself."""

    launch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The launch is gone, with its host or alone."""

    launch: int
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = Wanted | HostsSeen | Adopted | Placed | Ready | Failed | Lost | Tick


@dataclass(frozen=True, slots=True)
class Launch:
    """Run the feeder of ``slot`` on ``host``."""

    launch: int
    slot: int
    host: Host


@dataclass(frozen=True, slots=True)
class End:
    """End a launch: the daemon drains, and its actor goes. Reported back as Lost."""

    launch: int


Instruction = Launch | End
