"""The sessions of a node process as a state machine: events in, instructions out, no clock.

    Hello ─► OpenSlots ─► SlotsOpened ─► Welcome
    Request ─► batch waits for a slot ─► chunks to workers ─► SendChunk … ─► client releases it
            ─► ReturnSlot ─► SlotReturned ─► slot takes the next batch
    SlotsClaimed ─► ShareSlots ─► Lent instead of chunks, once the batch is whole
    Bye, lease expired, peer gone, holder gone
            ─► (chunks in flight finish, the client unmaps) ─► CloseSlots ─► SlotsClosed

Invariants, which test_interleavings.py checks over random interleavings:
- a slot belongs to one batch from its first chunk until the client has released it, no worker
  writes to it and the socket no longer reads it;
- memory that a client maps outlives its session until the client unmaps it: a lent batch is never
  overwritten or freed under its reader;
- each wanted batch is answered once: by all of its chunks, each once, or by one Lent, or by one
  Failed, or not at all if the client released it or its session ended;
- a session has at most ``window`` batches wanted and not released, so at most that many slots;
- the slots of all sessions, ended ones that are still lent included, stay within the budget.
"""

from collections.abc import Mapping

from feeder.metrics.counters import SessionCounters
from feeder.session import events
from feeder.session.admission import (
    MESSAGE_CHARS_MAX,
    NodeIdentity,
    Refusal,
    ServedDataset,
    SessionLimits,
    admit,
    compose_welcome,
)
from feeder.session.blame import blame_chunk, blame_dataset
from feeder.session.chunk_state import PendingBatch, PendingChunk
from feeder.session.dispatch import Dispatcher
from feeder.session.failures import FailureReason, Failures
from feeder.session.registry import SessionRegistry
from feeder.session.silence import LOOK_S, Silence
from feeder.session.state import Session
from feeder.session.tally import NodeTally, WorkerTally, real_images
from feeder.wire.messages import Bye, Draining, Failed, Hello, Lent, Ping, Pong, Refused, Request

_UNKNOWN_SESSION = Refusal(
    "unknown-session", "there is no such session here (any more): send Hello again"
)
_DRAINING = Refusal("draining", "this feeder is shutting down and takes no new requests")


