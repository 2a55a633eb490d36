"""The batches of all sessions while workers fill them: from a slot to the last row, or to Failed.

    wanted ─► FetchSamples ─► SamplesFetched           where the dataset's shards are a store's
    enqueue ─► Fill … ─► Filled ─► SendChunk …, or Lent once the batch is whole
            ─► FillFailed, WorkerLost, ClockAdvanced ─► Failed, or the chunk is dispatched again
    release (by the client, in any state) ─► its slot is returned once no worker writes to it

The half of the state machine that knows workers; ``table`` has the other one. Pure.
"""

from typing import Final, Literal

from feeder.metrics.counters import SessionCounters
from feeder.metrics.records import FailureRecord, NodeRecord
from feeder.session import events
from feeder.session.admission import MESSAGE_CHARS_MAX
from feeder.session.dispatch import Dispatcher
from feeder.session.jobs import Jobs, JobWeights
from feeder.session.state import PendingBatch, PendingChunk, Session, SessionRegistry
from feeder.session.worker_watch import UNANSWERED_S
from feeder.wire.chunk_work import Fill, Filled, FillFailed
from feeder.wire.messages import Chunk, Failed, Lent, NodeMessage

FailureReason = Literal[
    "bad-sample", "unreadable", "stalled-storage", "resource", "worker-died", "store"
]

BAD_SAMPLES_MAX: Final = 10_000
"""Samples that are remembered, so that each is counted once: 1 MB at most."""


