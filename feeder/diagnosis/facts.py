"""What the conditions of a verdict look at, and what a change would give.

Estimates are images a second, from what the parts of the pipeline cost now. Each assumes that the
cost of an image stays what it is, so that the rate grows until something else runs out. The CPUs of
this host that the daemon and its local clients use grow with the rate; what other processes use
does not. Texts round an estimate to two digits.

There is none from a small sample, nor one far from the present rate, where caches, clock rates and
what does not grow with the rate matter more than what was measured; nor while other processes
compete for the CPUs, unless it is about these.
"""

from collections.abc import Collection
from dataclasses import dataclass
from math import inf
from typing import Final

from feeder.diagnosis.interval import ClientInterval, HostInterval
from feeder.metrics.figures import percent
from feeder.metrics.records import ClientRecord
from feeder.metrics.report import Verdict

WAITS_MEAN: Final = 0.02
"""Clients that wait for a smaller share of their time, on average, are not held back: as in
``EpochTimes.late``."""

WAITS_ONE: Final = 0.05
"""A single client that waits for a larger share is: in synchronous training all wait for it."""

IMAGES_MIN: Final = 100
WORKER_SECONDS_MIN: Final = 1.0
"""The smallest sample that carries an estimate."""

FURTHEST: Final = 2.5
"""Times the present rate."""

NEIGHBOURS_MAX: Final = 0.15
"""Share of the CPUs that other processes use."""

PRESSURE_MAX: Final = 0.5
"""Share of the time in which some process of the machine waited for a CPU, perhaps one of those
that the daemon may not use: another core might not be free."""


Finding = str | tuple[str, float] | None
"""Of a condition that holds: the evidence and the next step, and an estimate where there is one."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What happened in the interval of a report, and in a longer one with the same end."""

    interval: HostInterval
    longer: HostInterval
    held: Verdict | None
    """The verdict until now."""

    @property
    def do_clients_wait(self) -> bool:
        """Whether the daemon holds its clients back.

        They must have waited for a noticeable part of the longer interval, and still wait. Clients
        that report no waits count as waiting while the workers are always busy.
        """
        if self.interval.wait_share is None:
            return self.interval.busy_share > 0.9
        is_known = self.held is not None and self.held.is_problem
        return _do_wait(self.longer, 1.0) and _do_wait(self.interval, 0.5 if is_known else 1.0)

    @property
    def waits(self) -> str:
        """How long clients wait, as a clause."""
        share = self.interval.wait_share
        if share is None:
            return "clients report no waits"
        if self.interval.client_count == 1:
            return f"the client waits {percent(share)} of its time"
        return f"clients wait {percent(share)} of their time"

    @property
    def busy(self) -> str:
        """How busy the workers are, as a clause."""
        workers, share = self.interval.workers, percent(self.interval.busy_share)
        return (
            f"the worker is busy {share}" if workers == 1 else f"{workers} workers are busy {share}"
        )


def _do_wait(interval: HostInterval, part: float) -> bool:
    """Whether clients wait for more than a part of the thresholds."""
    longest = max((client.wait_share or 0.0 for client in interval.node_clients), default=0.0)
    return (interval.wait_share or 0.0) > part * WAITS_MEAN or longest > part * WAITS_ONE


def and_more(parts: Collection[object]) -> str:
    """How many there are besides the first, if any."""
    return f" and {len(parts) - 1} more" if len(parts) > 1 else ""


def name_client(client: ClientRecord | ClientInterval) -> str:
    """A client's name, which has its host, process and rank, with its job."""
    return f"{client.name} of job {client.job}" if client.job else client.name


def checked(interval: HostInterval, could: float, *, has_neighbours: bool = False) -> float:
    """An estimate, or 0 if the interval does not carry it.

    ``has_neighbours``: it takes the CPU time of other processes into account.
    """
    images = interval.images_a_s * interval.seconds
    worker_s = interval.busy_workers * interval.seconds
    others = neighbour_cpus(interval) / max(1, interval.machine.cpus)
    is_shared = others > NEIGHBOURS_MAX or interval.machine.pressure_cpu > PRESSURE_MAX
    if images < IMAGES_MIN or worker_s < WORKER_SECONDS_MIN or (is_shared and not has_neighbours):
        return 0.0
    return could if could <= FURTHEST * interval.images_a_s else 0.0


def delivered(interval: HostInterval, could: float, *, has_neighbours: bool = False) -> float:
    """A checked estimate, and no more than clients would take if they never waited."""
    could = min(could, _taken_without_waits(interval))
    return checked(interval, could, has_neighbours=has_neighbours)


def _taken_without_waits(interval: HostInterval) -> float:
    """What the clients would take if they never waited; infinity if one of them has not reported
    how long it waits."""
    if any(client.wait_share is None for client in interval.node_clients):
        return inf
    waits = {
        key: sum(client.wait_share or 0.0 for client in group)
        for key, group in interval.by_client.items()
    }
    images_a_s = sum(
        client.images_a_s / max(0.01, 1.0 - waits[client.account, client.name])
        for client in interval.node_clients
    )
    return images_a_s or inf


def feeder_cpus(interval: HostInterval) -> float:
    """The CPUs that the daemon and its clients on this host use; a client of several node processes
    counts once."""
    workers = sum(node.busy_workers * node.cpu_share for node in interval.nodes)
    clients = sum(
        max((client.cpus for client in group if client.is_local), default=0.0)
        for group in interval.by_client.values()
    )
    return workers + sum(node.own_cpus for node in interval.nodes) + clients


def neighbour_cpus(interval: HostInterval) -> float:
    """The CPUs that processes use which belong neither to the daemon nor to its clients."""
    return max(0.0, interval.machine.busy_cpus - feeder_cpus(interval))


def throttled_share(interval: HostInterval) -> float:
    """The part of the CPU time wanted by the daemon that its cgroup's quota withheld."""
    throttled = interval.machine.throttled_cpus
    return throttled / (throttled + feeder_cpus(interval)) if throttled else 0.0


def without_neighbours(interval: HostInterval) -> float:
    """With the CPU time that other processes use, as far as workers wait for it."""
    used, images = feeder_cpus(interval), interval.images_a_s
    if not used:
        return images
    without_delay = images / max(1.0 - interval.mean_of_busy("run_delay_share"), 0.02)
    return min(without_delay, images * (used + neighbour_cpus(interval)) / used)


def at_most(interval: HostInterval, times: float) -> float:
    """At some times the present rate, as far as the CPUs allow it."""
    used = feeder_cpus(interval)
    available = max(used, interval.machine.cpus - neighbour_cpus(interval))
    return interval.images_a_s * min(times, available / used) if used else 0.0


def round_estimate(images_a_s: float) -> str:
    """Two digits, such as 12,000."""
    if images_a_s < 10:
        return f"{images_a_s:.1f}"
    return f"{float(f'{images_a_s:.1e}'):,.0f}"
