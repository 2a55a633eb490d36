"""The client's session with all its nodes, without socket, thread or clock.

    EndpointsListed ─► Dial … ─► Connected ─► greeting, Welcome      (all: ``links``; each one:
                                                                      ``node_link``)
    sequence ─► batch gets a buffer ─► its lane's owner is asked ─► chunks or a lent slot ─► settled
                                     └─ late, quiet or lost: the next in the lane's order is asked

Events go into ``handle``, instructions come out; requests are made at ClockAdvanced, which the
shell passes after all other events, when ``is_clock_due`` and at ``due_s``. Consumer calls
(``begin``, ``take``, ``prefetch.return_buffer``) return no instructions: the next ClockAdvanced
does.

Invariants, which test_fleet.py checks over random losses, restarts and clock jumps:
- the batches that the consumer takes are the sequence's, each once, in order (``prefetch``);
- requests go only to nodes with one dataset, one reading of the recipe and one self-test hash;
- an open batch is requested from a node, unless none is connected, has room or can make it.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Final

from feeder.client.core import events
from feeder.client.core.answers import check_welcome, name_batch
from feeder.client.core.links import Job, Links
from feeder.client.core.node_link import PING_INTERVAL_S, LinkState, name_session
from feeder.client.core.owners import Preference
from feeder.client.core.prefetch import Batch, BatchRequest, BatchSequence, Prefetch
from feeder.client.core.requests import RequestScheduler
from feeder.errors import DatasetError, FeederError, PeerError, ProtocolError, name_some
from feeder.wire.messages import (
    Bye,
    Chunk,
    Draining,
    Failed,
    Lent,
    NodeMessage,
    NotReady,
    Pong,
    Refused,
    Request,
    Welcome,
)

AMPLE_BATCHES: Final = 3  # in flight per node: enough if a request comes a batch late

_OF_SESSION: Final = (Chunk, Lent, Failed, Pong, Draining)
_NONE: Final[Mapping[str, str]] = {}


class ClientSession:
    """The state machine. Not thread-safe: the caller holds a lock around every call."""

    def __init__(self, job: Job, *, buffers: int) -> None:
        """``buffers``: batches that are fetched ahead or with the consumer."""
        self.job = job
        self.welcome: Welcome | None = None  # the first one; later ones must agree with it
        self.error: FeederError | None = None  # the first failure that waiting cannot mend
        self.reconnects = 0
        self.received_bytes = 0
        # Grows while feeders that pack report progress and none serves: worth waiting for.
        self.packing_advances = 0
        self.first_batch_s: float | None = None  # from its request to its last row
        self.due_s = inf
        """When ClockAdvanced is due, if nothing else happens before; a message may defer it."""
        self._out: list[events.Instruction] = []
        self.prefetch = Prefetch(job.hello.recipe, buffers=buffers, world_size=job.world_size)
        self._preference = Preference(job.hello)
        self.links = Links(job, self.prefetch, self._preference, self._out)
        self.scheduler = RequestScheduler(self.prefetch, self._preference)
        self.waits_since_s: float | None = None
        """Since when the consumer waits for the next batch; it sets this, and None after that."""
        self._has_taken = False
        self._now_s = 0.0
        self._cpu_s = 0.0  # of this process, at the last ClockAdvanced
        # Whether something can be requested besides what the links' changes allow, since the last
        # ClockAdvanced.
        self._has_changed = False

    def begin(self, sequence: BatchSequence) -> None:
        """Start a sequence; those of its batches that are already here are kept."""
        self.check()
        self.prefetch.begin(sequence)
        # The number of ranks may have changed, and with it how many links there may be.
        self.links.have_changed = True

    def take(self) -> Batch | None:
        """The next batch if it is complete; raises the error that prevents it for good."""
        self.check()
        batch = self.prefetch.take()
        if batch is not None and batch.failure is not None:
            what = f"{self.job.name}: {name_batch(batch.key)}"
            raise DatasetError(f"{what} cannot be had: {batch.failure}")
        if batch is not None:
            self._has_taken = True
            self.links.have_changed |= self.links.is_list_long
        return batch

    def is_clock_due(self, *, spare: int = 0) -> bool:
        """Whether ClockAdvanced should come before the next wait for events.

        While every node has enough to do, ``1 + spare`` free buffers can wait for another one: a
        request for several batches costs client and node little more than a request for one.
        """
        is_ample = self.scheduler.in_flight >= AMPLE_BATCHES * len(self.links.by_number)
        has_changed = self._has_changed or self.links.have_changed
        return has_changed or self.prefetch.free > (1 + spare if is_ample else 0)

    def check(self) -> Welcome:
        """The first welcome; raises the error that has ended the session."""
        if self.error is not None:
            raise type(self.error)(str(self.error)) from self.error
        if self.welcome is None:
            raise PeerError(f"{self.job.name}: there was no welcome yet")
        return self.welcome

    def explain(self, now_s: float, problems: Mapping[str, str] = _NONE) -> str:
        """One line on why a wait is not over: the links that the next batch is requested on first.
        ``problems`` has what is known of endpoints by other means."""
        progress, awaited = self.prefetch.progress(), self.prefetch.awaited
        links = [*self.links.by_number.values()]
        links.sort(key=lambda link: awaited is None or link.number not in awaited.requests)
        reasons = {
            link.endpoint: problems.get(link.endpoint, "").removeprefix(f"{link.endpoint}: ")
            or f"{link.explain(now_s, progress)}{name_session(link.welcome)}"
            for link in links
        }
        for endpoint, (reason, _) in self.links.left_out.items():
            reasons.setdefault(endpoint, reason)
        if not reasons:
            return "no endpoint is known yet"
        if len(reasons) == 1:
            return next(iter(reasons.values()))
        return name_some([f"{endpoint}: {reason}" for endpoint, reason in reasons.items()], "; ")

    # --- State and statistics -----------------------------------------------------------------

    @property
    def copied_because(self) -> str | None:
        """Why some batches are copied over the socket; None where all nodes lend them."""
        links = [*self.links.by_number.values()]
        served = [link for link in links if link.session is not None]
        return next((link.copied_because for link in served or links), None)

    def verdict(self, now_s: float) -> str:
        """What sets the pace, as the node process that this client waits for most has diagnosed it,
        or this client where that does not answer; "" before any has."""
        links = [*self.links.by_number.values()]
        links = [link for link in links if link.verdict or link.find_trouble(now_s)]
        slowest = max(links, key=lambda link: link.waited_s, default=None)
        if slowest is None:
            return ""
        # After a stop of this process itself, answers may wait in its sockets.
        read_s = now_s if now_s - self._now_s < 2 * PING_INTERVAL_S else self._now_s
        return slowest.find_trouble(now_s) if slowest.find_trouble(read_s) else slowest.verdict

    @property
    def is_gathered(self) -> bool:
        """Whether it is known of all endpoints if they serve this job."""
        links = self.links.by_number.values()
        return self.error is not None or all(link.is_status_known for link in links)

    @property
    def served_endpoints(self) -> list[str]:
        """The endpoints of the node processes that serve this client now."""
        return [link.endpoint for link in [*self.links.by_number.values()] if link.is_served]

    # --- Events -------------------------------------------------------------------------------

    def handle(self, event: events.Event, now_s: float) -> list[events.Instruction]:
        """The instructions that follow from an event, to be executed in this order."""
        self._now_s = now_s = max(self._now_s, now_s)
        if self.error is None:
            # Up to each event, also while a wait lasts: pings report it, so a node learns of a
            # training loop that it blocks. A hedged batch is waited for on two links.
            if self.waits_since_s is not None and now_s > self.waits_since_s:
                awaited = self.prefetch.awaited
                for link in awaited.requests if awaited else ():
                    self.links.by_number[link].waited_s += now_s - self.waits_since_s
                self.waits_since_s = now_s
            match event:
                case events.MessageReceived(number, message, sizes):
                    self._on_message(number, message, sizes)
                case events.ClockAdvanced(cpu_s):
                    self._cpu_s = cpu_s
                    self._on_clock()
                case events.ChunkStored(number, chunk):
                    request = self.prefetch.stored(number, chunk)
                    self._has_changed |= request is not None
                    self._on_complete(request)
                case events.EndpointsListed(names):
                    self.links.set_listed(names)
                case _:
                    self._on_link(event)
        out = self._out.copy()
        self._out.clear()  # the links append to this one list
        return out

    def fail(self, error: FeederError) -> None:
        """End for good; consumer calls raise the first such error from now on."""
        if self.error is None:
            self.error, self.due_s = error, inf

    def byes(self) -> list[events.Instruction]:
        """The last messages, so that nodes need not wait for the leases to expire."""
        return [
            events.Send(link.number, Bye(session=link.session))
            for link in self.links.by_number.values()
            if link.session is not None
        ]

    def release_slots(self) -> None:
        """Release all mapped slots, also those with a batch; nothing can be taken after this."""
        for link in self.links.by_number.values():
            link.slots = ()
        self.prefetch.held.clear()

    def _on_link(self, event: events.LinkEvent) -> None:
        link = self.links.by_number.get(event.link)
        if link is None:
            return  # it was closed
        self.links.have_changed = True
        if isinstance(event, events.NodeIncompatible):
            self._leave_out(link, event.error)
        else:
            link.handle(event, self._now_s)

    def _on_message(self, number: int, message: NodeMessage, sizes: Sequence[int]) -> None:
        link = self.links.by_number.get(number)
        self.received_bytes += sum(sizes)
        if link is None:
            return  # it was closed
        link.heard_s = self._now_s
        try:
            self._on_link_message(link, message, sizes)
        except FeederError as error:
            self._leave_out(link, error)

    def _on_link_message(self, link: LinkState, message: NodeMessage, sizes: Sequence[int]) -> None:
        """Handle a message; raises the reason if its node cannot serve this job."""
        self._has_changed |= self.scheduler.waits_for_room
        if isinstance(message, _OF_SESSION) and message.session != link.session:  # which is over
            self.prefetch.chunks_discarded += isinstance(message, Chunk)
            return
        match message:
            case Lent(slot=slot):
                if slot >= len(link.slots):
                    raise ProtocolError(f"slot {slot} was lent, {len(link.slots)} are mapped here")
                request = self.prefetch.lend(link.number, message, link.slots[slot])
                self.scheduler.in_flight -= request is not None
                self._on_complete(request)
                return
            case Pong():
                self.links.have_changed |= message.sharers != link.sharers
                link.verdict, link.sharers = message.verdict, message.sharers
                link.store = message.store
                return
            case Chunk():
                buffer = self.prefetch.find_buffer(link.number, message, sizes)
                if buffer is not None:
                    self._out.append(events.Store(link.number, message, buffer))
                return
        self.links.have_changed = True
        match message:
            case Welcome() if link.session is None or message != link.welcome:
                self._on_welcome(link, message)
            case NotReady() if link.session is None:
                has_advanced = link.on_not_ready(message, self._now_s)
                self.packing_advances += has_advanced and not self.served_endpoints
            case Refused():
                link.on_refused(message, self._now_s)
            case Failed():
                self.prefetch.failed(link.number, message)
            case Draining():
                link.drain()

    def _on_welcome(self, link: LinkState, welcome: Welcome) -> None:
        is_back = link.welcome is not None
        link.begin(welcome)
        check_welcome(self.job.hello, self.welcome, welcome, is_back=is_back)
        other = self.links.find_duplicate(link, welcome)
        if other is not None:
            link.leave()
            link.duplicate_of = other.number
        else:
            self.welcome = self._preference.welcome = self.welcome or welcome
            self.prefetch.labels = self.welcome.labels
            self.reconnects += is_back
            self.links.left_out.pop(link.endpoint, None)
            link.accept(welcome, self._now_s, self._cpu_s)
        # Also of a node process that is linked twice: the other link may not lead to its siblings.
        self.links.record_siblings(link.endpoint, welcome)

    def _leave_out(self, link: LinkState, error: FeederError) -> None:
        """Use a node no longer; ends the job before its first batch, or if no node remains.

        At the start a user is watching, and it is not known yet which nodes agree with each other;
        later a feeder that was added by mistake must not end a running job.
        """
        named = error
        if not str(error).startswith(link.endpoint):
            named = type(error)(f"{link.endpoint}: {error}")
        session = name_session(link.welcome)
        is_news = self.links.leave_out(link, f"{error}{session}", self._now_s)
        if not self._has_taken or not self.links.find_usable(self._now_s):
            self.fail(named)
        elif is_news:
            self._out.append(events.Log(f"left out: {named}{session}", is_warning=True))

    # --- Requests -----------------------------------------------------------------------------

    def _on_complete(self, request: BatchRequest | None) -> None:
        if request is not None:
            latency_s = self._now_s - request.requested_s
            self.scheduler.latencies_s.append(latency_s)
            if self.first_batch_s is None:
                self.first_batch_s = latency_s

    def _on_clock(self) -> None:
        now_s, links = self._now_s, self.links
        for link in links.by_number.values():
            if link.due_s <= now_s:
                link.run_due(now_s, self._cpu_s)
                links.have_changed = True
        if links.have_changed or now_s >= links.redial_s:
            links.choose(now_s)
            if self.welcome is not None:
                self._preference.set_names(links.name_owners())
                self.scheduler.follow(links.by_number)
        self._has_changed = links.have_changed = False
        self.due_s = min([links.redial_s, *[link.due_s for link in links.by_number.values()]])
        if self.welcome is not None:
            self._request_batches(self.welcome, now_s)
            self.due_s = min(self.due_s, self.scheduler.due_s)

    def _request_batches(self, welcome: Welcome, now_s: float) -> None:
        self.prefetch.extend(welcome.samples)
        wants = self.scheduler.choose(now_s)
        releases = self.prefetch.releases
        for number in {**wants, **releases}:
            session = self.links.by_number[number].session
            assert session is not None, "what it had is forgotten with it"
            want, release = tuple(wants.get(number, ())), tuple(releases.get(number, ()))
            request = self.scheduler.number
            unowned = tuple(key for key in want if not self.scheduler.owns(number, key))
            message = Request(
                session=session, number=request, want=want, release=release, unowned=unowned
            )
            self._out.append(events.Send(number, message))
        releases.clear()
