"""Assigns chunks to workers. Pure bookkeeping: no clock, no input or output.

A batch is cut into chunks of consecutive rows. Jobs with rows to fill share the workers' time as
their weights are, and a job's sessions take turns, one chunk each (``turns``); within a session
earlier batches go first. A chunk goes to the worker with the fewest chunks
in flight, so the chunks of one batch spread over all workers. A worker has at most WORKER_DEPTH
chunks, so it never idles between two of them and no batch waits behind a long queue. A job that
owes others more than AHEAD_S gets no place in these queues.

When a worker dies or is stuck, its chunks become *suspect*. A suspect goes alone to an idle worker,
before all others, so that the death of that worker is evidence against the chunk. It is given up
after DEATHS_MAX workers crashed with only this chunk in flight, or after KILLS_MAX if SIGKILL ended
them, which a damaged sample does not cause, or after HANGS_MAX took too long for it. Chunks of
stalled datasets (``worker_watch``) are also dispatched alone, one at a time.

Invariant: a row of a batch is in flight at one worker at most, and is filled once unless that
worker died. Memory is bounded by the enqueued batches and WORKER_DEPTH chunks per worker.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Final

from feeder.metrics.hangs import ProcessLook
from feeder.metrics.records import WorkerRecord
from feeder.session.events import KillWorker, LogSilence
from feeder.session.jobs import Jobs
from feeder.session.state import PendingBatch, PendingChunk, Session
from feeder.session.worker_watch import (
    CHUNK_DEADLINE_S,
    LOOK_S,
    POLICY,
    UNANSWERED_S,
    Worker,
    WorkerWatch,
)

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

KILLS_MAX: Final = 10
"""The same for SIGKILL, from an operator or from the kernel when memory runs out."""

HANGS_MAX: Final = 2
"""Workers that are killed because they do not finish this chunk, the last one after
CHUNK_DEADLINE_S, before it is given up."""


class Dispatcher:
    """Assigns the chunks of enqueued batches to workers."""

    def __init__(self, jobs: Jobs) -> None:
        self._tickets = 0
        self._jobs = jobs
        self.suspects: list[PendingChunk] = []
        """Each is dispatched alone, in this order."""
        self._doubted: dict[int, PendingChunk] = {}  # by the fetch that looks at their samples
        self._chunks: dict[int, PendingChunk] = {}  # by ticket
        self.watch = WorkerWatch()
        self._stalled = self.watch.stalled
        # Those that can take a chunk, longest waiting first. Workers that have a suspect or are
        # being killed cannot.
        self._free: dict[int, Worker] = {}

    @property
    def chunks_in_flight(self) -> int:
        """How many chunks workers have."""
        return len(self._chunks)

    @property
    def is_idle(self) -> bool:
        """Whether no chunk is in flight or to be dispatched."""
        return not (self._chunks or self._jobs.ready or self.suspects or self._doubted)

    def is_filling(self, session: Session) -> bool:
        """Whether a worker writes to one of its slots."""
        return any(chunk.batch.session is session for chunk in self._chunks.values())

    def add_worker(self, number: int) -> None:
        """Begin to assign chunks to a worker."""
        worker = Worker(POLICY, record=WorkerRecord(number=number))
        self.watch.workers[number] = self._free[number] = worker

    def remove_worker(
        self, number: int, was_killed: bool, is_held: bool, now_s: float
    ) -> tuple[list[PendingChunk], str]:
        """Take a lost worker's chunks back; return them, and why the first is given up, or "".

        ``was_killed``: by SIGKILL. ``is_held``: the process is still blocked in a read.
        """
        worker = self.watch.workers.pop(number, None)
        self._free.pop(number, None)
        if worker is None or not worker.chunks:
            return [], ""
        chunks = worker.chunks
        oldest, dataset = chunks[0], chunks[0].batch.session.dataset
        if is_held:
            self.watch.held[number] = dataset
        if worker.stuck_as is None:
            if len(chunks) == 1:
                oldest.kills += was_killed
                oldest.deaths += not was_killed
        elif worker.stuck_as in ("asleep", "looping") and oldest is worker.stuck_with:
            oldest.hangs += 1
        why_given_up = _why_given_up(oldest, is_stalled=dataset in self._stalled)
        for chunk in chunks:
            del self._chunks[chunk.ticket]
            chunk.batch.in_flight -= 1
            took_s = _time_to_charge(worker, now_s) if chunk is oldest else 0.0
            is_over = chunk.batch.is_cancelled or (chunk is oldest and why_given_up != "")
            self._jobs.settle(chunk.batch.session.job, chunk.charged_s, took_s, is_finished=is_over)
            if not is_over:
                self.suspects.append(chunk)
        return chunks, why_given_up

    def enqueue(self, batch: PendingBatch, now_s: float) -> None:
        """Queue a batch, which has a slot and no filled row, behind its session's others."""
        batch.enqueued_s = now_s
        session = batch.session
        if not session.queue:
            self._jobs.add(session)
        session.queue.append(batch)

    def cancel(self, batch: PendingBatch) -> None:
        """Dispatch nothing more of the batch; its chunks in flight are still finished."""
        batch.is_cancelled = True
        session = batch.session
        for chunk in [suspect for suspect in self.suspects if suspect.batch is batch]:
            self.suspects.remove(chunk)
            self._jobs.settle(session.job, 0.0, 0.0)
        for fetch in [f for f, chunk in self._doubted.items() if chunk.batch is batch]:
            del self._doubted[fetch]
            self._jobs.settle(session.job, 0.0, 0.0)
        if batch in session.queue:
            session.queue.remove(batch)
            if not session.queue:
                self._jobs.remove(session)

    def dispatch(self, now_s: float) -> Iterator[PendingChunk]:
        """Yield the chunks to send to ``chunk.worker`` now, until workers or chunks run out."""
        if self._stalled:
            self._queue_probes()
        while self._jobs.ready or self.suspects:
            suspect = self._next_suspect() if self.suspects else None
            worker = self._free_worker(is_idle=suspect is not None)
            if worker is None:
                return
            chunk = suspect or self._take_chunk(worker)
            if chunk is None:
                return
            self._give(chunk, worker, now_s)
            if suspect is not None:
                self.suspects.remove(suspect)
                self._free.pop(chunk.worker, None)  # no other chunk before this one is finished
            yield chunk

    def finish(
        self, ticket: int, now_s: float, busy_s: float | None = None, *, is_over: bool = True
    ) -> PendingChunk | None:
        """Record that a chunk is filled, in ``busy_s`` of a worker's time, or has failed (None).

        Returns None if its ticket is not in flight. Unless it ``is_over``, it is to be redone.
        """
        chunk = self._chunks.pop(ticket, None)
        if chunk is None:
            return None
        worker, batch = self.watch.workers[chunk.worker], chunk.batch
        took_s = _time_to_charge(worker, now_s, busy_s)
        row_s = None if busy_s is None else took_s / chunk.count
        worker.chunks.remove(chunk)
        self.watch.on_progress(worker, chunk, now_s, row_s)
        self._free.pop(chunk.worker, None)
        if worker.stuck_as is None:
            self._free[chunk.worker] = worker
        batch.in_flight -= 1
        if busy_s is not None:
            batch.filled += chunk.count
        self._jobs.settle(batch.session.job, chunk.charged_s, took_s, is_finished=is_over)
        return chunk

    def find(self, ticket: int) -> PendingChunk | None:
        """Return the chunk in flight that has this ticket."""
        return self._chunks.get(ticket)

    def doubt(self, chunk: PendingChunk, fetch: int, now_s: float) -> None:
        """Keep a chunk that could not be filled until its samples were looked at again."""
        chunk.is_doubted = True
        self.finish(chunk.ticket, now_s, is_over=False)
        self._doubted[fetch] = chunk

    def redo(self, fetch: int) -> PendingChunk | None:
        """Dispatch a doubted chunk again, alone, and return it; None if its batch was cancelled."""
        chunk = self._doubted.pop(fetch, None)
        if chunk is not None:
            self.suspects.append(chunk)
        return chunk

    def check(
        self, looks: Mapping[int, ProcessLook], now_s: float
    ) -> list[LogSilence | KillWorker]:
        """Judge the workers; those to kill get no chunk any more."""
        waiting = {session.dataset for session in self._jobs.turns()}
        waiting |= {chunk.batch.session.dataset for chunk in self.suspects}
        judged = self.watch.check(looks, waiting, now_s)
        for instruction in judged:
            if isinstance(instruction, KillWorker):
                self._free.pop(instruction.chunk.worker, None)
        return judged

    def find_unanswered(self, now_s: float) -> list[PendingBatch]:
        """The batches that have waited too long for a stalled dataset."""
        if not self._stalled:
            return []
        batches = [batch for session in self._jobs.turns() for batch in session.queue]
        batches += [chunk.batch for chunk in (*self.suspects, *self._chunks.values())]
        unanswered = []
        for batch in dict.fromkeys(batches):
            since_s = self._stalled.get(batch.session.dataset, math.inf)
            if not batch.is_cancelled and now_s - max(batch.enqueued_s, since_s) >= UNANSWERED_S:
                unanswered.append(batch)
        return unanswered

    def _free_worker(self, *, is_idle: bool) -> Worker | None:
        """An idle worker or else, unless it has to be idle, the one that has waited longest."""
        busy = None
        for worker in self._free.values():
            if not worker.chunks:
                return worker
            busy = busy or worker
        return None if is_idle else busy

    def _give(self, chunk: PendingChunk, worker: Worker, now_s: float) -> None:
        self._tickets += 1
        chunk.ticket, chunk.worker, chunk.dispatched_s = self._tickets, worker.record.number, now_s
        batch = chunk.batch
        batch.in_flight += 1
        chunk.charged_s = chunk.count * self.watch.times.row_s(batch.session.kind)
        self._jobs.charge(batch.session.job, chunk.charged_s)
        if not worker.chunks:
            worker.restart(now_s)
        self._chunks[chunk.ticket] = chunk
        worker.chunks.append(chunk)
        del self._free[chunk.worker]
        if len(worker.chunks) < WORKER_DEPTH:
            self._free[chunk.worker] = worker

    def _next_suspect(self) -> PendingChunk | None:
        """The next suspect, unless its dataset stalls and a worker is reading that already: one
        that the kernel holds cannot die before its read returns, nor could another one."""
        read = {chunk.batch.session.dataset for chunk in self._chunks.values()}
        read.update(self.watch.held.values())
        for chunk in self.suspects:
            dataset = chunk.batch.session.dataset
            if dataset not in self._stalled or dataset not in read:
                return chunk
        return None

    def _queue_probes(self) -> None:
        """Make the next chunk of each stalled dataset a suspect, if the dataset has none."""
        probed = {chunk.batch.session.dataset for chunk in self.suspects}
        for session in list(self._jobs.turns()):
            if session.dataset in self._stalled and session.dataset not in probed:
                probed.add(session.dataset)
                self.suspects.append(self._take_from(session, 0.0))

    def _take_chunk(self, worker: Worker) -> PendingChunk | None:
        """Take the next chunk of the session whose turn it is; None if there is none, or if its
        job has to wait until the worker is idle.

        Stalled datasets are skipped: their chunks are dispatched alone.
        """
        for session in self._jobs.turns():
            if session.dataset in self._stalled:
                self._jobs.limit_credit(session.job, 0.0)  # nothing is owed for this turn
                continue
            credit_s = self._jobs.credit_s(session.job)
            if credit_s < -AHEAD_S and worker.chunks:
                return None
            return self._take_from(session, credit_s)
        return None

    def _take_from(self, session: Session, credit_s: float) -> PendingChunk:
        """Take a queued session's next chunk; others of its job come first from now on.

        ``credit_s`` is what its job is owed; it decides how large the chunk is.
        """
        self._jobs.begin_chunk(session)
        batch = session.queue[0]
        remaining = session.layout.batch_size - batch.unfilled
        rows = min(
            self._chunk_rows(session, credit_s), session.chunk_images_at(batch.epoch), remaining
        )
        chunk = PendingChunk(batch, batch.unfilled, rows)
        batch.unfilled += rows
        if rows == remaining:
            session.queue.popleft()
            if not session.queue:
                self._jobs.remove(session)
        return chunk

    def _chunk_rows(self, session: Session, credit_s: float) -> int:
        """How many rows the next chunk of a session has at most.

        The windows of a job that falls behind are cut into WINDOW_CHUNKS chunks for each worker
        that it is entitled to, so that one waits whenever its turn comes. A job that is ahead gets
        a worker only while the others have no chunk, and gives it back soon.
        """
        if abs(credit_s) <= AHEAD_S:
            return session.chunk_images
        chunks = WINDOW_CHUNKS * len(self.watch.workers) * self._jobs.share(session.job)
        window_rows = session.layout.slots * session.layout.batch_size
        rows = math.ceil(window_rows / chunks) if credit_s > 0 else 0
        least = math.ceil(_CUT_S / self.watch.times.row_s(session.kind))
        return min(session.chunk_images, max(rows, least))


