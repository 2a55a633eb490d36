"""Which worker fills which chunk next: pure bookkeeping, no clock and no input or output.

A batch is cut into chunks of consecutive rows. Sessions that have rows to fill take turns, a chunk
each; within a session earlier batches go first. A chunk goes to the worker with the fewest chunks
in hand, so the chunks of one batch spread over all workers; a worker holds at most WORKER_DEPTH, so
that it never waits for its next one and a batch never waits behind a long queue.

When a worker dies or is stuck, the oldest chunk it has in flight is *suspect*; the others go back
to the queue. A suspect goes alone to a worker with no other chunk in flight, preferably to one that
has filled a chunk before, so that the death of that worker is evidence against the chunk. It is
given up after DEATHS_MAX workers died with this chunk alone in flight, or after KILLS_MAX if it was
SIGKILL that ended them, which a damaged sample does not cause. ``stalls`` knows which datasets
stall: their chunks, too, are given alone, one at a time.

Invariant: a row of a batch is in flight at one worker at most, and is filled once unless that
worker died. Memory is bounded by the batches enqueued and WORKER_DEPTH chunks a worker.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from feeder.session.chunk_state import Batch, Chunk, WorkInFlight
from feeder.session.stalls import UNANSWERED, Stalls

WORKER_DEPTH: Final = 2
"""One chunk being filled, one at hand."""

DEATHS_MAX: Final = 3
"""A chunk is given up when so many workers crashed with nothing else in hand."""

KILLS_MAX: Final = 10
"""The same for workers killed by SIGKILL (by an operator, or by the kernel for want of memory)."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What became of the chunks that a lost worker had in hand."""

    batches: tuple[Batch, ...] = ()
    """The batch of each chunk."""
    given_up: tuple[Chunk, ...] = ()
    """The one that is not tried again, if there is one."""


