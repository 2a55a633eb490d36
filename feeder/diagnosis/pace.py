"""The conditions of a daemon that works: which side waits, and for what."""

from typing import Final

from feeder.diagnosis import estimates
from feeder.diagnosis.client_interval import ClientInterval
from feeder.diagnosis.estimates import round_estimate
from feeder.diagnosis.facts import Facts, name_client, verdict
from feeder.metrics.figures import megabytes, percent
from feeder.metrics.records import OTHERS
from feeder.metrics.report import Verdict

ALWAYS_BUSY: Final = 0.8
"""Workers that are in chunks for this share of the time have no spare: between two chunks a worker
waits for the node process, which shares its CPUs."""

LITTLE_BUSY: Final = 0.3
BLOCKED: Final = 0.3
"""Of the workers' time in chunks: a page cache that holds most of the data leaves a few percent."""

THROTTLED: Final = 0.1
RUN_DELAYED: Final = 0.2
"""Of the workers' time in chunks; the node process and clients on their CPUs take some."""

MEMORY_PRESSURE: Final = 0.2
"""Of the time some process waited for memory to be reclaimed or swapped in."""

TOP_SHARE: Final = 0.6
UNFAIR: Final = 1.5
"""Times the even share."""

OTHERS_WAIT: Final = 0.1
CACHE_PART: Final = 0.7
MEMORY_BUSY: Final = 0.6
"""Of the bandwidth of plain copies: random access of decoders reaches no more."""

ON_THE_WAY: Final = 0.5
"""Share of a waiting client's slots that are with the socket or the network."""

NODE_BUSY: Final = 0.85
WORTHWHILE: Final = 1.1
"""What would give less than this many times the rate is not advised, and not named as the cause."""


def idle(facts: Facts) -> Verdict | None:
    """Nothing is requested."""
    clients = facts.interval.clients
    if facts.interval.images_a_s > 0 or facts.interval.busy_workers > 0.01:
        return None
    if not clients:
        return verdict("idle", "no client is connected", is_problem=False)
    if any(client.wanted for client in clients):
        return None
    return verdict("idle", f"{_count(clients)} requested nothing", is_problem=False)


def set_by_clients(facts: Facts) -> Verdict | None:
    """Clients hardly wait."""
    if facts.do_clients_wait:
        return None
    interval = facts.interval
    # What an image costs is the same before and after a condition: the more of them, the better.
    could = estimates.checked(facts.longer, estimates.at_full_use(facts.longer))
    enough = f"; they could make about {round_estimate(could)} images/s (estimate)" if could else ""
    if not facts.reaches("healthy", interval.busy_share, LITTLE_BUSY):
        return verdict(
            "client-bound",
            f"the clients set the pace, {interval.images_a_s:,.0f} images/s: {facts.waits}, "
            f"{facts.busy}{enough}",
            is_problem=False,
            estimate=could,
        )
    return verdict(
        "healthy",
        f"{interval.images_a_s:,.0f} images/s, {facts.waits}, {facts.busy}{enough}",
        is_problem=False,
        estimate=could,
    )


def greedy_client(facts: Facts) -> Verdict | None:
    """One client gets most of the workers' time, and others wait."""
    shares: dict[str, float] = {}
    waits: dict[str, float] = {}
    busy = facts.interval.busy_workers
    for node in facts.interval.nodes:
        for client in node.clients:
            part = client.worker_share * node.busy_workers / busy if busy else 0.0
            shares[client.name] = shares.get(client.name, 0.0) + part
            # Of a client that has just come only its slots are known: none has a batch for it.
            unfilled = 1.0 - _share_on_the_way(client)
            wait = unfilled if client.wait_share is None else client.wait_share
            waits[client.name] = waits.get(client.name, 0.0) + wait
    top = max(shares.keys() - {OTHERS}, key=lambda name: shares[name], default=None)
    if top is None or len(shares) < 2:
        return None
    waiting = [
        wait
        for name, wait in waits.items()
        if name != top and facts.reaches("greedy-client", wait, OTHERS_WAIT)
    ]
    unfair = max(TOP_SHARE, UNFAIR / facts.interval.client_count)
    is_greedy = facts.reaches("greedy-client", facts.interval.busy_share, ALWAYS_BUSY)
    if not (waiting and is_greedy and facts.reaches("greedy-client", shares[top], unfair)):
        return None
    return verdict(
        "greedy-client",
        f"{top} takes {percent(shares[top])} of the workers' time, others wait up to "
        f"{percent(max(waiting))} of theirs; give it a feeder of its own, or make its images or "
        "window smaller",
    )


