"""The conditions of a daemon that works: which side waits, and for what.

Each returns the evidence and the next step, with an estimate where there is one; None where it does
not hold. ``part`` of each threshold suffices: less than 1 while the verdict is that condition.
"""

from typing import Final

from feeder.diagnosis.facts import (
    Facts,
    Finding,
    and_more,
    at_most,
    checked,
    delivered,
    name_client,
    neighbour_cpus,
    round_estimate,
    throttled_share,
    without_neighbours,
)
from feeder.diagnosis.interval import ClientInterval
from feeder.metrics.figures import megabytes, percent
from feeder.metrics.records import OTHERS

ALWAYS_BUSY: Final = 0.8
"""Workers that are in chunks for this share of the time have no spare: between two chunks a worker
waits for the node process, which shares its CPUs."""

LITTLE_BUSY: Final = 0.3
BLOCKED: Final = 0.3
"""Share of the workers' time in chunks: a page cache that holds most of the data leaves a few
percent."""

THROTTLED: Final = 0.1
RUN_DELAYED: Final = 0.2
"""Share of the workers' time in chunks; the node process and clients on their CPUs take some."""

MEMORY_PRESSURE: Final = 0.2
"""Share of the time in which some process waited for memory to be reclaimed or swapped in."""

TOP_SHARE: Final = 0.6
UNFAIR: Final = 1.5
"""Times the even share."""

OTHERS_WAIT: Final = 0.1
CACHE_PART: Final = 0.7
MEMORY_BUSY: Final = 0.6
"""Share of the bandwidth of plain copies: random access of decoders reaches no more."""

ON_THE_WAY: Final = 0.5
"""Share of a waiting client's slots that are with the socket or the network."""

NODE_BUSY: Final = 0.85
WORTHWHILE: Final = 1.1
"""What would give less than this many times the rate is not advised, and not named as the cause."""


def idle(facts: Facts, _part: float) -> Finding:
    """Nothing is requested."""
    clients = facts.interval.node_clients
    if facts.interval.images_a_s > 0 or facts.interval.busy_workers > 0.01:
        return None
    if not clients:
        return "no client is connected"
    if any(client.wanted for client in clients):
        return None
    count = len(facts.interval.by_client)
    return f"{count} client{_s(count)} requested nothing"


def healthy(facts: Facts, part: float) -> Finding:
    """Clients hardly wait, and the workers have something to do."""
    if facts.do_clients_wait or facts.interval.busy_share < part * LITTLE_BUSY:
        return None
    enough, could = _enough(facts)
    rate = facts.interval.images_a_s
    return f"{rate:,.0f} images/s, {facts.waits}, {facts.busy}{enough}", could


def client_bound(facts: Facts, _part: float) -> Finding:
    """Clients hardly wait, nor do the workers have much to do."""
    if facts.do_clients_wait:
        return None
    enough, could = _enough(facts)
    rate = facts.interval.images_a_s
    return (
        f"the clients set the pace, {rate:,.0f} images/s: {facts.waits}, {facts.busy}{enough}"
    ), could


def _enough(facts: Facts) -> tuple[str, float]:
    # What an image costs is the same before and after a condition: the more of them, the better.
    longer = facts.longer
    could = at_most(longer, longer.workers / longer.busy_workers) if longer.busy_workers else 0.0
    could = checked(longer, could)
    text = f"; they could make about {round_estimate(could)} images/s (estimate)" if could else ""
    return text, could


def greedy_client(facts: Facts, part: float) -> Finding:
    """One client gets most of the workers' time, and others wait."""
    shares: dict[str, float] = {}
    waits: dict[str, float] = {}
    busy = facts.interval.busy_workers
    for node in facts.interval.nodes:
        for client in node.clients:
            share = client.worker_share * node.busy_workers / busy if busy else 0.0
            shares[client.name] = shares.get(client.name, 0.0) + share
            # Of a client that has just come only its slots are known: none has a batch for it.
            unfilled = 1.0 - _share_on_the_way(client)
            wait = unfilled if client.wait_share is None else client.wait_share
            waits[client.name] = waits.get(client.name, 0.0) + wait
    top = max(shares.keys() - {OTHERS}, key=lambda name: shares[name], default=None)
    if top is None or len(shares) < 2 or facts.interval.busy_share < part * ALWAYS_BUSY:
        return None
    longest = max(wait for name, wait in waits.items() if name != top)
    unfair = max(TOP_SHARE, UNFAIR / facts.interval.client_count)
    if longest < part * OTHERS_WAIT or shares[top] < part * unfair:
        return None
    return (
        f"{top} takes {percent(shares[top])} of the workers' time, others wait up to "
        f"{percent(longest)} of theirs; give it a feeder of its own, or make its images or window "
        "smaller"
    )


