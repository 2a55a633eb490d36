"""A feeder host: the product's session table, with workers, storage and a network card.

    Request ─► SessionTable ─► Fill ─► worker: storage (in turn), then its core
                           ─► SendChunk ─► network card (in turn) ─► rank

The node process itself takes no time. Workers are those of the table: each has a chunk being filled
and one queued. Slots are returned at once, as ZeroMQ has sent a batch before a client releases it.
"""

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import thread_time

from feeder.daemon.config import ServeConfig
from feeder.metrics.records import NodeRecord
from feeder.session import events
from feeder.session.admission import HelloReceived, ServedDataset, SessionLimits
from feeder.session.table import SessionTable
from feeder.wire.chunk_work import Fill, Filled
from feeder.wire.messages import Bye, ClientMessage, Hello, NodeIdentity, NodeMessage, Ping, Request

from .agenda import Agenda
from .shape import HostShape
from .tally import Tally

DATASET = "imagenet"
_SLOTS_BYTES = 1 << 40  # memory bounds nothing here
_SHORTEST = 0.5  # of a chunk's mean time


@dataclass(slots=True, eq=False)
class _Worker:
    """A worker's chunks: the one being filled, and the one queued."""

    chunks: deque[Fill]
    is_busy: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """Seconds of work of a host since the start."""

    workers_s: float
    storage_s: float
    nic_s: float


class SimulatedHost:
    """One node process and its host."""

    def __init__(
        self,
        shape: HostShape,
        served: ServedDataset,
        name: str,
        endpoint: str,
        *,
        number: int,
        chunk_images: int,
        wire_bytes: int,
        stored_bytes: int,
        agenda: Agenda,
        tally: Tally,
        seed: int,
        send: Callable[[bytes, NodeMessage], None],
        send_chunk: Callable[["SimulatedHost", events.SendChunk], None],
        warm_share: Callable[[int, int, int], float],
    ) -> None:
        """``warm_share`` returns how much of a batch (host, epoch, index) is in its memory."""
        self.name = name
        self.endpoint = endpoint
        self.number = number
        self.is_up = True
        """It answers; a host that was lost or froze does not."""
        self.nic_free_s = 0.0
        self.chunks = 0
        """Filled so far."""
        self._shape = shape
        self._wire_bytes = wire_bytes
        self._stored_bytes = stored_bytes
        self._agenda = agenda
        self._tally = tally
        self._chance = random.Random(f"{seed} {number}")
        self._send = send
        self._send_chunk = send_chunk
        self._warm_share = warm_share
        self._next_session = 1
        self._storage_free_s = 0.0
        self._workers_s = self._storage_s = self._nic_s = 0.0
        self._check_at_s = float("inf")
        serve = ServeConfig()
        limits = SessionLimits(
            sessions_max=serve.clients_max,
            window_max=serve.window_max,
            chunk_images=chunk_images,
            slots_bytes=_SLOTS_BYTES,
            lease_s=serve.lease_s,
            client_sessions_max=serve.client_sessions_max,
        )
        self.table = SessionTable({DATASET: served}, limits, NodeRecord())
        self.table.identity = NodeIdentity(
            node=name,
            number=0,
            incarnation=number + 1,
            siblings=((endpoint,),),
            feeder_version="model",
            self_test="5" * 32,
            libraries={},
            workers=shape.cores,
        )
        self._workers = {n: _Worker(deque()) for n in range(1, shape.cores + 1)}
        for worker in self._workers:
            self.give(events.WorkerJoined(worker))

    @property
    def sessions(self) -> int:
        """How many sessions are open."""
        return len(self.table.sessions.open)

    @property
    def busy(self) -> Busy:
        """How long its parts have worked so far."""
        return Busy(workers_s=self._workers_s, storage_s=self._storage_s, nic_s=self._nic_s)

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
            instructions = self.table.handle(pending.pop(), self._agenda.now_s)
            self._tally.node_cpu_s += thread_time() - began_s
            for instruction in instructions:
                pending += self._carry_out(instruction)
        if self.table.check_at_s < self._check_at_s:
            self._check_at_s = self.table.check_at_s
            self._agenda.at(self._check_at_s, self._check)

    def transmit(self, size_bytes: int) -> float:
        """Put a message into the network card's queue; return when its last byte leaves."""
        taken_s = size_bytes / (self._shape.nic_gbit_s * 1e9 / 8)
        self._nic_s += taken_s
        self.nic_free_s = max(self.nic_free_s, self._agenda.now_s) + taken_s
        return self.nic_free_s

    def _check(self) -> None:
        self._check_at_s = float("inf")
        self.give(events.ClockAdvanced())

    def _carry_out(self, instruction: events.Instruction) -> list[events.Event]:
        match instruction:
            case Fill():
                self._workers[instruction.worker].chunks.append(instruction)
                self._work(instruction.worker)
            case events.SendChunk():
                self._send_chunk(self, instruction)
            case events.Send(peer, message):
                self._send(peer, message)
            case events.OpenSlots(session):
                return [events.SlotsOpened(session.number)]
            case events.ReturnSlot(session, slot):
                return [events.SlotReturned(session, slot)]
            case events.CloseSlots(session):
                return [events.SlotsClosed(session)]
            case _:  # log lines
                pass
        return []

    def _work(self, number: int) -> None:
        worker = self._workers[number]
        if worker.is_busy or not worker.chunks:
            return
        worker.is_busy = True
        chunk = worker.chunks[0]
        now_s, shape = self._agenda.now_s, self._shape
        ready_s = now_s
        cold = 1.0 - self._warm_share(self.number, chunk.epoch, chunk.index)
        if cold > 0:
            cold_bytes = cold * chunk.count * self._stored_bytes
            taken_s = cold_bytes / (shape.storage_mb_s * 1e6)
            self._storage_s += taken_s
            self._storage_free_s = ready_s = max(self._storage_free_s, now_s) + taken_s
            self._tally.cold_images += round(cold * chunk.count)
        mean_s = chunk.count / shape.images_per_core_s
        factor = 1.0
        if shape.spread:
            factor = max(_SHORTEST, self._chance.gauss(1.0, shape.spread))
        busy_s = mean_s * factor
        done_s = ready_s + busy_s

        def finish() -> None:
            worker.is_busy = False
            worker.chunks.popleft()
            self._workers_s += busy_s
            self._tally.made_images += chunk.count
            self.chunks += 1
            self.give(Filled(chunk.ticket, done_s - now_s, busy_s))
            self._work(number)

        self._agenda.at(done_s, finish)
