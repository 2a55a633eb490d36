"""The client's session with all its nodes, without socket, thread or clock.

    EndpointsListed ─► Dial … ─► Connected ─► greeting, Welcome      (each link: ``node_link``)
    sequence ─► batch gets a buffer ─► its lane's owner is asked ─► chunks or a lent slot ─► settled
                                     └─ late, quiet or lost: the next in the lane's order is asked

Events go into ``handle``, instructions come out; requests are made when ClockAdvanced comes, which
the shell gives after whatever else it gave. What the consumer does (``begin``, ``take``,
``give_back``) has no instructions of its own: the next ClockAdvanced has them.

Invariants, which test_fleet.py checks over random losses, restarts and clock jumps:
- the batches that the consumer takes are the sequence's, each once, in order (``prefetch``);
- only nodes of one dataset, one understanding of the recipe and one self-test hash are asked;
- a batch that is open is asked for at somebody, unless nobody is there, has room or can make it.

How long the consumer has patience is not decided here: it waits until its own deadline and then
asks ``explain`` for the reason.
"""

from dataclasses import dataclass

from feeder.client.core import events
from feeder.client.core.compatibility import find_incompatibility
from feeder.client.core.node_link import Conversation
from feeder.client.core.prefetch import Ask, CompleteBatch, Key, Placement, Prefetch
from feeder.client.core.rendezvous import LanePlaces
from feeder.client.core.requests import GiveUp, RequestScheduler
from feeder.client.core.roster import Roster
from feeder.errors import DatasetError, FeederError, PeerError, ProtocolError
from feeder.wire.messages import Bye, Draining, Failed, Hello, Lent, Pong, Refused, Request, Welcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the client asks of its nodes; the same for the whole life of the client."""

    name: str
    """The endpoints as people know them."""
    hello: Hello
    share_memory: bool = True


class ClientSession:
    """The state machine. Not thread-safe: the caller holds a lock around every call.

    ``error`` is set once something happened that waiting cannot mend.
    """

    def __init__(self, job: Job, prefetch: Prefetch) -> None:
        self.job = job
        self.welcome: Welcome | None = None  # the first one; later ones must agree with it
        self.error: FeederError | None = None
        self.reconnects = 0
        self.received_bytes = 0
        self.first_batch_s: float | None = None  # from the first request to the first whole batch
        self._prefetch = prefetch
        self._roster = Roster()
        self._links: dict[int, Conversation] = {}
        self._next_link = 0
        self._welcomed: set[int] = set()  # links that were welcomed before
        self._scheduler: RequestScheduler | None = None  # once the dataset is known
        self._request = 0  # number of the latest one
        self._has_taken = False
        self._first_request_at_s: float | None = None
        self._now_s = 0.0
        self._out: list[events.Instruction] = []

    # --- What the consumer does ---------------------------------------------------------------

    def begin(self, epoch: int, step: int = 0) -> None:
        """Start over at a step of an epoch; what is already there of it is kept."""
        self._prefetch.begin(epoch, self.check().batches, step)

    def is_next_complete(self) -> bool:
        """Return whether ``take`` would give a batch, or the reason why it cannot be had."""
        return self.error is not None or self._prefetch.is_next_settled

    @property
    def has_news(self) -> bool:
        """Whether somebody who waits for a batch, or for the beginning, may go on."""
        return not self._has_taken or self.is_next_complete()

    def take(self) -> CompleteBatch | None:
        """Return the next batch if it is complete. Raises what stands in its way for good."""
        self.check()
        try:
            batch = self._prefetch.take()
        except DatasetError as error:
            raise DatasetError(f"{self.job.name}: {error}") from None
        self._has_taken |= batch is not None
        return batch

    def give_back(self, buffer: int) -> None:
        """Let the buffer of a batch that was taken be written again."""
        self._prefetch.give_back(buffer)

    def check(self) -> Welcome:
        """Return the first welcome; raises the error that ended the session."""
        if self.error is not None:
            raise type(self.error)(str(self.error)) from self.error
        if self.welcome is None:
            raise PeerError(f"{self.job.name}: there was no welcome yet")
        return self.welcome

    def explain(self, now_s: float) -> str:
        """Say in one line why a wait is not over."""
        progress = self._prefetch.progress()
        links = list(self._links.values())
        if not links:
            return "no endpoint is known yet"
        if len(links) == 1:
            return links[0].explain(now_s, progress)
        return "; ".join(f"{link.endpoint}: {link.explain(now_s, progress)}" for link in links)

    # --- What there is ------------------------------------------------------------------------

    @property
    def copied_because(self) -> str | None:
        """Why some batches are copied over the socket; None where all nodes lend them."""
        links = list(self._links.values())  # at once: others come and go in the I/O thread
        served = [link for link in links if link.session is not None]
        return next((link.copied_because for link in served or links), None)

    @property
    def is_gathered(self) -> bool:
        """Whether all endpoints have shown if they serve this job."""
        return self.error is not None or all(link.has_shown for link in self._links.values())

    @property
    def batches_asked_again(self) -> int:
        """How many batches were asked of another node because theirs was lost or failed."""
        return 0 if self._scheduler is None else self._scheduler.asked_again

    @property
    def batches_hedged(self) -> int:
        """How many batches were late and asked of another node too."""
        return 0 if self._scheduler is None else self._scheduler.hedged

    @property
    def feeders(self) -> int:
        """How many node processes serve this client now."""
        return sum(link.is_served for link in list(self._links.values()))

    @property
    def feeders_left_out(self) -> int:
        """How many endpoints cannot serve this job, though they answer."""
        return sum(link.unfit is not None for link in list(self._links.values()))

    @property
    def due_s(self) -> float:
        """When ClockAdvanced is due, if nothing else happens before."""
        if self.error is not None:
            return float("inf")
        ask_due_s = float("inf") if self._scheduler is None else self._scheduler.due_s
        return min([ask_due_s, *(link.due_s() for link in self._links.values())])

    # --- Events -------------------------------------------------------------------------------

    def handle(self, event: events.Event, now_s: float) -> list[events.Instruction]:
        """Return what follows from an event, to be carried out in this order."""
        self._now_s = max(self._now_s, now_s)
        if self.error is None:
            match event:
                case events.ChunkArrived():
                    self._on_chunk(event)
                case events.ChunkStored():
                    self._on_stored(event.placement)
                case events.ClockAdvanced():
                    self._on_clock()
                case events.EndpointsListed():
                    self._roster.set_listed(event.endpoints)
                    self._follow_roster()
                case events.SlotsMapped() | events.SlotsNotShared():
                    self._on_slots(event)
                case _:
                    self._on_link(event)
        out, self._out = self._out, []
        return out

    def fail(self, error: FeederError) -> None:
        """End for good; the consumer's calls raise the first such error from now on."""
        if self.error is None:
            self.error = error

    def farewell(self) -> list[events.Instruction]:
        """Return the last messages: nodes then need not wait for the leases to end."""
        return [
            events.Send(link.link, Bye(session=link.session))
            for link in self._links.values()
            if link.session is not None
        ]

    def let_go(self) -> None:
        """Let go of slots, those with a batch included; nothing is taken any more after this."""
        for link in self._links.values():
            link.slots = ()
        self._prefetch.drop_held()

    # --- Links --------------------------------------------------------------------------------

    def _on_link(self, event: events.LinkEvent) -> None:
        link = self._links.get(event.link)
        if link is None:
            return  # it was hung up
        match event:
            case events.Connected():
                link.connected(self._now_s)
            case events.Disconnected():
                link.disconnected()
                self._wake_twins(link)
            case events.AttemptFailed():
                link.attempt_failed()
            case events.NodeIncompatible(_, error) if link.unfit is None:
                self._leave_out(link, error)
            case events.Heard(_, message) if link.unfit is None:
                link.heard(self._now_s)
                self._on_message(link, message)
            case _:
                pass
        self._collect(link)

    def _on_message(self, link: Conversation, message: object) -> None:
        match message:
            case Welcome() if link.is_connected:  # else it was still on its way to us
                if message.session != link.session or not link.leads_to(message):
                    self._on_welcome(link, message)
            case Refused():
                error = link.refused(message, self._now_s)
                if error is not None:
                    self._leave_out(link, error)
            case Lent() if message.session == link.session:
                self._on_lent(link, message)
            case Failed() if message.session == link.session:
                key = (message.epoch, message.index)
                self._prefetch.failed(link.link, key, f"{message.message} ({message.code})")
            case Draining() if message.session == link.session:
                link.drain()
            case Pong():
                pass
            case _:  # word of a session that is over
                pass

    def _on_welcome(self, link: Conversation, welcome: Welcome) -> None:
        is_back = link.link in self._welcomed
        error = find_incompatibility(self.job.hello, self.welcome, welcome, is_back=is_back)
        if error is not None:
            self._out.append(events.Send(link.link, Bye(session=welcome.session)))
            self._leave_out(link, error)
            return
        for other in self._links.values():
            if other is not link and other.leads_to(welcome):
                link.decline(welcome, other.link)
                self._learn_siblings(link, welcome)  # the other way may not show them
                return
        self.welcome = self.welcome or welcome
        if self._scheduler is None:
            self._scheduler = RequestScheduler(self._prefetch, LanePlaces(welcome, self.job.hello))
        self.reconnects += is_back
        self._welcomed.add(link.link)
        link.accept(welcome, self._now_s)
        if not link.awaits_slots:
            self._tell_how_batches_come(link)
        self._learn_siblings(link, welcome)

    def _learn_siblings(self, link: Conversation, welcome: Welcome) -> None:
        self._roster.hear(link.endpoint, welcome)
        self._follow_roster()

    def _leave_out(self, link: Conversation, error: FeederError) -> None:
        """Have no more to do with a node; the job ends if that is its start, or nobody is left.

        At the start somebody watches, and which nodes agree with each other is not known yet; later
        a feeder that was added by mistake must not end a job that runs.
        """
        named = error if str(error).startswith(link.endpoint) else _name(error, link.endpoint)
        link.leave(self._now_s, error)
        self._wake_twins(link)
        if not self._has_taken or all(each.unfit for each in self._links.values()):
            self.fail(named)
        else:
            self._out.append(events.Say(f"left out: {named}", is_warning=True))

    def _wake_twins(self, lost: Conversation) -> None:
        """Greet by another link a node process that a lost link led to."""
        for link in self._links.values():
            if link.twin == lost.link:
                link.greet(self._now_s)
                self._collect(link)

    def _follow_roster(self) -> None:
        """Dial the endpoints that are new, and hang up on those that are gone."""
        wanted = self._roster.endpoints
        for link in [link for link in self._links.values() if link.endpoint not in wanted]:
            self._hang_up(link)
        known = {link.endpoint for link in self._links.values()}
        for endpoint in wanted:
            if endpoint not in known:
                self._dial(endpoint)

    def _hang_up(self, link: Conversation) -> None:
        link.leave(self._now_s)
        self._collect(link)
        del self._links[link.link]
        self._out.append(events.HangUp(link.link))
        self._wake_twins(link)

    def _dial(self, endpoint: str) -> None:
        number, self._next_link = self._next_link, self._next_link + 1
        self._links[number] = Conversation(
            number,
            endpoint,
            self.job.hello,
            share_memory=self.job.share_memory,
        )
        self._out.append(events.Dial(number, endpoint))

    def _on_slots(self, event: events.SlotsMapped | events.SlotsNotShared) -> None:
        link = self._links.get(event.link)
        if link is None:
            return
        if isinstance(event, events.SlotsMapped):
            is_news = link.claimed(event.session, event.slots)
        else:
            is_news = link.not_shared(event.session, event.reason)
        if is_news:
            self._tell_how_batches_come(link)

    def _tell_how_batches_come(self, link: Conversation) -> None:
        is_warning = link.wants_slots and link.copied_because is not None
        self._out.append(events.Say(link.describe_way(), is_warning=is_warning))

    def _collect(self, link: Conversation) -> None:
        loss = link.take_loss()
        if loss is not None:
            self._prefetch.forget(link.link)
            if loss.memory_is_short:
                self._prefetch.reopen_lost(link.link)
        self._out += link.take_instructions()

    # --- Batches that arrive ------------------------------------------------------------------

    def _on_chunk(self, event: events.ChunkArrived) -> None:
        link = self._links.get(event.link)
        self.received_bytes += sum(event.sizes)
        if link is None or event.chunk.session != link.session:
            self._prefetch.chunks_discarded += 1
            return
        link.heard(self._now_s)
        try:
            placement = self._prefetch.place(link.link, event.chunk, event.sizes, link.chunk_images)
        except ProtocolError as error:
            self._leave_out(link, error)
            self._collect(link)
            return
        if placement is not None:
            self._out.append(events.Store(placement))

    def _on_stored(self, placement: Placement) -> None:
        ask = self._prefetch.stored(placement)
        if ask is not None:
            self._note_answer(ask)

    def _on_lent(self, link: Conversation, lent: Lent) -> None:
        try:
            if lent.slot >= len(link.slots):
                raise ProtocolError(f"slot {lent.slot} was lent, {len(link.slots)} are mapped here")
            ask = self._prefetch.lend(link.link, lent, link.slots[lent.slot])
        except ProtocolError as error:
            self._leave_out(link, error)
            return
        if ask is not None:
            self._note_answer(ask)

    def _note_answer(self, ask: Ask) -> None:
        if self._scheduler is not None:
            self._scheduler.answered(ask, self._now_s)
        if self.first_batch_s is None and self._first_request_at_s is not None:
            self.first_batch_s = self._now_s - self._first_request_at_s

    # --- Asking -------------------------------------------------------------------------------

    def _on_clock(self) -> None:
        for link in list(self._links.values()):
            if link.is_to_be_redialled(self._now_s):
                self._hang_up(link)
                self._dial(link.endpoint)
                continue
            had_session = link.session is not None
            if link.tick(self._now_s):
                self._tell_how_batches_come(link)
            self._collect(link)
            if had_session and link.session is None:  # silent: the node may speak by another way
                self._wake_twins(link)
        if self.welcome is None or self._scheduler is None:
            return
        self._prefetch.extend(self.welcome.samples)
        wants = self._choose(self._scheduler)
        if wants and self._first_request_at_s is None:
            self._first_request_at_s = self._now_s
        for link in self._links.values():
            if link.session is None:
                continue
            keys, releases = wants.get(link.link, ()), self._prefetch.take_releases(link.link)
            if keys or releases:
                request = Request(
                    session=link.session,
                    number=self._request,
                    want=tuple(keys),
                    release=tuple(releases),
                )
                self._out.append(events.Send(link.link, request))

    def _choose(self, asker: RequestScheduler) -> dict[int, list[Key]]:
        """Return what each link is asked for now, noted as asked in request ``_request``."""
        wants: dict[int, list[Key]] = {}
        for choice in asker.choose(self._links, self._now_s):
            if isinstance(choice, GiveUp):
                self._prefetch.give_up(choice.key)
                continue
            if choice.instead is not None:
                self._prefetch.reclaim(choice.instead)
            wants.setdefault(choice.link, []).append(choice.key)
        self._request += bool(wants)
        for number, keys in wants.items():
            chunk_images = self._links[number].chunk_images
            for key in keys:
                self._prefetch.ask(number, key, self._request, self._now_s, chunk_images)
        return wants


def _name(error: FeederError, endpoint: str) -> FeederError:
    return type(error)(f"{endpoint}: {error}")
