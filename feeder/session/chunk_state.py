"""Batches, their chunks, and what a worker has in hand: the state that dispatching works on."""

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """A batch that a client wants, and how far it is."""

    session: int
    dataset: str
    epoch: int
    index: int
    rows: int
    """Rows in all, padding included."""
    valid: int
    """Rows that are real samples."""
    chunk_images: int
    """Most rows of a chunk."""
    request: int = 0
    """Number of the client's request for it."""
    slot: int | None = None
    enqueued_s: float = 0.0
    """When it could first be given to workers."""
    unfilled: int = 0
    """First row that was never given to a worker."""
    returned: list["Chunk"] = field(default_factory=list)
    """Chunks that waited in the hands of a worker that was lost."""
    suspects: int = 0
    """Chunks that wait to be given alone to a worker."""
    in_flight: int = 0
    """Chunks that workers have in hand now."""
    is_cancelled: bool = False
    """Released, failed or its session ended: nothing more of it is filled or sent."""

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Session, slot, epoch and index of a batch that has a slot."""
        assert self.slot is not None, "a batch is enqueued with its slot"
        return self.session, self.slot, self.epoch, self.index

    @property
    def has_chunks(self) -> bool:
        """Whether there is a chunk to give to a worker beside others."""
        return bool(self.returned) or self.unfilled < self.rows

    @property
    def is_whole(self) -> bool:
        """Whether every chunk is filled."""
        return not (self.has_chunks or self.suspects or self.in_flight)


@dataclass(slots=True, eq=False, kw_only=True)
class Chunk:
    """Consecutive rows of a batch, filled by one worker at a time."""

    batch: Batch
    first: int
    count: int
    ticket: int = 0
    worker: int = 0
    deaths: int = 0
    """Workers that crashed with this chunk alone in hand."""
    kills: int = 0
    """Workers that SIGKILL ended with this chunk alone in hand."""
    is_stalled: bool = False
    """Its worker was without progress when its dataset was found to stall."""


@dataclass(slots=True, eq=False)
class WorkInFlight:
    """What a worker has in hand, oldest first, and when it last began or finished a chunk."""

    chunks: dict[int, Chunk] = field(default_factory=dict)
    progress_s: float = 0.0
    is_proven: bool = False
    """It has finished a chunk."""
    is_stuck: bool = False
    """It is being killed because it made no progress."""
