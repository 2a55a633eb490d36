"""The wire protocol: the messages between client and node, as bytes and as checked values.

    frame 0:  b"FDR"  version (1 byte, 8 or 9)  MessagePack map {"type": name, field: value, …}
    a Chunk is followed by three raw frames:
      pixels      (images, …), C order, as the recipe's packing has it: int8 (images, S, S, 3); a
                  frame for each crop of a sample, if there are several, group after group
      labels      as the Welcome's ``labels`` have them, little-endian: of kind index int64
                  (images,); multi uint8 (images, width), 1 for each class that a sample has, else
                  0; float float32 (images, width); none int64 (images,), all -1
      sample ids  int64 little-endian (images,)
    Rows at and past ``valid`` of a padded batch have the level 128 in all pixels (as int8: 0),
    sample id -1, and as label -100 (index, none), 255 (multi) or NaN (float).
    a Blobs is followed by one raw frame: the blobs, as they were packed, without gaps
    A client that maps the session's slots (``claim``) gets one Lent for each batch instead, without
    frames: it reads the slot until it releases the batch.

    client                                          node
      Hello              ──────────────────────────►
                         ◄──────────────────────────  Welcome | Refused | NotReady
      Request (want)     ──────────────────────────►
                         ◄──────────────────────────  Chunk … | Failed      (any order, interleaved)
                         ◄──────────────────────────  Lent | Failed         (the same, slots mapped)
      Request (release, want the next) ────────────►
      Ping (waits)       ──────────────────────────►  Pong (verdict)        (keeps the lease)
                         ◄──────────────────────────  Draining              (the node is stopping)
      Bye                ──────────────────────────►
      StatsRequest       ──────────────────────────►  Stats
      HostStatsRequest   ──────────────────────────►  HostStats
      NamesRequest       ──────────────────────────►  Names | Refused       (the first of those)
      SourcesRequest     ──────────────────────────►  Sources | Refused
      BlobsRequest       ──────────────────────────►  Blobs | Refused       (from another feeder)

A client may have at most ``window`` batches wanted and not yet released.

Invariant: a decoded message is within every bound stated here. Whatever the bytes are, ``decode_*``
either returns such a message or raises ``ProtocolError``, in time and memory linear in the frame.
"""

from typing import Annotated, Any, Final, Literal, TypeVar, get_args

import msgspec
from msgspec import Meta

from feeder.errors import ConfigError, ProtocolError
from feeder.metrics.report import VERDICT_CHARS_MAX, HostReport
from feeder.plan.epoch import MAX_EPOCH, MAX_SHARDS
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.plan.lanes import LANES_LIMIT
from feeder.plan.recipe import MAX_BATCH_SIZE, Recipe

PROTOCOL_VERSION: Final = 8
NEWER_VERSION: Final = 9  # of a Hello with newer fields, which older feeders refuse at once
MAGIC: Final = b"FDR"
MAX_HEADER_BYTES: Final = 64 * 1024  # of any frame from a client
MAX_NODE_HEADER_BYTES: Final = 16 * 1024 * 1024  # a Welcome carries all class names
MAX_INDICES: Final = 64
MAX_WINDOW: Final = 64
MAX_CLASSES: Final = 2**20
MAX_CLASSES_BYTES: Final = 15 * 1024 * 1024  # of all class names, each with 5 bytes for its length
MAX_TEXT_CHARACTERS: Final = 4096
MAX_NODES: Final = 4096  # node processes of a daemon
MAX_ENDPOINTS: Final = 16  # of a node process
MAX_WORKERS: Final = 65_536  # of a node process
SAMPLES_LIMIT: Final = 2**48
MAX_NAMES: Final = 64  # of samples, in a message
MAX_NAME_BYTES: Final = 2**16 - 1  # of a sample; a shard's records have 16 bits for it
MAX_SOURCES: Final = 4096  # samples, in a message
MAX_MEMBERS: Final = 1024  # datasets of a selection
MAX_BLOBS: Final = 256  # of samples, in a message
MAX_BLOBS_BYTES: Final = MAX_NODE_HEADER_BYTES  # of them; a client takes no longer frame

PADDING_SAMPLE_ID: Final = -1

