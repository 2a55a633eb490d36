"""The sessions of a node process as a state machine: events in, instructions out, no clock.

    Hello ─► OpenSlots ─► SlotsOpened ─► Welcome
    Request ─► batch waits for its samples, where a store has these: FetchSamples ─► SamplesFetched
            ─► it waits for a slot ─► chunks to workers ─► SendChunk … ─► client releases it
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

This module has the sessions, from Hello to their end; ``filling`` the batches and the workers.
"""

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from feeder.metrics.fields import add
from feeder.metrics.hangs import CHECK_S
from feeder.metrics.records import NodeRecord
from feeder.session import events
from feeder.session.admission import (
    MESSAGE_CHARS_MAX,
    HelloReceived,
    Refusal,
    ServedDataset,
    SessionLimits,
    admit,
)
from feeder.session.filling import Filling
from feeder.session.jobs import JobWeights
from feeder.session.state import Session
from feeder.wire.chunk_work import Filled, FillFailed
from feeder.wire.messages import (
    Bye,
    Draining,
    NodeIdentity,
    Ping,
    Pong,
    Refused,
    Request,
    Welcome,
)

_UNKNOWN_SESSION = Refusal(
    "unknown-session", "there is no such session here (any more): send Hello again"
)
_DRAINING = Refusal("draining", "this feeder is shutting down and takes no new requests")
_ENDING = Refusal("draining", "this feeder is shutting down: use another one, or try later")


