"""Assigns chunks to workers. Pure bookkeeping: no clock, no input or output.

A batch is cut into chunks of consecutive rows. Jobs with rows to fill share the workers' time as
their weights are, and a job's sessions take turns, one chunk each (``turns``); within a session
earlier batches go first. A chunk goes to the worker with the fewest chunks
in flight, so the chunks of one batch spread over all workers. A worker has at most WORKER_DEPTH
chunks, so it never idles between two of them and no batch waits behind a long queue. A job that
owes others more than AHEAD_S gets no place in these queues.

When a worker dies or is stuck, its oldest chunk becomes *suspect*; the others return to the queue.
So does the oldest one if the worker was stopped, or had just finished the one that it was killed
for: any other worker may take that at once. A suspect goes alone to an idle worker, preferably one
that has filled a chunk before, so that the death of that worker is evidence against the chunk. It
is given up after DEATHS_MAX workers crashed with only this chunk in flight, or after KILLS_MAX if
SIGKILL ended them, which a damaged sample does not cause, or after HANGS_MAX took too long for it.
Chunks of stalled datasets (``worker_watch``) are also dispatched alone, one at a time.

Invariant: a row of a batch is in flight at one worker at most, and is filled once unless that
worker died. Memory is bounded by the enqueued batches and WORKER_DEPTH chunks per worker.
"""

import math
from collections.abc import Iterator
from typing import Final

from feeder.session.events import KillWorker
from feeder.session.jobs import JobWeights, Turns
from feeder.session.state import PendingBatch, PendingChunk, Session
from feeder.session.worker_watch import LOOK_S, POLICY, WorkerWatch, WorkInFlight

WORKER_DEPTH: Final = 2
"""One chunk being filled, one queued."""

DEATHS_MAX: Final = 3
"""Workers that crash with only this chunk in flight before it is given up."""

WINDOW_CHUNKS: Final = 4
"""For each worker, in the window of a session that has all of them: those that workers have, and as
many that wait or belong to batches on their way to the client."""

AHEAD_S: Final = 0.1
"""Debt from which on a job gets idle workers only, no place behind a busy one: those are kept for
the jobs that it owes, even if all of their chunks are in flight at the moment."""

_CUT_S: Final = 0.01
"""A chunk is cut to no less than this: it costs 0.3 ms besides its rows."""

_RECHECK_S: Final = 1.0
"""While batches of stalled datasets wait."""

KILLS_MAX: Final = 10
"""The same for SIGKILL, from an operator or from the kernel when memory runs out."""


HANGS_MAX: Final = 2
"""Workers that are killed because they do not finish this chunk, the last one after
CHUNK_DEADLINE_S, before it is given up."""