_PREFIX: Final = MAGIC + bytes([PROTOCOL_VERSION])
_PREFIXES: Final = (_PREFIX, MAGIC + bytes([NEWER_VERSION]))
_MAX_REASON_CHARACTERS: Final = 200
_NO_CONTROLS: Final = r"^[^\x00-\x1f\x7f-\x9f]*\Z"  # names end up in logs and on terminals

# MessagePack integers end at 2**64 - 1, so U64 needs no upper bound (msgspec's end at 2**63 - 1).
U64 = Annotated[int, Meta(ge=0)]
Epoch = Annotated[int, Meta(ge=0, le=MAX_EPOCH)]
Index = Annotated[int, Meta(ge=0, lt=2**48)]
Count = Annotated[int, Meta(ge=0, lt=2**48)]
Rows = Annotated[int, Meta(ge=0, le=MAX_BATCH_SIZE)]
SampleId = Annotated[int, Meta(ge=0, lt=SAMPLES_LIMIT)]
SampleIds = Annotated[tuple[SampleId, ...], Meta(min_length=1, max_length=MAX_NAMES)]
SourceNames = Annotated[
    tuple[Annotated[bytes, Meta(max_length=MAX_NAME_BYTES)], ...],
    Meta(min_length=1, max_length=MAX_NAMES),
]
SourceIds = Annotated[tuple[SampleId, ...], Meta(min_length=1, max_length=MAX_SOURCES)]
SourceRow = tuple[Annotated[int, Meta(ge=0, lt=MAX_MEMBERS)], SampleId]
BlobIds = Annotated[tuple[SampleId, ...], Meta(min_length=1, max_length=MAX_BLOBS)]
BlobSize = Annotated[int, Meta(ge=0, le=MAX_BLOBS_BYTES)]
BlobSizes = Annotated[tuple[BlobSize, ...], Meta(min_length=1, max_length=MAX_BLOBS)]
Duration = Annotated[float, Meta(ge=0, le=1e12)]
SampleCount = Annotated[int, Meta(ge=1, le=SAMPLES_LIMIT)]
Window = Annotated[int, Meta(ge=1, le=MAX_WINDOW)]
Name = Annotated[str, Meta(min_length=1, max_length=128, pattern=_NO_CONTROLS)]
JobName = Annotated[str, Meta(max_length=128, pattern=_NO_CONTROLS)]
NodeName = Annotated[str, Meta(min_length=1, max_length=512, pattern=_NO_CONTROLS)]
Text = Annotated[str, Meta(max_length=MAX_TEXT_CHARACTERS)]
Siblings = Annotated[
    tuple[Annotated[tuple[Text, ...], Meta(max_length=MAX_ENDPOINTS)], ...],
    Meta(max_length=MAX_NODES),
]
BatchKey = tuple[Epoch, Index]
"""Which batch: epoch and index."""
BatchKeys = Annotated[tuple[BatchKey, ...], Meta(max_length=MAX_INDICES)]
Counter = int | float | Text
RefusedCode = Literal[
    "version",
    "unknown-dataset",
    "dataset",
    "bad-recipe",
    "unknown-session",
    "window",
    "memory",
    "clients",
    "recipes",
    "rate",
    "draining",
    "malformed",
    "range",
    "unreadable",
]


class VersionMismatch(ProtocolError):  # noqa: N818 -- names what happened
    """Raised when a frame is of another protocol version, which ``their_version`` holds."""

    def __init__(self, their_version: int) -> None:
        """``their_version`` is the frame's version byte."""
        self.their_version = their_version
        super().__init__(
            f"the peer uses protocol version {their_version}, this feeder {PROTOCOL_VERSION}: "
            "install the same feeder version on both sides"
        )


class BadRecipe(ProtocolError):  # noqa: N818 -- names what happened
    """Raised when a Hello's recipe has a field out of its range, which the message names."""


class _Message(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag=True,
    tag_field="type",
):
    """The base of all messages."""


class Hello(_Message, frozen=True, kw_only=True):
    """Requests a session on a dataset with a recipe; ``client`` is a name for logs.

    Jobs of different names share a feeder's workers evenly, or by weight (``feeder.session.jobs``).
    """

    dataset: Name
    recipe: Recipe
    seed: U64
    window: Window
    client: Name
    job: JobName = ""
    """The name of the job; the sessions of a client that give none are one job."""


