"""A simulated cluster: its hosts and ranks in virtual time, its faults, and what is counted.

Invariant: ``now_s`` never decreases; calls are made in the order of their times, and those of one
time in the order they were asked for, so the same cluster gives the same order in every run.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Final

from feeder.client.core import events
from feeder.plan.epoch import rank_indices
from feeder.session.admission import ServedDataset
from feeder.wire.messages import BatchKey

from .host import Host
from .owners import Lanes
from .rank import Link, Rank
from .shape import Cluster, Fault

BIN_S: Final = 0.1
"""Of the images over time."""


@dataclass(slots=True)
class Tally:
    """Totals since the start; a window is the difference of two copies (``since``)."""

    images: int = 0
    """That ranks have taken."""
    batches: int = 0
    requests: int = 0
    """First requests of a batch."""
    owner_requests: int = 0
    """Those that went to the lane's owner."""
    left_overs: int = 0
    """First requests of batches that have no owner, not counted in ``requests``."""
    hedged: int = 0
    """Further requests of a batch, to another host."""
    made_images: int = 0
    """That workers have made, those made twice included."""
    cold_images: int = 0
    """Of those, read from storage."""
    workers_s: float = 0.0
    """Work of all hosts' workers; of their storage and network cards below."""
    storage_s: float = 0.0
    nic_s: float = 0.0
    client_cpu_s: float = 0.0
    """CPU time of the clients' session machines, measured while they run here."""
    node_cpu_s: float = 0.0
    """The same of the nodes'."""

    def since(self, before: "Tally") -> "Tally":
        """Return what has come since an earlier copy."""
        names = [entry.name for entry in fields(self)]
        return Tally(*(getattr(self, name) - getattr(before, name) for name in names))


@dataclass(slots=True)
class Timeline:
    """Images that ranks have taken, by bins of BIN_S."""

    bins: list[int] = field(default_factory=list)

    def add(self, at_s: float, images: int) -> None:
        """Count images at a time."""
        number = int(at_s / BIN_S)
        self.bins += [0] * (number + 1 - len(self.bins))
        self.bins[number] += images

    def rates(self, until_s: float, *, smooth: int = 1) -> Sequence[float]:
        """Return images/s of each whole bin, each the mean of ``smooth`` bins that end there."""
        bins = [*self.bins, *([0] * int(until_s / BIN_S))][: int(until_s / BIN_S)]
        return [
            sum(part := bins[max(0, end - smooth) : end]) / (BIN_S * len(part))
            for end in range(1, len(bins) + 1)
        ]


class Simulation:
    """Made ready by the constructor; ``run`` advances it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.now_s = 0.0
        self.tally = Tally()
        self.timeline = Timeline()
        self._calls = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self.peers: dict[bytes, Link] = {}
        """The connections that are up, by the name that the host has for them."""
        self._next_peer = 1
        self.by_endpoint: dict[str, Host] = {}
        self.lanes = Lanes(cluster)
        self.hosts: list[Host] = []
        for _ in range(cluster.hosts):
            self._add_host()
        self._owners = self.lanes.owners([host.name for host in self.hosts])
        self._warm = self._find_warm()
        last_batch = self.lanes.recipe.last_batch
        self.ranks = [
            Rank(self, number, rank_indices(self.lanes.batches, number, cluster.ranks, last_batch))
            for number in range(cluster.ranks)
        ]
        self._list()
        for fault in cluster.faults:
            self.at(fault.at_s, partial(self._strike, fault))

    def at(self, at_s: float, call: Callable[[], None]) -> None:
        """Make a call at a time; a time in the past means now."""
        self._calls += 1
        heapq.heappush(self._heap, (max(at_s, self.now_s), self._calls, call))

    def after(self, delay_s: float, call: Callable[[], None]) -> None:
        """Make a call after a delay."""
        self.at(self.now_s + delay_s, call)

    def run(self, until_s: float) -> None:
        """Make all calls up to a time, which is ``now_s`` afterwards."""
        heap = self._heap
        while heap and heap[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(heap)
            call()
        self.now_s = max(self.now_s, until_s)

    def add_peer(self, link: Link) -> bytes:
        """Return a name that no connection has had, by which ``link`` is found while it is up."""
        peer = self._next_peer.to_bytes(5, "big")
        self._next_peer += 1
        self.peers[peer] = link
        return peer

    def _add_host(self) -> None:
        served = ServedDataset(content="f" * 32, classes=("a", "b"), layout=self.lanes.layout)
        host = Host(self, len(self.hosts), served)
        self.hosts.append(host)
        self.by_endpoint[host.endpoint] = host

    def _list(self) -> None:
        """Give all ranks the list of hosts, at times that differ as processes do."""
        listed = events.EndpointsListed({host.endpoint: host.name for host in self.hosts})
        for rank in self.ranks:
            delay_s = self.cluster.latency_s * rank.number / max(1, len(self.ranks))
            self.after(delay_s, partial(rank.handle, listed))

    def _strike(self, fault: Fault) -> None:
        if fault.kind == "join":
            self._add_host()
            self._list()
        else:
            lost = self.hosts[fault.host]
            lost.is_up = False
            for link in self.peers.values():
                if link.host is lost:
                    link.lose(silently=fault.kind == "freeze")
        self._owners = self.lanes.owners([host.name for host in self.hosts])

    def note_request(self, key: BatchKey, endpoint: str, is_first: bool) -> None:
        """Count a request of a batch from the host at an endpoint."""
        tally = self.tally
        if not is_first:
            tally.hedged += 1
            return
        lane = self.lanes.lane_of(key)
        if lane is None:
            tally.left_overs += 1
            return
        tally.requests += 1
        tally.owner_requests += self._owners[lane] == self.by_endpoint[endpoint].name

    def _find_warm(self) -> list[dict[int, float]]:
        """Return how much of each lane a host has in memory after the epoch before, by host."""
        cluster = self.cluster
        lane_bytes = cluster.samples * cluster.image_bytes / self.lanes.count
        owned = {
            host.name: [lane for lane, owner in self._owners.items() if owner == host.name]
            for host in self.hosts
        }
        return [
            dict.fromkeys(lanes, min(1.0, cluster.cache_gb * 1e9 / (len(lanes) * lane_bytes)))
            if lanes and not cluster.cold
            else {}
            for lanes in owned.values()
        ]

    def warm_share(self, host: Host, key: BatchKey) -> float:
        """Return how much of a batch is in a host's memory.

        Within an epoch no sample is read twice, so what a host reads now warms the next epoch only.
        """
        if host.number >= len(self._warm):
            return 0.0  # it has joined
        warm = self._warm[host.number]
        lane = self.lanes.lane_of(key)
        if lane is None:  # its samples are of all lanes
            return sum(warm.values()) / self.lanes.count
        return warm.get(lane, 0.0)
