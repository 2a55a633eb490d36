"""The state of a cluster's plan, for people and programs. Pure."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

SlotState = Literal["placing", "starting", "ready", "ending"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotStatus:
    """A launch, for people."""

    slot: int
    address: str
    state: SlotState
    seconds: float
    """In this state."""
    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostProblem:
    """A host whose feeder failed, for people."""

    address: str
    failures: int
    reason: str
    retry_s: float
    """Until it may be tried again; 0 when nothing holds it back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStatus:
    """The whole plan, for people."""

    wanted: int
    hosts: int
    """That offer the resource."""
    slots: tuple[SlotStatus, ...]
    problems: tuple[HostProblem, ...]
    notes: tuple[str, ...]

    @property
    def ready(self) -> int:
        """How many feeders serve."""
        return sum(slot.state == "ready" for slot in self.slots)


def as_plain(status: PlanStatus) -> dict[str, object]:
    """Return a status as dictionaries and lists, for JSON."""
    return dataclasses.asdict(status)