class Request(_Message, frozen=True, kw_only=True):
    """Releases the batches ``release``, then requests the batches ``want``.

    ``number`` is chosen by the client and repeated in Lent: a client may give up a batch while its
    Lent is in flight, and request the batch again. ``unowned`` are those of ``want`` whose lane
    another feeder owns: their pieces are not fetched from a store for one batch.
    """

    session: U64
    number: Count = 0
    want: BatchKeys = ()
    release: BatchKeys = ()
    unowned: BatchKeys = ()


class Ping(_Message, frozen=True, kw_only=True):
    """Keeps the session alive, and reports how long the training loop has waited for this node.

    All three are totals since the session's Welcome, so a lost ping loses nothing.
    """

    session: U64
    clock_s: Duration = 0.0
    """Time on the client's clock."""
    waited_s: Duration = 0.0
    """The part of it in which the training loop waited for a batch requested from this node."""
    cpu_s: Duration = 0.0
    """CPU time of the client's process in it."""


class Bye(_Message, frozen=True, kw_only=True):
    """Ends the session and releases everything."""

    session: U64


class StatsRequest(_Message, frozen=True, kw_only=True):
    """Requests the node's counters; needs no session."""


class HostStatsRequest(_Message, frozen=True, kw_only=True):
    """Requests the report of the node's whole host; needs no session."""


class NamesRequest(_Message, frozen=True, kw_only=True):
    """Requests the source names of samples; needs no session.

    ``content`` is that of the dataset to which the ids belong; "" is whichever is served.
    """

    dataset: Name
    content: Annotated[str, Meta(max_length=128, pattern=_NO_CONTROLS)] = ""
    sample_ids: SampleIds


class SourcesRequest(_Message, frozen=True, kw_only=True):
    """Requests which samples of which datasets those of a selection are, as NamesRequest does."""

    dataset: Name
    content: Annotated[str, Meta(max_length=128, pattern=_NO_CONTROLS)] = ""
    sample_ids: SourceIds


class BlobsRequest(_Message, frozen=True, kw_only=True):
    """Requests the blobs of samples, of whichever dataset has this ``content``; needs no session.

    Feeders send it to each other before they ask a store.
    """

    content: Name
    sample_ids: BlobIds


class NodeIdentity(_Message, frozen=True, kw_only=True):
    """How a node process presents itself in a Welcome.

    ``workers`` is its number of them: a client derives how many chunks keep it busy.

    ``node`` is unique to a node process and survives its restarts: clients rank node processes by
    it. ``incarnation`` is drawn when the process starts: endpoints with the same one lead to the
    same process, and a changed one means a restart. ``siblings`` are the endpoints of all node
    processes of the daemon, by ``number``, as bound. Feeders with different ``self_test``s would
    make different bytes of the same batch.
    """

    workers: Annotated[int, Meta(ge=1, le=MAX_WORKERS)] = 1
    node: NodeName
    number: Annotated[int, Meta(ge=0, lt=MAX_NODES)]
    incarnation: U64
    siblings: Siblings
    feeder_version: Name
    self_test: Name
    libraries: Annotated[dict[Name, Text], Meta(max_length=256)]

    def asdict(self) -> dict[str, Any]:
        """The fields by name, as the arguments of a Welcome."""
        return msgspec.structs.asdict(self)


class Welcome(NodeIdentity, frozen=True, kw_only=True):
    """Grants a session: describes the dataset, the client's window and the node process.

    ``content`` is the dataset's content fingerprint (``feeder.dataset.content``). ``lanes``,
    ``working_set`` and ``piece`` are what the recipe's fields stand for (``OrderShape``).
    ``chunk_images`` is the most rows of a chunk of any epoch, which may begin at any row.
    """

    session: U64
    dataset: Name
    content: Name
    recipe_fingerprint: Name
    classes: Annotated[tuple[Text, ...], Meta(max_length=MAX_CLASSES)]
    labels: LabelSpec = INDEX_LABELS
    samples: SampleCount
    batches: Count
    shards: Annotated[int, Meta(ge=1, le=MAX_SHARDS)]
    lanes: Annotated[int, Meta(ge=1, le=LANES_LIMIT)]
    working_set: SampleCount
    piece: SampleCount
    window: Window
    chunk_images: Annotated[int, Meta(ge=1, le=MAX_BATCH_SIZE)]