class Dispatcher:
    """Gives the chunks of enqueued batches to workers."""

    def __init__(self) -> None:
        self._tickets = 0
        self._queues: dict[int, deque[Batch]] = {}
        self._turns: deque[int] = deque()  # sessions that have a queue, next one first
        self._suspects: list[Chunk] = []  # each to be given alone to a worker, first one first
        self._chunks: dict[int, Chunk] = {}  # by ticket
        self._in_flight: dict[int, WorkInFlight] = {}
        # Workers that can be given more, by the number of chunks in hand; dicts as ordered sets,
        # longest waiting first. Workers with a suspect, and killed ones, are in none.
        self._by_load: list[dict[int, None]] = [{} for _ in range(WORKER_DEPTH + 1)]
        self._stalls = Stalls()

    @property
    def workers(self) -> int:
        """How many workers can be given chunks."""
        return len(self._in_flight)

    @property
    def chunks_in_flight(self) -> int:
        """How many chunks workers have in hand."""
        return len(self._chunks)

    @property
    def queued_batches(self) -> int:
        """How many batches have chunks that no worker has in hand; suspects count one by one."""
        return sum(map(len, self._queues.values())) + len(self._suspects)

    @property
    def stalled_datasets(self) -> int:
        """How many datasets stall."""
        return len(self._stalls)

    def add_worker(self, worker: int) -> None:
        """Begin to give chunks to a worker."""
        self._in_flight[worker] = WorkInFlight()
        self._by_load[0][worker] = None

    def remove_worker(self, worker: int, was_killed: bool, is_held: bool) -> Removal:
        """Take a lost worker's chunks back.

        ``was_killed``: by SIGKILL. ``is_held``: the kernel still holds on to the process, which
        waits for a read; ``release`` follows. The oldest chunk was in work: it becomes suspect, or
        is given up. The others go to the head of the queue.
        """
        work = self._in_flight.pop(worker, None)
        if work is None:
            return Removal()
        self._by_load[len(work.chunks)].pop(worker, None)
        chunks = list(work.chunks.values())
        for chunk in chunks:
            del self._chunks[chunk.ticket]
            chunk.batch.in_flight -= 1
        if not chunks:
            return Removal()
        if is_held:
            self._stalls.hold(chunks[0].batch.dataset, worker)
        given_up: tuple[Chunk, ...] = ()
        if len(chunks) == 1 and not work.is_stuck:
            chunks[0].kills += was_killed
            chunks[0].deaths += not was_killed
            if chunks[0].deaths >= DEATHS_MAX or chunks[0].kills >= KILLS_MAX:
                given_up = (chunks[0],)
        for chunk in reversed(chunks):
            if chunk.batch.is_cancelled or chunk in given_up:
                continue
            if chunk is chunks[0]:
                self._suspect(chunk)
            else:
                self._return(chunk)
        return Removal(tuple(chunk.batch for chunk in chunks), given_up)

    def release(self, worker: int) -> None:
        """Note that the kernel let go of a lost worker: the file system has answered."""
        self._stalls.release(worker)

    def enqueue(self, batch: Batch, now_s: float) -> None:
        """Have the batch, which has a slot and no filled row, filled after the session's others."""
        batch.enqueued_s = now_s
        queue = self._queues.get(batch.session)
        if queue is None:
            queue = self._queues[batch.session] = deque()
            self._turns.append(batch.session)
        queue.append(batch)

    def cancel(self, batch: Batch) -> None:
        """Give out nothing more of the batch; what workers have in hand they finish."""
        batch.is_cancelled = True
        if batch.suspects:
            self._suspects = [chunk for chunk in self._suspects if chunk.batch is not batch]
            batch.suspects = 0
        queue = self._queues.get(batch.session)
        if queue is not None and batch in queue:
            queue.remove(batch)
            if not queue:
                del self._queues[batch.session]
                self._turns.remove(batch.session)

    def dispatch(self, now_s: float) -> Iterator[Chunk]:
        """Yield chunks that go to ``chunk.worker`` now, until workers or chunks run out."""
        if self._stalls:
            self._take_probes()
        while self._turns or self._suspects:
            suspect = self._next_suspect() if self._suspects else None
            if suspect is not None:
                worker = self._free_worker(is_idle=True, is_proven=True)
                if worker is not None:
                    yield self._give_alone(suspect, worker, now_s)
                    continue
            worker = self._free_worker(is_proven=None if suspect is None else False)
            chunk = None if worker is None else self._take_chunk()
            if worker is not None and chunk is not None:
                yield self._give(chunk, worker, now_s)
                continue
            worker = self._free_worker(is_idle=True)
            if suspect is None or worker is None:
                return
            yield self._give_alone(suspect, worker, now_s)

    def finish(self, ticket: int, now_s: float) -> Chunk | None:
        """Take a chunk that its worker is done with; None if no worker has this ticket in hand."""
        chunk = self._chunks.pop(ticket, None)
        if chunk is None:
            return None
        work = self._in_flight[chunk.worker]
        self._by_load[len(work.chunks)].pop(chunk.worker, None)
        del work.chunks[ticket]
        work.progress_s, work.is_proven = now_s, True
        if not work.is_stuck:
            self._by_load[len(work.chunks)][chunk.worker] = None
        chunk.batch.in_flight -= 1
        if self._stalls:
            self._stalls.answered(chunk)
        return chunk

    def find_stuck(self, now_s: float, deadline_s: float) -> list[tuple[int, str]]:
        """Return the workers to end because they are stuck, each with its dataset, each once."""
        waiting = {queue[0].dataset for queue in self._queues.values()}
        waiting |= {chunk.batch.dataset for chunk in self._suspects}
        stuck = self._stalls.find_stuck(self._in_flight, waiting, self._tickets, now_s, deadline_s)
        for worker, _ in stuck:
            work = self._in_flight[worker]
            work.is_stuck = True
            self._by_load[len(work.chunks)].pop(worker, None)
        return stuck

    def find_unanswered(self, now_s: float, deadline_s: float) -> list[Batch]:
        """Return the batches that waited too long (UNANSWERED) for a dataset that stalls."""
        return [
            batch
            for batch in self._unfilled_of_stalled()
            if self._stalls.waited_s(batch, now_s) >= UNANSWERED * deadline_s
        ]

    def check_at_s(self, now_s: float, deadline_s: float) -> float:
        """Return when to call ``find_stuck`` and ``find_unanswered`` again; infinity if idle."""
        has_waiting = bool(self._unfilled_of_stalled())
        return self._stalls.check_at_s(self._in_flight, has_waiting, now_s, deadline_s)

    def _unfilled_of_stalled(self) -> list[Batch]:
        """Return the batches of datasets that stall, in no order, each once."""
        if not self._stalls:
            return []
        found = [batch for queue in self._queues.values() for batch in queue]
        found += [chunk.batch for chunk in (*self._suspects, *self._chunks.values())]
        return list(
            dict.fromkeys(
                batch for batch in found if not batch.is_cancelled and batch.dataset in self._stalls
            )
        )

    def _free_worker(self, *, is_idle: bool = False, is_proven: bool | None = None) -> int | None:
        """Return the worker to give the next chunk to: with few in hand, waiting longest."""
        for workers in self._by_load[: 1 if is_idle else WORKER_DEPTH]:
            for worker in workers:
                if is_proven is None or self._in_flight[worker].is_proven == is_proven:
                    return worker
        return None

    def _give(self, chunk: Chunk, worker: int, now_s: float) -> Chunk:
        work = self._in_flight[worker]
        self._tickets += 1
        chunk.ticket, chunk.worker = self._tickets, worker
        chunk.batch.in_flight += 1
        load = len(work.chunks)
        self._chunks[chunk.ticket] = work.chunks[chunk.ticket] = chunk
        if load == 0:
            work.progress_s = now_s
        del self._by_load[load][worker]
        self._by_load[load + 1][worker] = None
        return chunk

    def _give_alone(self, chunk: Chunk, worker: int, now_s: float) -> Chunk:
        self._suspects.remove(chunk)
        chunk.batch.suspects -= 1
        self._give(chunk, worker, now_s)
        del self._by_load[1][worker]  # it gets no other before this one is finished
        return chunk

    def _next_suspect(self) -> Chunk | None:
        for chunk in self._suspects:
            if self._stalls.may_try(chunk.batch.dataset, self._chunks.values()):
                return chunk
        return None

    def _take_probes(self) -> None:
        """Make the next chunk of each dataset that stalls a suspect, if it has none."""
        tried = {chunk.batch.dataset for chunk in self._suspects}
        for session in list(self._turns):
            dataset = self._queues[session][0].dataset
            if dataset in self._stalls and dataset not in tried:
                tried.add(dataset)
                self._suspect(self._take_from(session))

    def _take_chunk(self) -> Chunk | None:
        """Take the next chunk of the session whose turn it is, None if there is none.

        Datasets that stall are passed over: their chunks are given alone.
        """
        for session in self._turns:
            if not self._stalls or self._queues[session][0].dataset not in self._stalls:
                return self._take_from(session)
        return None

    def _take_from(self, session: int) -> Chunk:
        """Take a session's next chunk; it has one. Its next turn comes after all others'."""
        self._turns.remove(session)
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

    def _suspect(self, chunk: Chunk) -> None:
        chunk.batch.suspects += 1
        self._suspects.append(chunk)

    def _return(self, chunk: Chunk) -> None:
        batch = chunk.batch
        batch.returned.append(chunk)
        queue = self._queues.get(batch.session)
        if queue is None:
            self._queues[batch.session] = deque([batch])
            self._turns.append(batch.session)
        elif batch not in queue:
            queue.appendleft(batch)