class Filling:
    """Has batches filled, and answers the clients that want them."""

    def __init__(self, record: NodeRecord, weights: JobWeights) -> None:
        self.record = record
        self.counters = SessionCounters()
        self.sessions = SessionRegistry()
        self.jobs = Jobs(weights)
        self.dispatcher = Dispatcher(self.jobs)
        self.watch = self.dispatcher.watch
        self.failures: dict[str, tuple[FailureRecord, float]] = {}
        """By dataset, with the time of the last one; those that failed last at the end."""
        self._bad_samples: set[tuple[str, int]] = set()
        self._fetches = 0
        self.fetching: dict[int, PendingBatch] = {}
        """Batches whose samples are not on disk yet, by fetch."""
        self.check_at_s = float("inf")
        """When to handle ClockAdvanced: never later than the next deadline."""
        self._now_s = 0.0  # when the event happened
        self._instructions: list[events.Instruction] = []  # that follow from the event

    def _send(self, peer: bytes, message: NodeMessage) -> None:
        self._instructions.append(events.Send(peer, message))

    def _begin(self, batch: PendingBatch, *, is_cached: bool) -> None:
        """Have a new batch filled, or its samples fetched first."""
        if not is_cached:
            batch.session.waiting.append(batch)
            return
        self._fetches += 1
        batch.fetch = self._fetches
        self.fetching[batch.fetch] = batch
        self._instructions.append(events.FetchSamples(batch))

    def is_fetching(self, session: Session) -> bool:
        """Whether a batch of a session waits for samples from a store."""
        return any(batch.session is session for batch in self.fetching.values())

    def _on_fetched(self, fetched: events.SamplesFetched) -> None:
        """Have a batch or chunk filled whose samples are on disk; fail it if they cannot be had."""
        batch = self.fetching.pop(fetched.fetch, None)
        if batch is None:
            chunk = self.dispatcher.redo(fetched.fetch)
            if chunk is not None and fetched.problem:
                self._fail(chunk.batch, "store", "dataset", fetched.problem)
        elif fetched.problem:
            self._fail(batch, "store", "dataset", fetched.problem)
        else:
            self.record.fetch_s.add(self._now_s - batch.wanted_s)
            batch.session.waiting.append(batch)
            self._give_slots(batch.session)

    def _give_slots(self, session: Session) -> None:
        """Have the batches filled that wait, as far as there are free slots."""
        now_s, slots = self._now_s, session.slot_times
        while session.waiting and "free" in slots.states:
            batch = session.waiting.popleft()
            batch.slot = slots.states.index("free")
            slots.move(batch.slot, "filling", now_s)
            self.dispatcher.enqueue(batch, now_s)

    def _dispatch(self) -> None:
        """Give chunks to workers that can take some."""
        for chunk in self.dispatcher.dispatch(self._now_s):
            batch = chunk.batch
            self._instructions.append(
                Fill(
                    chunk.ticket,
                    batch.session.number,
                    batch.slot,
                    batch.epoch,
                    batch.index,
                    chunk.first,
                    chunk.count,
                    chunk.worker,
                )
            )

    def _release(self, session: Session, batch: PendingBatch) -> None:
        """Handle the client's release of a batch."""
        if batch.slot < 0:
            if batch in session.waiting:
                session.waiting.remove(batch)
            self._let_go(batch)
            return
        self.dispatcher.cancel(batch)
        self._return_slot(session, batch)

    def _cancel_all(self, session: Session) -> None:
        """Fill nothing more for a session, which has ended."""
        for batch in session.wanted.values():
            self.dispatcher.cancel(batch)
            if batch.slot < 0:
                self._let_go(batch)
        session.waiting.clear()

    def _close_if_unused(self, session: Session) -> None:
        """Free an ended session's memory, unless workers write to it or its client maps it."""
        if not (session.is_closing or session.is_held or self.dispatcher.is_filling(session)):
            session.is_closing = True
            self._instructions.append(events.CloseSlots(session.number))

    def _let_go(self, batch: PendingBatch) -> None:
        """Let the samples of a batch go that no worker reads, if they were fetched."""
        if batch.fetch:
            self.fetching.pop(batch.fetch, None)
            self._instructions.append(events.LetGo(batch.fetch))
            batch.fetch = 0

    # --- Workers ------------------------------------------------------------------------------

    def _on_filled(self, filled: Filled) -> None:
        """Send a filled chunk, or lend the batch that it completes."""
        now_s = self._now_s
        chunk = self.dispatcher.finish(filled.ticket, now_s, filled.busy_s)
        if chunk is None:
            return
        batch = chunk.batch
        self._log_progress(chunk)
        images, worker = chunk.images, self.watch.workers[chunk.worker].record
        worker.chunks += 1
        worker.images += images
        worker.busy_s += filled.busy_s
        worker.cpu_s += filled.cpu_s
        self.record.chunk_s.add(now_s - chunk.dispatched_s)
        session = batch.session
        session.record.worker_s += filled.busy_s
        session.job.record.worker_s += filled.busy_s
        if not batch.is_cancelled:
            self.counters.chunks += 1
            self.record.images += images
            session.record.images += images
            session.job.record.images += images
            is_whole = batch.is_whole
            if is_whole:
                self._count_whole(session, batch)
            if not session.is_held:
                self._send_chunk(session, chunk)
            elif is_whole:
                self._lend(session, batch)
        self._settle(batch)

    def _on_failed(self, failed: FillFailed) -> None:
        """Give up the batch of a chunk that cannot be filled."""
        chunk = self.dispatcher.find(failed.ticket)
        if chunk is not None and self._is_doubtful(chunk, failed):
            self._fetches += 1
            self.dispatcher.doubt(chunk, self._fetches, self._now_s)
            self._instructions.append(events.CheckSamples(self._fetches, chunk))
            return
        chunk = self.dispatcher.finish(failed.ticket, self._now_s)
        if chunk is not None:
            self._log_progress(chunk)
            reason: FailureReason = "resource" if failed.code == "resource" else "unreadable"
            if reason == "unreadable" and failed.sample is not None:
                reason = "bad-sample"
                if len(self._bad_samples) < BAD_SAMPLES_MAX:
                    self._bad_samples.add((chunk.batch.session.dataset, failed.sample))
                    self.counters.bad_samples = len(self._bad_samples)
            self._fail(chunk.batch, reason, failed.code, failed.message)
            self._settle(chunk.batch)

    def _is_doubtful(self, chunk: PendingChunk, failed: FillFailed) -> bool:
        """Whether a chunk may have failed because the disk cache has lost what was fetched."""
        is_current = bool(chunk.batch.fetch) and not chunk.batch.is_cancelled
        return is_current and failed.code == "dataset" and not chunk.is_doubted

    def _on_worker_lost(self, event: events.WorkerLost) -> None:
        """Have a lost worker's chunks filled by others, but for one that may have ended it."""
        lost = self.watch.workers.get(event.worker)
        if lost is not None:
            self.record.lost_worker_busy_s += lost.record.busy_s
        chunks, why_given_up = self.dispatcher.remove_worker(
            event.worker, event.was_killed, event.is_held, self._now_s
        )
        self.counters.chunks_returned += len(chunks) - bool(why_given_up)
        if why_given_up:
            self._fail(chunks[0].batch, "worker-died", "worker-died", why_given_up)
        for chunk in chunks:
            self._settle(chunk.batch)

    def _watch_workers(self, event: events.ClockAdvanced) -> None:
        """Report silent workers, kill stuck ones, and give up what waits too long for storage."""
        for instruction in self.dispatcher.check(event.looks, self._now_s):
            self.record.silences += isinstance(instruction, events.LogSilence)
            self._instructions.append(instruction)
        for batch in self.dispatcher.find_unanswered(self._now_s):
            dataset = batch.session.dataset
            message = (
                f"dataset {dataset} cannot be read: no answer in {UNANSWERED_S:.0f} s, is its file "
                "system alive?"
            )
            self._fail(batch, "stalled-storage", "dataset", message)

    # --- Batches ------------------------------------------------------------------------------

    def _log_progress(self, chunk: PendingChunk) -> None:
        if chunk.silent_s:
            self._instructions.append(events.LogProgress(chunk))

    def _count_whole(self, session: Session, batch: PendingBatch) -> None:
        """Count a batch whose last row is written."""
        now_s = self._now_s
        self.record.batches += 1
        if (failure := self.failures.get(session.dataset)) is not None:
            failure[0].is_last = False
        session.record.batches += 1
        session.job.record.batches += 1
        if (reason := session.copied_because) is not None:
            self.counters.fallbacks[reason] += 1
        session.slot_times.move(batch.slot, "client" if session.is_held else "sending", now_s)
        self.record.batch_s.add(now_s - batch.wanted_s)

    def _send_chunk(self, session: Session, chunk: PendingChunk) -> None:
        batch = chunk.batch
        session.record.sent_bytes += chunk.count * session.layout.at(batch.epoch).row_bytes
        header = Chunk(
            session=session.number,
            epoch=batch.epoch,
            index=batch.index,
            first=chunk.first,
            images=chunk.count,
            valid=batch.valid,
        )
        self._instructions.append(events.SendChunk(session.peer, batch.slot, header))

    def _lend(self, session: Session, batch: PendingBatch) -> None:
        """Lend a whole batch in its slot."""
        self.record.lent_bytes += session.layout.at(batch.epoch).batch_bytes
        self.counters.batches_lent += 1
        lent = Lent(
            session=session.number,
            request=batch.request,
            epoch=batch.epoch,
            index=batch.index,
            slot=batch.slot,
            valid=batch.valid,
        )
        self._instructions.append(events.Send(session.peer, lent))

    def _fail(self, batch: PendingBatch, reason: FailureReason, code: str, message: str) -> None:
        """Send Failed for a batch; the client still has to release it."""
        if batch.is_cancelled:
            return
        self.dispatcher.cancel(batch)
        session = batch.session
        self.counters.batches_failed[reason] += 1
        first = FailureRecord(dataset=session.dataset), 0.0
        record, _ = self.failures.pop(session.dataset, first)
        record.batches += 1
        record.reason, record.message, record.is_last = reason, message, True
        self.failures[session.dataset] = record, self._now_s
        if batch.slot >= 0:
            session.slot_times.move(batch.slot, "client", self._now_s)
        failed = Failed(
            session=session.number,
            epoch=batch.epoch,
            index=batch.index,
            code=code,
            message=message[:MESSAGE_CHARS_MAX],
        )
        self._send(session.peer, failed)

    def _settle(self, batch: PendingBatch) -> None:
        """Account for a chunk that is no longer in flight."""
        session = batch.session
        if session.number in self.sessions.ended:
            self._close_if_unused(session)
        elif session.wanted.get((batch.epoch, batch.index)) is not batch:
            self._return_slot(session, batch)
            self._give_slots(session)

    def _return_slot(self, session: Session, batch: PendingBatch) -> None:
        """Give a released batch's slot back, unless a worker still writes to it."""
        slot, times = batch.slot, session.slot_times
        if batch.in_flight or slot < 0:
            return
        batch.slot = -1
        self._let_go(batch)
        if session.is_held:  # then the socket never reads it
            times.move(slot, "free", self._now_s)
            return
        if times.states[slot] == "filling":  # given up while it was filled
            times.move(slot, "sending", self._now_s)
        self._instructions.append(events.ReturnSlot(session.number, slot))