def memory_short(facts: Facts, part: float) -> Finding:
    """Workers wait for memory that is being reclaimed or swapped in."""
    machine = facts.interval.machine
    blocked = facts.interval.mean_of_busy("blocked_share")
    if machine.pressure_memory < part * MEMORY_PRESSURE or blocked < part * BLOCKED:
        return None
    return (
        f"workers wait {percent(blocked)} of their time, memory pressure is "
        f"{percent(machine.pressure_memory)} and {machine.refaults_a_s:,.0f} pages/s are read "
        f"again after their eviction, {facts.waits}; more memory, a smaller decoded cache "
        "(decoded_bytes), or smaller windows"
    )


def io_bound(facts: Facts, part: float) -> Finding:
    """Workers wait for storage."""
    interval = facts.interval
    # A chunk's stages are known once it is filled, which may take longer than the interval.
    is_filled = sum(interval.stages.values()) > BLOCKED
    reading = (interval if is_filled else facts.longer).stages.get("read", 0.0)
    blocked = interval.mean_of_busy("blocked_share")
    if min(blocked, reading) < part * BLOCKED or interval.busy_share < part * LITTLE_BUSY:
        return None
    storage, requested = interval.storage_bytes_a_s, interval.requested_bytes_a_s
    missed = ""
    if storage and requested:
        share = percent(min(1.0, storage / requested))
        missed = f", {share} of what they read is not in the page cache"
    could = delivered(interval, at_most(interval, 1.0 / max(0.02, 1.0 - blocked)))
    return (
        f"reading takes {percent(reading)} of {_workers(facts)}' time at "
        f"{megabytes(max(storage, requested))}/s{missed}"
        f"{_pressure('storage', interval.machine.pressure_io)}, {facts.waits}; faster storage or "
        f"more free memory for the page cache would {_give(could)}"
    ), could


def quota_bound(facts: Facts, part: float) -> Finding:
    """The cgroup's quota stops the daemon."""
    throttled = throttled_share(facts.interval)
    if throttled < part * THROTTLED:
        return None
    cpus = facts.interval.machine.usable_cpus
    return (
        f"the cgroup's quota of {cpus:g} CPU{_s(cpus)} withheld "
        f"{percent(throttled)} of the CPU time that the daemon wanted, {facts.waits}; raise "
        "CPUQuota= (systemd) or limits.cpu (Kubernetes)"
    )


def neighbour_bound(facts: Facts, part: float) -> Finding:
    """Other processes use the daemon's CPUs."""
    interval = facts.interval
    delayed = interval.mean_of_busy("run_delay_share")
    could = without_neighbours(interval)
    if delayed < part * RUN_DELAYED or could < WORTHWHILE * interval.images_a_s:
        return None
    could = delivered(interval, could, has_neighbours=True)
    gain = f": about {round_estimate(could)} images/s (estimate)" if could else ""
    cpus, neighbours = neighbour_cpus(interval), interval.report.neighbours
    # As far as /proc shows them.
    names = [f"{process.name} (pid {process.pid}) {process.cpus:.1f}" for process in neighbours]
    if 2 * sum(process.cpus for process in neighbours) < cpus:
        names.append("the rest outside this container" if names else "outside this container")
    return (
        f"other processes use {cpus:.1f} of {interval.machine.cpus} CPUs "
        f"({', '.join(names)}), workers wait for one {percent(delayed)} of their time"
        f"{_pressure('CPU', interval.machine.pressure_cpu)}, {facts.waits}; move them, or keep "
        f"them off the daemon's CPUs{gain}"
    ), could


def cache_bound(facts: Facts, part: float) -> Finding:
    """A decoded cache is configured, and too small to help."""
    interval = facts.interval
    caches = [node.cache for node in interval.records]
    budget = sum(cache.budget_bytes for cache in caches)
    full = sum(cache.full_bytes for cache in caches)
    hits = [node.cache_hit_share for node in interval.nodes if node.cache_hit_share is not None]
    if not budget or budget > CACHE_PART * full or not hits or min(hits) > CACHE_PART:
        return None
    if interval.busy_share < part * ALWAYS_BUSY:
        return None
    spared = sum(interval.stages.get(name, 0.0) for name in ("read", "join", "decode", "fill"))
    could = delivered(interval, interval.images_a_s / max(1.0 - spared, 0.02))
    return (
        f"the decoded cache of {megabytes(budget)} serves {percent(sum(hits) / len(hits))} of the "
        f"images, the rest is decoded again, {facts.waits}; decoded_bytes for all of them, "
        f"{megabytes(full)}, would {_give(could)}"
    ), could


