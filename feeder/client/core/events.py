"""What happens to a client's session, and what follows: events and instructions.

Events go into ``ClientSession.handle``, instructions come out. All are frozen values
without behaviour. A *link* is the connection to one endpoint, called by a number that is never used
twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from feeder.client.core.prefetch import HostBatch, Placement
from feeder.errors import FeederError
from feeder.wire.messages import Chunk, ClientMessage, NodeMessage
from feeder.wire.slot_layout import SlotLayout

# --- Events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EndpointsListed:
    """These are the endpoints from now on, besides those that their nodes tell of."""

    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection is up: the peer speaks ZeroMQ and has let us in."""

    link: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is lost, and with it what was on its way."""

    link: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt to connect has failed; another one follows by itself."""

    link: int


@dataclass(frozen=True, slots=True)
class NodeIncompatible:
    """The link cannot serve this job, and waiting does not mend it: ``error`` says why."""

    link: int
    error: FeederError


@dataclass(frozen=True, slots=True)
class Heard:
    """A message without frames came."""

    link: int
    message: NodeMessage


@dataclass(frozen=True, slots=True)
class ChunkArrived:
    """A chunk came, with frames of these sizes in bytes."""

    link: int
    chunk: Chunk
    sizes: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChunkStored:
    """A chunk's rows are in their buffer (answers Store)."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class SlotsMapped:
    """A session's slots are mapped (answers ClaimSlots)."""

    link: int
    session: int
    slots: Sequence[HostBatch]


@dataclass(frozen=True, slots=True)
class SlotsNotShared:
    """A session's slots cannot be mapped (answers ClaimSlots)."""

    link: int
    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class ClockAdvanced:
    """Given after all others, and when ``ClientSession.due_s`` has come: now requests are made."""


LinkEvent = Connected | Disconnected | AttemptFailed | NodeIncompatible | Heard
Event = (
    LinkEvent
    | EndpointsListed
    | ChunkArrived
    | ChunkStored
    | SlotsMapped
    | SlotsNotShared
    | ClockAdvanced
)

# --- Instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a link to an endpoint and keep trying."""

    link: int
    endpoint: str


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close a link for good, once what was to be sent is sent; nothing of it counts any more."""

    link: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message."""

    link: int
    message: ClientMessage


@dataclass(frozen=True, slots=True)
class ClaimSlots:
    """Claim a session's slots at ``door``; answer SlotsMapped or SlotsNotShared."""

    link: int
    session: int
    door: str
    layout: SlotLayout


@dataclass(frozen=True, slots=True)
class DropClaim:
    """Give up the claim that is on its way, if one is."""

    link: int


@dataclass(frozen=True, slots=True)
class Store:
    """Copy the frames of the chunk that has arrived to their place; answer ChunkStored."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Say:
    """Tell people, by the log."""

    text: str
    is_warning: bool = False


Instruction = Dial | HangUp | Send | ClaimSlots | DropClaim | Store | Say
