"""What a host did between the two records of each node process in a report: rates and shares.

Shares of workers' time are of all workers' wall-clock time: of two workers, one of which is always
busy, ``busy_share`` is 0.5. Counts that went backwards, because a process was replaced in between,
count from zero. The attributes of all classes but HostInterval are fields of the JSON report.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Final, TypeVar

from feeder.metrics.fields import grown, growth, merged
from feeder.metrics.records import (
    OTHER_JOBS,
    OTHERS,
    REFRESH,
    CacheRecord,
    ClientRecord,
    JobRecord,
    NodeRecord,
    SlotSeconds,
    StoreRecord,
    WorkerRecord,
)
from feeder.metrics.report import HostLoad, HostReport

SHORTEST_S: Final = 1e-3
"""Over less time nothing has a rate, so that rates are finite."""

QUIET_S: Final = 3.0
"""A fetcher, which sends two records a second, has no rates if it has sent none for so long."""

EXPIRES_SOON_S: Final = 300.0
"""Credentials are refreshed earlier than this before they expire, unless they live for minutes
only (``feeder.store.credentials``)."""

_Rate = Callable[[float], float]
_Record = TypeVar("_Record", ClientRecord, JobRecord)
_Part = TypeVar("_Part", "ClientInterval", "JobInterval")


class WorkerInterval:
    """A worker that was there at both ends. Shares are of the time, 0 to 1."""

    def __init__(self, before: WorkerRecord, now: WorkerRecord, rate: _Rate) -> None:
        done = growth(before, now)
        self.number = now.number
        self.pid = now.pid
        self.state = now.state
        self.silent_s = now.silent_s
        self.kernel_state = now.kernel_state
        self.cpu = now.cpu
        self.images_a_s = rate(done.images)
        self.busy_share = min(1.0, rate(done.busy_s))
        self.cpu_share = min(self.busy_share, rate(done.cpu_s))
        self.run_delay_share = min(self.busy_share - self.cpu_share, rate(done.run_delay_s))
        # In a chunk, but neither on a CPU nor waiting for one: it waits for storage.
        self.blocked_share = max(0.0, self.busy_share - self.cpu_share - self.run_delay_share)
        self.storage_bytes_a_s = rate(done.read_bytes)
        self.requested_bytes_a_s = rate(done.requested_bytes)


class ClientInterval:
    """A client of one node process, or all others together."""

    def __init__(self, done: ClientRecord, node: int, worker_s: float, rate: _Rate) -> None:
        """``worker_s`` is the workers' time for all clients of the node process."""
        has_reported = done.clock_s >= SHORTEST_S
        self.name = done.name
        self.account = done.account
        self.dataset = done.dataset
        self.job = done.job
        self.clients = done.clients  # 1, or how many others these are
        self.node = node
        self.is_lent = done.is_lent
        self.is_local = done.is_local
        self.window = done.window
        self.lanes = done.lanes
        self.working_set_bytes = done.working_set_bytes
        self.wanted = done.wanted
        self.images_a_s = rate(done.images)
        self.bytes_a_s = rate(done.sent_bytes)
        self.worker_share = done.worker_s / worker_s if worker_s else 0.0
        # For this node process; the mean of others; None where none has reported.
        self.wait_share = min(1.0, done.waited_s / done.clock_s) if has_reported else None
        self.cpus = done.clients * done.cpu_s / done.clock_s if has_reported else 0.0
        self.slots = _mean_slots(done.slots, rate)


class JobInterval:
    """A job, that is an account and the name that its sessions gave; or all others together."""

    def __init__(self, done: JobRecord, batches: int, rate: _Rate) -> None:
        self.name = done.name
        self.account = done.account
        self.weight = done.weight
        self.sessions = done.sessions
        self.images_a_s = rate(done.images)
        self.batches_a_s = rate(done.batches)
        self.batches = batches  # since the start of its node processes
        self.workers = rate(done.worker_s)  # mean number that filled its chunks
        self.worker_share = 0.0  # the same as a share of all jobs': known over all node processes


class MachineInterval:
    """The machine. Pressures are shares of the time, 0 to 1."""

    def __init__(self, before: HostLoad, now: HostLoad) -> None:
        done, rate = growth(before, now), _rate(now.clock_s - before.clock_s)
        self.usable_cpus = now.usable_cpus
        self.cpus = now.cpus
        self.busy_cpus = min(float(now.cpus), rate(done.busy_s))
        # The mean number on which the cgroup's quota kept its threads from running.
        self.throttled_cpus = rate(done.throttled_s)
        self.pressure_cpu = min(1.0, rate(done.pressure_cpu_s))
        self.pressure_io = min(1.0, rate(done.pressure_io_s))
        self.pressure_memory = min(1.0, rate(done.pressure_memory_s))
        self.refaults_a_s = rate(done.refaults)