class SessionTable:
    """All sessions of one node process."""

    def __init__(
        self,
        datasets: Mapping[str, ServedDataset],
        limits: SessionLimits,
        identity: NodeIdentity,
        counters: SessionCounters,
    ) -> None:
        self._datasets = datasets
        self._limits = limits
        self._identity = identity
        self.counters = self._counters = counters
        self._failures = Failures(counters)
        self._dispatcher = Dispatcher()
        self.sessions = SessionRegistry()
        self.tally = NodeTally()
        self.verdict = ""
        """Of the supervisor, on the whole host; repeated in every Pong."""
        self._is_draining = False
        self._out: list[events.Instruction] = []
        self._now_s = 0.0
        self.check_at_s = float("inf")
        """When to handle ClockAdvanced: never later than the next deadline."""

    @property
    def is_idle(self) -> bool:
        """Whether no requested batch remains to be filled."""
        dispatcher = self._dispatcher
        return not (
            dispatcher.chunks_in_flight
            or dispatcher.queued_batches
            or any(session.waiting for session in self.sessions.open.values())
        )

    def quiet_workers(self, now_s: float) -> list[int]:
        """Return the workers whose processes to look at for ClockAdvanced: they have made no
        progress for a while."""
        return self._dispatcher.quiet_workers(now_s)

    @property
    def chunks_in_flight(self) -> int:
        """How many chunks workers have."""
        return self._dispatcher.chunks_in_flight

    @property
    def queued_batches(self) -> int:
        """How many batches wait for a worker or a slot; suspect chunks count one by one."""
        waiting = sum(len(session.waiting) for session in self.sessions.open.values())
        return self._dispatcher.queued_batches + waiting

    @property
    def stalled_datasets(self) -> int:
        """How many datasets stall."""
        return self._dispatcher.stalled_datasets

    @property
    def stalled_names(self) -> frozenset[str]:
        """The datasets that stall."""
        return self._dispatcher.stalled_names

    def chunk_times(self, now_s: float) -> Mapping[int, float]:
        """Return how long each worker has had the chunk that it fills, seconds."""
        return self._dispatcher.chunk_times(now_s)

    @property
    def silent_workers(self) -> frozenset[int]:
        """The workers without progress, which were reported."""
        return self._dispatcher.silent_workers

    def handle(self, event: events.Event, now_s: float) -> list[events.Instruction]:
        """Return the instructions that follow from an event, to be carried out in order."""
        self._now_s = now_s
        match event:
            case events.ChunkFilled():
                self._on_chunk_filled(event)
            case events.MessageReceived():
                self._on_message(event)
            case events.SlotReturned():
                self._on_slot_returned(event)
            case events.SlotSent():
                self._on_slot_sent(event)
            case events.ChunkFailed():
                self._on_chunk_failed(event)
            case events.WorkerJoined():
                self._dispatcher.add_worker(event.worker)
                self.tally.workers[event.worker] = WorkerTally()
            case events.WorkerLost():
                self._on_worker_lost(event)
            case events.WorkerReleased():
                self._dispatcher.release(event.worker)
            case events.PeerGone():
                self._on_peer_gone(event)
            case events.SlotsOpened():
                self._on_slots_opened(event)
            case events.SlotsRefused():
                self._on_slots_refused(event)
            case events.SlotsClosed():
                self.sessions.forget(event.session)
            case events.SlotsClaimed():
                self._on_slots_claimed(event)
            case events.HolderGone():
                self._on_holder_gone(event)
            case events.DrainAsked():
                self._on_drain()
            case events.ClockAdvanced():
                self._on_clock(event)
            case events.Resumed():
                self._dispatcher.on_resumed(event.lost_s, now_s)
        self._dispatch()
        out, self._out = self._out, []
        return out

    # --- Messages -----------------------------------------------------------------------------

    def _on_message(self, event: events.MessageReceived) -> None:
        message = event.message
        if isinstance(message, Hello):
            self._on_hello(event, message)
            return
        if not isinstance(message, Request | Ping | Bye):
            return  # requests of statistics concern no session
        session = self.sessions.open.get(message.session)
        if session is None or session.peer != event.peer or not session.is_open:
            if not isinstance(message, Bye):
                self._refuse(event.peer, _UNKNOWN_SESSION, message.session)
            return
        session.last_message_s = self._now_s
        if isinstance(message, Request):
            self._on_request(session, message)
        elif isinstance(message, Ping):
            tally = session.tally
            tally.clock_s, tally.waited_s = message.clock_s, message.waited_s
            tally.cpu_s = message.cpu_s
            pong = Pong(session=session.number, verdict=self.verdict)
            self._out.append(events.Send(event.peer, pong))
        else:
            self._counters.sessions_closed += 1
            self._end(session, "closed")

    def _on_hello(self, event: events.MessageReceived, hello: Hello) -> None:
        former = self.sessions.of_peer(event.peer)
        if former is not None:
            self._counters.sessions_closed += 1
            self._end(former, "closed")
        admission = admit(
            hello,
            self._datasets,
            self._limits,
            is_draining=self._is_draining,
            used=self.sessions.usage(),
            available_bytes=event.available_bytes,
            account=event.account,
            used_by_client=self.sessions.usage(event.account),
        )
        if isinstance(admission, Refusal):
            self._refuse(event.peer, admission)
            return
        self._counters.windows_reduced += admission.layout.slots < hello.window
        session = Session(
            number=event.fresh_session,
            peer=event.peer,
            hello=hello,
            plan=admission.plan,
            layout=admission.layout,
            chunk_images=admission.chunk_images,
            account=event.account,
            last_message_s=self._now_s,
            is_local=event.is_local,
            is_ipc=event.is_ipc,
        )
        self.sessions.add(session)
        self._check_by(self._now_s + self._limits.lease_s)
        self._out.append(
            events.OpenSlots(
                session.number, hello.dataset, hello.recipe, hello.seed, session.layout
            )
        )

    def _on_request(self, session: Session, request: Request) -> None:
        for epoch, index in request.release:
            batch = session.wanted.pop((epoch, index), None)
            if batch is not None:
                self._counters.batches_released += 1
                self._release(session, batch)
        fresh = [key for key in dict.fromkeys(request.want) if key not in session.wanted]
        self._counters.wants_repeated += len(request.want) - len(fresh)
        if not fresh:
            return
        refusal = _DRAINING if self._is_draining else session.refusal_for(fresh)
        if refusal is not None:
            self._refuse(session.peer, refusal, session.number)
            return
        for key in fresh:
            session.want(key, request.number, self._now_s)
        self._give_slots(session)

    # --- Slots and chunks ---------------------------------------------------------------------

    def _give_slots(self, session: Session) -> None:
        for batch in session.assign_slots(self._now_s):
            self._dispatcher.enqueue(batch, self._now_s)

    def _dispatch(self) -> None:
        for chunk in self._dispatcher.dispatch(self._now_s):
            batch = chunk.batch
            self.sessions.open[batch.session].in_flight += 1
            self.tally.on_dispatched(chunk, self._now_s)
            self._out.append(
                events.FillChunk(
                    chunk.worker, chunk.ticket, *batch.location, chunk.first, chunk.count
                )
            )
        if not self.is_idle:
            self._check_by(self._now_s + LOOK_S)

    def _on_chunk_filled(self, event: events.ChunkFilled) -> None:
        chunk = self._dispatcher.finish(event.ticket, self._now_s)
        if chunk is None:
            return
        batch = chunk.batch
        self._on_finished(chunk)
        self.tally.on_filled(chunk, event.busy_s, event.cpu_s, self._now_s)
        session = self.sessions.of_number(batch.session)
        session.tally.worker_s += event.busy_s
        if not batch.is_cancelled:
            self._counters.chunks += 1
            self._counters.images += real_images(chunk)
            session.tally.images += real_images(chunk)
            if batch.is_whole:
                self._count_whole(session, batch)
            if not session.is_held:
                session.tally.sent_bytes += chunk.count * session.layout.row_bytes
                self._out.append(
                    events.SendChunk(
                        session.peer, *batch.location, chunk.first, chunk.count, batch.valid
                    )
                )
            elif batch.is_whole:
                self._lend(session, batch)
        self._settle(batch)

    def _count_whole(self, session: Session, batch: PendingBatch) -> None:
        """Count a batch whose last row is written."""
        _, slot, _, _ = batch.location
        self._counters.batches += 1
        session.tally.batches += 1
        if (reason := session.copied_because) is not None:
            self._counters.fallbacks[reason] = self._counters.fallbacks.get(reason, 0) + 1
        session.tally.slots.move(slot, "client" if session.is_held else "sending", self._now_s)
        self.tally.batch_s.add(self._now_s - batch.wanted_s)

    def _lend(self, session: Session, batch: PendingBatch) -> None:
        """Lend a whole batch in its slot."""
        self.tally.lent_bytes += session.layout.batch_bytes
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
        self._out.append(events.Send(session.peer, lent))

    def _on_chunk_failed(self, event: events.ChunkFailed) -> None:
        chunk = self._dispatcher.finish(event.ticket, self._now_s)
        if chunk is not None:
            self._on_finished(chunk)
            reason = self._failures.reason_for(event, chunk.batch.dataset)
            self._fail(chunk.batch, reason, event.code, event.message)
            self._settle(chunk.batch)

    def _on_finished(self, chunk: PendingChunk) -> None:
        """Account for a chunk that its worker has filled or could not fill."""
        self.tally.on_finished(chunk)
        if chunk.silent_s:
            session = chunk.batch.session
            self._out.append(events.LogProgress(chunk.worker, chunk.silent_s, session))

    def _on_worker_lost(self, event: events.WorkerLost) -> None:
        self.tally.on_worker_lost(event.worker)
        removal = self._dispatcher.remove_worker(event.worker, event.was_killed, event.is_held)
        self._counters.chunks_returned += len(removal.batches) - len(removal.given_up)
        for chunk in removal.given_up:
            self._fail(chunk.batch, "worker-died", "worker-died", blame_chunk(chunk))
        for batch in removal.batches:
            self._settle(batch)

    def _fail(self, batch: PendingBatch, reason: FailureReason, code: str, message: str) -> None:
        """Send Failed for a batch; the client still has to release it."""
        if batch.is_cancelled:
            return
        self._dispatcher.cancel(batch)
        self._failures.count(reason)
        session = self.sessions.open[batch.session]
        if batch.slot is not None:
            session.tally.slots.move(batch.slot, "client", self._now_s)
        failed = Failed(
            session=session.number,
            epoch=batch.epoch,
            index=batch.index,
            code=code,
            message=message[:MESSAGE_CHARS_MAX],
        )
        self._out.append(events.Send(session.peer, failed))

    def _settle(self, batch: PendingBatch) -> None:
        """Account for a chunk that is no longer in flight."""
        session = self.sessions.open.get(batch.session)
        if session is None:
            session = self.sessions.ended[batch.session]
            session.in_flight -= 1
            self._close_if_unused(session)
            return
        session.in_flight -= 1
        if session.wanted.get((batch.epoch, batch.index)) is not batch:
            self._return_slot(session, batch)

    def _release(self, session: Session, batch: PendingBatch) -> None:
        """Handle the client's release of a batch."""
        if batch.slot is None:
            session.waiting.remove(batch)
            return
        self._dispatcher.cancel(batch)
        self._return_slot(session, batch)

    def _return_slot(self, session: Session, batch: PendingBatch) -> None:
        """Return a released batch's slot, unless a worker still writes to it."""
        if batch.in_flight == 0 and batch.slot is not None:
            if session.tally.slots.state(batch.slot) == "filling":  # given up while it was filled
                session.tally.slots.move(batch.slot, "sending", self._now_s)
            self._out.append(events.ReturnSlot(session.number, batch.slot))
            batch.slot = None

    def _on_slot_returned(self, event: events.SlotReturned) -> None:
        session = self.sessions.open.get(event.session)
        if session is not None:
            session.tally.slots.move(event.slot, "free", self._now_s)
            session.free_slots.append(event.slot)
            self._give_slots(session)

    def _on_slot_sent(self, event: events.SlotSent) -> None:
        session = self.sessions.open.get(event.session)
        if session is not None and session.tally.slots.state(event.slot) == "sending":
            session.tally.slots.move(event.slot, "client", event.at_s)

    # --- Slots that clients map ---------------------------------------------------------------

    def _on_slots_claimed(self, event: events.SlotsClaimed) -> None:
        session = self.sessions.open.get(event.session)
        refusal = _UNKNOWN_SESSION.message if session is None else session.refusal_for_claim()
        if session is not None:
            session.has_claimed = True
        if session is None or refusal is not None:
            self._out.append(events.RefuseClaim(event.connection, refusal or ""))
            return
        session.is_held = True
        self._counters.sessions_sharing += 1
        self._out.append(events.ShareSlots(event.session, event.connection))

    def _on_holder_gone(self, event: events.HolderGone) -> None:
        """End the session of a client that unmapped its slots; one without requests goes on."""
        session = self.sessions.open.get(event.session)
        if session is None:
            session = self.sessions.ended.get(event.session)
            if session is not None and session.is_held:
                session.is_held = False
                self._close_if_unused(session)
            return
        session.is_held = False
        if session.has_requested:
            self._counters.sessions_lost += event.has_died
            self._counters.sessions_closed += not event.has_died
            self._end(session, "lost" if event.has_died else "closed")

    # --- Start and end of sessions ------------------------------------------------------------

    def _on_slots_opened(self, event: events.SlotsOpened) -> None:
        session = self.sessions.open.get(event.session)
        if session is None:
            return
        session.is_open = True
        self._counters.sessions_opened += 1
        welcome = compose_welcome(
            session.number,
            session.hello,
            self._datasets[session.hello.dataset],
            batches=session.plan.batches,
            window=session.layout.slots,
            chunk_images=session.chunk_images,
            identity=self._identity,
        )
        self._out.append(events.Send(session.peer, welcome))

    def _on_slots_refused(self, event: events.SlotsRefused) -> None:
        session = self.sessions.open.get(event.session)
        if session is not None:
            self._refuse(session.peer, Refusal("memory", event.reason))
            self._end(session, "closed")

    def _on_peer_gone(self, event: events.PeerGone) -> None:
        session = self.sessions.of_peer(event.peer)
        if session is not None:
            self._counters.sessions_lost += 1
            self._end(session, "lost")

    def _on_drain(self) -> None:
        self._is_draining = True
        for session in self.sessions.open.values():
            self._out.append(events.Send(session.peer, Draining(session=session.number)))

    def _on_clock(self, event: events.ClockAdvanced) -> None:
        """End expired sessions, report silent and kill stuck workers, and set the next check."""
        self.check_at_s = float("inf")
        for session in list(self.sessions.open.values()):
            expires_s = session.last_message_s + self._limits.lease_s
            if expires_s <= self._now_s:
                self._counters.sessions_expired += 1
                self._end(session, "expired")
            else:
                self._check_by(expires_s)
        for silence in self._dispatcher.observe(event.looks, self._now_s):
            self._report_silence(silence)
        for stuck in self._dispatcher.find_stuck(self._now_s):
            kill = events.KillWorker(stuck.worker, stuck.dataset, stuck.condition, stuck.silent_s)
            self._out.append(kill)
        for batch in self._dispatcher.find_unanswered(self._now_s):
            self._fail(batch, "stalled-storage", "dataset", blame_dataset(batch.dataset))
        self._check_by(self._dispatcher.check_at_s(self._now_s))

    def _report_silence(self, silence: Silence) -> None:
        self._counters.worker_silences += 1
        chunk = silence.chunk
        self._out.append(
            events.LogSilence(
                worker=silence.worker,
                silent_s=silence.silent_s,
                kernel_state=silence.kernel_state,
                session=chunk.batch.session,
                dataset=chunk.batch.dataset,
                first=chunk.first,
                count=chunk.count,
            )
        )

    def _end(self, session: Session, how: events.SessionEnd) -> None:
        self.sessions.end(session)
        self.tally.on_session_ended(session.tally, self._now_s)
        self._out.append(events.LogEnd(session.number, session.account, session.hello.dataset, how))
        for batch in session.wanted.values():
            self._dispatcher.cancel(batch)
        session.waiting.clear()
        self._close_if_unused(session)

    def _close_if_unused(self, session: Session) -> None:
        if session.in_flight == 0 and not session.is_held:
            self._out.append(events.CloseSlots(session.number))

    def _check_by(self, at_s: float) -> None:
        self.check_at_s = min(self.check_at_s, at_s)

    def _refuse(self, peer: bytes, refusal: Refusal, session: int | None = None) -> None:
        code = refusal.code
        self._counters.refused[code] = self._counters.refused.get(code, 0) + 1
        message = refusal.message[:MESSAGE_CHARS_MAX]
        self._out.append(events.Send(peer, Refused(code=code, message=message, session=session)))