def memory_bound(facts: Facts, part: float) -> Finding:
    """Workers move about as many bytes as memory can."""
    share = facts.interval.mean_of_busy("memory_share")
    if share < part * MEMORY_BUSY or facts.interval.busy_share < part * ALWAYS_BUSY:
        return None
    return (
        f"the sample path moves about {percent(share)} of what memory can copy (estimate), "
        f"{facts.busy}, {facts.waits}; smaller images or feeders on more hosts: more cores would "
        "not help"
    )


def compute_bound(facts: Facts, part: float) -> Finding:
    """Workers are always busy computing."""
    interval, machine = facts.interval, facts.interval.machine
    if interval.busy_share < part * ALWAYS_BUSY:
        return None
    stage, share = next(iter(interval.stages.items()), ("decode", 0.0))
    busy, cpus = interval.busy_workers, machine.usable_cpus
    more = int(min(cpus, machine.cpus)) - interval.workers
    could = at_most(interval, (busy + max(0, more)) / busy)
    if could > WORTHWHILE * interval.images_a_s:
        what = f"{more} more worker{_s(more)} (--workers)"
    else:
        more = max(1, interval.workers // 2)
        could = interval.images_a_s * (cpus + more) / cpus if cpus else 0.0
        what = f"{more} more core{_s(more)}"
    could = delivered(interval, could)
    return (
        f"{stage} takes {percent(share)} of {_workers(facts, 'busy ')}, {facts.waits}; {what} "
        f"would {_give(could)}"
    ), could


def network_bound(facts: Facts, part: float) -> Finding:
    """Whole batches wait in sockets, and their clients wait for them."""
    slow = [
        client
        for client in facts.interval.node_clients
        if client.name != OTHERS
        and not client.is_lent
        and (client.wait_share or 0.0) >= part * OTHERS_WAIT
        and _share_on_the_way(client) >= part * ON_THE_WAY
    ]
    if not slow:
        return None
    moved = sum(client.bytes_a_s for client in slow)
    slots = sum(client.slots.sending + client.slots.client for client in slow)
    names = list(dict.fromkeys(map(name_client, slow)))
    return (
        f"{slots:.1f} finished batches are on their way to {names[0]}{and_more(names)} at "
        f"{megabytes(moved)}/s, "
        f"{facts.waits}, {facts.busy}; a faster network, smaller images, or trainers on the "
        "feeder's host over ipc"
    )


def dispatch_bound(facts: Facts, part: float) -> Finding:
    """A node process's event loop, which is one thread, is always busy."""
    busiest = max(facts.interval.nodes, key=lambda node: node.loop_cpus, default=None)
    if busiest is None or busiest.loop_cpus < part * NODE_BUSY:
        return None
    return (
        f"the event loop of node process {busiest.number} uses {percent(busiest.loop_cpus)} of a "
        f"CPU, {facts.waits}, {facts.busy}; larger chunks (chunk_images) or batches, or clients "
        "over ipc"
    )


def window_bound(facts: Facts, _part: float) -> Finding:
    """Nothing here is slow: too little is requested at a time."""
    clients = [client for client in facts.interval.node_clients if client.name != OTHERS]
    least = min((client.window for client in clients if client.wait_share), default=0)
    return (
        f"{facts.waits} though {facts.busy}, and no batch waits to be sent; their windows "
        f"({least} batch{'' if least == 1 else 'es'} at least) are too small for the distance or "
        "for bursts: raise window in the loader"
    )


def _give(could: float) -> str:
    return f"give about {round_estimate(could)} images/s (estimate)" if could else "help"


def _pressure(resource: str, share: float) -> str:
    """Pressure stall information as a clause; "" where the kernel has none."""
    return f", {resource} pressure {percent(share)}" if share >= 0.01 else ""


def _share_on_the_way(client: ClientInterval) -> float:
    slots = client.slots
    total = slots.free + slots.filling + slots.sending + slots.client
    return (slots.sending + slots.client) / total if total else 0.0


def _workers(facts: Facts, kind: str = "") -> str:
    count = facts.interval.workers
    return f"the {kind}worker" if count == 1 else f"{count} {kind}workers"


def _s(count: float) -> str:
    return "" if count == 1 else "s"
