"""A simulated cluster in its steady state: its throughput, and what bounds it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from .shape import Cluster
from .simulation import Simulation, Snapshot

_FILL: Final = 4
"""Times that all batches in flight take, for the queues to fill."""

_WINDOW: Final = 10
"""The same for the window that counts: what waits at its ends is then a small part of it."""

_BATCHES_MIN: Final = 400
"""Of the window, so that the owner share of a few ranks is no accident."""

_CHUNKS: Final = 40
_SECONDS_MIN: Final = 0.3

BUSY: Final = 0.9
"""A part that works for this share of the time is what bounds the throughput."""

CLIENT_FDS: Final = (12, 4)
"""Descriptors of a rank: of itself, and of each connection. Counted on a real one."""

NODE_FDS: Final = (22, 1, 3)
"""Descriptors of a node process: of itself, of each worker and of each session over tcp."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A cluster in its steady state. Shares are of 1."""

    hosts: int
    ranks: int
    images_s: float
    bound: str
    """cpu, nic, storage, rank (what it can receive), demand (it wants no more), or window (too few
    batches are requested ahead, or they wait for one host)."""
    cpu: float
    nic: float
    storage: float
    rank: float
    owner_share: float
    cold_share: float
    hedged_share: float
    """Requests of late or lost batches, over first requests."""
    sessions: int
    """Of the host that has most."""
    links: int
    """Of the rank that has most."""
    client_ms: float
    """CPU time of the session machine for each batch, on the machine that simulates."""
    node_cpu: float
    """The same of a node's session machine, as a share of a core."""
    node_fds: int
    """Descriptors of the node process with most sessions."""
    client_fds: int
    """Descriptors of the rank with most connections."""
    simulated_s: float
    took_s: float
    """CPU time to simulate it."""


def fill_s(cluster: Cluster) -> float:
    """Return how long a cluster takes until its queues are full."""
    return max(_SECONDS_MIN, _CHUNKS * _chunk_s(cluster), _FILL * _flight_s(cluster))


def _window_s(cluster: Cluster) -> float:
    enough_s = _BATCHES_MIN * cluster.job.batch_size / _most_images_s(cluster)
    return max(_SECONDS_MIN, _CHUNKS * _chunk_s(cluster), _WINDOW * _flight_s(cluster), enough_s)


def _chunk_s(cluster: Cluster) -> float:
    return cluster.job.chunk_images / cluster.host.images_per_core_s


def _flight_s(cluster: Cluster) -> float:
    """Return how long all batches that may be in flight take."""
    job = cluster.job
    return job.ranks * job.window * job.batch_size / _most_images_s(cluster)


def _most_images_s(cluster: Cluster) -> float:
    """Return what hosts and ranks could do if nothing had to wait."""
    job = cluster.job
    rank_images_s = job.rank_gb_s * 1e9 / job.wire_bytes
    if job.rank_images_s:
        rank_images_s = min(rank_images_s, job.rank_images_s)
    return min(cluster.hosts * cluster.host.cpu_images_s, job.ranks * rank_images_s)


def run_steady(
    cluster: Cluster, *, warm_up_s: float | None = None, window_s: float | None = None
) -> Outcome:
    """Simulate a cluster without faults; its window begins when the queues are full."""
    began_s = time.process_time()
    simulation = Simulation(cluster)
    before = simulation.run(fill_s(cluster) if warm_up_s is None else warm_up_s)
    after = simulation.run(before.at_s + (_window_s(cluster) if window_s is None else window_s))
    return _conclude(simulation, before, after, time.process_time() - began_s)


def _conclude(simulation: Simulation, before: Snapshot, after: Snapshot, took_s: float) -> Outcome:
    cluster, seconds = simulation.cluster, after.at_s - before.at_s
    job, hosts = cluster.job, len(simulation.hosts)
    total = after.tally.since(before.tally)
    images_s = total.images / seconds

    def share(part: str, each: float = 1.0) -> float:
        spent = sum(
            getattr(after.busy[n], part) - getattr(before.busy[n], part) for n in after.busy
        )
        return float(spent / (hosts * each * seconds))

    shares = {
        "cpu": share("workers_s", cluster.host.cores),
        "nic": share("nic_s"),
        "storage": share("storage_s"),
        "rank": images_s * job.wire_bytes / (job.ranks * job.rank_gb_s * 1e9),
    }
    sessions = max(host.sessions for host in simulation.hosts)
    links = max(len(rank.links) for rank in simulation.ranks)
    return Outcome(
        hosts=hosts,
        ranks=job.ranks,
        images_s=images_s,
        bound=_find_bound(shares, images_s, job.rank_images_s * job.ranks),
        owner_share=total.owner_share,
        cold_share=total.cold_images / max(1, total.made_images),
        hedged_share=total.hedged / max(1, total.requests + total.left_overs),
        sessions=sessions,
        links=links,
        node_fds=NODE_FDS[0] + NODE_FDS[1] * cluster.host.cores + NODE_FDS[2] * sessions,
        client_fds=CLIENT_FDS[0] + CLIENT_FDS[1] * links,
        client_ms=1e3 * total.client_cpu_s / max(1, total.batches),
        node_cpu=total.node_cpu_s / seconds / hosts,
        simulated_s=after.at_s,
        took_s=took_s,
        **shares,
    )


def _find_bound(shares: Mapping[str, float], images_s: float, demand_images_s: float) -> str:
    if demand_images_s and images_s >= 0.98 * demand_images_s:
        return "demand"
    busiest = max(shares, key=lambda part: shares[part])
    return busiest if shares[busiest] >= BUSY else "window"