class NodeInterval:
    """A node process that reported at both ends."""

    def __init__(self, before: NodeRecord, now: NodeRecord) -> None:
        if before.pid != now.pid:  # a successor: since its start, as no rate spans two processes
            before = NodeRecord(pid=now.pid, clock_s=max(0.0, now.clock_s - now.uptime_s))
        done = growth(before, now)
        seconds = max(0.0, now.clock_s - before.clock_s)  # 0: it has sent no other record since
        rate = _rate(seconds)
        busy_s = max(0.0, _busy_s(now) - _busy_s(before))
        earlier = {worker.number: worker for worker in before.workers}
        lasting = [worker for worker in now.workers if worker.number in earlier]
        workers = tuple(WorkerInterval(earlier[w.number], w, rate) for w in lasting)
        busy_shares = sum(worker.busy_share for worker in workers)
        looked_up = done.cache.hits + done.cache.misses
        clients = _growths(before.clients, now.clients)
        client_s = sum(client.worker_s for client in clients)
        jobs = zip(_growths(before.jobs, now.jobs), now.jobs, strict=True)
        self.number = now.number
        self.seconds = seconds
        self.images_a_s = rate(done.images)
        self.sent_bytes_a_s = rate(done.sent_bytes)
        self.lent_bytes_a_s = rate(done.lent_bytes)
        self.workers = workers
        self.worker_count = len(now.workers)
        self.busy_workers = min(rate(busy_s), float(len(now.workers)))
        # Shares of the workers' time in chunks, as stages are: these three add up to 1.
        self.cpu_share, self.run_delay_share, self.blocked_share = (
            sum(getattr(worker, name) for worker in workers) / busy_shares if busy_shares else 0.0
            for name in ("cpu_share", "run_delay_share", "blocked_share")
        )
        self.stages = {
            stage: min(1.0, stage_s / busy_s) if busy_s else 0.0
            for stage, stage_s in done.stages.items()
        }
        self.storage_bytes_a_s = sum(worker.storage_bytes_a_s for worker in workers)
        self.requested_bytes_a_s = sum(worker.requested_bytes_a_s for worker in workers)
        # Memory traffic of the sample path as a share of the probed bandwidth, estimated. Blobs are
        # read; so are pixels of the decoded cache. A batch is written, which reads its cache lines
        # first; then its client reads it in place, or the socket reads it and writes a copy. Pixels
        # between decoding and resizing stay in the core's own cache.
        read_bytes_a_s = self.requested_bytes_a_s + rate(done.cache.moved_bytes)
        traffic = read_bytes_a_s + 4 * self.sent_bytes_a_s + 3 * self.lent_bytes_a_s
        self.memory_share = traffic / now.memory_bytes_a_s if now.memory_bytes_a_s >= 1 else 0.0
        self.clients = tuple(ClientInterval(c, now.number, client_s, rate) for c in clients)
        self.jobs = [JobInterval(job, total.batches, rate) for job, total in jobs]
        self.slots = _mean_slots(done.slots, rate)
        self.cache_hit_share = done.cache.hits / looked_up if looked_up else None
        # Of datasets in stores: batches whose samples came to be on disk, and those of them that
        # found them there at once.
        first, last = before.fetch_s, now.fetch_s
        self.fetched_batches = grown(sum(first.counts), sum(last.counts))
        self.warm_batches = grown(sum(first.counts[:1]), sum(last.counts[:1]))
        # The mean number that waited for samples: by the waits that have ended, some of which began
        # before the interval, or by those that have not.
        still = float(min(before.fetching_batches, now.fetching_batches))
        waiting = max(still, rate(grown(first.total_s, last.total_s)))
        self.fetching_batches = min(waiting, float(sum(client.window for client in clients)))
        self.own_cpus = rate(done.own_cpu_s)  # with the threads of its sockets
        self.loop_cpus = rate(done.loop_cpu_s)  # its event loop: one thread
        self.silences = done.silences
        self.workers_killed = done.workers_killed
        self.worker_restarts = done.worker_restarts

    @property
    def busy_share(self) -> float:
        """A share of its workers' time."""
        return self.busy_workers / max(1, self.worker_count)


