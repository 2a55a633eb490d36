"""A simulated cluster in its steady state: its throughput, what bounds it, how many hosts it takes.

The IPU-POD ImageNet run is published as 30,000 images/s of one host, and 12 times that of 16.
"""

import math
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

from .shape import Cluster
from .simulation import Simulation

HOSTS_MAX: Final = 256
PUBLISHED_HOSTS: Final = (1, 4, 8, 16)
PUBLISHED_IMAGES_S: Final = 30_000.0
"""Of one host."""
PUBLISHED_SPEED_UPS: Final[Mapping[int, float]] = {1: 1.0, 16: 12.0}
"""Over one host, where it was published."""

_FILL: Final = 4
"""Times that all batches in flight take, for the queues to fill."""

_WINDOW: Final = 10
"""The same for the window that counts: what waits at its ends is then a small part of it."""

_BATCHES_MIN: Final = 400
"""Of the window, so that the owner share of a few ranks is no accident."""

_CHUNKS: Final = 40
_SECONDS_MIN: Final = 0.3
_RANK_IMAGES_S: Final = 10_000.0

_BUSY: Final = 0.9
"""A part that works for this share of the time is what bounds the throughput."""

_CLIENT_FDS: Final = (12, 4)
"""Descriptors of a rank: of itself, and of each connection. Counted on a real one."""

_NODE_FDS: Final = (22, 1, 3)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How many hosts a throughput takes."""

    wanted_images_s: float
    least: int
    """By arithmetic, if hosts were used evenly and nothing had to wait."""
    outcome: Outcome | None
    """Of the fewest hosts that reach it; None where HOSTS_MAX do not."""
    largest: Outcome | None = None
    """What HOSTS_MAX reach, if they do not reach it."""


def fill_s(cluster: Cluster, flights: int = _FILL) -> float:
    """Return how long a cluster takes until its queues are full."""
    in_flight = cluster.ranks * cluster.window * cluster.batch_size
    flight_s = in_flight / _most_images_s(cluster)
    return max(_SECONDS_MIN, _CHUNKS * cluster.chunk_s, flights * flight_s)


def _most_images_s(cluster: Cluster) -> float:
    """Return what hosts and ranks could do if nothing had to wait."""
    rank_images_s = cluster.rank_gb_s * 1e9 / cluster.wire_bytes
    if cluster.rank_images_s:
        rank_images_s = min(rank_images_s, cluster.rank_images_s)
    return min(cluster.hosts * cluster.host_images_s, cluster.ranks * rank_images_s)


def run_steady(
    cluster: Cluster, *, warm_up_s: float | None = None, window_s: float | None = None
) -> Outcome:
    """Simulate a cluster without faults; its window begins when the queues are full."""
    began_s = time.process_time()
    if warm_up_s is None:
        warm_up_s = fill_s(cluster)
    if window_s is None:
        enough_s = _BATCHES_MIN * cluster.batch_size / _most_images_s(cluster)
        window_s = max(fill_s(cluster, _WINDOW), enough_s)
    simulation = Simulation(cluster)
    simulation.run(warm_up_s)
    before = copy(simulation.tally)
    simulation.run(warm_up_s + window_s)
    total, hosts = simulation.tally.since(before), cluster.hosts
    images_s = total.images / window_s
    shares = {
        "cpu": total.workers_s / (hosts * cluster.cores * window_s),
        "nic": total.nic_s / (hosts * window_s),
        "storage": total.storage_s / (hosts * window_s),
        "rank": images_s * cluster.wire_bytes / (cluster.ranks * cluster.rank_gb_s * 1e9),
    }
    demand_images_s = cluster.rank_images_s * cluster.ranks
    bound = max(shares, key=lambda part: shares[part])
    if demand_images_s and images_s >= 0.98 * demand_images_s:
        bound = "demand"
    elif shares[bound] < _BUSY:
        bound = "window"
    sessions = max(len(host.table.sessions.open) for host in simulation.hosts)
    links = max(len(rank.links) for rank in simulation.ranks)
    return Outcome(
        hosts=hosts,
        ranks=cluster.ranks,
        images_s=images_s,
        bound=bound,
        owner_share=total.owner_requests / max(1, total.requests),
        cold_share=total.cold_images / max(1, total.made_images),
        hedged_share=total.hedged / max(1, total.requests + total.left_overs),
        sessions=sessions,
        links=links,
        node_fds=_NODE_FDS[0] + _NODE_FDS[1] * cluster.cores + _NODE_FDS[2] * sessions,
        client_fds=_CLIENT_FDS[0] + _CLIENT_FDS[1] * links,
        client_ms=1e3 * total.client_cpu_s / max(1, total.batches),
        node_cpu=total.node_cpu_s / window_s / hosts,
        simulated_s=simulation.now_s,
        took_s=time.process_time() - began_s,
        **shares,
    )


def choose_ranks(images_s: float) -> int:
    """Return the number of ranks that can take this throughput, as a default."""
    return max(1, math.ceil(images_s / _RANK_IMAGES_S))


def find_hosts(cluster: Cluster, wanted: float, run: Callable[[Cluster], Outcome]) -> Sizing:
    """Return the fewest hosts of this shape that deliver ``wanted`` images/s."""
    # What a warm host delivers at most: what its cores make and its network card sends.
    host_images_s = min(cluster.host_images_s, cluster.nic_gbit_s * 1e9 / 8 / cluster.wire_bytes)
    least = math.ceil(wanted / host_images_s)
    if least > HOSTS_MAX:
        return Sizing(wanted_images_s=wanted, least=least, outcome=None)
    low = high = max(1, least)
    best: Outcome | None = None
    while low < high or best is None:
        # Upwards in growing steps until it is reached, then by halves.
        hosts = min(HOSTS_MAX, high) if best is None else (low + high) // 2
        outcome = run(replace(cluster, hosts=hosts))
        if outcome.images_s >= wanted:
            best, high = outcome, hosts
        elif hosts == HOSTS_MAX:
            return Sizing(wanted_images_s=wanted, least=least, outcome=None, largest=outcome)
        else:
            low = hosts + 1
            high = hosts + max(1, hosts // 4) if best is None else high
    return Sizing(wanted_images_s=wanted, least=least, outcome=best)


def published_cluster(cluster: Cluster, hosts: int) -> Cluster:
    """Return ``hosts`` hosts that make what a published one did, two ranks each."""
    rate = PUBLISHED_IMAGES_S / cluster.cores
    return replace(cluster, hosts=hosts, images_per_core_s=rate, ranks=2 * hosts, faults=())
