"""A rank of the job: the product's client session, its connections, and a loop that takes batches.

It behaves as a loader over tcp does: a batch is held until the next one is taken, rows are copied
from the socket one chunk after the other, at ``rank_gb_s``, and requests are made after each event.

Every message takes ``latency_s``; rows pass through the host's network card and then through the
rank's process, each first come, first served. Switches in between limit nothing. Messages on a
connection keep their order, and those in flight are lost with it, as with TCP.
"""

from collections.abc import Callable
from functools import partial
from math import inf
from time import thread_time
from typing import TYPE_CHECKING, Final

from feeder.client.connection import (
    HEARTBEAT_MS,
    HEARTBEAT_TIMEOUT_MS,
)
from feeder.client.core import events
from feeder.client.core.links import Job
from feeder.client.core.prefetch import BatchSequence
from feeder.client.core.session import ClientSession
from feeder.client.transport import GATHER_S
from feeder.wire.messages import BatchKey, Chunk, ClientMessage, Hello, NodeMessage, Request

from .shape import SEED

if TYPE_CHECKING:
    from .simulation import Host, Simulation

DATASET: Final = "imagenet"

_HEARTBEATS_S: Final = (HEARTBEAT_MS + HEARTBEAT_TIMEOUT_MS) / 1000  # to lose a silent host

_HANDSHAKE_ROUNDS: Final = 4  # latencies from connecting to the end of ZeroMQ's handshake