class StoreInterval:
    """The fetcher, the disk cache, and the batches that need samples from it."""

    def __init__(
        self, before: StoreRecord, now: StoreRecord, nodes: Sequence[NodeInterval], clock_s: float
    ) -> None:
        """``clock_s`` is the time of the report."""
        self.quiet_s = max(0.0, clock_s - now.clock_s)  # since its last record
        if self.quiet_s > QUIET_S:
            before = now
        done, rate = growth(before, now), _rate(now.clock_s - before.clock_s)
        self.bytes_a_s = rate(done.fetched_bytes)
        self.requests_a_s = rate(done.requests)
        self.retries = {name: n for name, n in done.retries.items() if n and name != REFRESH}
        self.transfers = now.transfers
        self.used_bytes = now.used_bytes
        self.budget_bytes = now.budget_bytes
        self.full_bytes = now.full_bytes
        self.evicted_bytes_a_s = rate(done.evicted_bytes)
        self.cpus = rate(done.cpu_s)
        self.expires_in_s = now.expires_in_s if now.expires_in_s >= 0 else None
        self.is_refresh_failing = (
            0 <= now.expires_in_s < EXPIRES_SOON_S and now.retries.get(REFRESH, 0) > 0
        )
        # Mean number of batches that waited for samples, and the share that found theirs on disk.
        self.waiting_batches = sum(node.fetching_batches for node in nodes)
        fetched = sum(node.fetched_batches for node in nodes)
        warm = sum(node.warm_batches for node in nodes)
        self.warm_share = min(1.0, warm / fetched) if fetched else None

    @property
    def repeats(self) -> str:
        """Requests that were repeated, by reason, the most frequent first: throttled 9, reset 1."""
        rows = sorted(self.retries.items(), key=lambda row: -row[1])
        return ", ".join(f"{reason} {number:,}" for reason, number in rows)


class ClientRow:
    """A client over all node processes that feed it."""

    def __init__(self, group: list[ClientInterval]) -> None:
        images = sum(client.images_a_s for client in group)
        lent = sum(client.images_a_s for client in group if client.is_lent)
        waits = [client.wait_share for client in group if client.wait_share is not None]
        self.name = group[0].name
        self.dataset = group[0].dataset
        self.job = group[0].job
        self.nodes = len(group)
        self.images_a_s = images
        self.lent_share = lent / images if images else float(all(c.is_lent for c in group))
        self.bytes_a_s = sum(client.bytes_a_s for client in group)
        self.wait_share = min(1.0, sum(waits)) if waits else None
        self.cpus = max(client.cpus for client in group)  # of one process, as each node reports it
        self.window = sum(client.window for client in group)
        self.lanes = group[0].lanes
        self.working_set_bytes = group[0].working_set_bytes
        self.wanted = sum(client.wanted for client in group)


