"""A feeder host: the product's session table, with workers, storage and a network card.

    Request ─► SessionTable ─► Fill ─► worker: storage (in turn), then its core
                           ─► SendChunk ─► network card (in turn) ─► rank

The node process itself takes no time. Workers are those of the table: each has a chunk being filled
and one queued. Slots are returned at once, as ZeroMQ has sent a batch before a client releases it.
"""

import random
from collections import deque
from time import thread_time
from typing import TYPE_CHECKING

from feeder.daemon.config import ServeConfig
from feeder.metrics.records import NodeRecord
from feeder.session import events
from feeder.session.admission import HelloReceived, ServedDataset, SessionLimits
from feeder.session.table import SessionTable
from feeder.wire.chunk_work import Fill, Filled
from feeder.wire.messages import Bye, ClientMessage, Hello, NodeIdentity, Ping, Request

from .shape import endpoint_of

if TYPE_CHECKING:
    from .simulation import Simulation

DATASET = "imagenet"
_SLOTS_BYTES = 1 << 40  # memory bounds nothing here
_SHORTEST = 0.5  # of a chunk's mean time


class Host:
    """One node process and its host."""

    def __init__(
        self,
        world: "Simulation",
        number: int,
        served: ServedDataset,
    ) -> None:
        cluster = world.cluster
        self.number = number
        self.name = cluster.name_of(number)
        self.endpoint = endpoint_of(number)
        self.is_up = True
        """It answers; a host that was lost or froze does not."""
        self.nic_free_s = 0.0
        self._world = world
        self._chance = random.Random(f"{cluster.seed} {number}")
        self._next_session = 1
        self._storage_free_s = 0.0
        self._check_at_s = float("inf")
        serve = ServeConfig()
        limits = SessionLimits(
            sessions_max=serve.clients_max,
            window_max=serve.window_max,
            chunk_images=cluster.chunk_images,
            slots_bytes=_SLOTS_BYTES,
            lease_s=serve.lease_s,
            client_sessions_max=serve.client_sessions_max,
        )
        self.table = SessionTable({DATASET: served}, limits, NodeRecord())
        self.table.identity = NodeIdentity(
            node=self.name,
            number=0,
            incarnation=number + 1,
            siblings=((self.endpoint,),),
            feeder_version="model",
            self_test="5" * 32,
            libraries={},
            workers=cluster.cores,
        )
        self._busy: set[int] = set()
        self._chunks: dict[int, deque[Fill]] = {n: deque() for n in range(1, cluster.cores + 1)}
        for worker in self._chunks:
            self.give(events.WorkerJoined(worker))

    def receive(self, peer: bytes, message: ClientMessage) -> None:
        """Handle a client's message."""
        match message:
            case Hello():
                number, self._next_session = self._next_session, self._next_session + 1
                self.give(HelloReceived(number, peer, message, _SLOTS_BYTES))
            case Request() | Ping() | Bye():
                self.give(events.MessageReceived(peer, message))

    def give(self, event: events.Event) -> None:
        """Pass an event to the table, and execute what follows."""
        if not self.is_up:
            return
        pending = [event]
        while pending:
            began_s = thread_time()
            instructions = self.table.handle(pending.pop(), self._world.now_s)
            self._world.tally.node_cpu_s += thread_time() - began_s
            for instruction in instructions:
                match instruction:
                    case Fill():
                        self._chunks[instruction.worker].append(instruction)
                        self._work(instruction.worker)
                    case events.SendChunk() if link := self._world.peers.get(instruction.peer):
                        link.send_chunk(self, instruction.chunk)
                    case events.Send(peer, message) if link := self._world.peers.get(peer):
                        link.send_back(self, message)
                    case events.OpenSlots(session):
                        pending.append(events.SlotsOpened(session.number))
                    case events.ReturnSlot(number, slot):
                        pending.append(events.SlotReturned(number, slot))
                    case events.CloseSlots(number):
                        pending.append(events.SlotsClosed(number))
                    case _:  # log lines, and messages to a rank that is gone
                        pass
        if self.table.check_at_s < self._check_at_s:
            self._check_at_s = self.table.check_at_s
            self._world.at(self._check_at_s, self._check)

    def transmit(self, size_bytes: int) -> float:
        """Put a message into the network card's queue; return when its last byte leaves."""
        world = self._world
        taken_s = size_bytes / (world.cluster.nic_gbit_s * 1e9 / 8)
        world.tally.nic_s += taken_s
        self.nic_free_s = max(self.nic_free_s, world.now_s) + taken_s
        return self.nic_free_s

    def _check(self) -> None:
        self._check_at_s = float("inf")
        self.give(events.ClockAdvanced())

    def _work(self, worker: int) -> None:
        """Have a worker begin its next chunk, unless it is busy or has none."""
        chunks = self._chunks[worker]
        if worker in self._busy or not chunks:
            return
        self._busy.add(worker)
        chunk, world, tally = chunks[0], self._world, self._world.tally
        cluster = world.cluster
        began_s = ready_s = world.now_s
        cold = 1.0 - world.warm_share(self, (chunk.epoch, chunk.index))
        if cold > 0:
            taken_s = cold * chunk.count * cluster.image_bytes / (cluster.storage_mb_s * 1e6)
            tally.storage_s += taken_s
            tally.cold_images += round(cold * chunk.count)
            self._storage_free_s = ready_s = max(self._storage_free_s, began_s) + taken_s
        busy_s = chunk.count / cluster.images_per_core_s
        if cluster.spread:
            busy_s *= max(_SHORTEST, self._chance.gauss(1.0, cluster.spread))
        done_s = ready_s + busy_s

        def finish() -> None:
            self._busy.remove(worker)
            chunks.popleft()
            tally.workers_s += busy_s
            tally.made_images += chunk.count
            self.give(Filled(chunk.ticket, done_s - began_s, busy_s))
            self._work(worker)

        world.at(done_s, finish)
