"""The conditions of a daemon that works: which side waits, and for what.

Each returns the evidence and the next step, with an estimate where there is one; None where it does
not hold. ``part`` of each threshold suffices: less than 1 while the verdict is that condition.
"""

from collections import defaultdict
from typing import Final

from feeder.diagnosis.facts import (
    WAITS_MEAN,
    Facts,
    Finding,
    and_more,
    name_client,
    round_estimate,
)
from feeder.diagnosis.interval import QUIET_S, ClientInterval, StoreInterval
from feeder.metrics.figures import duration, megabytes, percent, plural, rate
from feeder.metrics.records import OTHERS

# Shares of the workers' time. Between two chunks a worker waits for the node process, which shares
# its CPUs: one that is in chunks for this share has no time to spare.
ALWAYS_BUSY: Final = 0.8
LITTLE_BUSY: Final = 0.3

# Shares of the workers' time in chunks. A page cache that holds most of the data leaves a few
# percent; the node process and clients on the workers' CPUs take some.
BLOCKED: Final = 0.3
RUN_DELAYED: Final = 0.2

# Of the batches that waiting clients want: those that wait for samples. Where workers are not the
# bottleneck, the others are with their clients.
FETCHING: Final = 0.3
EVICTED: Final = 0.5  # of the bytes fetched: what was kept is displaced
DISK_FULL: Final = 0.9  # of the budget

THROTTLED: Final = 0.1
MEMORY_PRESSURE: Final = 0.2  # of the time: memory is being reclaimed or swapped in
TOP_SHARE: Final = 0.6
UNFAIR: Final = 1.5  # times the even share
OTHERS_WAIT: Final = 0.1
CACHE_PART: Final = 0.7
MEMORY_BUSY: Final = 0.6  # of the bandwidth of plain copies: random access reaches no more
ON_THE_WAY: Final = 0.5  # of a waiting client's slots are with the socket or the network
NODE_BUSY: Final = 0.85
WORTHWHILE: Final = 1.1  # times the rate: what would give less is neither advised nor the cause


def idle(facts: Facts, _part: float) -> Finding:
    """Nothing is requested."""
    is_wanted = any(client.wanted for client in facts.node_clients)
    if facts.images_a_s > 0 or facts.busy_workers > 0.01 or is_wanted:
        return None
    clients = len(facts.by_client)
    return f"{plural(clients, 'client')} requested nothing" if clients else "no client is connected"


def healthy(facts: Facts, part: float) -> Finding:
    """Clients hardly wait, and the workers have something to do."""
    if facts.do_clients_wait or facts.busy_share < part * LITTLE_BUSY:
        return None
    return _describe_pace(facts, f"{facts.images_a_s:,.0f} images/s, ")


def client_bound(facts: Facts, _part: float) -> Finding:
    """Clients hardly wait, nor do the workers have much to do."""
    if facts.do_clients_wait:
        return None
    return _describe_pace(facts, f"the clients set the pace, {facts.images_a_s:,.0f} images/s: ")


def _describe_pace(facts: Facts, start: str) -> Finding:
    # What an image costs is the same before and after a condition: the more of them, the better.
    longer = facts.longer
    busy = longer.busy_workers
    could = longer.checked(longer.at_most(longer.workers / busy)) if busy else 0.0
    more = f"; they could make about {round_estimate(could)} images/s (estimate)" if could else ""
    return f"{start}{facts.waits}, {facts.busy}{more}", could


def greedy_client(facts: Facts, part: float) -> Finding:
    """One client gets most of the workers' time, and others wait."""
    if len(facts.by_client) < 2 or facts.busy_share < part * ALWAYS_BUSY:
        return None
    shares: defaultdict[str, float] = defaultdict(float)
    waits: defaultdict[str, float] = defaultdict(float)
    for node in facts.nodes:
        for client in node.clients:
            shares[client.name] += client.worker_share * node.busy_workers / facts.busy_workers
            # Of a client that has just come only its slots are known: none has a batch for it.
            unfilled = 1.0 - _share_on_the_way(client)
            waits[client.name] += unfilled if client.wait_share is None else client.wait_share
    top = max(shares.keys() - {OTHERS}, key=lambda name: shares[name], default=OTHERS)
    longest = max((wait for name, wait in waits.items() if name != top), default=0.0)
    unfair = max(TOP_SHARE, UNFAIR / facts.client_count)
    if longest < part * OTHERS_WAIT or shares[top] < part * unfair:
        return None
    return (
        f"{top} takes {percent(shares[top])} of the workers' time, others wait up to "
        f"{percent(longest)} of theirs; give it a feeder of its own, or make its images or window "
        "smaller"
    )


def memory_short(facts: Facts, part: float) -> Finding:
    """Workers wait for memory that is being reclaimed or swapped in."""
    machine, blocked = facts.machine, facts.mean_of_busy("blocked_share")
    if machine.pressure_memory < part * MEMORY_PRESSURE or blocked < part * BLOCKED:
        return None
    return (
        f"workers wait {percent(blocked)} of their time, memory pressure is "
        f"{percent(machine.pressure_memory)} and {machine.refaults_a_s:,.0f} pages/s are read "
        f"again after their eviction, {facts.waits}; more memory, a smaller decoded cache "
        "(decoded_bytes), or smaller windows"
    )


