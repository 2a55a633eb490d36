"""Which worker fills which chunk next: pure bookkeeping, no clock and no input or output.

A batch is cut into chunks of consecutive rows. Sessions that have rows to fill take turns, a chunk
each; within a session earlier batches go first. A chunk goes to the worker with the fewest chunks
in hand, so the chunks of one batch spread over all workers; a worker holds at most WORKER_DEPTH, so
that it never waits for its next one and a batch never waits behind a long queue.

Invariant: a row of a batch is in the hands of at most one worker, and is filled once unless that
worker died. Memory is bounded by the batches enqueued and WORKER_DEPTH chunks a worker.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

WORKER_DEPTH: Final = 2
"""One chunk being filled, one at hand."""

DEATHS_MAX: Final = 2
"""A chunk that was in work when this many workers died is given up: it would kill the next too."""


@dataclass(slots=True, eq=False, kw_only=True)
class Batch:
    """A batch that a client wants, and how far it is."""

    session: int
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
    unfilled: int = 0
    """First row that was never given to a worker."""
    returned: list["Chunk"] = field(default_factory=list)
    """Chunks whose worker died."""
    in_hand: int = 0
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
        """Whether there is a chunk to give to a worker."""
        return bool(self.returned) or self.unfilled < self.rows


@dataclass(slots=True, eq=False, kw_only=True)
class Chunk:
    """Consecutive rows of a batch, filled by one worker at a time."""

    batch: Batch
    first: int
    count: int
    ticket: int = 0
    worker: int = 0
    deaths: int = 0


@dataclass(slots=True, eq=False)
class _Hands:
    """What a worker has in hand, oldest first, and when it last began or finished a chunk."""

    chunks: dict[int, Chunk] = field(default_factory=dict)
    progress_s: float = 0.0


class Dispatcher:
    """Gives the chunks of enqueued batches to workers."""

    def __init__(self) -> None:
        self._tickets = 0
        self._queues: dict[int, deque[Batch]] = {}
        self._turns: deque[int] = deque()  # sessions that have a queue, next one first
        self._chunks: dict[int, Chunk] = {}  # by ticket
        self._hands: dict[int, _Hands] = {}
        # Workers by the number of chunks in hand; dicts as ordered sets, longest waiting first.
        self._by_load: list[dict[int, None]] = [{} for _ in range(WORKER_DEPTH + 1)]

    @property
    def workers(self) -> int:
        """How many workers can be given chunks."""
        return len(self._hands)

    @property
    def chunks_in_hand(self) -> int:
        """How many chunks workers have in hand."""
        return len(self._chunks)

    @property
    def queued_batches(self) -> int:
        """How many batches have chunks that no worker has in hand."""
        return sum(map(len, self._queues.values()))

    def add_worker(self, worker: int) -> None:
        """Begin to give chunks to a worker."""
        self._hands[worker] = _Hands()
        self._by_load[0][worker] = None

    def remove_worker(self, worker: int) -> tuple[list[Batch], list[Chunk]]:
        """Take a dead worker's chunks back.

        Returns the batches that were touched and the chunks that are given up: those that were in
        work, so the oldest in hand, at DEATHS_MAX deaths. The others go to the head of the queue.
        """
        hands = self._hands.pop(worker, None)
        if hands is None:
            return [], []
        del self._by_load[len(hands.chunks)][worker]
        chunks = list(hands.chunks.values())
        given_up: list[Chunk] = []
        for place, chunk in enumerate(chunks):
            del self._chunks[chunk.ticket]
            chunk.batch.in_hand -= 1
            chunk.deaths += place == 0
            if chunk.deaths >= DEATHS_MAX:
                given_up.append(chunk)
        for chunk in reversed(chunks):
            if not chunk.batch.is_cancelled and chunk not in given_up:
                self._return(chunk)
        return [chunk.batch for chunk in chunks], given_up

    def enqueue(self, batch: Batch) -> None:
        """Have the batch, which has a slot and no filled row, filled after the session's others."""
        queue = self._queues.get(batch.session)
        if queue is None:
            queue = self._queues[batch.session] = deque()
            self._turns.append(batch.session)
        queue.append(batch)

    def cancel(self, batch: Batch) -> None:
        """Give out nothing more of the batch; what workers have in hand they finish."""
        batch.is_cancelled = True
        queue = self._queues.get(batch.session)
        if queue is not None and batch in queue:
            queue.remove(batch)
            if not queue:
                del self._queues[batch.session]
                self._turns.remove(batch.session)

    def dispatch(self, now_s: float) -> Iterator[Chunk]:
        """Yield chunks that go to ``chunk.worker`` now, until workers or chunks run out."""
        while self._turns:
            load = next((n for n in range(WORKER_DEPTH) if self._by_load[n]), None)
            if load is None:
                return
            worker = next(iter(self._by_load[load]))
            hands = self._hands[worker]
            chunk = self._take_chunk()
            self._tickets += 1
            chunk.ticket, chunk.worker = self._tickets, worker
            chunk.batch.in_hand += 1
            self._chunks[chunk.ticket] = hands.chunks[chunk.ticket] = chunk
            if load == 0:
                hands.progress_s = now_s
            del self._by_load[load][worker]
            self._by_load[load + 1][worker] = None
            yield chunk

    def finish(self, ticket: int, now_s: float) -> Chunk | None:
        """Take a chunk that its worker is done with; None if no worker has this ticket in hand."""
        chunk = self._chunks.pop(ticket, None)
        if chunk is None:
            return None
        hands = self._hands[chunk.worker]
        del self._by_load[len(hands.chunks)][chunk.worker]
        del hands.chunks[ticket]
        hands.progress_s = now_s
        self._by_load[len(hands.chunks)][chunk.worker] = None
        chunk.batch.in_hand -= 1
        return chunk

    def find_stuck(self, since_s: float, now_s: float) -> list[int]:
        """Return the workers without progress since ``since_s``; they count as seen to now."""
        busy = [(worker, hands) for worker, hands in self._hands.items() if hands.chunks]
        stuck = [(worker, hands) for worker, hands in busy if hands.progress_s <= since_s]
        for _, hands in stuck:
            hands.progress_s = now_s
        return [worker for worker, _ in stuck]

    def oldest_progress_s(self) -> float:
        """Return when the worker that is busy longest began or finished a chunk; else infinity."""
        busy = (hands.progress_s for hands in self._hands.values() if hands.chunks)
        return min(busy, default=float("inf"))

    def _take_chunk(self) -> Chunk:
        """Take the next chunk of the session whose turn it is; there is one."""
        session = self._turns.popleft()
        queue = self._queues[session]
        batch = queue[0]
        if batch.returned:
            chunk = batch.returned.pop()
        else:
            count = min(batch.chunk_images, batch.rows - batch.unfilled)
            chunk = Chunk(batch=batch, first=batch.unfilled, count=count)
            batch.unfilled += count
        if not batch.has_chunks:
            queue.popleft()
        if queue:
            self._turns.append(session)
        else:
            del self._queues[session]
        return chunk

    def _return(self, chunk: Chunk) -> None:
        batch = chunk.batch
        batch.returned.append(chunk)
        queue = self._queues.get(batch.session)
        if queue is None:
            self._queues[batch.session] = deque([batch])
            self._turns.append(batch.session)
        elif batch not in queue:
            queue.appendleft(batch)
