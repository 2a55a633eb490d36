"""The batches of all sessions while workers fill them: from a slot to the last row, or to Failed.

    enqueue ─► FillChunk … ─► on_filled ─► SendChunk …, or Lent once the batch is whole
            ─► on_failed, on_worker_lost, on_clock ─► Failed, or the chunk is dispatched again
    release (by the client, in any state) ─► ReturnSlot once no worker writes to the slot

The part of the state machine (``table``) that knows workers. Pure.
"""

from feeder.metrics.counters import SessionCounters
from feeder.metrics.records import NodeRecord, WorkerRecord
from feeder.session import events
from feeder.session.admission import MESSAGE_CHARS_MAX
from feeder.session.chunk_state import PendingBatch, PendingChunk
from feeder.session.dispatch import Dispatcher
from feeder.session.failures import FailureReason, Failures, blame_chunk, blame_dataset
from feeder.session.outbox import Outbox
from feeder.session.registry import SessionRegistry
from feeder.session.state import Session
from feeder.wire.messages import Failed, Lent


class Filling:
    """Has batches filled, and answers the clients that want them."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        sessions: SessionRegistry,
        record: NodeRecord,
        counters: SessionCounters,
        outbox: Outbox,
    ) -> None:
        """The arguments stay the caller's, who reads and changes them too."""
        self._dispatcher = dispatcher
        self._sessions = sessions
        self._record = record
        self._counters = counters
        self._outbox = outbox
        self.workers: dict[int, WorkerRecord] = {}
        """By number; those that are up."""
        self.failures = Failures(counters)

    def give_slots(self, session: Session) -> None:
        """Have the batches filled that wait, as far as there are free slots."""
        for batch in session.assign_slots(self._outbox.now_s):
            self._dispatcher.enqueue(batch, self._outbox.now_s)

    def dispatch(self) -> None:
        """Give chunks to workers that can take some."""
        now_s = self._outbox.now_s
        for chunk in self._dispatcher.dispatch(now_s):
            batch = chunk.batch
            self._sessions.open[batch.session].in_flight += 1
            chunk.dispatched_s = now_s
            self._outbox.add(
                events.FillChunk(
                    chunk.worker, chunk.ticket, *batch.location, chunk.first, chunk.count
                )
            )

    def release(self, session: Session, batch: PendingBatch) -> None:
        """Handle the client's release of a batch."""
        if batch.slot is None:
            session.waiting.remove(batch)
            return
        self._dispatcher.cancel(batch)
        self._return_slot(session, batch)

    def cancel_all(self, session: Session) -> None:
        """Fill nothing more for a session, which has ended."""
        for batch in session.wanted.values():
            self._dispatcher.cancel(batch)
        session.waiting.clear()

    # --- Workers ------------------------------------------------------------------------------

    def on_worker_joined(self, worker: int) -> None:
        """Begin to give chunks to a worker."""
        self._dispatcher.add_worker(worker)
        self.workers[worker] = WorkerRecord(number=worker)

    def on_filled(self, event: events.ChunkFilled) -> None:
        """Send a filled chunk, or lend the batch that it completes."""
        now_s = self._outbox.now_s
        chunk = self._dispatcher.finish(event.ticket, now_s, event.busy_s)
        if chunk is None:
            return
        batch = chunk.batch
        self._on_finished(chunk)
        images, worker = chunk.images, self.workers[chunk.worker]
        worker.chunks += 1
        worker.images += images
        worker.busy_s += event.busy_s
        worker.cpu_s += event.cpu_s
        self._record.chunk_s.add(now_s - chunk.dispatched_s)
        session = self._sessions.of_number(batch.session)
        session.record.worker_s += event.busy_s
        session.job_record.worker_s += event.busy_s
        if not batch.is_cancelled:
            self._counters.chunks += 1
            self._record.images += images
            session.record.images += images
            session.job_record.images += images
            if batch.is_whole:
                self._count_whole(session, batch)
            if not session.is_held:
                session.record.sent_bytes += chunk.count * session.layout.row_bytes
                self._outbox.add(
                    events.SendChunk(
                        session.peer, *batch.location, chunk.first, chunk.count, batch.valid
                    )
                )
            elif batch.is_whole:
                self._lend(session, batch)
        self._settle(batch)

    def on_failed(self, event: events.ChunkFailed) -> None:
        """Give up the batch of a chunk that cannot be filled."""
        chunk = self._dispatcher.finish(event.ticket, self._outbox.now_s)
        if chunk is not None:
            self._on_finished(chunk)
            reason = self.failures.reason_for(event, chunk.batch.dataset)
            self._fail(chunk.batch, reason, event.code, event.message)
            self._settle(chunk.batch)

    def on_worker_lost(self, event: events.WorkerLost) -> None:
        """Have a lost worker's chunks filled by others, but for one that may have ended it."""
        lost = self.workers.pop(event.worker, None)
        if lost is not None:
            self._record.lost_worker_busy_s += lost.busy_s
        removal = self._dispatcher.remove_worker(
            event.worker, event.was_killed, event.is_held, self._outbox.now_s
        )
        self._counters.chunks_returned += len(removal.batches) - len(removal.given_up)
        for chunk in removal.given_up:
            self._fail(chunk.batch, "worker-died", "worker-died", blame_chunk(chunk))
        for batch in removal.batches:
            self._settle(batch)

    def on_clock(self, event: events.ClockAdvanced) -> None:
        """Report silent workers, kill stuck ones, and give up what waits too long for storage."""
        now_s = self._outbox.now_s
        for silence in self._dispatcher.watch.observe(event.looks, now_s):
            self._record.silences += 1
            self._outbox.add(silence)
        for stuck in self._dispatcher.find_stuck(now_s):
            self._outbox.add(stuck)
        for batch in self._dispatcher.find_unanswered(now_s):
            self._fail(batch, "stalled-storage", "dataset", blame_dataset(batch.dataset))
        self._outbox.check_by(self._dispatcher.check_at_s(now_s))

    # --- Batches ------------------------------------------------------------------------------

    def _on_finished(self, chunk: PendingChunk) -> None:
        """Account for a chunk that its worker has filled or could not fill."""
        if chunk.silent_s:
            session = chunk.batch.session
            self._outbox.add(events.LogProgress(chunk.worker, chunk.silent_s, session))

    def _count_whole(self, session: Session, batch: PendingBatch) -> None:
        """Count a batch whose last row is written."""
        _, slot, _, _ = batch.location
        now_s = self._outbox.now_s
        self._record.batches += 1
        self.failures.on_whole(batch.dataset)
        session.record.batches += 1
        session.job_record.batches += 1
        if (reason := session.copied_because) is not None:
            self._counters.fallbacks[reason] = self._counters.fallbacks.get(reason, 0) + 1
        session.slot_times.move(slot, "client" if session.is_held else "sending", now_s)
        self._record.batch_s.add(now_s - batch.wanted_s)

    def _lend(self, session: Session, batch: PendingBatch) -> None:
        """Lend a whole batch in its slot."""
        self._record.lent_bytes += session.layout.batch_bytes
        number, slot, epoch, index = batch.location
        self._counters.batches_lent += 1
        lent = Lent(
            session=number,
            request=batch.request,
            epoch=epoch,
            index=index,
            slot=slot,
            valid=batch.valid,
        )
        self._outbox.send(session.peer, lent)

    def _fail(self, batch: PendingBatch, reason: FailureReason, code: str, message: str) -> None:
        """Send Failed for a batch; the client still has to release it."""
        if batch.is_cancelled:
            return
        self._dispatcher.cancel(batch)
        self.failures.count(batch.dataset, reason, message, self._outbox.now_s)
        session = self._sessions.open[batch.session]
        if batch.slot is not None:
            session.slot_times.move(batch.slot, "client", self._outbox.now_s)
        failed = Failed(
            session=session.number,
            epoch=batch.epoch,
            index=batch.index,
            code=code,
            message=message[:MESSAGE_CHARS_MAX],
        )
        self._outbox.send(session.peer, failed)

    def _settle(self, batch: PendingBatch) -> None:
        """Account for a chunk that is no longer in flight."""
        session = self._sessions.open.get(batch.session)
        if session is None:
            session = self._sessions.ended[batch.session]
            session.in_flight -= 1
            self._outbox.close_if_unused(session)
            return
        session.in_flight -= 1
        if session.wanted.get((batch.epoch, batch.index)) is not batch:
            self._return_slot(session, batch)

    def _return_slot(self, session: Session, batch: PendingBatch) -> None:
        """Return a released batch's slot, unless a worker still writes to it."""
        if batch.in_flight == 0 and batch.slot is not None:
            if session.slot_times.state(batch.slot) == "filling":  # given up while it was filled
                session.slot_times.move(batch.slot, "sending", self._outbox.now_s)
            self._outbox.add(events.ReturnSlot(session.number, batch.slot))
            batch.slot = None