def cache_small(facts: Facts, part: float) -> Finding:
    """Batches wait for the store while the disk cache evicts what it will need again."""
    store, longer = _awaited_store(facts, part), facts.longer.store
    if store is None or longer is None:
        return None
    is_full = store.used_bytes >= DISK_FULL * store.budget_bytes
    if not is_full or longer.evicted_bytes_a_s <= part * EVICTED * longer.bytes_a_s:
        return None
    full = store.full_bytes
    if 0 < full <= store.budget_bytes:  # what is evicted is not this host's
        return None
    warm = longer.warm_share
    found = f", {percent(warm)} of batches found their samples in it" if warm is not None else ""
    could = _with_samples_on_disk(facts)
    return (
        f"the disk cache is full, {megabytes(store.used_bytes)} of "
        f"{megabytes(store.budget_bytes)}, and evicts {megabytes(longer.evicted_bytes_a_s)}/s "
        f"while {megabytes(longer.bytes_a_s)}/s come from the store{found}, {facts.waits}, "
        f"{facts.busy}; cache.disk_bytes for all that this host owns"
        f"{f', {megabytes(full)},' if full else ''} would {_give(could)}, or more feeders"
    ), could


def store_bound(facts: Facts, part: float) -> Finding:
    """Batches wait for samples from the store, and workers for batches."""
    store = _awaited_store(facts, part)
    if store is None:
        return None
    batches = f"{store.waiting_batches:.1f} batches wait for samples from the store"
    if store.quiet_s > QUIET_S:
        return (
            f"{batches}, and the fetcher has sent nothing for {duration(store.quiet_s)}, "
            f"{facts.waits}; its last messages are in the daemon's log"
        )
    could = _with_samples_on_disk(facts)
    is_small = store.evicted_bytes_a_s or store.full_bytes > store.budget_bytes
    larger = ", a larger cache.disk_bytes" if is_small else ""
    return (
        f"{batches} at {megabytes(store.bytes_a_s)}/s and {rate(store.requests_a_s)} requests/s, "
        f"{plural(store.transfers, 'transfer')} in flight"
        f"{f', repeated: {store.repeats}' if store.retries else ''}, {facts.waits}, {facts.busy}; "
        f"`feeder cache fetch` before the job would {_give(could)}, else a faster network or store"
        f"{larger} or more feeders"
    ), could


def _awaited_store(facts: Facts, part: float) -> StoreInterval | None:
    """The store, if batches wait for their samples and nothing on this host holds them up."""
    store = facts.store
    if store is None or facts.busy_share >= ALWAYS_BUSY or facts.throttled_share >= THROTTLED:
        return None
    waiting = (c for c in facts.node_clients if (c.wait_share or 0.0) >= part * WAITS_MEAN)
    wanted = sum(client.wanted for client in waiting)
    return store if store.waiting_batches > part * FETCHING * wanted else None


def _with_samples_on_disk(facts: Facts) -> float:
    """What workers that never lack a batch would make."""
    return facts.delivered(facts.at_most(1.0 / max(0.02, facts.busy_share)))


def io_bound(facts: Facts, part: float) -> Finding:
    """Workers wait for storage."""
    # A chunk's stages are known once it is filled, which may take longer than the interval.
    is_filled = sum(facts.stages.values()) > BLOCKED
    reading = (facts if is_filled else facts.longer).stages.get("read", 0.0)
    blocked = facts.mean_of_busy("blocked_share")
    if min(blocked, reading) < part * BLOCKED or facts.busy_share < part * LITTLE_BUSY:
        return None
    hits, missed = facts.page_cache_share, ""
    if hits is not None and hits < 1.0:
        missed = f", {percent(1.0 - hits)} of what they read is not in the page cache"
    read_bytes_a_s = max(facts.storage_bytes_a_s, facts.requested_bytes_a_s)
    could = facts.delivered(facts.at_most(1.0 / max(0.02, 1.0 - blocked)))
    return (
        f"reading takes {percent(reading)} of {_workers(facts)}' time at "
        f"{megabytes(read_bytes_a_s)}/s{missed}"
        f"{_pressure('storage', facts.machine.pressure_io)}, {facts.waits}; faster storage or "
        f"more free memory for the page cache would {_give(could)}"
    ), could


def quota_bound(facts: Facts, part: float) -> Finding:
    """The cgroup's quota stops the daemon."""
    if facts.throttled_share < part * THROTTLED:
        return None
    cpus = facts.machine.usable_cpus
    return (
        f"the cgroup's quota of {cpus:g} CPU{'' if cpus == 1 else 's'} withheld "
        f"{percent(facts.throttled_share)} of the CPU time that the daemon wanted, {facts.waits}; "
        "raise CPUQuota= (systemd) or limits.cpu (Kubernetes)"
    )