class Link:
    """A rank's connection to a host. A host that is lost does not come back, so neither does it."""

    def __init__(self, world: "Simulation", rank: "Rank", number: int, endpoint: str) -> None:
        self.endpoint = endpoint
        self.host: Host | None = None  # the last one that it was connected to
        self._world = world
        self._rank = rank
        self._number = number
        self._peer: bytes | None = None  # its name at the host while it is up; each time another
        self._is_wanted = True
        world.after(world.cluster.latency_s * _HANDSHAKE_ROUNDS, self._connect)

    def send(self, message: ClientMessage) -> None:
        host, peer, world = self.host, self._peer, self._world
        if host is not None and peer is not None:
            at_s = world.now_s + world.cluster.latency_s
            world.at(at_s, self._if_up(partial(host.receive, peer, message)))

    def send_back(self, host: "Host", message: NodeMessage) -> None:
        """Carry a host's message without rows."""
        world = self._world
        # A Welcome may not overtake, nor be overtaken by, what was sent before it.
        at_s = max(world.now_s, host.nic_free_s) + world.cluster.latency_s
        event = events.MessageReceived(self._number, message)
        world.at(at_s, self._if_up(partial(self._rank.handle, event)))

    def send_chunk(self, host: "Host", chunk: Chunk) -> None:
        world, rank, rows = self._world, self._rank, chunk.images
        size_bytes = rows * world.cluster.wire_bytes
        sizes = (rows * 3 * world.cluster.image_px**2, 8 * rows, 8 * rows)
        event = events.MessageReceived(self._number, chunk, sizes)
        read = self._if_up(partial(rank.handle, event))
        at_s = host.transmit(size_bytes) + world.cluster.latency_s
        world.at(at_s, lambda: world.at(rank.ingest(size_bytes), read))

    def hang_up(self) -> None:
        """Close it for good. What was sent before still arrives."""
        self._is_wanted = False
        self._world.after(self._world.cluster.latency_s, self._if_up(self._break))

    def lose(self, *, silently: bool) -> None:
        """End it: at once, or when heartbeats are missed."""
        delay_s = _HEARTBEATS_S if silently else self._world.cluster.latency_s
        self._world.after(delay_s, self._if_up(self._break))

    def _if_up(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return what makes the call if the connection is still the same one."""
        peer = self._peer

        def call_if_up() -> None:
            if peer is not None and self._peer == peer:
                call()

        return call_if_up

    def _connect(self) -> None:
        self.host = self._world.by_endpoint[self.endpoint]
        if self._is_wanted and self.host.is_up:
            self._peer = self._world.add_peer(self)
            self._rank.handle(events.Connected(self._number))
        elif self._is_wanted:
            self._rank.handle(events.Disconnected(self._number))

    def _break(self) -> None:
        assert self._peer is not None
        del self._world.peers[self._peer]
        self._peer = None
        if self._is_wanted:
            self._rank.handle(events.Disconnected(self._number))


class Rank:
    def __init__(self, world: "Simulation", number: int, indices: range) -> None:
        cluster = world.cluster
        self.number = number
        self.taken: list[BatchKey] = []  # all batches so far, in order
        self.links: dict[int, Link] = {}
        self._world = world
        self._batches = BatchSequence(0, indices)
        rate = cluster.rank_images_s
        self._step_s = cluster.batch_size / rate if rate else 0.0
        self._next_step_s = 0.0
        self._read_s = 0.0  # when its socket has been read up to what was sent so far
        self._held: int | None = None
        self._has_begun = False
        self._gather_by_s: float | None = None
        self._wake_at_s = inf
        self._requested: set[BatchKey] = set()
        hello = Hello(
            dataset=DATASET,
            recipe=world.lanes.recipe,
            seed=SEED,
            window=cluster.window,
            client=f"rank {number}",
        )
        self.session = ClientSession(
            Job(name="model", hello=hello, share_memory=False, rank=number),
            buffers=cluster.window + 1,
        )

    @property
    def is_whole(self) -> bool:
        """Whether the batches taken so far are its own, in order, each once."""
        return self.taken == [self._batches.key(at) for at in range(len(self.taken))]

    def ingest(self, size_bytes: int) -> float:
        """Return when a message that has just arrived is read: after those before it."""
        taken_s = size_bytes / (self._world.cluster.rank_gb_s * 1e9)
        self._read_s = max(self._read_s, self._world.now_s) + taken_s
        return self._read_s

    def handle(self, event: events.Event) -> None:
        """Pass an event to the session, execute what follows, and let the consumer act."""
        self._give(event)
        self._settle()

    def _settle(self) -> None:
        session, world = self.session, self._world
        if not self._has_begun and session.welcome is not None:
            # The epoch starts once it is known of all feeders whether they serve, as in a loader.
            if self._gather_by_s is None:
                self._gather_by_s = world.now_s + GATHER_S
                self._wake_at(self._gather_by_s)
            if session.is_gathered or world.now_s >= self._gather_by_s:
                self._has_begun = True
                session.begin(self._batches)
        self._consume()
        if session.is_clock_due() or session.due_s <= world.now_s:
            self._give(events.ClockAdvanced())
            self._consume()  # a batch that was lost to all nodes may be settled now
        if session.due_s < self._wake_at_s:
            self._wake_at(session.due_s)

    def _wake_at(self, at_s: float) -> None:
        self._wake_at_s = at_s

        def wake() -> None:
            if self._wake_at_s == at_s:
                self._wake_at_s = inf
                self._settle()

        self._world.at(at_s, wake)

    def _give(self, event: events.Event) -> None:
        began_s = thread_time()
        instructions = self.session.handle(event, self._world.now_s)
        self._world.tally.client_cpu_s += thread_time() - began_s
        for instruction in instructions:
            match instruction:
                case events.Send(number, message) if link := self.links.get(number):
                    for key in message.want if isinstance(message, Request) else ():
                        is_first = key not in self._requested
                        self._world.note_request(key, link.endpoint, is_first)
                        self._requested.add(key)
                    link.send(message)
                case events.Store(number, chunk):
                    self._give(events.ChunkStored(number, chunk))
                case events.Dial(number, endpoint):
                    self.links[number] = Link(self._world, self, number, endpoint)
                case events.HangUp(number):
                    self.links.pop(number).hang_up()
                case _:  # log lines, and messages on a link that is closed
                    pass

    def _consume(self) -> None:
        """Take what is complete, one batch a step."""
        session, world = self.session, self._world
        while self._has_begun and world.now_s >= self._next_step_s:
            if self._held is not None:
                session.prefetch.return_buffer(self._held)
                self._held = None
            batch = session.take()
            if batch is None:
                if session.waits_since_s is None:
                    session.waits_since_s = world.now_s
                return
            session.waits_since_s = None
            self._held = batch.buffer
            self.taken.append(batch.key)
            self._requested.discard(batch.key)
            world.tally.images += batch.valid
            world.tally.batches += 1
            world.timeline.add(world.now_s, batch.valid)
            if self._step_s:
                # A step that begins late delays those after it: the accelerator has lost that time.
                self._next_step_s = max(world.now_s, self._next_step_s) + self._step_s
                world.at(self._next_step_s, self._settle)