class SessionTable(Filling):
    """All sessions of one node process."""

    def __init__(
        self,
        datasets: Mapping[str, ServedDataset | str],
        limits: SessionLimits,
        record: NodeRecord,
        weights: JobWeights = MappingProxyType({}),
    ) -> None:
        """Counts in ``record``."""
        super().__init__(record, weights)
        self.datasets = datasets
        self.limits = limits
        self.identity: NodeIdentity
        """Set before the first client is served."""
        self.verdict = ""
        """The supervisor's, on the whole host; repeated in every Pong."""
        self._is_draining = False
        self._handlers: dict[type[Any], Callable[[Any], object]] = {
            Filled: self._on_filled,
            FillFailed: self._on_failed,
            events.SamplesFetched: self._on_fetched,
            HelloReceived: self._on_hello,
            events.MessageReceived: self._on_message,
            events.SlotReturned: self._on_slot_returned,
            events.SlotSent: self._on_slot_sent,
            events.WorkerJoined: lambda event: self.dispatcher.add_worker(event.worker),
            events.WorkerLost: self._on_worker_lost,
            events.WorkerReleased: lambda event: self.watch.held.pop(event.worker, None),
            events.PeerGone: self._on_peer_gone,
            events.SlotsOpened: self._on_slots_opened,
            events.SlotsClosed: lambda event: self.sessions.forget(event.session),
            events.SlotsClaimed: self._on_slots_claimed,
            events.HolderGone: self._on_holder_gone,
            events.DrainAsked: self._on_drain,
            events.ClockAdvanced: self._on_clock,
            events.Resumed: lambda _: self.watch.on_resumed(self._now_s),
        }

    @property
    def is_idle(self) -> bool:
        """Whether no requested batch remains to be filled."""
        waiting = any(session.waiting for session in self.sessions.open.values())
        return self.dispatcher.is_idle and not (waiting or self.fetching)

    @property
    def queued_batches(self) -> int:
        """How many batches wait for a worker or a slot; suspect chunks count one by one."""
        sessions = self.sessions.open.values()
        queued = sum(len(session.queue) + len(session.waiting) for session in sessions)
        return len(self.dispatcher.suspects) + queued

    def handle(self, event: events.Event, now_s: float) -> list[events.Instruction]:
        """Return the instructions that follow from an event, to be carried out in order."""
        self._now_s = now_s
        self._handlers[type(event)](event)
        self._dispatch()
        if self.check_at_s == math.inf and (self.sessions.open or not self.dispatcher.is_idle):
            self.check_at_s = now_s + CHECK_S
        instructions, self._instructions = self._instructions, []
        return instructions

    # --- Messages -----------------------------------------------------------------------------

    def _on_message(self, event: events.MessageReceived) -> None:
        message = event.message
        session = self.sessions.open.get(message.session)
        if session is None or session.peer != event.peer:
            if not isinstance(message, Bye):
                self._refuse(event.peer, _UNKNOWN_SESSION, message.session)
            return
        session.last_message_s = self._now_s
        if isinstance(message, Request):
            self._on_request(session, message)
        elif isinstance(message, Ping):
            session.on_ping(message)
            pong = Pong(
                session=session.number,
                sharers=self.sessions.count_alike(session),
                verdict=self.verdict,
                store=self._find_store(session) if self.is_fetching(session) else "",
            )
            self._send(event.peer, pong)
        else:
            self.counters.sessions_closed += 1
            self._end(session, "closed")

    def _on_hello(self, event: HelloReceived) -> None:
        former = self.sessions.by_peer.get(event.peer)
        if former is not None:
            self.counters.sessions_closed += 1
            self._end(former, "closed")
        if self._is_draining:
            self._refuse(event.peer, _ENDING)
            return
        terms = admit(
            event,
            self.datasets,
            self.limits,
            self.sessions.used,
            self.sessions.used_by(event.account),
        )
        if isinstance(terms, Refusal):
            self._refuse(event.peer, terms)
            return
        plan, layout, chunk_images = terms
        self.counters.windows_reduced += layout.slots < event.hello.window
        job = self.jobs.join((event.account, event.hello.job))
        session = Session(event, plan, layout, chunk_images, job, self._now_s)
        self.sessions.add(session)
        self._instructions.append(events.OpenSlots(session))

    def _on_request(self, session: Session, request: Request) -> None:
        for key in request.release:
            batch = session.wanted.pop(key, None)
            if batch is not None:
                self.counters.batches_released += 1
                self._release(session, batch)
        fresh = []
        for key in dict.fromkeys(request.want):
            if key not in session.wanted:
                fresh.append(key)
        self.counters.wants_repeated += len(request.want) - len(fresh)
        refusal = None
        if fresh:
            refusal = _DRAINING if self._is_draining else session.refusal_for(fresh)
        if refusal is not None:
            self._refuse(session.peer, refusal, session.number)
        else:
            is_cached = bool(self._find_store(session))
            for key in fresh:
                batch = session.want(key, request.number, self._now_s)
                batch.is_unowned = key in request.unowned
                self._begin(batch, is_cached=is_cached)
        self._give_slots(session)

    def _find_store(self, session: Session) -> str:
        dataset = self.datasets[session.dataset]
        return dataset.store if isinstance(dataset, ServedDataset) else ""

    def _on_slot_returned(self, event: events.SlotReturned) -> None:
        session = self.sessions.open.get(event.session)
        if session is not None:
            session.slot_times.move(event.slot, "free", self._now_s)
            self._give_slots(session)

    def _on_slot_sent(self, event: events.SlotSent) -> None:
        session = self.sessions.open.get(event.session)
        if session is not None and session.slot_times.states[event.slot] == "sending":
            session.slot_times.move(event.slot, "client", event.at_s)

    # --- Slots that clients map ---------------------------------------------------------------

    def _on_slots_claimed(self, event: events.SlotsClaimed) -> None:
        session = self.sessions.open.get(event.session)
        refusal = _UNKNOWN_SESSION.message if session is None else session.refusal_for_claim()
        if session is not None:
            session.has_claimed = True
        if session is None or refusal is not None:
            self._instructions.append(events.RefuseClaim(event.connection, refusal or ""))
            return
        session.is_held = True
        self.counters.sessions_sharing += 1
        self._instructions.append(events.ShareSlots(event.session, event.connection))

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
            self.counters.sessions_lost += event.has_died
            self.counters.sessions_closed += not event.has_died
            self._end(session, "lost" if event.has_died else "closed")

    # --- Start and end of sessions ------------------------------------------------------------

    def _on_slots_opened(self, event: events.SlotsOpened) -> None:
        session = self.sessions.open.get(event.session)
        if session is None:
            return
        if event.problem:
            self._refuse(session.peer, Refusal("memory", event.problem))
            self._end(session, "closed")
            return
        self.counters.sessions_opened += 1
        dataset = self.datasets[session.dataset]
        assert isinstance(dataset, ServedDataset), "sessions of no other one are admitted"
        welcome = Welcome(
            session=session.number,
            dataset=session.dataset,
            content=dataset.content,
            recipe_fingerprint=session.kind[1],
            classes=dataset.classes,
            labels=dataset.labels,
            samples=dataset.layout.samples,
            batches=session.plan.batches,
            shards=dataset.layout.shards,
            window=session.layout.slots,
            chunk_images=session.chunk_images,
            **session.plan.shape._asdict(),
            **self.identity.asdict(),
        )
        self._send(session.peer, welcome)

    def _on_peer_gone(self, event: events.PeerGone) -> None:
        session = self.sessions.by_peer.get(event.peer)
        if session is not None:
            self.counters.sessions_lost += 1
            self._end(session, "lost")

    def _on_drain(self, _: events.DrainAsked) -> None:
        self._is_draining = True
        for session in self.sessions.open.values():
            self._send(session.peer, Draining(session=session.number))

    def _on_clock(self, event: events.ClockAdvanced) -> None:
        """End expired sessions, report silent and kill stuck workers."""
        self.check_at_s = math.inf  # ``handle`` sets the next one
        for session in list(self.sessions.open.values()):
            if session.last_message_s + self.limits.lease_s <= self._now_s:
                self.counters.sessions_expired += 1
                self._end(session, "expired")
        self._watch_workers(event)

    def _end(self, session: Session, how: events.SessionEnd) -> None:
        self.sessions.end(session)
        add(self.record.slots, session.slot_times.seconds(self._now_s))
        self._instructions.append(events.LogEnd(session, how))
        session.job.record.sessions -= 1
        self._cancel_all(session)
        self._close_if_unused(session)

    def _refuse(self, peer: bytes, refusal: Refusal, session: int | None = None) -> None:
        code = refusal.code
        self.counters.refused[code] += 1
        message = refusal.message[:MESSAGE_CHARS_MAX]
        self._send(peer, Refused(code=code, message=message, session=session))
