"""The client's session with all its nodes, without socket, thread or clock.

    EndpointsListed ─► Dial … ─► Connected ─► greeting, Welcome      (all: ``links``; each one:
                                                                      ``node_link``)
    sequence ─► batch gets a buffer ─► its lane's owner is asked ─► chunks or a lent slot ─► settled
                                     └─ late, quiet or lost: the next in the lane's order is asked

Events go into ``handle``, instructions come out; requests are made at ClockAdvanced, which the
shell passes after all other events. Consumer calls (``begin``, ``take``, ``return_buffer``) return
no instructions: the next ClockAdvanced does. It is wanted when ``is_clock_due``, and at ``due_s``.

Invariants, which test_fleet.py checks over random losses, restarts and clock jumps:
- the batches that the consumer takes are the sequence's, each once, in order (``prefetch``);
- requests go only to nodes with one dataset, one reading of the recipe and one self-test hash;
- an open batch is requested from a node, unless none is connected, has room or can make it.

The consumer's deadline is not known here; when it has passed, ``explain`` gives the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from feeder.client.core import events
from feeder.client.core.batch_lanes import BatchLanes
from feeder.client.core.compatibility import find_incompatibility
from feeder.client.core.links import Links
from feeder.client.core.node_link import PING_INTERVAL_S, LinkState, name_session
from feeder.client.core.preference import Preference
from feeder.client.core.prefetch import (
    BatchRequest,
    BatchSequence,
    CompleteBatch,
    Placement,
    Prefetch,
)
from feeder.client.core.requests import GiveUp, RequestScheduler
from feeder.client.core.waits import WaitClock
from feeder.errors import DatasetError, FeederError, PeerError, ProtocolError, name_some
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.wire.messages import (
    BatchKey,
    Bye,
    Draining,
    Failed,
    Hello,
    Lent,
    NotReady,
    Pong,
    Refused,
    Request,
    Welcome,
)

AMPLE_BATCHES: Final = 3
"""Batches in flight per node with which none runs out of work if a request comes a batch late."""

_NONE: Final[Mapping[str, str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the client requests from its nodes; the same for the client's whole life."""

    name: str
    """The endpoints as the user gave them."""
    hello: Hello
    share_memory: bool = True
    rank: int = 0
    """Of the client in its job, or any number that differs from other clients'."""
    world_size: int = 1
    """As far as it is known before the first sequence, which has the final number."""


