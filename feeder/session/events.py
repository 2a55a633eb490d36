"""What happens to a node process's sessions, and what follows: events and instructions.

Events go into ``SessionTable.handle``, instructions come out. All are frozen values
without behaviour. A *peer* is the ROUTER socket's name of a connection; a *worker* and a *ticket*
(one chunk given to one worker) are numbers that are never used twice.
"""

from dataclasses import dataclass

from feeder.plan.recipe import Recipe
from feeder.wire.messages import ClientMessage, NodeMessage
from feeder.wire.slot_layout import SlotLayout

# --- Events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A valid message came. A Hello that is welcomed becomes session ``fresh_session``."""

    peer: bytes
    message: ClientMessage
    fresh_session: int = 0
    available_bytes: int = 0
    """What the machine can still give to slots, read when a Hello arrives."""
    account: str = ""
    """Whose limits a session counts against, read when a Hello arrives: a key's name, a user of
    this machine, or an address."""


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The socket refused a message to the peer: it has no connection any more, or never reads."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class SlotsOpened:
    """The memory that OpenSlots asked for exists and every worker has been told of it."""

    session: int


@dataclass(frozen=True, slots=True)
class SlotsRefused:
    """The memory that OpenSlots asked for could not be had."""

    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class SlotReturned:
    """The socket has let go of all that it was given of this slot (answers ReturnSlot)."""

    session: int
    slot: int


@dataclass(frozen=True, slots=True)
class SlotsClosed:
    """The memory of an ended session has been given back (answers CloseSlots)."""

    session: int


@dataclass(frozen=True, slots=True)
class SlotsClaimed:
    """A process of this machine asks, over ``connection``, to map a session's slots."""

    session: int
    connection: int


@dataclass(frozen=True, slots=True)
class HolderGone:
    """The connection is over by which a client held a session's slots: it reads them no more."""

    session: int
    has_died: bool = False
    """It let go without a farewell."""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker is ready for chunks and knows of all open slots."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker has died, or was ended and never runs again; whatever it wrote before is complete,
    what it was writing is not."""

    worker: int
    was_killed: bool = False
    """By SIGKILL."""
    is_held: bool = False
    """The kernel holds on to the process, which waits for a read: WorkerReleased follows."""


@dataclass(frozen=True, slots=True)
class WorkerReleased:
    """The kernel has let go of a lost worker that it held."""

    worker: int


@dataclass(frozen=True, slots=True)
class ChunkFilled:
    """A worker has written all rows of a chunk."""

    ticket: int


@dataclass(frozen=True, slots=True)
class ChunkFailed:
    """A worker cannot produce a chunk and says why; it lives on."""

    ticket: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """The daemon is to end: finish what was asked for, take nothing new."""


@dataclass(frozen=True, slots=True)
class ClockAdvanced:
    """Nothing happened but time; due when SessionTable.check_at_s has come."""


Event = (
    MessageReceived
    | PeerGone
    | SlotsOpened
    | SlotsRefused
    | SlotReturned
    | SlotsClosed
    | SlotsClaimed
    | HolderGone
    | WorkerJoined
    | WorkerLost
    | WorkerReleased
    | ChunkFilled
    | ChunkFailed
    | DrainAsked
    | ClockAdvanced
)

# --- Instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message without frames of pixels."""

    peer: bytes
    message: NodeMessage


@dataclass(frozen=True, slots=True)
class OpenSlots:
    """Create a session's memory, tell all workers; answer SlotsOpened or SlotsRefused."""

    session: int
    dataset: str
    recipe: Recipe
    seed: int
    layout: SlotLayout


@dataclass(frozen=True, slots=True)
class ShareSlots:
    """Give the memory to whoever claimed it; HolderGone follows, if only because it cannot be."""

    session: int
    connection: int


@dataclass(frozen=True, slots=True)
class RefuseClaim:
    """Tell whoever claimed slots why it does not get them."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class FillChunk:
    """Have a worker write rows first .. first + count - 1 of a batch into a slot."""

    worker: int
    ticket: int
    session: int
    slot: int
    epoch: int
    index: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send a finished chunk from its slot, without copying the pixels."""

    peer: bytes
    session: int
    slot: int
    epoch: int
    index: int
    first: int
    count: int
    valid: int
    """Rows of the whole batch that are real samples."""


@dataclass(frozen=True, slots=True)
class ReturnSlot:
    """Nobody needs the slot: answer SlotReturned as soon as the socket has let go of it."""

    session: int
    slot: int


@dataclass(frozen=True, slots=True)
class CloseSlots:
    """Give a session's memory back once the socket lets go of it; answer SlotsClosed."""

    session: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """The worker has made no progress for too long: end it; WorkerLost follows."""

    worker: int
    dataset: str
    """What it was reading."""


Instruction = (
    Send
    | OpenSlots
    | ShareSlots
    | RefuseClaim
    | FillChunk
    | SendChunk
    | ReturnSlot
    | CloseSlots
    | KillWorker
)
