"""A simulated cluster: hosts and ranks in virtual time, faults, and what is counted.

    Request ─► SessionTable ─► Fill ─► worker: storage (in turn), then its core
                           ─► SendChunk ─► network card (in turn) ─► rank

A host is the product's session table; the node process itself takes no time. Workers are those of
the table: each has a chunk being filled and one queued. Slots are returned at once, as ZeroMQ has
sent a batch before a client releases it.

Invariant: ``now_s`` never decreases; calls are made in the order of their times, and those of one
time in the order they were asked for, so the same cluster gives the same order in every run.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import count
from math import inf
from time import thread_time
from typing import Final

from feeder.client.core import events as client_events
from feeder.client.core.owners import Ownership
from feeder.daemon.config import ServeConfig
from feeder.metrics.records import NodeRecord
from feeder.plan.epoch import rank_indices
from feeder.session import events
from feeder.session.admission import HelloReceived, ServedDataset, SessionLimits
from feeder.session.table import SessionTable
from feeder.wire.chunk_work import Fill, Filled
from feeder.wire.messages import BatchKey, Bye, ClientMessage, Hello, NodeIdentity, Ping, Request

from .rank import DATASET, Link, Rank
from .shape import Cluster, Fault, Lanes, requesting

BIN_S: Final = 0.1  # of the images over time

_SLOTS_BYTES: Final = 1 << 40  # memory bounds nothing here
_SHORTEST: Final = 0.5  # of a chunk's mean time


@dataclass(slots=True)
class Tally:
    """Totals since the start; a window is the difference of two copies (``since``)."""

    images: int = 0  # that ranks have taken
    batches: int = 0
    requests: int = 0  # first requests of a batch that has an owner
    owner_requests: int = 0
    left_overs: int = 0  # first requests of a batch without an owner
    hedged: int = 0  # further requests of a batch, to another host
    made_images: int = 0  # by workers, some twice
    cold_images: int = 0  # of those, read from storage
    workers_s: float = 0.0  # work of all hosts, by part
    storage_s: float = 0.0
    nic_s: float = 0.0
    client_cpu_s: float = 0.0  # of the session machines, measured while they run here
    node_cpu_s: float = 0.0

    def since(self, before: "Tally") -> "Tally":
        names = [entry.name for entry in fields(self)]
        return Tally(*(getattr(self, name) - getattr(before, name) for name in names))


@dataclass(slots=True)
class Timeline:
    """The images that ranks have taken over time, which counts from ``began_s`` on."""

    began_s: float = 0.0
    bins: list[int] = field(default_factory=list)

    def add(self, now_s: float, images: int) -> None:
        number = int((now_s - self.began_s) / BIN_S)
        self.bins += [0] * (number + 1 - len(self.bins))
        self.bins[number] += images

    def rates(self, until_s: float, *, smooth: int = 1) -> Sequence[float]:
        """Return images/s of each whole bin, each the mean of ``smooth`` bins that end there."""
        count = int(until_s / BIN_S)
        bins = [*self.bins, *([0] * count)][:count]
        return [
            sum(part := bins[max(0, end - smooth) : end]) / (BIN_S * len(part))
            for end in range(1, count + 1)
        ]

    def mean(self, begin_s: float, end_s: float) -> float:
        first = round(begin_s / BIN_S)
        part = self.rates(end_s)[first : max(first + 1, round(end_s / BIN_S))]
        return sum(part) / len(part)


class Host:
    def __init__(self, world: "Simulation", number: int) -> None:
        cluster = world.cluster
        self.number = number
        self.endpoint = f"tcp://host-{number}:5555"
        self.name = f"host-{number}/0 {self.endpoint}"
        if number < len(cluster.names):
            self.name = cluster.names[number]
        self.is_up = True  # it answers; a host that was lost or froze does not
        self.nic_free_s = 0.0
        self._world = world
        self._chance = random.Random(f"{cluster.seed} {number}")
        self._sessions = count(1)
        self._storage_free_s = 0.0
        self._check_at_s = inf
        serve = ServeConfig()
        limits = SessionLimits(
            sessions_max=serve.clients_max,
            window_max=serve.window_max,
            chunk_images=cluster.chunk_images,
            slots_bytes=_SLOTS_BYTES,
            lease_s=serve.lease_s,
            client_sessions_max=serve.client_sessions_max,
        )
        served = ServedDataset(content="f" * 32, classes=("a", "b"), layout=world.lanes.layout)
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
            self._give(events.WorkerJoined(worker))

    def receive(self, peer: bytes, message: ClientMessage) -> None:
        match message:
            case Hello():
                self._give(HelloReceived(next(self._sessions), peer, message, _SLOTS_BYTES))
            case Request() | Ping() | Bye():
                self._give(events.MessageReceived(peer, message))

    def transmit(self, size_bytes: int) -> float:
        """Put a message into the network card's queue; return when its last byte leaves."""
        world = self._world
        taken_s = size_bytes / (world.cluster.nic_gbit_s * 1e9 / 8)
        world.tally.nic_s += taken_s
        self.nic_free_s = max(self.nic_free_s, world.now_s) + taken_s
        return self.nic_free_s

    def _give(self, event: events.Event) -> None:
        """Pass an event to the table, and execute what follows."""
        if not self.is_up:
            return
        peers, pending = self._world.peers, [event]
        while pending:
            began_s = thread_time()
            instructions = self.table.handle(pending.pop(), self._world.now_s)
            self._world.tally.node_cpu_s += thread_time() - began_s
            for instruction in instructions:
                match instruction:
                    case Fill():
                        self._chunks[instruction.worker].append(instruction)
                        self._work(instruction.worker)
                    case events.SendChunk() if link := peers.get(instruction.peer):
                        link.send_chunk(self, instruction.chunk)
                    case events.Send(peer, message) if link := peers.get(peer):
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

    def _check(self) -> None:
        self._check_at_s = inf
        self._give(events.ClockAdvanced())

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
            self._give(Filled(chunk.ticket, done_s - began_s, busy_s))
            self._work(worker)

        world.at(done_s, finish)


