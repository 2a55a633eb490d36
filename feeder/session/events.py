"""The events that ``SessionTable.handle`` takes, and the instructions that it returns.

A *peer* is the ROUTER socket's name of a connection; a *session*, a *worker* and a *ticket* (one
chunk dispatched to one worker) are numbers that are never reused. Instructions that hold a session
or a chunk itself are to be carried out before the next event.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from feeder.metrics.hangs import Condition, ProcessLook
from feeder.session.admission import HelloReceived
from feeder.session.state import PendingBatch, PendingChunk, Session
from feeder.wire.chunk_work import Fill, Filled, FillFailed
from feeder.wire.messages import Bye, Chunk, NodeMessage, Ping, Request

# --- Events -----------------------------------------------------------------------------------


class MessageReceived(NamedTuple):
    """A valid message arrived, other than a Hello."""

    peer: bytes
    message: Request | Ping | Bye


class PeerGone(NamedTuple):
    """The socket refused a message to the peer: it has disconnected, or does not read."""

    peer: bytes


class SlotsOpened(NamedTuple):
    """The memory of an OpenSlots exists, and every worker was sent its descriptor."""

    session: int
    problem: str = ""
    """Why it could not be created, if so."""


class SlotSent(NamedTuple):
    """The socket has finished with all chunks of this slot that it was given so far."""

    session: int
    slot: int
    at_s: float
    """When, as well as this is known."""


class SlotReturned(NamedTuple):
    """The socket no longer reads this slot (answers ReturnSlot)."""

    session: int
    slot: int


class SlotsClosed(NamedTuple):
    """The memory of an ended session is freed (answers CloseSlots)."""

    session: int


class SlotsClaimed(NamedTuple):
    """A process of this machine claims a session's slots over ``connection``, to map them."""

    session: int
    connection: int


class HolderGone(NamedTuple):
    """The claim connection of a session's slots has closed: the client no longer reads them."""

    session: int
    has_died: bool = False
    """It closed without a farewell."""


class WorkerJoined(NamedTuple):
    """A worker is ready for chunks and was sent all open slots."""

    worker: int


class WorkerLost(NamedTuple):
    """A worker died or was killed, and never runs again; only the chunk that it was writing is
    incomplete."""

    worker: int
    was_killed: bool = False
    """By SIGKILL."""
    is_held: bool = False
    """The process is still blocked in a read: WorkerReleased follows."""


class WorkerReleased(NamedTuple):
    """A lost worker that was blocked in a read has ended."""

    worker: int


class SamplesFetched(NamedTuple):
    """The samples of a fetch are on disk and stay there (answers FetchSamples, CheckSamples)."""

    fetch: int
    problem: str = ""
    """Why they cannot be had, if so."""


class DrainAsked(NamedTuple):
    """Drain: finish requested batches, take nothing new."""


class Resumed(NamedTuple):
    """This process did not run for a while, and most likely neither did the workers."""


class ClockAdvanced(NamedTuple):
    """Time has passed; due at SessionTable.check_at_s."""

    looks: Mapping[int, ProcessLook] = MappingProxyType({})
    """What the processes of WorkerWatch.quiet_workers do, by worker, as far as this is known."""


_SlotEvent = SlotsOpened | SlotSent | SlotReturned | SlotsClosed | SlotsClaimed | HolderGone
_WorkerEvent = WorkerJoined | WorkerLost | WorkerReleased | Filled | FillFailed
_ProcessEvent = SamplesFetched | DrainAsked | ClockAdvanced | Resumed
Event = HelloReceived | MessageReceived | PeerGone | _SlotEvent | _WorkerEvent | _ProcessEvent

# --- Instructions -----------------------------------------------------------------------------


class Send(NamedTuple):
    """Send a message without pixels."""

    peer: bytes
    message: NodeMessage


class OpenSlots(NamedTuple):
    """Create a session's memory, have all workers map it; SlotsOpened is the next event."""

    session: Session


class ShareSlots(NamedTuple):
    """Send the memory's descriptor over the claim connection; HolderGone follows in any case."""

    session: int
    connection: int


class RefuseClaim(NamedTuple):
    """Refuse a claim of slots, with the reason."""

    connection: int
    reason: str


class FetchSamples(NamedTuple):
    """Have the samples of a batch on disk, and keep them there; answer SamplesFetched."""

    batch: PendingBatch


class CheckSamples(NamedTuple):
    """Compare the samples of a chunk with their checksums, fetch those again that are wrong, and
    answer SamplesFetched with the number ``fetch``."""

    fetch: int
    chunk: PendingChunk


class LetGo(NamedTuple):
    """Nothing reads the samples of a fetch any more."""

    fetch: int


class SendChunk(NamedTuple):
    """Send a filled chunk from its slot, without copying the pixels."""

    peer: bytes
    slot: int
    chunk: Chunk


class ReturnSlot(NamedTuple):
    """Answer SlotReturned as soon as the socket no longer reads this slot."""

    session: int
    slot: int


class CloseSlots(NamedTuple):
    """Free a session's memory once the socket no longer reads it; answer SlotsClosed. Nothing reads
    the samples of its fetches any more."""

    session: int


class LogEnd(NamedTuple):
    """Log that a session is over; its memory may still be in use."""

    session: Session
    how: "SessionEnd"


class KillWorker(NamedTuple):
    """Kill the stuck worker with this chunk; WorkerLost follows."""

    chunk: PendingChunk
    condition: Condition
    """What it does."""
    silent_s: float
    """How long it made no progress."""


class LogSilence(NamedTuple):
    """Log that the worker with this chunk has made no progress for a while."""

    chunk: PendingChunk
    silent_s: float
    kernel_state: str
    """What the kernel says of the process, such as "stopped by a signal"."""


class LogProgress(NamedTuple):
    """Log that a silent worker has finished its chunk."""

    chunk: PendingChunk


_SlotInstruction = OpenSlots | ShareSlots | RefuseClaim | ReturnSlot | CloseSlots
_WorkerInstruction = Fill | KillWorker | LogSilence | LogProgress
_FetchInstruction = FetchSamples | CheckSamples | LetGo
Instruction = Send | SendChunk | LogEnd | _SlotInstruction | _WorkerInstruction | _FetchInstruction

SessionEnd = Literal["closed", "lost", "expired"]
"""The client said Bye or greeted again; its process or connection ended; it was silent."""
