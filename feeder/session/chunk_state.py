"""Batches, their chunks, and each worker's work in flight: the state that dispatching changes."""

from dataclasses import dataclass, field
from typing import TypeAlias

from feeder.metrics.hangs import Condition, Watch
from feeder.session.jobs import JobKey

ChunkKind: TypeAlias = tuple[str, str]
"""A dataset, and the fingerprint of a recipe."""


@dataclass(slots=True, eq=False, kw_only=True)
class PendingBatch:
    """A batch that a client wants, and its progress."""

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
    window_rows: int
    """Of all batches in its session's window."""
    recipe: str = ""
    """Fingerprint of its session's recipe."""
    job: JobKey = ("", "")
    """Its session's, which the time of workers is charged to."""
    request: int = 0
    """Number of the client's request for it."""
    slot: int | None = None
    wanted_s: float = 0.0
    """When the client's request for it was handled."""
    enqueued_s: float = 0.0
    """When it could first be dispatched."""
    unfilled: int = 0
    """First row that was never dispatched."""
    returned: list["PendingChunk"] = field(default_factory=list)
    """Chunks that were queued behind another one at a worker that was lost."""
    suspects: int = 0
    """Chunks that wait to be dispatched alone."""
    in_flight: int = 0
    """Chunks that workers have now."""
    is_cancelled: bool = False
    """Released, failed or its session ended: nothing more of it is filled or sent."""

    @property
    def kind(self) -> ChunkKind:
        """What decides how long its chunks take."""
        return self.dataset, self.recipe

    @property
    def has_chunks(self) -> bool:
        """Whether it has a chunk to dispatch that need not be dispatched alone."""
        return bool(self.returned) or self.unfilled < self.rows

    @property
    def is_whole(self) -> bool:
        """Whether every chunk is filled."""
        return not (self.has_chunks or self.suspects or self.in_flight)


@dataclass(slots=True, eq=False, kw_only=True)
class PendingChunk:
    """Consecutive rows of a batch, filled by one worker at a time."""

    batch: PendingBatch
    first: int
    count: int
    ticket: int = 0
    worker: int = 0
    dispatched_s: float = 0.0
    """When it was sent to its worker."""
    charged_s: float = 0.0
    """Worker time that its job was charged when it was dispatched."""
    deaths: int = 0
    """Workers that crashed with only this chunk in flight."""
    kills: int = 0
    """Workers that SIGKILL ended with only this chunk in flight."""
    hangs: int = 0
    """Workers that were killed because they did not finish it in time, though nothing stopped them
    and storage answered."""
    silent_s: float = 0.0
    """How long the worker that finished it took, if that was silent."""
    is_stalled: bool = False
    """Its worker was without progress when its dataset was found to stall."""

    @property
    def images(self) -> int:
        """Rows that are samples, not padding."""
        return max(0, min(self.count, self.batch.valid - self.first))


@dataclass(slots=True, eq=False)
class WorkInFlight(Watch):
    """A worker and its chunks; it makes progress when it begins or finishes one."""

    chunks: dict[int, PendingChunk] = field(default_factory=dict)
    """By ticket, oldest first."""
    is_proven: bool = False
    """It has finished a chunk."""
    is_reported: bool = False
    """Its silence was reported."""
    stuck_as: Condition | None = None
    """What it did when it was found to be stuck; it is being killed for that."""
    stuck_ticket: int = 0
    """Of the chunk that it did not finish then; it may finish it before it is killed."""

    @property
    def is_stuck(self) -> bool:
        """Whether it is being killed because it made no progress."""
        return self.stuck_as is not None

    @property
    def oldest(self) -> PendingChunk:
        """The chunk that it fills; it must have one."""
        return next(iter(self.chunks.values()))
