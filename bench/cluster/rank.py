"""A rank of the job: the product's client session, and a consumer that takes a batch a step.

It behaves as a loader over tcp does: a batch is held until the next one is taken, rows are copied
from the socket one chunk after the other, at ``rank_gb_s``, and requests are made after each event.
"""

from collections.abc import Callable, Mapping
from time import thread_time
from typing import Final

from feeder.client.core import events
from feeder.client.core.links import Job
from feeder.client.core.prefetch import BatchSequence
from feeder.client.core.session import ClientSession
from feeder.client.transport import GATHER_S
from feeder.plan.recipe import Recipe
from feeder.wire.messages import BatchKey, Chunk, Hello, NodeMessage, Request

from .agenda import Agenda
from .host import DATASET
from .network import Network
from .owners import SEED
from .shape import JobShape
from .tally import Tally, Timeline

_CLOCK_ADVANCED: Final = events.ClockAdvanced()


class SimulatedRank:
    """One client and its training loop."""

    def __init__(
        self,
        number: int,
        job: JobShape,
        recipe: Recipe,
        indices: range,
        *,
        agenda: Agenda,
        network: Network,
        tally: Tally,
        timeline: Timeline,
        on_request: Callable[[BatchKey, str, bool], None],
    ) -> None:
        """``on_request`` gets each batch, the endpoint that it is requested from, and whether it
        is the batch's first request."""
        self.number = number
        self.taken: list[BatchKey] = []
        """All batches so far, in order."""
        self.free_s = 0.0
        """When its socket has been read up to what was sent so far."""
        self._job = job
        self._indices = indices
        self._agenda = agenda
        self._network = network
        self._tally = tally
        self._timeline = timeline
        self._on_request = on_request
        self._step_s = job.batch_size / job.rank_images_s if job.rank_images_s else 0.0
        self._next_step_s = 0.0
        self._held: int | None = None
        self._waits_since_s: float | None = None
        self._has_begun = False
        self._gather_by_s: float | None = None
        self._wake_at_s = float("inf")
        self._endpoints: dict[int, str] = {}
        self._requested: set[BatchKey] = set()
        self._pixel_bytes = 3 * job.image_size**2
        hello = Hello(
            dataset=DATASET, recipe=recipe, seed=SEED, window=job.window, client=f"rank {number}"
        )
        self.session = ClientSession(
            Job(name="model", hello=hello, share_memory=False, rank=number),
            buffers=job.window + 1,
        )

    @property
    def is_whole(self) -> bool:
        """Whether the batches taken so far are its own, in order, each once."""
        steps = len(self._indices)
        return all(
            key == (position // steps, self._indices[position % steps])
            for position, key in enumerate(self.taken)
        )

    @property
    def links(self) -> Mapping[int, str]:
        """The endpoints that it keeps connections to, by link."""
        return self._endpoints

    def list_endpoints(self, names: Mapping[str, str]) -> None:
        """Replace its list of feeders, names by endpoint."""
        self.handle(events.EndpointsListed(names))

    def connected(self, link: int) -> None:
        """Record that a connection is up."""
        self.handle(events.Connected(link))

    def disconnected(self, link: int) -> None:
        """Record that a connection is lost."""
        self.handle(events.Disconnected(link))

    def attempt_failed(self, link: int) -> None:
        """Record that nothing answers at a link's endpoint."""
        self.handle(events.Disconnected(link))

    def receive(self, link: int, message: NodeMessage) -> None:
        """Handle a message without rows."""
        self.handle(events.MessageReceived(link, message))

    def receive_chunk(self, link: int, chunk: Chunk) -> None:
        """Handle a chunk that has been read from the socket."""
        rows = chunk.images
        sizes = (rows * self._pixel_bytes, 8 * rows, 8 * rows)
        self.handle(events.MessageReceived(link, chunk, sizes))

    def ingest(self, size_bytes: int) -> float:
        """Return when a message that has just arrived is read: after those before it."""
        now_s = self._agenda.now_s
        self.free_s = max(self.free_s, now_s) + size_bytes / (self._job.rank_gb_s * 1e9)
        return self.free_s

    def handle(self, event: events.Event) -> None:
        """Pass an event to the session, execute what follows, and let the consumer act."""
        self._give(event)
        self._settle()

    def _settle(self) -> None:
        session = self.session
        if not self._has_begun and session.welcome is not None:
            self._begin_when_gathered()
        self._consume()
        if session.is_clock_due() or session.due_s <= self._agenda.now_s:
            self._give(_CLOCK_ADVANCED)
            self._consume()  # a batch that was lost to all nodes may be settled now
        if session.due_s < self._wake_at_s:
            self._wake_at(session.due_s)

    def _begin_when_gathered(self) -> None:
        """Start the epoch once it is known of all feeders whether they serve, as a loader does."""
        now_s = self._agenda.now_s
        if self._gather_by_s is None:
            self._gather_by_s = now_s + GATHER_S
            self._wake_at(self._gather_by_s)
        if self.session.is_gathered or now_s >= self._gather_by_s:
            self._has_begun = True
            self.session.begin(BatchSequence(0, self._indices))

    def _wake_at(self, at_s: float) -> None:
        self._wake_at_s = at_s

        def wake() -> None:
            if self._wake_at_s == at_s:
                self._wake_at_s = float("inf")
                self._settle()

        self._agenda.at(at_s, wake)

    def _give(self, event: events.Event) -> None:
        began_s = thread_time()
        instructions = self.session.handle(event, self._agenda.now_s)
        self._tally.client_cpu_s += thread_time() - began_s
        for instruction in instructions:
            match instruction:
                case events.Send(link, message):
                    if isinstance(message, Request):
                        self._record(link, message)
                    self._network.send_to_host(self, link, message)
                case events.Store(link, chunk):
                    self._give(events.ChunkStored(link, chunk))
                case events.Dial(link, endpoint):
                    self._endpoints[link] = endpoint
                    self._network.dial(self, link, endpoint)
                case events.HangUp(link):
                    del self._endpoints[link]
                    self._network.hang_up(self, link)
                case _:  # log lines
                    pass

    def _record(self, link: int, request: Request) -> None:
        for key in request.want:
            is_first = key not in self._requested
            self._requested.add(key)
            self._on_request(key, self._endpoints[link], is_first)

    def _consume(self) -> None:
        """Take what is complete, one batch a step."""
        session, now_s = self.session, self._agenda.now_s
        while self._has_begun and now_s >= self._next_step_s:
            if self._held is not None:
                session.prefetch.return_buffer(self._held)
                self._held = None
            batch = session.take()
            if batch is None:
                if self._waits_since_s is None:
                    self._waits_since_s = now_s
                    session.waits_since_s = now_s
                return
            if self._waits_since_s is not None:
                self._tally.waited_s += now_s - self._waits_since_s
                self._waits_since_s = None
                session.waits_since_s = None
            self._held = batch.buffer
            self.taken.append(batch.key)
            self._requested.discard(batch.key)
            self._tally.images += batch.valid
            self._tally.batches += 1
            self._timeline.add(now_s, batch.valid)
            if self._step_s:
                # A step that begins late delays those after it: the accelerator has lost that time.
                self._next_step_s = max(now_s, self._next_step_s) + self._step_s
                self._agenda.at(self._next_step_s, self._settle)