def memory_short(facts: Facts) -> Verdict | None:
    """Workers wait for memory that is being reclaimed or swapped in."""
    machine = facts.interval.machine
    blocked = facts.interval.mean_of_busy("blocked_share")
    has_pressure = facts.reaches("memory-short", machine.pressure_memory, MEMORY_PRESSURE)
    if not (has_pressure and facts.reaches("memory-short", blocked, BLOCKED)):
        return None
    return verdict(
        "memory-short",
        f"workers wait {percent(blocked)} of their time, memory pressure is "
        f"{percent(machine.pressure_memory)} and {machine.refaults_a_s:,.0f} pages/s are read "
        f"again after their eviction, {facts.waits}; more memory, a smaller decoded cache "
        "(decoded_bytes), or smaller windows",
    )


def io_bound(facts: Facts) -> Verdict | None:
    """Workers wait for storage."""
    interval = facts.interval
    blocked = interval.mean_of_busy("blocked_share")
    # A chunk's stages are known once it is filled, which may take longer than the interval.
    is_filled = sum(interval.stages.values()) > BLOCKED
    reading = (interval if is_filled else facts.longer).stages.get("read", 0.0)
    shares = ((blocked, BLOCKED), (reading, BLOCKED), (interval.busy_share, LITTLE_BUSY))
    if not all(facts.reaches("io-bound", share, least) for share, least in shares):
        return None
    storage = sum(node.storage_bytes_a_s for node in interval.nodes)
    requested = sum(node.requested_bytes_a_s for node in interval.nodes)
    missed = ""
    if storage and requested:
        share = percent(min(1.0, storage / requested))
        missed = f", {share} of what they read is not in the page cache"
    could = estimates.delivered(interval, estimates.without_blocking(interval))
    return verdict(
        "io-bound",
        f"reading takes {percent(reading)} of {_workers(facts)}' time at "
        f"{megabytes(max(storage, requested))}/s{missed}"
        f"{_pressure('storage', interval.machine.pressure_io)}, {facts.waits}; faster storage or "
        f"more free memory for the page cache would {_give(could)}",
        estimate=could,
    )


def quota_bound(facts: Facts) -> Verdict | None:
    """The cgroup's quota stops the daemon."""
    throttled = estimates.throttled_share(facts.interval)
    if not facts.reaches("quota-bound", throttled, THROTTLED):
        return None
    cpus = facts.interval.machine.usable_cpus
    return verdict(
        "quota-bound",
        f"the cgroup's quota of {cpus:g} CPU{'' if cpus == 1 else 's'} withheld "
        f"{percent(throttled)} of the CPU time that the daemon wanted, {facts.waits}; raise "
        "CPUQuota= (systemd) or limits.cpu (Kubernetes)",
    )


def neighbour_bound(facts: Facts) -> Verdict | None:
    """Other processes use the daemon's CPUs."""
    interval = facts.interval
    delayed = interval.mean_of_busy("run_delay_share")
    others = estimates.neighbour_cpus(interval)
    could = estimates.without_neighbours(interval)
    is_delayed = facts.reaches("neighbour-bound", delayed, RUN_DELAYED)
    if not is_delayed or could < WORTHWHILE * interval.images_a_s:
        return None
    could = estimates.delivered(interval, could, has_neighbours=True)
    gain = f": about {round_estimate(could)} images/s (estimate)" if could else ""
    return verdict(
        "neighbour-bound",
        f"other processes use {others:.1f} of {interval.machine.cpus} CPUs "
        f"({_name_neighbours(facts, others)}), workers wait for one "
        f"{percent(delayed)} of their time"
        f"{_pressure('CPU', interval.machine.pressure_cpu)}, {facts.waits}; move them, or keep "
        f"them off the daemon's CPUs{gain}",
        estimate=could,
    )


def cache_bound(facts: Facts) -> Verdict | None:
    """A decoded cache is configured, and too small to help."""
    interval = facts.interval
    caches = [node.now.cache for node in facts.report.nodes if node.now is not None]
    budget = sum(cache.budget_bytes for cache in caches)
    full = sum(cache.full_bytes for cache in caches)
    hits = [node.cache_hit_share for node in interval.nodes if node.cache_hit_share is not None]
    if not budget or budget > CACHE_PART * full or not hits or min(hits) > CACHE_PART:
        return None
    if not facts.reaches("cache-bound", interval.busy_share, ALWAYS_BUSY):
        return None
    could = estimates.without_stages(interval, ("read", "join", "decode", "fill"))
    could = estimates.delivered(interval, could)
    return verdict(
        "cache-bound",
        f"the decoded cache of {megabytes(budget)} serves {percent(sum(hits) / len(hits))} of the "
        f"images, the rest is decoded again, {facts.waits}; decoded_bytes for all of them, "
        f"{megabytes(full)}, would {_give(could)}",
        estimate=could,
    )