def _time_to_charge(worker: Worker, now_s: float, busy_s: float | None = None) -> float:
    """A worker's oldest chunk costs its job all of the time that it took.

    Time in which the worker was stopped, or stuck without using its CPU, is not the job's fault:
    such a chunk costs its estimate at most. All others are bounded by CHUNK_DEADLINE_S, after which
    a worker is killed. ``busy_s``: by the worker's clock, which goes on while the daemon is
    suspended.
    """
    took_s = now_s - worker.progress_s
    if busy_s is not None:
        took_s = min(busy_s, took_s + LOOK_S)  # this process may be late to notice either end
    if worker.is_stopped or worker.stuck_as not in (None, "looping"):
        return min(took_s, worker.chunks[0].charged_s)
    return took_s


def _why_given_up(chunk: PendingChunk, *, is_stalled: bool) -> str:
    """Why a chunk is not dispatched again; "" if it is. ``is_stalled``: its dataset."""
    rows = f"rows {chunk.first} .. {chunk.first + chunk.count - 1}"
    if chunk.deaths >= DEATHS_MAX:
        return (
            f"{rows} crashed {DEATHS_MAX} workers that had no other rows to fill: look for a "
            "damaged sample with `feeder verify`"
        )
    if chunk.hangs >= HANGS_MAX and not is_stalled:
        return (
            f"{HANGS_MAX} workers did not finish {rows}, the last one in {CHUNK_DEADLINE_S:.0f} s: "
            "look for a damaged sample with `feeder verify`"
        )
    if chunk.kills >= KILLS_MAX:
        return (
            f"{KILLS_MAX} workers that had only {rows} to fill were killed (SIGKILL): is the "
            "memory of the machine or of its cgroup too small?"
        )
    return ""