class Dispatcher:
    """Assigns the chunks of enqueued batches to workers."""

    def __init__(self, weights: JobWeights) -> None:
        self._tickets = 0
        self._turns = Turns(weights)  # sessions that have batches in their queue
        self._suspects: list[PendingChunk] = []  # each to be dispatched alone, in this order
        self._chunks: dict[int, PendingChunk] = {}  # by ticket
        self.watch = WorkerWatch()
        self._in_flight = self.watch.workers
        # Workers that can take a chunk, by the number of chunks in flight; dicts as ordered sets,
        # longest waiting first. Workers that have a suspect or are being killed are in none.
        self._by_load: list[dict[int, None]] = [{} for _ in range(WORKER_DEPTH + 1)]
        self._stalled = self.watch.stalled

    @property
    def chunks_in_flight(self) -> int:
        """How many chunks workers have."""
        return len(self._chunks)

    @property
    def is_idle(self) -> bool:
        """Whether no chunk is in flight or to be dispatched."""
        return not (self._chunks or self._turns.ready or self._suspects)

    @property
    def queued_batches(self) -> int:
        """How many batches have chunks to dispatch; suspect chunks count one by one."""
        return sum(len(session.queue) for session in self._turns) + len(self._suspects)

    def add_worker(self, worker: int) -> None:
        """Begin to assign chunks to a worker."""
        self._in_flight[worker] = WorkInFlight(POLICY)
        self._by_load[0][worker] = None

    def remove_worker(
        self, worker: int, was_killed: bool, is_held: bool, now_s: float
    ) -> tuple[list[PendingBatch], PendingChunk | None]:
        """Take a lost worker's chunks back; return the batch of each, and a chunk that is given up.

        ``was_killed``: by SIGKILL. ``is_held``: the process is still blocked in a read, and
        ``release`` follows. The oldest chunk, which the worker was filling, becomes suspect or is
        given up, unless it is not to blame. The others go to the head of the queue.
        """
        work = self._in_flight.pop(worker, None)
        if work is None:
            return [], None
        self._by_load[len(work.chunks)].pop(worker, None)
        chunks = list(work.chunks.values())
        for chunk in chunks:
            del self._chunks[chunk.ticket]
            chunk.batch.in_flight -= 1
            took_s = _time_to_charge(work, now_s) if chunk is chunks[0] else 0.0
            self._turns.settle(chunk.batch.session.job, chunk.charged_s, took_s)
        if not chunks:
            return [], None
        oldest, dataset = chunks[0], chunks[0].batch.session.dataset
        if is_held:
            self.watch.hold(dataset, worker)
        is_stuck = work.stuck_as is not None
        is_innocent = is_stuck and oldest.ticket != work.stuck_ticket
        if len(chunks) == 1 and not is_stuck:
            oldest.kills += was_killed
            oldest.deaths += not was_killed
        if work.stuck_as in ("asleep", "looping") and not is_innocent:
            oldest.hangs += 1
        is_given_up = (
            oldest.deaths >= DEATHS_MAX
            or oldest.kills >= KILLS_MAX
            or (oldest.hangs >= HANGS_MAX and dataset not in self._stalled)
        )
        for chunk in reversed(chunks):
            if chunk.batch.is_cancelled or (chunk is oldest and is_given_up):
                continue
            if chunk is oldest and work.stuck_as != "stopped" and not is_innocent:
                self._suspect(chunk)
            else:
                self._return(chunk)
        return [chunk.batch for chunk in chunks], oldest if is_given_up else None

    def enqueue(self, batch: PendingBatch, now_s: float) -> None:
        """Queue a batch, which has a slot and no filled row, behind its session's others."""
        batch.enqueued_s = now_s
        session = batch.session
        if not session.queue:
            self._turns.add(session)
        session.queue.append(batch)

    def cancel(self, batch: PendingBatch) -> None:
        """Dispatch nothing more of the batch; its chunks in flight are still finished."""
        batch.is_cancelled = True
        if batch.suspects:
            self._suspects = [chunk for chunk in self._suspects if chunk.batch is not batch]
            batch.suspects = 0
        session = batch.session
        if batch in session.queue:
            session.queue.remove(batch)
            if not session.queue:
                self._turns.remove(session)

    def dispatch(self, now_s: float) -> Iterator[PendingChunk]:
        """Yield the chunks to send to ``chunk.worker`` now, until workers or chunks run out."""
        if self._stalled:
            self._queue_probes()
        while self._turns.ready or self._suspects:
            suspect = self._next_suspect() if self._suspects else None
            if suspect is not None:
                worker = self._free_worker(is_idle=True, is_proven=True)
                if worker is not None:
                    yield self._give_alone(suspect, worker, now_s)
                    continue
            worker = self._free_worker(is_proven=None if suspect is None else False)
            chunk = None if worker is None else self._take_chunk(worker)
            if worker is not None and chunk is not None:
                yield self._give(chunk, worker, now_s)
                continue
            if suspect is None:
                return
            worker = self._free_worker(is_idle=True)
            if worker is None:
                return
            yield self._give_alone(suspect, worker, now_s)

    def finish(self, ticket: int, now_s: float, busy_s: float | None = None) -> PendingChunk | None:
        """Record that a chunk is filled, in ``busy_s`` of a worker's time, or has failed (None).

        Returns None if its ticket is not in flight.
        """
        chunk = self._chunks.pop(ticket, None)
        if chunk is None:
            return None
        work = self._in_flight[chunk.worker]
        took_s = _time_to_charge(work, now_s, busy_s)
        self._by_load[len(work.chunks)].pop(chunk.worker, None)
        del work.chunks[ticket]
        row_s = None if busy_s is None else took_s / chunk.count
        self.watch.on_progress(work, chunk, now_s, row_s)
        if work.stuck_as is None:
            self._by_load[len(work.chunks)][chunk.worker] = None
        batch = chunk.batch
        batch.in_flight -= 1
        self._turns.settle(batch.session.job, chunk.charged_s, took_s)
        return chunk

    def on_resumed(self, lost_s: float, now_s: float) -> None:
        """Discount time in which neither this process nor, most likely, the workers have run."""
        self.watch.on_resumed(lost_s, now_s)
        for batch in self._unfilled_of_stalled():
            batch.enqueued_s += lost_s

    def find_stuck(self, now_s: float) -> list[KillWorker]:
        """The workers to kill, each once; they get no chunk any more."""
        waiting = {session.dataset for session in self._turns}
        waiting |= {chunk.batch.session.dataset for chunk in self._suspects}
        stuck = self.watch.find_stuck(waiting, self._tickets, now_s)
        for kill in stuck:
            self._by_load[len(self._in_flight[kill.worker].chunks)].pop(kill.worker, None)
        return stuck

    def find_unanswered(self, now_s: float) -> list[PendingBatch]:
        """The batches that have waited too long for a stalled dataset."""
        stalled = self._unfilled_of_stalled()
        return [batch for batch in stalled if self.watch.is_unanswered(batch, now_s)]

    def check_at_s(self, now_s: float) -> float:
        """When to look at workers and at batches of stalled datasets again; infinity if all workers
        are idle."""
        recheck_s = now_s + _RECHECK_S if self._unfilled_of_stalled() else float("inf")
        return min(self.watch.check_at_s(now_s), recheck_s)

    def _unfilled_of_stalled(self) -> list[PendingBatch]:
        if not self._stalled:
            return []
        batches = [batch for session in self._turns for batch in session.queue]
        batches += [chunk.batch for chunk in (*self._suspects, *self._chunks.values())]
        return [
            batch
            for batch in dict.fromkeys(batches)
            if not batch.is_cancelled and batch.session.dataset in self._stalled
        ]

    def _free_worker(self, *, is_idle: bool = False, is_proven: bool | None = None) -> int | None:
        """The worker with the fewest chunks; of several, the one that has waited longest."""
        for workers in self._by_load[: 1 if is_idle else WORKER_DEPTH]:
            for worker in workers:
                if is_proven is None or self._in_flight[worker].is_proven == is_proven:
                    return worker
        return None

    def _give(self, chunk: PendingChunk, worker: int, now_s: float) -> PendingChunk:
        work = self._in_flight[worker]
        self._tickets += 1
        chunk.ticket, chunk.worker = self._tickets, worker
        session = chunk.batch.session
        chunk.batch.in_flight += 1
        chunk.charged_s = chunk.count * self.watch.times.row_s(session.kind)
        self._turns.charge(session.job, chunk.charged_s)
        load = len(work.chunks)
        self._chunks[chunk.ticket] = work.chunks[chunk.ticket] = chunk
        if load == 0:
            work.progress_s, work.looks = now_s, None
        del self._by_load[load][worker]
        self._by_load[load + 1][worker] = None
        return chunk

    def _give_alone(self, chunk: PendingChunk, worker: int, now_s: float) -> PendingChunk:
        self._suspects.remove(chunk)
        chunk.batch.suspects -= 1
        self._give(chunk, worker, now_s)
        del self._by_load[1][worker]  # no other chunk before this one is finished
        return chunk

    def _next_suspect(self) -> PendingChunk | None:
        for chunk in self._suspects:
            if self.watch.may_probe(chunk.batch.session.dataset, self._chunks.values()):
                return chunk
        return None

    def _queue_probes(self) -> None:
        """Make the next chunk of each stalled dataset a suspect, if the dataset has none."""
        probed = {chunk.batch.session.dataset for chunk in self._suspects}
        for session in list(self._turns):
            if session.dataset in self._stalled and session.dataset not in probed:
                probed.add(session.dataset)
                self._suspect(self._take_from(session, 0.0))

    def _take_chunk(self, worker: int) -> PendingChunk | None:
        """Take the next chunk of the session whose turn it is; None if there is none, or if its
        job has to wait until the worker is idle.

        Stalled datasets are skipped: their chunks are dispatched alone.
        """
        skipped: set[Session] = set()
        for session in self._turns:
            if session.dataset in self._stalled:
                skipped.add(session)
                continue
            credit_s = self._turns.credit_s(session.job)
            if credit_s < -AHEAD_S and self._in_flight[worker].chunks:
                return None
            chunk = self._take_from(session, credit_s)
            if skipped:
                self._turns.pass_over(skipped)
            return chunk
        return None

    def _take_from(self, session: Session, credit_s: float) -> PendingChunk:
        """Take a queued session's next chunk; others of its job come first from now on.

        ``credit_s`` is what its job is owed; it decides how large the chunk is.
        """
        self._turns.serve(session)
        batch = session.queue[0]
        if batch.returned:
            chunk = batch.returned.pop()
        else:
            most = self._chunk_rows(session, credit_s)
            rows = min(most, session.layout.batch_size - batch.unfilled)
            chunk = PendingChunk(batch, batch.unfilled, rows)
            batch.unfilled += rows
        if not batch.has_chunks:
            session.queue.popleft()
            if not session.queue:
                self._turns.remove(session)
        return chunk

    def _chunk_rows(self, session: Session, credit_s: float) -> int:
        """How many rows the next chunk of a session has at most.

        The windows of a job that falls behind are cut into WINDOW_CHUNKS chunks for each worker
        that it is entitled to, so that one waits whenever its turn comes. A job that is ahead gets
        a worker only while the others have no chunk, and gives it back soon.
        """
        if abs(credit_s) <= AHEAD_S:
            return session.chunk_images
        chunks = WINDOW_CHUNKS * len(self._in_flight) * self._turns.share(session.job)
        window_rows = session.layout.slots * session.layout.batch_size
        rows = math.ceil(window_rows / chunks) if credit_s > 0 else 0
        least = math.ceil(_CUT_S / self.watch.times.row_s(session.kind))
        return min(session.chunk_images, max(rows, least))

    def _suspect(self, chunk: PendingChunk) -> None:
        chunk.batch.suspects += 1
        self._suspects.append(chunk)

    def _return(self, chunk: PendingChunk) -> None:
        batch = chunk.batch
        batch.returned.append(chunk)
        session = batch.session
        if not session.queue:
            self._turns.add(session)
        if batch not in session.queue:
            session.queue.appendleft(batch)


def _time_to_charge(work: WorkInFlight, now_s: float, busy_s: float | None = None) -> float:
    """A worker's oldest chunk costs its job all of the time that it took.

    Time in which the worker was stopped, or stuck without using its CPU, is not the job's fault:
    such a chunk costs its estimate at most. All others are bounded by CHUNK_DEADLINE_S, after which
    a worker is killed. ``busy_s``: by the worker's clock, which goes on while the daemon is
    suspended.
    """
    took_s = now_s - work.progress_s
    if busy_s is not None:
        took_s = min(busy_s, took_s + LOOK_S)  # this process may be late to notice either end
    is_stopped = work.looks is not None and work.looks.is_stopped
    if is_stopped or work.stuck_as not in (None, "looping"):
        return min(took_s, work.oldest.charged_s)
    return took_s
