"""What happens to a client's session, and what follows: events and instructions.

All are frozen values without behaviour, structs because those are made in C. A *link* is the
connection to one endpoint, identified by a number that is never reused.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from feeder.client.core.prefetch import HostBatch
from feeder.errors import FeederError
from feeder.wire.messages import Chunk, ClientMessage, NodeMessage
from feeder.wire.slot_layout import SlotLayout

# --- Events -----------------------------------------------------------------------------------


class EndpointsListed(Struct, frozen=True):
    """The endpoints from now on, besides those that their nodes report; each with the name that the
    list gives it, or ""."""

    names: Mapping[str, str]


class Connected(Struct, frozen=True):
    """The connection is up: the ZeroMQ handshake has succeeded."""

    link: int


class Disconnected(Struct, frozen=True):
    """The connection is lost, and with it all messages in flight, or an attempt to connect has
    failed; libzmq makes another one."""

    link: int


class NodeIncompatible(Struct, frozen=True):
    """The link cannot serve this job, and waiting does not mend it: ``error`` is the reason."""

    link: int
    error: FeederError


class MessageReceived(Struct, frozen=True):
    """A message came; a chunk with frames of these sizes in bytes."""

    link: int
    message: NodeMessage
    sizes: Sequence[int] = ()


class ChunkStored(Struct, frozen=True):
    """A chunk's rows are in their buffer (answers Store)."""

    link: int
    chunk: Chunk


class ClaimAnswered(Struct, frozen=True):
    """A session's slots are mapped, or cannot be because of a ``refusal`` (answers ClaimSlots)."""

    link: int
    session: int
    slots: Sequence[HostBatch] = ()
    refusal: str | None = None


class ClockAdvanced(Struct, frozen=True):
    """Given after all others, and when ``ClientSession.due_s`` has come: now requests are made."""

    cpu_s: float = 0.0  # CPU time of this process so far


LinkEvent = Connected | Disconnected | NodeIncompatible | ClaimAnswered
Event = LinkEvent | EndpointsListed | MessageReceived | ChunkStored | ClockAdvanced

# --- Instructions -----------------------------------------------------------------------------


class Dial(Struct, frozen=True):
    """Open a link to an endpoint and keep trying."""

    link: int
    endpoint: str


class HangUp(Struct, frozen=True):
    """Close a link for good, after its pending messages are sent; its events count no more."""

    link: int


class Send(Struct, frozen=True):
    """Send a message."""

    link: int
    message: ClientMessage


class ClaimSlots(Struct, frozen=True):
    """Claim a session's slots at the socket ``path``, and drop an earlier claim on the link; answer
    ClaimAnswered."""

    link: int
    session: int
    path: str
    layout: SlotLayout


class Store(Struct, frozen=True):
    """Copy the frames of the chunk that has arrived to its rows of a buffer; answer ChunkStored."""

    link: int
    chunk: Chunk
    buffer: int


class Log(Struct, frozen=True):
    """Write a line to the log."""

    text: str
    is_warning: bool = False


Instruction = Dial | HangUp | Send | ClaimSlots | Store | Log