class Refused(_Message, frozen=True, kw_only=True):
    """Refuses a request, with the reason; ``session`` is None before there is one."""

    code: RefusedCode
    message: Text
    session: U64 | None = None


class NotReady(_Message, frozen=True, kw_only=True):
    """Answers a Hello while the daemon packs what it will serve: the client greets again.

    ``advances`` grows with all progress: a client waits as long as it does. It is smaller after a
    restart of the daemon, until the packing is farther than it was before.
    """

    text: Annotated[str, Meta(max_length=VERDICT_CHARS_MAX, pattern=_NO_CONTROLS)]
    """What it does and how far that is: "packing imagenet, 34 %, 5 min left"."""
    advances: Count


class Chunk(_Message, frozen=True, kw_only=True):
    """Announces rows first .. first + images - 1 of a batch that has ``valid`` real rows."""

    session: U64
    epoch: Epoch
    index: Index
    first: Rows
    images: Annotated[int, Meta(ge=1, le=MAX_BATCH_SIZE)]
    valid: Rows


class Lent(_Message, frozen=True, kw_only=True):
    """Lends a whole batch in place: it stays in ``slot`` until the client releases it."""

    session: U64
    request: Count
    epoch: Epoch
    index: Index
    slot: Annotated[int, Meta(ge=0, lt=MAX_WINDOW)]
    valid: Rows


class Failed(_Message, frozen=True, kw_only=True):
    """Reports that a batch cannot be made, and why."""

    session: U64
    epoch: Epoch
    index: Index
    code: Name
    message: Text


class Pong(_Message, frozen=True, kw_only=True):
    """Answers a Ping, with the daemon's verdict on what sets its pace ("" before there is one).

    ``sharers`` is how many sessions of this dataset and recipe the node process has: as a rule, how
    many ranks of a job it serves. ``store`` is the URL of the store from which batches of this
    session wait for samples, "" if none does.
    """

    session: U64
    sharers: Annotated[int, Meta(ge=1, lt=2**32)] = 1
    verdict: Annotated[str, Meta(max_length=VERDICT_CHARS_MAX, pattern=_NO_CONTROLS)] = ""
    store: Annotated[str, Meta(max_length=MAX_TEXT_CHARACTERS, pattern=_NO_CONTROLS)] = ""


class Draining(_Message, frozen=True, kw_only=True):
    """Announces that the node is stopping: it still sends what was requested, and no more."""

    session: U64


class Stats(_Message, frozen=True, kw_only=True):
    """Carries the node's counters."""

    counters: Annotated[dict[Name, Counter], Meta(max_length=65_536)]


class HostStats(_Message, frozen=True, kw_only=True):
    """Carries the report of the node's host; None if its supervisor has not answered in time."""

    report: HostReport | None


class Names(_Message, frozen=True, kw_only=True):
    """Carries the source names of the first of the samples that were requested.

    They are as many as can be read in a short time and fit into a message, at least one: the client
    requests the others again. They are bytes, as the source's file system has them.
    """

    names: SourceNames