def memory_bound(facts: Facts) -> Verdict | None:
    """Workers move about as many bytes as memory can."""
    interval = facts.interval
    share = interval.mean_of_busy("memory_share")
    shares = ((share, MEMORY_BUSY), (interval.busy_share, ALWAYS_BUSY))
    if not all(facts.reaches("memory-bound", part, least) for part, least in shares):
        return None
    return verdict(
        "memory-bound",
        f"the sample path moves about {percent(share)} of what memory can copy (estimate), "
        f"{facts.busy}, {facts.waits}; smaller images or feeders on more hosts: more cores would "
        "not help",
    )


def compute_bound(facts: Facts) -> Verdict | None:
    """Workers are always busy computing."""
    interval, machine = facts.interval, facts.interval.machine
    if not facts.reaches("compute-bound", interval.busy_share, ALWAYS_BUSY):
        return None
    stage, share = next(iter(interval.stages.items()), ("decode", 0.0))
    cause = f"{stage} takes {percent(share)} of {_workers(facts, 'busy ')}, {facts.waits}"
    spare = int(min(machine.usable_cpus, machine.cpus)) - interval.workers
    could = estimates.with_workers(interval, max(0, spare))
    if could > WORTHWHILE * interval.images_a_s:
        what = f"{spare} more worker{'' if spare == 1 else 's'} (--workers)"
    else:
        more = max(1, interval.workers // 2)
        could = estimates.with_cpus(interval, more)
        what = f"{more} more core{'' if more == 1 else 's'}"
    could = estimates.delivered(interval, could)
    return verdict(
        "compute-bound",
        f"{cause}; {what} would {_give(could)}",
        estimate=could,
    )


def network_bound(facts: Facts) -> Verdict | None:
    """Whole batches wait in sockets, and their clients wait for them."""
    waiting = [
        client
        for client in facts.clients
        if not client.is_lent
        and facts.reaches("network-bound", client.wait_share or 0.0, OTHERS_WAIT)
    ]
    slow = [
        client
        for client in waiting
        if facts.reaches("network-bound", _share_on_the_way(client), ON_THE_WAY)
    ]
    if not slow:
        return None
    moved = sum(client.bytes_a_s for client in slow)
    slots = sum(client.slots.sending + client.slots.client for client in slow)
    return verdict(
        "network-bound",
        f"{slots:.1f} finished batches are on their way to {_name_clients(slow)} at "
        f"{megabytes(moved)}/s, {facts.waits}, {facts.busy}; a faster network, smaller images, "
        "or trainers on the feeder's host over ipc",
    )


def dispatch_bound(facts: Facts) -> Verdict | None:
    """A node process's event loop, which is one thread, is always busy."""
    busiest = max(facts.interval.nodes, key=lambda node: node.loop_cpus, default=None)
    if busiest is None or not facts.reaches("dispatch-bound", busiest.loop_cpus, NODE_BUSY):
        return None
    return verdict(
        "dispatch-bound",
        f"the event loop of node process {busiest.number} uses {percent(busiest.loop_cpus)} of a "
        f"CPU, {facts.waits}, {facts.busy}; larger chunks (chunk_images) or batches, or clients "
        "over ipc",
    )


def window_bound(facts: Facts) -> Verdict:
    """Nothing here is slow: too little is requested at a time."""
    windows = [client.window for client in facts.clients if client.wait_share]
    least = min(windows, default=0)
    return verdict(
        "window-bound",
        f"{facts.waits} though {facts.busy}, and no batch waits to be sent; their windows "
        f"({least} batch{'' if least == 1 else 'es'} at least) are too small for the distance or "
        "for bursts: raise window in the loader",
    )


def _name_neighbours(facts: Facts, cpus: float) -> str:
    """Return which processes use the daemon's CPUs, as far as /proc shows them."""
    neighbours = facts.report.neighbours
    names = [f"{each.name} (pid {each.pid}) {each.cpus:.1f}" for each in neighbours]
    if 2 * sum(each.cpus for each in neighbours) < cpus:
        names.append("the rest outside this container" if names else "outside this container")
    return ", ".join(names)


def _give(could: float) -> str:
    """Return what a change would do."""
    return f"give about {round_estimate(could)} images/s (estimate)" if could else "help"


def _pressure(resource: str, share: float) -> str:
    """Return pressure stall information as a clause; "" where the kernel has none."""
    return f", {resource} pressure {percent(share)}" if share >= 0.01 else ""


def _share_on_the_way(client: ClientInterval) -> float:
    slots = client.slots
    total = slots.free + slots.filling + slots.sending + slots.client
    return (slots.sending + slots.client) / total if total else 0.0


def _workers(facts: Facts, kind: str = "") -> str:
    count = facts.interval.workers
    return f"the {kind}worker" if count == 1 else f"{count} {kind}workers"


def _name_clients(clients: list[ClientInterval]) -> str:
    names = list(dict.fromkeys(map(name_client, clients)))
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _count(clients: tuple[ClientInterval, ...] | list[ClientInterval]) -> str:
    count = len({(client.account, client.name) for client in clients})
    return "1 client" if count == 1 else f"{count} clients"