def neighbour_bound(facts: Facts, part: float) -> Finding:
    """Other processes use the daemon's CPUs."""
    delayed = facts.mean_of_busy("run_delay_share")
    could = facts.without_neighbours()
    if delayed < part * RUN_DELAYED or could < WORTHWHILE * facts.images_a_s:
        return None
    could = facts.delivered(could, has_neighbours=True)
    gain = f": about {round_estimate(could)} images/s (estimate)" if could else ""
    cpus, neighbours = facts.neighbour_cpus, facts.report.neighbours
    # As far as /proc shows them.
    names = [f"{process.name} (pid {process.pid}) {process.cpus:.1f}" for process in neighbours]
    if 2 * sum(process.cpus for process in neighbours) < cpus:
        names.append("the rest outside this container" if names else "outside this container")
    return (
        f"other processes use {cpus:.1f} of {facts.machine.cpus} CPUs "
        f"({', '.join(names)}), workers wait for one {percent(delayed)} of their time"
        f"{_pressure('CPU', facts.machine.pressure_cpu)}, {facts.waits}; move them, or keep "
        f"them off the daemon's CPUs{gain}"
    ), could


def cache_bound(facts: Facts, part: float) -> Finding:
    """A decoded cache is configured, and too small to help."""
    budget, full = facts.cache.budget_bytes, facts.cache.full_bytes
    hits = [node.cache_hit_share for node in facts.nodes if node.cache_hit_share is not None]
    if not budget or budget > CACHE_PART * full or not hits or min(hits) > CACHE_PART:
        return None
    if facts.busy_share < part * ALWAYS_BUSY:
        return None
    spared = sum(facts.stages.get(name, 0.0) for name in ("read", "join", "decode", "fill"))
    could = facts.delivered(facts.images_a_s / max(1.0 - spared, 0.02))
    return (
        f"the decoded cache of {megabytes(budget)} serves {percent(sum(hits) / len(hits))} of the "
        f"images, the rest is decoded again, {facts.waits}; decoded_bytes for all of them, "
        f"{megabytes(full)}, would {_give(could)}"
    ), could


def memory_bound(facts: Facts, part: float) -> Finding:
    """Workers move about as many bytes as memory can."""
    share = facts.mean_of_busy("memory_share")
    if share < part * MEMORY_BUSY or facts.busy_share < part * ALWAYS_BUSY:
        return None
    return (
        f"the sample path moves about {percent(share)} of what memory can copy (estimate), "
        f"{facts.busy}, {facts.waits}; smaller images or feeders on more hosts: more cores would "
        "not help"
    )


def compute_bound(facts: Facts, part: float) -> Finding:
    """Workers are always busy computing."""
    if facts.busy_share < part * ALWAYS_BUSY:
        return None
    stage, share = next(iter(facts.stages.items()), ("decode", 0.0))
    busy, cpus = facts.busy_workers, facts.machine.usable_cpus
    more = int(min(cpus, facts.machine.cpus)) - facts.workers
    could = facts.at_most((busy + max(0, more)) / busy)
    if could > WORTHWHILE * facts.images_a_s:
        what = f"{plural(more, 'more worker')} (--workers)"
    else:
        more = max(1, facts.workers // 2)
        could = facts.images_a_s * (cpus + more) / cpus if cpus else 0.0
        what = plural(more, "more core")
    could = facts.delivered(could)
    return (
        f"{stage} takes {percent(share)} of {_workers(facts, 'busy ')}, {facts.waits}; {what} "
        f"would {_give(could)}"
    ), could


def network_bound(facts: Facts, part: float) -> Finding:
    """Whole batches wait in sockets, and their clients wait for them."""
    slow = [
        client
        for client in facts.node_clients
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
        f"{megabytes(moved)}/s, {facts.waits}, {facts.busy}; a faster network, smaller images, or "
        "trainers on the feeder's host over ipc"
    )


def dispatch_bound(facts: Facts, part: float) -> Finding:
    """A node process's event loop, which is one thread, is always busy."""
    busiest = max(facts.nodes, key=lambda node: node.loop_cpus, default=None)
    if busiest is None or busiest.loop_cpus < part * NODE_BUSY:
        return None
    return (
        f"the event loop of node process {busiest.number} uses {percent(busiest.loop_cpus)} of a "
        f"CPU, {facts.waits}, {facts.busy}; larger chunks (chunk_images) or batches, or clients "
        "over ipc"
    )


def window_bound(facts: Facts, _part: float) -> Finding:
    """Nothing here is slow: too little is requested at a time."""
    clients = [client for client in facts.node_clients if client.name != OTHERS]
    least = min((client.window for client in clients if client.wait_share), default=0)
    return (
        f"{facts.waits} though {facts.busy}, and no batch waits to be sent; their windows "
        f"({plural(least, 'batch')} at least) are too small for the distance or for bursts: raise "
        "window in the loader"
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
    return f"the {kind}worker" if facts.workers == 1 else plural(facts.workers, f"{kind}worker")
