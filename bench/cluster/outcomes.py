"""What a simulated cluster does: in its steady state, and when faults strike.

The IPU-POD ImageNet run is published as 30,000 images/s of one host, and 12 times that of 16.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

from .shape import Cluster, Fault
from .simulation import BIN_S, Simulation, Timeline

HOSTS_MAX: Final = 256
PUBLISHED_HOSTS: Final = (1, 4, 8, 16)
PUBLISHED_IMAGES_S: Final = 30_000.0  # of one host
PUBLISHED_SPEED_UPS: Final[Mapping[int, float]] = {1: 1.0, 16: 12.0}

RECOVERED: Final = 0.85  # rates over half a second differ by some per cent without a fault

# Times that all batches in flight take: for the queues to fill, and for the window that counts,
# of which what waits at its ends is then a small part.
_FILL: Final = 4
_WINDOW: Final = 10
_BATCHES_MIN: Final = 400  # of the window, so that the owner share of a few ranks is no accident
_CHUNKS: Final = 40
_SECONDS_MIN: Final = 0.3

# Of saturated hosts: batches requested of each, by a rank at least, and batches that count.
_BATCHES_A_HOST: Final = 4
_SATURATED_WINDOW_MIN: Final = 4
_SATURATED_BATCHES: Final = 800

_BUSY: Final = 0.9  # a part that works for this share of the time is what bounds the throughput

# Descriptors, counted on real ones: of a rank itself and of each connection; of a node process, of
# each worker and of each session over tcp.
_CLIENT_FDS: Final = (12, 4)
_NODE_FDS: Final = (22, 1, 3)

_BEFORE_S: Final = 2.0  # of the steady state before the first fault
_AFTER_S: Final = 8.0  # after the last: a frozen host is given up after 2.5 s without an answer

# A rate is over both at least: half a second of a small cluster has a few batches.
_SMOOTH_S: Final = 0.5
_SMOOTH_BATCHES: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A cluster in its steady state. Shares are of 1.

    ``bound`` is cpu, nic, storage, rank (what it can receive), demand (it wants no more), or window
    (too few batches are requested ahead, or they wait for one host). Sessions, links and
    descriptors are of the host and the rank that have most. ``client_ms``, a batch, and
    ``node_cpu``, of a core, are CPU times of the session machines on the machine that simulates.
    """

    hosts: int
    ranks: int
    images_s: float
    made_images_s: float  # by the hosts; ranks take many at a time, so it varies less over time
    bound: str
    cpu: float
    nic: float
    storage: float
    rank: float
    owner_share: float
    cold_share: float
    hedged_share: float  # requests of late or lost batches, over first requests
    sessions: int
    links: int
    client_ms: float
    node_cpu: float
    node_fds: int
    client_fds: int
    simulated_s: float
    took_s: float  # CPU time to simulate it


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """How many hosts a throughput takes: ``least`` by arithmetic, if nothing had to wait.

    ``outcome`` is of the fewest hosts that reach it; ``largest`` of HOSTS_MAX that do not.
    """

    wanted_images_s: float
    least: int
    outcome: Outcome | None
    largest: Outcome | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dip:
    """What one fault did, until the next one or the end.

    The throughput before is the mean since the fault before, or since the start; that after is the
    mean of the last quarter of the time. ``recovery_s`` is from the fault until, after the lowest,
    the throughput was RECOVERED of what it is at the end or was before, whichever is less; 0 if it
    never fell below that, None if it did not come back.
    """

    fault: Fault  # ``at_s`` is counted from the start of ``Scenario.images_s``
    before_images_s: float
    lowest_images_s: float
    after_images_s: float
    recovery_s: float | None
    hedged: int  # batches that were requested from another host as well

    @property
    def depth(self) -> float:
        """How far the throughput fell, as a share of the one before."""
        return max(0.0, 1 - self.lowest_images_s / self.before_images_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A cluster with faults on one time line, which begins with a steady state."""

    hosts: int
    ranks: int
    dips: Sequence[Dip]
    images_s: Sequence[float]  # every BIN_S, over ``smooth_s``
    smooth_s: float
    batches: int
    is_whole: bool  # whether each rank took its batches in order, each once


def run_steady(
    cluster: Cluster, *, warm_up_s: float | None = None, window_s: float | None = None
) -> Outcome:
    """Simulate a cluster without faults; its window begins when the queues are full."""
    warm_up_s = warm_up_s or _fill_s(cluster)
    if window_s is None:
        batches_s = _BATCHES_MIN * cluster.batch_size / _most_images_s(cluster)
        window_s = max(_fill_s(cluster, _WINDOW), batches_s)
    began_s = time.process_time()
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
        made_images_s=total.made_images / window_s,
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


def saturate(cluster: Cluster) -> Cluster:
    """Return the cluster so that nothing limits its hosts but their cores, and the batches that all
    ranks together request of a host: four, unless more ranks than that request four each."""
    window = math.ceil(_BATCHES_A_HOST * cluster.hosts / cluster.ranks)
    return replace(
        cluster,
        window=max(_SATURATED_WINDOW_MIN, window),
        storage_mb_s=math.inf,
        nic_gbit_s=math.inf,
        rank_gb_s=math.inf,
        rank_images_s=0.0,
    )


def run_saturated(cluster: Cluster) -> Outcome:
    """Simulate a saturated cluster for a flight at least, after two."""
    window_s = _SATURATED_BATCHES * cluster.batch_size / _most_images_s(cluster)
    window_s = max(_fill_s(cluster, 1), window_s)
    return run_steady(cluster, warm_up_s=_fill_s(cluster, 2), window_s=window_s)


def _fill_s(cluster: Cluster, flights: int = _FILL) -> float:
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


def find_hosts(cluster: Cluster, wanted: float, run: Callable[[Cluster], Outcome]) -> Sizing:
    """Return the fewest hosts of this shape that deliver ``wanted`` images/s."""
    # What a warm host delivers at most: what its cores make and its network card sends.
    host_images_s = min(cluster.host_images_s, cluster.nic_gbit_s * 1e9 / 8 / cluster.wire_bytes)
    least = math.ceil(wanted / host_images_s)
    low = high = max(1, least)
    best = largest = None
    while low <= HOSTS_MAX and (best is None or low < high):
        # Upwards in growing steps until it is reached, then by halves.
        hosts = min(HOSTS_MAX, high) if best is None else (low + high) // 2
        outcome = run(replace(cluster, hosts=hosts))
        if outcome.images_s >= wanted:
            best, high = outcome, hosts
            continue
        low = hosts + 1
        if best is None:
            high = hosts + max(1, hosts // 4)
            largest = outcome if hosts == HOSTS_MAX else None
    return Sizing(wanted_images_s=wanted, least=least, outcome=best, largest=largest)


def run_scenario(
    cluster: Cluster, *, before_s: float = _BEFORE_S, after_s: float = _AFTER_S
) -> Scenario:
    """Simulate a steady state of ``before_s``, then ``cluster.faults``, and ``after_s`` after them.

    The faults' times count from the end of ``before_s``, those of the result from its begin.
    """
    simulation = Simulation(replace(cluster, faults=()))
    simulation.run(_fill_s(cluster))
    timeline = simulation.timeline = Timeline(simulation.now_s)
    faults = sorted(cluster.faults, key=lambda fault: fault.at_s)
    faults = [replace(fault, at_s=before_s + fault.at_s) for fault in faults]
    ends_s = [*(fault.at_s for fault in faults[1:]), faults[-1].at_s + after_s]
    dips: list[Dip] = []
    began_s, smooth = 0.0, 0
    for fault, end_s in zip(faults, ends_s, strict=True):
        simulation.run(timeline.began_s + fault.at_s)
        smooth = smooth or choose_smooth(timeline, fault.at_s, cluster.batch_size)
        hedged = simulation.tally.hedged
        simulation.strike(fault)
        simulation.run(timeline.began_s + end_s)
        hedged = simulation.tally.hedged - hedged
        dips.append(find_dip(timeline, fault, began_s, end_s, smooth=smooth, hedged=hedged))
        began_s = fault.at_s
    return Scenario(
        hosts=cluster.hosts,
        ranks=cluster.ranks,
        dips=dips,
        images_s=timeline.rates(ends_s[-1], smooth=smooth),
        smooth_s=smooth * BIN_S,
        batches=simulation.tally.batches,
        is_whole=all(rank.is_whole for rank in simulation.ranks),
    )


def choose_smooth(timeline: Timeline, until_s: float, batch_size: int) -> int:
    """Return the bins that a rate is the mean of, by the steady state until then."""
    enough_s = _SMOOTH_BATCHES * batch_size / max(1.0, timeline.mean(0.0, until_s))
    return math.ceil(max(_SMOOTH_S, enough_s) / BIN_S)


def find_dip(
    timeline: Timeline, fault: Fault, began_s: float, end_s: float, *, smooth: int, hedged: int
) -> Dip:
    """Return what a fault did until ``end_s``; the time before it counts from ``began_s``."""
    before = timeline.mean(began_s, fault.at_s)
    after = timeline.mean(end_s - (end_s - fault.at_s) / 4, end_s)
    later = timeline.rates(end_s, smooth=smooth)[round(fault.at_s / BIN_S) :]
    lowest, wanted = min(later), RECOVERED * min(before, after)
    recovery_s = None
    if lowest >= wanted:
        recovery_s = 0.0
    else:
        for number in range(later.index(lowest), len(later)):
            if later[number] >= wanted:
                recovery_s = (number + 1) * BIN_S
                break
    return Dip(
        fault=fault,
        before_images_s=before,
        lowest_images_s=lowest,
        after_images_s=after,
        recovery_s=recovery_s,
        hedged=hedged,
    )
