"""What a change would give: images a second, from what the parts of the pipeline cost now.

Each estimate assumes that the cost of an image stays what it is, so that the rate grows until
something else runs out. The CPUs of this host that the daemon and its local clients use grow with
the rate; what other processes use does not. Texts round an estimate to two digits.

There is none from a small sample, nor one far from the present rate, where caches, clock rates and
what does not grow with the rate matter more than what was measured; nor while other processes
compete for the CPUs, unless it is about these.
"""

from math import inf
from typing import Final

from feeder.diagnosis.interval import HostInterval

IMAGES_MIN: Final = 100
WORKER_SECONDS_MIN: Final = 1.0
"""The smallest sample that carries an estimate."""

FURTHEST: Final = 2.5
"""Times the present rate."""

NEIGHBOURS_MAX: Final = 0.15
"""Of the CPUs, used by other processes."""

PRESSURE_MAX: Final = 0.5
"""Of the time some process of the machine waited for a CPU, perhaps one of those that the daemon
may not use: another core might not be free."""


def checked(interval: HostInterval, could: float, *, has_neighbours: bool = False) -> float:
    """Return an estimate, or 0 if the interval does not carry it.

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
    """Return a checked estimate, and no more than clients would take if they never waited."""
    could = min(could, _taken_without_waits(interval))
    return checked(interval, could, has_neighbours=has_neighbours)


def feeder_cpus(interval: HostInterval) -> float:
    """Return the CPUs that the daemon and its clients on this host use."""
    workers = sum(node.busy_workers * node.cpu_share for node in interval.nodes)
    nodes = sum(node.own_cpus for node in interval.nodes)
    return workers + nodes + local_client_cpus(interval)


def local_client_cpus(interval: HostInterval) -> float:
    """Return the CPUs that clients on this host use; a client of several node processes counts
    once."""
    by_client: dict[tuple[str, str], float] = {}
    for client in interval.clients:
        if client.is_local:
            key = client.account, client.name
            by_client[key] = max(client.cpus, by_client.get(key, 0.0))
    return sum(by_client.values())


def throttled_share(interval: HostInterval) -> float:
    """Return the part of the CPU time wanted by the daemon that its cgroup's quota withheld."""
    throttled = interval.machine.throttled_cpus
    return throttled / (throttled + feeder_cpus(interval)) if throttled else 0.0


def neighbour_cpus(interval: HostInterval) -> float:
    """Return the CPUs that processes use which belong neither to the daemon nor to its clients."""
    return max(0.0, interval.machine.busy_cpus - feeder_cpus(interval))


def with_workers(interval: HostInterval, more: int) -> float:
    """Return images/s with more workers on the CPUs that there are."""
    workers = interval.busy_workers
    return _at_most(interval, (workers + more) / workers) if workers else 0.0


def with_cpus(interval: HostInterval, more: int) -> float:
    """Return images/s with more CPUs, and a worker on each."""
    cpus = interval.machine.usable_cpus
    return interval.images_a_s * (cpus + more) / cpus if cpus else 0.0


def without_blocking(interval: HostInterval) -> float:
    """Return images/s if no worker waited for storage."""
    return _at_most(interval, 1.0 / max(0.02, 1.0 - interval.mean_of_busy("blocked_share")))


def without_stages(interval: HostInterval, stages: tuple[str, ...]) -> float:
    """Return images/s if the stages took no time."""
    spent = sum(interval.stages.get(stage, 0.0) for stage in stages)
    return _faster_workers(interval, 1.0 - spent)


def without_neighbours(interval: HostInterval) -> float:
    """Return images/s with the CPU time that other processes use, as far as workers wait for it."""
    used = feeder_cpus(interval)
    if not used:
        return interval.images_a_s
    without_delay = _faster_workers(interval, 1.0 - interval.mean_of_busy("run_delay_share"))
    return min(without_delay, interval.images_a_s * (used + neighbour_cpus(interval)) / used)


def at_full_use(interval: HostInterval) -> float:
    """Return images/s if clients took all that the workers can make."""
    busy = interval.busy_workers
    return _at_most(interval, interval.workers / busy) if busy else interval.images_a_s


def _at_most(interval: HostInterval, times: float) -> float:
    """Return images/s at some times the present rate, as far as the CPUs allow it."""
    used = feeder_cpus(interval)
    available = max(used, interval.machine.cpus - neighbour_cpus(interval))
    return interval.images_a_s * min(times, available / used) if used else 0.0


def _taken_without_waits(interval: HostInterval) -> float:
    """Return images/s that the clients would take if they never waited; infinity if one of them has
    not reported how long it waits."""
    waits: dict[tuple[str, str], float] = {}
    for client in interval.clients:
        if client.wait_share is None:
            return inf
        key = client.account, client.name
        waits[key] = waits.get(key, 0.0) + client.wait_share
    taken = sum(
        client.images_a_s / max(0.01, 1.0 - waits[client.account, client.name])
        for client in interval.clients
    )
    return taken or inf


def _faster_workers(interval: HostInterval, remaining: float) -> float:
    """Return images/s if a chunk took the remaining share of its time."""
    return interval.images_a_s / max(remaining, 0.02)


def round_estimate(images_a_s: float) -> str:
    """Return an estimate with two digits, such as 12,000."""
    if images_a_s < 10:
        return f"{images_a_s:.1f}"
    return f"{float(f'{images_a_s:.1e}'):,.0f}"
