"""The events that ``SessionTable.handle`` takes, and the instructions that it returns.

All are frozen values without behaviour. A *peer* is the ROUTER socket's name of a connection; a
*worker* and a *ticket* (one chunk dispatched to one worker) are numbers that are never reused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from feeder.metrics.hangs import Condition, ProcessLook
from feeder.plan.recipe import Recipe
from feeder.wire.chunk_work import Fill, Filled, FillFailed
from feeder.wire.messages import Chunk, ClientMessage, NodeMessage
from feeder.wire.slot_layout import SlotLayout

# --- Events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MessageReceived:
    """A valid message arrived. An admitted Hello becomes session ``fresh_session``."""

    peer: bytes
    message: ClientMessage
    fresh_session: int = 0
    available_bytes: int = 0
    """Memory that cgroup and machine have available for slots; set for a Hello."""
    account: str = ""
    """The client that a session counts towards: a key's name, a user of this machine, or an
    address; set for a Hello."""
    is_local: bool = False
    """Whether the peer runs on this machine; set for a Hello."""
    is_ipc: bool = False
    """Whether it is connected over ipc; set for a Hello."""


@dataclass(frozen=True, slots=True)
class PeerGone:
    """The socket refused a message to the peer: it has disconnected, or does not read."""

    peer: bytes


@dataclass(frozen=True, slots=True)
class SlotsOpened:
    """The memory of an OpenSlots exists, and every worker was sent its descriptor."""

    session: int


@dataclass(frozen=True, slots=True)
class SlotsRefused:
    """The memory of an OpenSlots could not be created."""

    session: int
    reason: str


@dataclass(frozen=True, slots=True)
class SlotSent:
    """The socket has finished with all chunks of this slot that it was given so far."""

    session: int
    slot: int
    at_s: float
    """When, as well as this is known."""


@dataclass(frozen=True, slots=True)
class SlotReturned:
    """The socket no longer reads this slot (answers ReturnSlot)."""

    session: int
    slot: int


@dataclass(frozen=True, slots=True)
class SlotsClosed:
    """The memory of an ended session is freed (answers CloseSlots)."""

    session: int


@dataclass(frozen=True, slots=True)
class SlotsClaimed:
    """A process of this machine claims a session's slots over ``connection``, to map them."""

    session: int
    connection: int


@dataclass(frozen=True, slots=True)
class HolderGone:
    """The claim connection of a session's slots has closed: the client no longer reads them."""

    session: int
    has_died: bool = False
    """It closed without a farewell."""


@dataclass(frozen=True, slots=True)
class WorkerJoined:
    """A worker is ready for chunks and was sent all open slots."""

    worker: int


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker died or was killed, and never runs again; only the chunk that it was writing is
    incomplete."""

    worker: int
    was_killed: bool = False
    """By SIGKILL."""
    is_held: bool = False
    """The process is still blocked in a read: WorkerReleased follows."""


@dataclass(frozen=True, slots=True)
class WorkerReleased:
    """A lost worker that was blocked in a read has ended."""

    worker: int


@dataclass(frozen=True, slots=True)
class DrainAsked:
    """Drain: finish requested batches, take nothing new."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """This process did not run for a while, and most likely neither did the workers."""

    lost_s: float


@dataclass(frozen=True, slots=True)
class ClockAdvanced:
    """Time has passed; due at SessionTable.check_at_s."""

    looks: Mapping[int, ProcessLook] = field(default_factory=dict)
    """What the processes of SessionTable.quiet_workers do, by worker, as far as this is known."""


Event = (
    MessageReceived
    | PeerGone
    | SlotsOpened
    | SlotsRefused
    | SlotSent
    | SlotReturned
    | SlotsClosed
    | SlotsClaimed
    | HolderGone
    | WorkerJoined
    | WorkerLost
    | WorkerReleased
    | Filled
    | FillFailed
    | DrainAsked
    | ClockAdvanced
    | Resumed
)

# --- Instructions -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message without pixels."""

    peer: bytes
    message: NodeMessage


@dataclass(frozen=True, slots=True)
class OpenSlots:
    """Create a session's memory, have all workers map it; answer SlotsOpened or SlotsRefused."""

    session: int
    dataset: str
    recipe: Recipe
    seed: int
    layout: SlotLayout


@dataclass(frozen=True, slots=True)
class ShareSlots:
    """Send the memory's descriptor over the claim connection; HolderGone follows in any case."""

    session: int
    connection: int


@dataclass(frozen=True, slots=True)
class RefuseClaim:
    """Refuse a claim of slots, with the reason."""

    connection: int
    reason: str


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Send a filled chunk from its slot, without copying the pixels."""

    peer: bytes
    slot: int
    chunk: Chunk


@dataclass(frozen=True, slots=True)
class ReturnSlot:
    """Answer SlotReturned as soon as the socket no longer reads this slot."""

    session: int
    slot: int


@dataclass(frozen=True, slots=True)
class CloseSlots:
    """Free a session's memory once the socket no longer reads it; answer SlotsClosed."""

    session: int


@dataclass(frozen=True, slots=True)
class LogEnd:
    """Log that a session is over; its memory may still be in use."""

    session: int
    account: str
    dataset: str
    how: "SessionEnd"
    client: str
    """The client's name for itself, usually its host, process and rank."""
    job: str
    """The name of its job, "" if it gave none."""


@dataclass(frozen=True, slots=True)
class KillWorker:
    """Kill a stuck worker; WorkerLost follows."""

    worker: int
    dataset: str
    """The dataset that it was reading."""
    condition: Condition = "unclear"
    """What it does."""
    silent_s: float = 0.0
    """How long it made no progress."""


@dataclass(frozen=True, slots=True)
class LogSilence:
    """Log that a worker has made no progress with these rows for a while."""

    worker: int
    silent_s: float
    kernel_state: str
    """Of its process, in words, such as "stopped by a signal"."""
    session: int
    dataset: str
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class LogProgress:
    """Log that a silent worker makes progress again."""

    worker: int
    silent_s: float
    session: int


Instruction = (
    Send
    | OpenSlots
    | ShareSlots
    | RefuseClaim
    | Fill
    | SendChunk
    | ReturnSlot
    | CloseSlots
    | LogEnd
    | LogSilence
    | LogProgress
    | KillWorker
)

SessionEnd = Literal["closed", "lost", "expired"]
"""The client said Bye or greeted again; its process or connection ended; it was silent."""
