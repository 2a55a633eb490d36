"""A whole simulated cluster: its hosts, ranks and network, and its faults on one time line."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from feeder.plan.epoch import rank_indices
from feeder.session.admission import ServedDataset
from feeder.wire.messages import BatchKey

from .agenda import Agenda
from .host import Busy, SimulatedHost
from .network import Network
from .owners import Lanes
from .rank import SimulatedRank
from .shape import Cluster, Fault
from .tally import Tally, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """All totals at a time."""

    at_s: float
    tally: Tally
    busy: Mapping[int, Busy]
    """By host."""


class Simulation:
    """Made ready by the constructor; ``run`` advances it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.agenda = Agenda()
        self.tally = Tally()
        self.timeline = Timeline()
        self.lanes = Lanes(cluster.dataset, cluster.job)
        self.hosts: list[SimulatedHost] = []
        self._by_endpoint: dict[str, SimulatedHost] = {}
        self._served = ServedDataset(content="f" * 32, classes=("a", "b"), layout=self.lanes.layout)
        job = cluster.job
        self.network = Network(
            self.agenda,
            self._by_endpoint,
            latency_s=cluster.latency_s,
            wire_bytes=job.wire_bytes,
        )
        for _ in range(cluster.hosts):
            self._add_host()
        self._owners = self.lanes.owners([host.name for host in self.hosts])
        self._warm = {} if cluster.dataset.is_cold else self._find_warm()
        self._warm_batches: dict[tuple[int, int, int], float] = {}
        last_batch = self.lanes.recipe.last_batch
        self.ranks = [
            SimulatedRank(
                number,
                job,
                self.lanes.recipe,
                rank_indices(self.lanes.batches, number, job.ranks, last_batch),
                agenda=self.agenda,
                network=self.network,
                tally=self.tally,
                timeline=self.timeline,
                on_request=self._on_request,
            )
            for number in range(job.ranks)
        ]
        self._list()
        for fault in cluster.faults:
            self.agenda.at(fault.at_s, partial(self._strike, fault))

    def run(self, until_s: float) -> Snapshot:
        """Advance to a time; return the totals there."""
        self.agenda.run(until_s)
        return Snapshot(
            at_s=self.agenda.now_s,
            tally=self.tally.copy(),
            busy={host.number: host.busy for host in self.hosts},
        )

    @property
    def live_hosts(self) -> list[SimulatedHost]:
        """Those that answer."""
        return [host for host in self.hosts if host.is_up]

    def _add_host(self) -> None:
        cluster, number = self.cluster, len(self.hosts)
        endpoint = cluster.endpoint_of(number)
        host = SimulatedHost(
            cluster.host,
            self._served,
            cluster.name_of(number),
            endpoint,
            number=number,
            chunk_images=cluster.job.chunk_images,
            wire_bytes=cluster.job.wire_bytes,
            stored_bytes=cluster.dataset.image_bytes,
            agenda=self.agenda,
            tally=self.tally,
            seed=cluster.seed,
            send=self.network.send_to_rank,
            send_chunk=self.network.send_chunk,
            warm_share=self._warm_share,
        )
        self.hosts.append(host)
        self._by_endpoint[endpoint] = host

    def _list(self) -> None:
        """Give all ranks the list of hosts, at times that differ as processes do."""
        listed = {host.endpoint: host.name for host in self.hosts}
        for rank in self.ranks:
            delay_s = self.cluster.latency_s * rank.number / max(1, len(self.ranks))
            self.agenda.after(delay_s, partial(rank.list_endpoints, listed))

    def _strike(self, fault: Fault) -> None:
        if fault.kind == "join":
            self._add_host()
            self._list()
        else:
            self.network.lose(self.hosts[fault.host], silently=fault.kind == "freeze")
        self._owners = self.lanes.owners([host.name for host in self.hosts])

    # --- Lanes --------------------------------------------------------------------------------

    def _on_request(self, key: BatchKey, endpoint: str, is_first: bool) -> None:
        tally = self.tally
        if not is_first:
            tally.hedged += 1
            return
        lane = self.lanes.lane_of(key)
        if lane is None:
            tally.left_overs += 1
            return
        tally.requests += 1
        tally.owner_requests += self._owners[lane] == self._by_endpoint[endpoint].name

    def _find_warm(self) -> dict[tuple[int, int], float]:
        """Return how much of a lane is in its owner's memory after the epoch before, by (host,
        lane)."""
        dataset, shape = self.cluster.dataset, self.cluster.host
        numbers = {host.name: host.number for host in self.hosts}
        owned = dict.fromkeys(numbers, 0)
        for name in self._owners.values():
            owned[name] += 1
        lane_bytes = dataset.samples * dataset.image_bytes / self.lanes.count
        return {
            (numbers[name], lane): min(1.0, shape.cache_gb * 1e9 / (owned[name] * lane_bytes))
            for lane, name in self._owners.items()
        }

    def _warm_share(self, host: int, epoch: int, index: int) -> float:
        """Return how much of a batch is in a host's memory.

        Within an epoch no sample is read twice, so what a host reads now warms the next epoch only.
        """
        found = self._warm_batches.get((host, epoch, index))
        if found is None:
            lane = self.lanes.lane_of((epoch, index))
            if lane is not None:
                found = self._warm.get((host, lane), 0.0)
            else:  # its samples are of all lanes
                mine = [share for (each, _), share in self._warm.items() if each == host]
                found = sum(mine) / self.lanes.count
            self._warm_batches[host, epoch, index] = found
        return found