class Sources(_Message, frozen=True, kw_only=True):
    """Answers a SourcesRequest: ``datasets`` are the names and content fingerprints of those that a
    selection has samples of, or a dataset's own; ``rows``, by sample, the position in these and the
    sample id there. ``is_drawn``: by weight, so a sample may come several times in an epoch."""

    is_drawn: bool = False
    datasets: Annotated[tuple[tuple[Text, Name], ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
    rows: Annotated[tuple[SourceRow, ...], Meta(min_length=1, max_length=MAX_SOURCES)]


class Blobs(_Message, frozen=True, kw_only=True):
    """Carries the blobs of the first of the samples that were requested, in the frame that follows.

    ``sizes`` are their bytes, 0 for those that are not there. They are as many as can be read in a
    short time and fit into a frame: the others are to be requested again.
    """

    sizes: BlobSizes


_Inquiry = StatsRequest | HostStatsRequest | NamesRequest | SourcesRequest | BlobsRequest
ClientMessage = Hello | Request | Ping | Bye | _Inquiry
_Information = Stats | HostStats | Names | Sources | Blobs
NodeMessage = Welcome | Refused | NotReady | Chunk | Lent | Failed | Pong | Draining | _Information

_AnyMessage = TypeVar("_AnyMessage")

_CLIENT_TYPES: Final = get_args(ClientMessage)
_ENCODER: Final = msgspec.msgpack.Encoder()
_CLIENT_DECODER: Final[msgspec.msgpack.Decoder[ClientMessage]] = msgspec.msgpack.Decoder(
    ClientMessage
)
_NODE_DECODER: Final[msgspec.msgpack.Decoder[NodeMessage]] = msgspec.msgpack.Decoder(NodeMessage)

# A recipe has checked itself when it was made, which takes longer than all the rest of a Hello.
_HELLO_CHECK: Final = msgspec.msgpack.Decoder(
    msgspec.defstruct(
        "Hello",
        [
            (field.name, msgspec.Raw if field.type is Recipe else field.type)
            for field in msgspec.structs.fields(Hello)
        ],
        bases=(_Message,),
        frozen=True,
        kw_only=True,
    )
)


def encode(message: ClientMessage | NodeMessage, *, is_checked: bool = False) -> bytes:
    """Return the message's frame; ProtocolError when the receiver would refuse it.

    The check costs a few microseconds and reports the fault at its source: the peer silently drops
    what does not parse. ``is_checked`` leaves it out, for a message that was encoded before.
    """
    try:
        is_newer = isinstance(message, Hello) and message.recipe.newer_fields
        frame = _PREFIXES[bool(is_newer)] + _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"{type(message).__name__} cannot be encoded: {error}") from error
    if is_checked:
        return frame
    if isinstance(message, Hello):
        _decode(frame, _HELLO_CHECK, MAX_HEADER_BYTES)
    elif isinstance(message, _CLIENT_TYPES):
        decode_from_client(frame)
    else:
        decode_from_node(frame)
    return frame


def decode_from_client(frame: bytes | memoryview) -> ClientMessage:
    """Return the message in a frame from a client, within all bounds.

    Raises VersionMismatch for another version, BadRecipe for a recipe out of range, and
    ProtocolError for everything else.
    """
    return _decode(frame, _CLIENT_DECODER, MAX_HEADER_BYTES)


def decode_from_node(frame: bytes | memoryview) -> NodeMessage:
    """Return the message in a first frame from a node; VersionMismatch or ProtocolError."""
    return _decode(frame, _NODE_DECODER, MAX_NODE_HEADER_BYTES)


def _decode(
    frame: bytes | memoryview, decoder: msgspec.msgpack.Decoder[_AnyMessage], max_bytes: int
) -> _AnyMessage:
    if len(frame) > max_bytes:
        raise ProtocolError(f"a header of {len(frame)} bytes is over the limit of {max_bytes}")
    start = bytes(frame[: len(_PREFIX)])
    if len(start) < len(_PREFIX) or not start.startswith(MAGIC):
        raise ProtocolError(f"not a feeder message: it starts with {start!r}, not {MAGIC!r}")
    if start not in _PREFIXES:
        raise VersionMismatch(start[-1])
    try:
        return decoder.decode(memoryview(frame)[len(_PREFIX) :])
    except ConfigError as error:
        if decoder is _NODE_DECODER:  # of a Welcome's labels
            raise ProtocolError(f"malformed message: {error}") from error
        raise BadRecipe(str(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # The text may quote the peer: keep it to one short line without control characters.
        reason = str(error).encode("unicode_escape").decode()
        if "unknown field" in reason and reason.endswith("`$.recipe`"):
            name = reason.split("`")[1][: _MAX_REASON_CHARACTERS // 2]
            raise BadRecipe(
                f"recipe: this feeder is older than its client and has no field {name}: install "
                "the same version on both sides, or leave it out"
            ) from error
        raise ProtocolError(f"malformed message: {reason[:_MAX_REASON_CHARACTERS]}") from error