class ClientSession:
    """The state machine. Not thread-safe: the caller holds a lock around every call.

    ``error`` is set at the first failure that waiting cannot mend.
    """

    def __init__(self, job: Job, *, buffers: int) -> None:
        """``buffers``: batches that are fetched ahead or with the consumer."""
        prefetch = Prefetch(job.hello.recipe, buffers=buffers)
        self.job = job
        self.welcome: Welcome | None = None  # the first one; later ones must agree with it
        self.error: FeederError | None = None
        self.reconnects = 0
        self.received_bytes = 0
        self.packing_advances = 0
        """Grows while feeders that pack report progress and none serves: worth waiting for."""
        self.first_batch_s: float | None = None  # from the first request to the first whole batch
        self.prefetch = prefetch
        self._out: list[events.Instruction] = []
        self._waits = WaitClock()
        self._links = Links(
            job.hello,
            prefetch,
            self._waits,
            self._out,
            rank=job.rank,
            world_size=job.world_size,
            share_memory=job.share_memory,
        )
        self._welcomed: set[int] = set()  # links that were welcomed before
        # Once the dataset is known:
        self._preference: Preference | None = None
        self._scheduler: RequestScheduler | None = None
        self.due_s = float("inf")
        """When ClockAdvanced is due, if nothing else happens before; a message may defer it."""
        # Since the last ClockAdvanced:
        self._has_changed = True  # in more than batches that were lent as requested
        self._in_flight = 0  # batches requested and not complete
        self._waits_for_room = False  # whether a batch could not be requested
        self._request = 0  # the latest one's number
        self._has_taken = False
        self._first_request_at_s: float | None = None
        self.cpu_s = 0.0
        """CPU time of this process, which the shell sets before ClockAdvanced."""
        self._now_s = 0.0

    @property
    def labels(self) -> LabelSpec:
        """The kind of the dataset's labels, the same in every welcome; known from the first on."""
        return INDEX_LABELS if self.welcome is None else self.welcome.labels

    # --- Consumer calls -----------------------------------------------------------------------

    def begin(self, sequence: BatchSequence) -> None:
        """Start a sequence; those of its batches that are already here are kept."""
        self.check()
        self.prefetch.begin(sequence)

    def is_next_complete(self) -> bool:
        """Return whether ``take`` would return a batch or raise an error."""
        return self.error is not None or self.prefetch.is_next_settled

    def take(self) -> CompleteBatch | None:
        """Return the next batch if it is complete; raises the error that prevents it for good."""
        self.check()
        try:
            batch = self.prefetch.take()
        except DatasetError as error:
            raise DatasetError(f"{self.job.name}: {error}") from None
        self._has_taken |= batch is not None
        return batch

    def begin_wait(self, now_s: float) -> None:
        """Record that the consumer waits for the next batch."""
        self._waits.begin(now_s)

    def end_wait(self, now_s: float, batch: CompleteBatch | None) -> None:
        """Record that the consumer waits no longer: it has the batch, or has given up (None)."""
        link = None if batch is None else batch.link
        self._waits.end(now_s, self.prefetch.awaited_links if link is None else (link,))

    def return_buffer(self, buffer: int) -> None:
        """Free the buffer of a batch that was taken."""
        self.prefetch.return_buffer(buffer)

    def is_clock_due(self, *, spare: int = 0) -> bool:
        """Return whether ClockAdvanced should come before the next wait for events.

        While every node has enough to do, ``1 + spare`` free buffers can wait for another one: a
        request for several batches costs client and node little more than a request for one.
        """
        is_ample = self._in_flight >= AMPLE_BATCHES * len(self._links.by_number)
        return self._has_changed or self.prefetch.free > (1 + spare if is_ample else 0)

    def check(self) -> Welcome:
        """Return the first welcome; raises the error that has ended the session."""
        if self.error is not None:
            raise type(self.error)(str(self.error)) from self.error
        if self.welcome is None:
            raise PeerError(f"{self.job.name}: there was no welcome yet")
        return self.welcome

    def explain(self, now_s: float, problems: Mapping[str, str] = _NONE) -> str:
        """Return one line on why a wait is not over: on the links that the next batch is requested
        on, then on the others.

        ``problems`` has what is known of endpoints by other means.
        """
        progress = self.prefetch.progress()
        awaited = self.prefetch.awaited_links
        links = sorted(self._links, key=lambda link: link.link not in awaited)
        if not links:
            return "no endpoint is known yet"
        reasons = [
            problems.get(link.endpoint)
            or f"{link.explain(now_s, progress)}{name_session(link.welcome)}"
            for link in links
        ]
        if len(links) == 1:
            return reasons[0]
        named = [f"{link.endpoint}: {reason}" for link, reason in zip(links, reasons, strict=True)]
        return name_some(named, "; ")

    # --- State and statistics -----------------------------------------------------------------

    @property
    def copied_because(self) -> str | None:
        """Why some batches are copied over the socket; None where all nodes lend them."""
        links = list(self._links)  # one copy: another thread changes the dict
        served = [link for link in links if link.session is not None]
        return next((link.copied_because for link in served or links), None)

    def verdict(self, now_s: float) -> str:
        """Return what sets the pace, as the node process that this client waits for most has
        diagnosed it; "" before any has.

        It is this client's own verdict where that node process does not answer.
        """
        links = [link for link in list(self._links) if link.verdict or link.find_trouble(now_s)]
        slowest = max(links, key=lambda link: self._waits.total_s(link.link), default=None)
        if slowest is None:
            return ""
        # After a stop of this process itself, answers may wait in its sockets.
        read_s = now_s if now_s - self._now_s < 2 * PING_INTERVAL_S else self._now_s
        return slowest.find_trouble(now_s) if slowest.find_trouble(read_s) else slowest.verdict

    @property
    def is_gathered(self) -> bool:
        """Whether it is known of all endpoints if they serve this job."""
        return self.error is not None or all(link.is_status_known for link in list(self._links))

    @property
    def batches_requested(self) -> int:
        """How many batches were requested, each counted once."""
        return 0 if self._scheduler is None else self._scheduler.requested

    @property
    def batches_of_owners(self) -> int:
        """How many of them were first requested from the owner of their lane, which caches it."""
        return 0 if self._scheduler is None else self._scheduler.owned

    @property
    def batches_asked_again(self) -> int:
        """How many batches were requested again because their node was lost or failed."""
        return 0 if self._scheduler is None else self._scheduler.retried

    @property
    def batches_hedged(self) -> int:
        """How many late batches were requested from another node too."""
        return 0 if self._scheduler is None else self._scheduler.hedged

    @property
    def served_endpoints(self) -> list[str]:
        """The endpoints of the node processes that serve this client now."""
        return [link.endpoint for link in list(self._links) if link.is_served]

    @property
    def feeders(self) -> int:
        """How many node processes serve this client now."""
        return len(self.served_endpoints)

    @property
    def feeders_left_out(self) -> int:
        """How many endpoints cannot serve this job, though they answer."""
        return self._links.left_out

    # --- Events -------------------------------------------------------------------------------

    def handle(self, event: events.Event, now_s: float) -> list[events.Instruction]:
        """Return the instructions that follow from an event, to be executed in this order."""
        self._now_s = max(self._now_s, now_s)
        if self.error is None:
            if not isinstance(event, events.MessageReceived):
                self._has_changed = True
            match event:
                case events.ChunkArrived():
                    self._on_chunk(event)
                case events.ChunkStored():
                    self._on_stored(event.placement)
                case events.ClockAdvanced():
                    self._on_clock()
                case events.EndpointsListed():
                    self._links.set_listed(event, self._now_s)
                case _:
                    self._on_link(event)
        out = self._out.copy()
        self._out.clear()  # the links have it too
        return out

    def fail(self, error: FeederError) -> None:
        """End for good; consumer calls raise the first such error from now on."""
        if self.error is None:
            self.error, self.due_s = error, float("inf")

    def byes(self) -> list[events.Instruction]:
        """Return the last messages, so that nodes need not wait for the leases to expire."""
        return [
            events.Send(link.link, Bye(session=link.session))
            for link in self._links
            if link.session is not None
        ]

    def release_slots(self) -> None:
        """Release all mapped slots, also those with a batch; nothing can be taken after this."""
        for link in self._links:
            link.slots = ()
        self.prefetch.drop_held()

    # --- Links --------------------------------------------------------------------------------

    def _on_link(self, event: events.LinkEvent) -> None:
        link = self._links.by_number.get(event.link)
        if link is None:
            return  # it was closed
        match event:
            case events.Disconnected():
                link.handle(event, self._now_s)
                self._links.greet_duplicates(link, self._now_s)
            case events.NodeIncompatible(_, error) if link.incompatibility is None:
                self._leave_out(link, error)
            case events.MessageReceived(_, message) if link.incompatibility is None:
                link.on_message(self._now_s)
                self._on_message(link, message)
            case _ if link.handle(event, self._now_s):
                self._log_transfer(link)
        self._links.collect(link)

    def _on_message(self, link: LinkState, message: object) -> None:
        self._has_changed |= self._waits_for_room or not isinstance(message, Lent | Pong)
        match message:
            case Welcome() if link.is_connected:  # else it was still in flight
                if message.session != link.session or not link.has_session_with(message):
                    self._on_welcome(link, message)
            case NotReady() if link.session is None:
                has_advanced = link.on_not_ready(message, self._now_s)
                self.packing_advances += has_advanced and self.feeders == 0
            case Refused():
                error = link.on_refused(message, self._now_s)
                if error is not None:
                    self._leave_out(link, error)
            case Lent() if message.session == link.session:
                self._on_lent(link, message)
            case Failed() if message.session == link.session:
                key = (message.epoch, message.index)
                self.prefetch.failed(link.link, key, f"{message.message} ({message.code})")
            case Draining() if message.session == link.session:
                link.drain()
            case Pong() if message.session == link.session:
                link.verdict, link.sharers = message.verdict, message.sharers
            case _:  # of a session that is over
                pass

    def _on_welcome(self, link: LinkState, welcome: Welcome) -> None:
        is_back = link.link in self._welcomed
        error = find_incompatibility(self.job.hello, self.welcome, welcome, is_back=is_back)
        if error is not None:
            self._out.append(events.Send(link.link, Bye(session=welcome.session)))
            self._leave_out(link, error, welcome)
            return
        other = self._links.find_session_with(link, welcome)
        if other is not None:
            link.decline(welcome, other.link)
            # The other link may not lead to them.
            self._links.record_siblings(link, welcome, self._now_s)
            return
        self._links.report_same_name(link, welcome)
        self.welcome = self.welcome or welcome
        if self._preference is None:
            self._preference = Preference(BatchLanes(welcome, self.job.hello))
            self._scheduler = RequestScheduler(
                self.prefetch, self._preference, self._links.owner_name
            )
        self.reconnects += is_back
        self._welcomed.add(link.link)
        link.accept(welcome, self._now_s)
        if not link.awaits_slots:
            self._log_transfer(link)
        self._links.record_siblings(link, welcome, self._now_s)

    def _leave_out(
        self, link: LinkState, error: FeederError, welcome: Welcome | None = None
    ) -> None:
        """Use a node no longer; ends the job before its first batch, or if no node remains.

        ``welcome`` is what the node sent now, if the reason is in it.

        At the start a user is watching, and it is not known yet which nodes agree with each other;
        later a feeder that was added by mistake must not end a running job.
        """
        self._has_changed = True
        named = error if str(error).startswith(link.endpoint) else _name(error, link.endpoint)
        session = name_session(welcome or link.welcome)
        link.leave(self._now_s, error)
        self._links.greet_duplicates(link, self._now_s)
        is_news = self._links.avoid(link, self._now_s)
        if not self._has_taken or self._links.are_all_left_out:
            self.fail(named)
        elif is_news:
            self._out.append(events.Log(f"left out: {named}{session}", is_warning=True))

    def _log_transfer(self, link: LinkState) -> None:
        is_warning = link.wants_slots and link.copied_because is not None
        self._out.append(events.Log(link.describe_transfer(), is_warning=is_warning))

    # --- Batches that arrive ------------------------------------------------------------------

    def _on_chunk(self, event: events.ChunkArrived) -> None:
        link = self._links.by_number.get(event.link)
        self.received_bytes += sum(event.sizes)
        if link is None or event.chunk.session != link.session:
            self.prefetch.chunks_discarded += 1
            return
        link.on_message(self._now_s)
        try:
            placement = self.prefetch.find_placement(
                link.link, event.chunk, event.sizes, self.labels
            )
        except ProtocolError as error:
            self._leave_out(link, error)
            self._links.collect(link)
            return
        if placement is not None:
            self._out.append(events.Store(placement))

    def _on_stored(self, placement: Placement) -> None:
        self._on_complete(self.prefetch.stored(placement))

    def _on_lent(self, link: LinkState, lent: Lent) -> None:
        try:
            if lent.slot >= len(link.slots):
                raise ProtocolError(f"slot {lent.slot} was lent, {len(link.slots)} are mapped here")
            request = self.prefetch.lend(link.link, lent, link.slots[lent.slot])
        except ProtocolError as error:
            self._leave_out(link, error)
            return
        self._in_flight -= request is not None
        self._on_complete(request)

    def _on_complete(self, request: BatchRequest | None) -> None:
        if request is None:
            return
        if self._scheduler is not None:
            self._scheduler.on_complete(request, self._now_s)
        if self.first_batch_s is None and self._first_request_at_s is not None:
            self.first_batch_s = self._now_s - self._first_request_at_s

    # --- Requests -----------------------------------------------------------------------------

    def _on_clock(self) -> None:
        self._waits.advance(self._now_s, self.prefetch.awaited_links)
        for link in list(self._links):
            link.record_spent(self._waits.total_s(link.link), self.cpu_s)
            if link.is_redial_due(self._now_s):
                self._links.hang_up(link, self._now_s)
                self._links.dial(link.endpoint, link.feeder, self._now_s)
                continue
            had_session = link.session is not None
            if link.run_due(self._now_s):
                self._log_transfer(link)
            self._links.collect(link)
            if had_session and link.session is None:  # silent: another link may reach the node
                self._links.greet_duplicates(link, self._now_s)
        if self.welcome is not None and self._scheduler is not None and self._preference:
            self._links.choose(self._preference, self._now_s)
            self._preference.set_names(self._links.owner_names)
            self._request_batches(self.welcome, self._scheduler)
        else:
            self._links.replace_spares(self._now_s)
        self._has_changed = False
        if self._scheduler is None:
            due_s = self._links.spares_due_s(self._now_s)
        else:
            due_s = self._scheduler.due_s
        self.due_s = min([due_s, *[link.due_s() for link in self._links]])

    def _request_batches(self, welcome: Welcome, scheduler: RequestScheduler) -> None:
        self.prefetch.extend(welcome.samples)
        wants = self._choose(scheduler)
        if wants and self._first_request_at_s is None:
            self._first_request_at_s = self._now_s
        for link in self._links:
            if link.session is None:
                continue
            keys, releases = wants.get(link.link, ()), self.prefetch.take_releases(link.link)
            if keys or releases:
                request = Request(
                    session=link.session,
                    number=self._request,
                    want=tuple(keys),
                    release=tuple(releases),
                )
                self._out.append(events.Send(link.link, request))
        are_requested = [bool(held.requests) for _, held in self.prefetch.open_batches()]
        self._in_flight = sum(are_requested)
        self._waits_for_room = not all(are_requested)

    def _choose(self, scheduler: RequestScheduler) -> dict[int, list[BatchKey]]:
        """Return the batches to request now, by link, recorded as in request ``_request``."""
        wants: dict[int, list[BatchKey]] = {}
        for choice in scheduler.choose(self._links.by_number, self._now_s):
            if isinstance(choice, GiveUp):
                self.prefetch.give_up(choice.key)
                continue
            if choice.reclaim is not None:
                self.prefetch.reclaim(choice.reclaim)
            wants.setdefault(choice.link, []).append(choice.key)
        self._request += bool(wants)
        for number, keys in wants.items():
            for key in keys:
                self.prefetch.record_request(number, key, self._request, self._now_s)
        return wants


def _name(error: FeederError, endpoint: str) -> FeederError:
    return type(error)(f"{endpoint}: {error}")
