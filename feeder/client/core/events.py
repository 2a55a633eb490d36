"""What happens to a client's session, and what follows: events and instructions.

Events go into ``ClientSession.handle``, instructions come out. All are frozen values without
behaviour. A *link* is the connection to one endpoint, identified by a number that is never reused.
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
    """The endpoints from now on, besides those that their nodes report."""

    endpoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Connected:
    """The connection is up: the ZeroMQ handshake has succeeded."""

    link: int


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is lost, and with it all messages in flight."""

    link: int


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """An attempt to connect has failed; libzmq makes another one."""

    link: int


@dataclass(frozen=True, slots=True)
class NodeIncompatible:
    """The link cannot serve this job, and waiting does not mend it: ``error`` is the reason."""

    link: int
    error: FeederError


@dataclass(frozen=True, slots=True)
class MessageReceived:
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


LinkEvent = (
    Connected
    | Disconnected
    | AttemptFailed
    | NodeIncompatible
    | MessageReceived
    | SlotsMapped
    | SlotsNotShared
)
Event = LinkEvent | EndpointsListed | ChunkArrived | ChunkStored | ClockAdvanced

# --- Instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dial:
    """Open a link to an endpoint and keep trying."""

    link: int
    endpoint: str


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close a link for good, after its pending messages are sent; its events count no more."""

    link: int


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message."""

    link: int
    message: ClientMessage


@dataclass(frozen=True, slots=True)
class ClaimSlots:
    """Claim a session's slots at the socket ``path``; answer SlotsMapped or SlotsNotShared."""

    link: int
    session: int
    path: str
    layout: SlotLayout


@dataclass(frozen=True, slots=True)
class DropClaim:
    """Cancel the pending claim, if there is one."""

    link: int


@dataclass(frozen=True, slots=True)
class Store:
    """Copy the frames of the chunk that has arrived to their rows; answer ChunkStored."""

    placement: Placement


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line to the log."""

    text: str
    is_warning: bool = False


Instruction = Dial | HangUp | Send | ClaimSlots | DropClaim | Store | Log