class HostInterval:
    """All node processes and the machine."""

    def __init__(self, report: HostReport) -> None:
        self.report = report
        self.records = [node.now for node in report.nodes if node.now is not None]
        self.nodes = tuple(
            NodeInterval(node.before, node.now)
            for node in report.nodes
            if node.now is not None and node.before is not None
        )
        self.machine = MachineInterval(report.load_before, report.load)
        self.seconds = max((node.seconds for node in self.nodes), default=0.0)  # 0: one snapshot
        self.images_a_s = sum(node.images_a_s for node in self.nodes)
        self.sent_bytes_a_s = sum(node.sent_bytes_a_s for node in self.nodes)
        self.lent_bytes_a_s = sum(node.lent_bytes_a_s for node in self.nodes)
        self.storage_bytes_a_s = sum(node.storage_bytes_a_s for node in self.nodes)
        self.requested_bytes_a_s = sum(node.requested_bytes_a_s for node in self.nodes)
        # Of the bytes read: those that storage did not have to deliver.
        hits = 1.0 - self.storage_bytes_a_s / (self.requested_bytes_a_s or 1.0)
        self.page_cache_share = max(0.0, hits) if self.requested_bytes_a_s > 0 else None
        self.workers = sum(node.worker_count for node in self.nodes)
        self.busy_workers = sum(node.busy_workers for node in self.nodes)
        self.busy_share = min(1.0, self.busy_workers / self.workers) if self.workers else 0.0
        # With their node process, silent ones first.
        workers = [(node, worker) for node in self.nodes for worker in node.workers]
        self.workers_by_silence = sorted(workers, key=lambda pair: pair[1].state != "silent")
        self.slots = merged([SlotSeconds(), *(node.slots for node in self.nodes)])  # mean numbers
        self.cache = merged([CacheRecord(), *(node.cache for node in self.records)])
        self.store: StoreInterval | None = None  # None where no dataset is in a store
        if (record := report.store) is not None:
            first = report.store_before or record
            self.store = StoreInterval(first, record, self.nodes, report.clock_s)
        # A client of two node processes is there twice.
        self.node_clients = tuple(client for node in self.nodes for client in node.clients)
        self.by_client = _grouped(self.node_clients, "account", "name")
        groups = self.by_client.values()
        self.client_count = sum(max(client.clients for client in group) for group in groups)
        # The CPUs that the daemon and its clients on this host use, a client of several node
        # processes once; those of processes that are neither; and the part of what the daemon
        # wanted that its cgroup's quota withheld.
        self.feeder_cpus = (
            sum(node.busy_workers * node.cpu_share for node in self.nodes)
            + sum(node.own_cpus for node in self.nodes)
            + (self.store.cpus if self.store else 0.0)
            + sum(max(client.cpus * client.is_local for client in group) for group in groups)
        )
        self.neighbour_cpus = max(0.0, self.machine.busy_cpus - self.feeder_cpus)
        throttled = self.machine.throttled_cpus
        self.throttled_share = throttled / (throttled + self.feeder_cpus) if throttled else 0.0

    @cached_property
    def wait_share(self) -> float | None:
        """Share of the clients' time spent waiting for this host; None where none has reported.

        A client's waits for several node processes add up; clients count equally.
        """
        numbers = {
            key: max((c.clients for c in group if c.wait_share is not None), default=0)
            for key, group in self.by_client.items()
        }
        reported = sum(numbers.values())
        waited = sum((c.wait_share or 0.0) * numbers[c.account, c.name] for c in self.node_clients)
        return min(1.0, waited / reported) if reported else None

    @property
    def stages(self) -> Mapping[str, float]:
        """Share of all workers' time in chunks in each stage, largest first."""
        totals: defaultdict[str, float] = defaultdict(float)
        for node in self.nodes if self.busy_workers else ():
            for stage, share in node.stages.items():
                totals[stage] += share * node.busy_workers
        rows = [(stage, total / self.busy_workers) for stage, total in totals.items()]
        return dict(sorted(rows, key=lambda row: -row[1]))

    @property
    def cache_hit_share(self) -> float | None:
        """Share of the decoded cache's look-ups; None without any. By images of node processes."""
        nodes = [node for node in self.nodes if node.cache_hit_share is not None]
        images = sum(node.images_a_s for node in nodes)
        hits = sum(node.images_a_s * (node.cache_hit_share or 0.0) for node in nodes)
        return hits / images if images else None

    @cached_property
    def clients(self) -> tuple[ClientRow, ...]:
        """All clients, those with the most images first, the summed-up ones last."""
        rows = map(ClientRow, _grouped(self.node_clients, "account", "name", "dataset").values())
        return tuple(sorted(rows, key=lambda row: (row.name == OTHERS, -row.images_a_s, row.name)))

    @property
    def jobs(self) -> tuple[JobInterval, ...]:
        """Jobs over all node processes, those that use most workers first."""
        parts = [job for node in self.nodes for job in node.jobs]
        groups = _grouped(parts, "account", "name")
        workers = sum(job.workers for group in groups.values() for job in group)
        jobs = []
        for (account, name), group in groups.items():
            record = JobRecord(name=name, account=account, weight=group[0].weight)
            job = JobInterval(record, 0, float)
            for field in ("sessions", "images_a_s", "batches_a_s", "batches", "workers"):
                setattr(job, field, sum(getattr(part, field) for part in group))
            job.worker_share = job.workers / workers if workers else 0.0
            jobs.append(job)
        return tuple(sorted(jobs, key=lambda job: (job.name == OTHER_JOBS, -job.workers, job.name)))

    def mean_of_busy(self, field: str) -> float:
        """A share of NodeInterval, as a mean over the node processes' busy workers."""
        total = sum(float(getattr(node, field)) * node.busy_workers for node in self.nodes)
        return total / self.busy_workers if self.busy_workers else 0.0


def _rate(seconds: float) -> _Rate:
    """A function of what a total has grown: its growth a second; 0 over no time."""
    is_long_enough = seconds >= SHORTEST_S
    return lambda total: total / seconds if is_long_enough else 0.0


def _growths(before: Iterable[_Record], now: Iterable[_Record]) -> list[_Record]:
    """What each part of ``now`` has done. One that was not there before has begun at zero."""
    earlier = {_key(part): part for part in before}
    parts = []
    for part in now:
        start = earlier.get(_key(part))
        is_rest = part.name in (OTHERS, OTHER_JOBS)
        if is_rest and (start is None or start.images > part.images):
            start = part  # what they had done before is not known: they were not there, or fewer
        parts.append(part if start is None else growth(start, part))
    return parts


def _grouped(parts: Iterable[_Part], *names: str) -> dict[tuple[str, ...], list[_Part]]:
    """Clients or jobs of all node processes, those that are the same by some fields together."""
    key = attrgetter(*names)
    groups: defaultdict[tuple[str, ...], list[_Part]] = defaultdict(list)
    for part in parts:
        groups[key(part)].append(part)
    return groups


def _key(part: ClientRecord | JobRecord) -> tuple[str, str, str]:
    return part.account, part.name, getattr(part, "dataset", "")


def _busy_s(node: NodeRecord) -> float:
    return node.lost_worker_busy_s + sum(worker.busy_s for worker in node.workers)


def _mean_slots(slots: SlotSeconds, rate: _Rate) -> SlotSeconds:
    return SlotSeconds(**{name: rate(getattr(slots, name)) for name in slots.__struct_fields__})