class Simulation:
    """Made ready by the constructor; ``run`` advances it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now_s = 0.0
        self.tally = Tally()
        self.timeline = Timeline()
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self.peers: dict[bytes, Link] = {}  # those that are up, by the host's name for them
        self._next_peer = count(1)
        self.lanes = Lanes(cluster)
        self.by_endpoint: dict[str, Host] = {}
        self._add_hosts(cluster.hosts)
        self._warm = self._find_warm()
        last_batch = self.lanes.recipe.last_batch
        self.ranks = [
            Rank(self, number, rank_indices(self.lanes.batches, number, cluster.ranks, last_batch))
            for number in range(cluster.ranks)
        ]
        self._list()
        for fault in cluster.faults:
            self.at(fault.at_s, partial(self.strike, fault))

    @property
    def hosts(self) -> Sequence[Host]:
        """All hosts, those that have joined last; those that were lost stay."""
        return [*self.by_endpoint.values()]

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Make a call at a time; a time in the past means now."""
        heapq.heappush(self._calls, (max(at_s, self.now_s), next(self._numbers), call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        self.at(self.now_s + delay_s, call)

    def run(self, until_s: float) -> None:
        """Make all calls up to a time, which is ``now_s`` afterwards."""
        with requesting(self.cluster):
            while self._calls and self._calls[0][0] <= until_s:
                self.now_s, _, call = heapq.heappop(self._calls)
                call()
        self.now_s = max(self.now_s, until_s)

    def strike(self, fault: Fault) -> None:
        if fault.kind == "join":
            self._add_hosts(1)
            self._list()
            return
        lost = self.hosts[fault.host]
        lost.is_up = False
        for link in self.peers.values():
            if link.host is lost:
                link.lose(silently=fault.kind == "freeze")

    def add_peer(self, link: Link) -> bytes:
        """Return a name that no connection has had, by which ``link`` is found while it is up."""
        peer = next(self._next_peer).to_bytes(5, "big")
        self.peers[peer] = link
        return peer

    def note_request(self, key: BatchKey, endpoint: str, is_first: bool) -> None:
        """Count a request of a batch from the host at an endpoint."""
        tally, lane = self.tally, self.lanes.lane_of(key)
        if not is_first:
            tally.hedged += 1
        elif lane is None:
            tally.left_overs += 1
        else:
            tally.requests += 1
            owner = self._ownership.order(lane, key[1])[0]
            tally.owner_requests += owner == self.by_endpoint[endpoint].name

    def warm_share(self, host: Host, key: BatchKey) -> float:
        """Return how much of a batch is in a host's memory.

        Within an epoch no sample is read twice, so what a host reads now warms the next epoch only.
        """
        warm = self._warm.get(host.number, {})  # none if it has joined
        lane = self.lanes.lane_of(key)
        if lane is None:  # its samples are of all lanes
            return sum(warm.values()) / self.lanes.count
        return warm.get(lane, 0.0)

    def _add_hosts(self, hosts: int) -> None:
        for _ in range(hosts):
            host = Host(self, len(self.by_endpoint))
            self.by_endpoint[host.endpoint] = host
        self._ownership = Ownership([host.name for host in self.hosts], self.lanes.count)

    def _list(self) -> None:
        """Give all ranks the list of hosts, at times that differ as processes do."""
        listed = client_events.EndpointsListed({host.endpoint: host.name for host in self.hosts})
        for rank in self.ranks:
            delay_s = self.cluster.latency_s * rank.number / len(self.ranks)
            self.after(delay_s, partial(rank.handle, listed))

    def _find_warm(self) -> dict[int, dict[int, float]]:
        """Return how much of each lane a host has in memory after the epoch before, by host."""
        cluster = self.cluster
        lane_bytes = cluster.samples * cluster.image_bytes / self.lanes.count
        owners = [self._ownership.owners(lane) for lane in range(self.lanes.count)]
        warm = {}
        for host in self.hosts if not cluster.cold else ():
            lanes = [lane for lane, names in enumerate(owners) if host.name in names]
            share = cluster.cache_gb * 1e9 / (max(1, len(lanes)) * lane_bytes)
            warm[host.number] = dict.fromkeys(lanes, min(1.0, share))
        return warm
