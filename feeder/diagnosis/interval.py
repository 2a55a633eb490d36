"""What a host did between the two snapshots of each node process in a report: rates and shares.

Shares of workers' time are of all workers' wall-clock time: of two workers, one of which is always
busy, ``busy_share`` is 0.5. Counts that went backwards, because a process was replaced in between,
count from zero.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Self

from feeder.metrics.report import HostLoad, HostReport
from feeder.metrics.snapshot import ClientSnapshot, NodeSnapshot, SlotSeconds, WorkerSnapshot

_SHORTEST_S: Final = 1e-3
"""Over less time nothing has a rate, so that rates are finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInterval:
    """A worker that was there at both ends."""

    number: int
    pid: int
    state: str
    silent_s: float
    kernel_state: str
    cpu: int
    images_a_s: float
    busy_share: float
    """Of the time, 0 to 1; so are the next three."""
    cpu_share: float
    run_delay_share: float
    blocked_share: float
    """In a chunk, but neither on a CPU nor waiting for one: it waits for storage."""
    storage_bytes_a_s: float
    requested_bytes_a_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientInterval:
    """A client of one node process."""

    name: str
    account: str
    dataset: str
    node: int
    is_lent: bool
    is_local: bool
    window: int
    wanted: int
    images_a_s: float
    bytes_a_s: float
    """Copied over the socket."""
    worker_share: float
    """Its part of the workers' time that was spent on all clients of the node process, 0 to 1."""
    wait_share: float | None
    """Share of the client's time in which its training loop waited for this node process; None
    where it has not reported."""
    cpus: float
    """CPUs that its process used, on average."""
    slots: SlotSeconds
    """Mean number of its slots in each state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInterval:
    """The machine. Shares are of the time, 0 to 1."""

    usable_cpus: float
    cpus: int
    busy_cpus: float
    """Mean number of busy ones, of ``cpus``, whoever used them."""
    io_wait_cpus: float
    throttled_share: float
    pressure_cpu: float
    pressure_io: float
    pressure_memory: float
    refaults_a_s: float

    @property
    def idle_cpus(self) -> float:
        """Mean number of CPUs that nobody used."""
        return max(0.0, self.cpus - self.busy_cpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInterval:
    """A node process that reported at both ends."""

    number: int
    seconds: float
    images_a_s: float
    batches_a_s: float
    sent_bytes_a_s: float
    lent_bytes_a_s: float
    workers: tuple[WorkerInterval, ...]
    worker_count: int
    busy_workers: float
    """Mean number of workers in a chunk."""
    cpu_share: float
    """Of the workers' time in chunks: on a CPU. With the next two it adds up to 1."""
    run_delay_share: float
    blocked_share: float
    stages: Mapping[str, float]
    """Share of the workers' time in chunks in each stage of the sample path."""
    storage_bytes_a_s: float
    requested_bytes_a_s: float
    memory_share: float
    """Memory traffic of the sample path as a share of the probed bandwidth, estimated: each decoded
    byte is written and read, each packed and each sent one is read and written."""
    clients: tuple[ClientInterval, ...]
    slots: SlotSeconds
    """Mean number of slots in each state."""
    cache_hit_share: float | None
    """None where nothing was looked up."""
    own_cpus: float
    """CPUs that the node process itself used."""
    silences: int
    workers_killed: int
    worker_restarts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostInterval:
    """All node processes and the machine."""

    seconds: float
    """Of the node process that reported over the longest time; 0 before there are two snapshots."""
    nodes: tuple[NodeInterval, ...]
    machine: MachineInterval

    @classmethod
    def of(cls, report: HostReport) -> Self:
        """Return the interval between the snapshots of a report."""
        nodes = tuple(
            node_interval(each.before, each.now)
            for each in report.nodes
            if each.now is not None and each.before is not None
        )
        return cls(
            seconds=max((node.seconds for node in nodes), default=0.0),
            nodes=nodes,
            machine=machine_interval(report.load_before, report.load),
        )

    @property
    def images_a_s(self) -> float:
        """Real images delivered a second."""
        return sum(node.images_a_s for node in self.nodes)

    @property
    def workers(self) -> int:
        """Workers of all node processes."""
        return sum(node.worker_count for node in self.nodes)

    @property
    def busy_workers(self) -> float:
        """Mean number of workers in a chunk."""
        return sum(node.busy_workers for node in self.nodes)

    @property
    def busy_share(self) -> float:
        """Share of the workers' time in chunks, 0 to 1."""
        return min(1.0, self.busy_workers / self.workers) if self.workers else 0.0

    @property
    def clients(self) -> tuple[ClientInterval, ...]:
        """Clients of all node processes; a client of two appears twice."""
        return tuple(client for node in self.nodes for client in node.clients)

    @property
    def wait_share(self) -> float | None:
        """Share of the clients' time spent waiting for this host; None where none has reported.

        A client's waits for several node processes add up; clients count equally.
        """
        by_client: dict[tuple[str, str], float] = {}
        for client in self.clients:
            if client.wait_share is not None:
                key = client.account, client.name
                by_client[key] = by_client.get(key, 0.0) + client.wait_share
        if not by_client:
            return None
        return min(1.0, sum(by_client.values()) / len(by_client))

    @property
    def stages(self) -> Mapping[str, float]:
        """Share of all workers' time in chunks in each stage, largest first."""
        totals: dict[str, float] = {}
        for node in self.nodes:
            for stage, share in node.stages.items():
                totals[stage] = totals.get(stage, 0.0) + share * node.busy_workers
        busy = self.busy_workers
        shares = {stage: total / busy for stage, total in totals.items()} if busy else {}
        return dict(sorted(shares.items(), key=lambda item: -item[1]))

    def mean_of_busy(self, field: str) -> float:
        """Return a share of NodeInterval, as a mean over the node processes' busy workers."""
        busy = self.busy_workers
        if not busy:
            return 0.0
        total = sum(float(getattr(node, field)) * node.busy_workers for node in self.nodes)
        return total / busy


def node_interval(before: NodeSnapshot, now: NodeSnapshot) -> NodeInterval:
    """Return what one process did between two of its snapshots."""
    seconds = now.clock_s - before.clock_s
    if before.pid != now.pid or seconds <= 0:  # another process: since its start
        before, seconds = _at_start(now), now.uptime_s
    rate = _rates(seconds)
    busy_s = max(0.0, _busy_s(now) - _busy_s(before))
    earlier = {worker.number: worker for worker in before.workers}
    workers = tuple(
        worker_interval(earlier[worker.number], worker, seconds)
        for worker in now.workers
        if worker.number in earlier
    )
    busy_shares = sum(worker.busy_share for worker in workers)
    shares = [
        sum(getattr(worker, f"{name}_share") for worker in workers) / busy_shares
        if busy_shares
        else 0.0
        for name in ("cpu", "run_delay", "blocked")
    ]
    storage = sum(worker.storage_bytes_a_s for worker in workers)
    requested = sum(worker.requested_bytes_a_s for worker in workers)
    decoded = rate(before.decoded_bytes, now.decoded_bytes)
    sent = rate(before.sent_bytes, now.sent_bytes)
    lent = rate(before.lent_bytes, now.lent_bytes)
    traffic = 2 * (decoded + requested) + 2 * sent + lent
    looked_up = _grown(before.cache.hits, now.cache.hits) + _grown(
        before.cache.misses, now.cache.misses
    )
    return NodeInterval(
        number=now.number,
        seconds=seconds,
        images_a_s=rate(before.images, now.images),
        batches_a_s=rate(before.batches, now.batches),
        sent_bytes_a_s=sent,
        lent_bytes_a_s=lent,
        workers=workers,
        worker_count=len(now.workers),
        busy_workers=min(rate(0.0, busy_s), float(len(now.workers))),
        cpu_share=shares[0],
        run_delay_share=shares[1],
        blocked_share=shares[2],
        stages={
            stage: min(1.0, _grown(before.stages.get(stage, 0.0), total) / busy_s)
            if busy_s
            else 0.0
            for stage, total in now.stages.items()
        },
        storage_bytes_a_s=storage,
        requested_bytes_a_s=requested,
        memory_share=traffic / now.memory_bytes_a_s if now.memory_bytes_a_s >= 1 else 0.0,
        clients=_clients(before, now, seconds),
        slots=mean_slots(before.slots, now.slots, seconds),
        cache_hit_share=_grown(before.cache.hits, now.cache.hits) / looked_up
        if looked_up
        else None,
        own_cpus=rate(before.own_cpu_s, now.own_cpu_s),
        silences=round(_grown(before.silences, now.silences)),
        workers_killed=round(_grown(before.workers_killed, now.workers_killed)),
        worker_restarts=round(_grown(before.worker_restarts, now.worker_restarts)),
    )


def worker_interval(before: WorkerSnapshot, now: WorkerSnapshot, seconds: float) -> WorkerInterval:
    """Return what one worker did between two snapshots."""
    rate = _rates(seconds)
    busy = min(1.0, rate(before.busy_s, now.busy_s))
    cpu = min(busy, rate(before.cpu_s, now.cpu_s))
    run_delay = min(busy - cpu, rate(before.run_delay_s, now.run_delay_s))
    return WorkerInterval(
        number=now.number,
        pid=now.pid,
        state=now.state,
        silent_s=now.silent_s,
        kernel_state=now.kernel_state,
        cpu=now.cpu,
        images_a_s=rate(before.images, now.images),
        busy_share=busy,
        cpu_share=cpu,
        run_delay_share=run_delay,
        blocked_share=max(0.0, busy - cpu - run_delay),
        storage_bytes_a_s=rate(before.read_bytes, now.read_bytes),
        requested_bytes_a_s=rate(before.requested_bytes, now.requested_bytes),
    )


def client_interval(
    before: ClientSnapshot | None,
    now: ClientSnapshot,
    *,
    node: int,
    seconds: float,
    worker_s: float,
) -> ClientInterval:
    """Return what one client got; ``before`` is None for a new one.

    ``worker_s`` is the workers' time for all clients of the node process.
    """
    start = before or ClientSnapshot(
        name=now.name, account=now.account, dataset=now.dataset, is_lent=now.is_lent
    )
    rate = _rates(seconds)
    clock_s = _grown(start.clock_s, now.clock_s)
    return ClientInterval(
        name=now.name,
        account=now.account,
        dataset=now.dataset,
        node=node,
        is_lent=now.is_lent,
        is_local=now.is_local,
        window=now.window,
        wanted=now.wanted,
        images_a_s=rate(start.images, now.images),
        bytes_a_s=rate(start.sent_bytes, now.sent_bytes),
        worker_share=_grown(start.worker_s, now.worker_s) / worker_s if worker_s else 0.0,
        wait_share=min(1.0, _grown(start.waited_s, now.waited_s) / clock_s)
        if clock_s >= _SHORTEST_S
        else None,
        cpus=_grown(start.cpu_s, now.cpu_s) / clock_s if clock_s >= _SHORTEST_S else 0.0,
        slots=mean_slots(start.slots, now.slots, seconds),
    )


def mean_slots(before: SlotSeconds, now: SlotSeconds, seconds: float) -> SlotSeconds:
    """Return the mean number of slots in each state."""
    rate = _rates(seconds)
    return SlotSeconds(
        free=rate(before.free, now.free),
        filling=rate(before.filling, now.filling),
        sending=rate(before.sending, now.sending),
        client=rate(before.client, now.client),
    )


def machine_interval(before: HostLoad, now: HostLoad) -> MachineInterval:
    """Return the machine's load between two readings."""
    rate = _rates(now.clock_s - before.clock_s)
    return MachineInterval(
        usable_cpus=now.usable_cpus,
        cpus=now.cpus,
        busy_cpus=min(float(now.cpus), rate(before.busy_s, now.busy_s)),
        io_wait_cpus=rate(before.io_wait_s, now.io_wait_s),
        throttled_share=min(1.0, rate(before.throttled_s, now.throttled_s)),
        pressure_cpu=min(1.0, rate(before.pressure_cpu_s, now.pressure_cpu_s)),
        pressure_io=min(1.0, rate(before.pressure_io_s, now.pressure_io_s)),
        pressure_memory=min(1.0, rate(before.pressure_memory_s, now.pressure_memory_s)),
        refaults_a_s=rate(before.refaults, now.refaults),
    )


def _clients(before: NodeSnapshot, now: NodeSnapshot, seconds: float) -> tuple[ClientInterval, ...]:
    earlier = {_client_key(client): client for client in before.clients}
    pairs = [(earlier.get(_client_key(client)), client) for client in now.clients]
    worker_s = sum(
        _grown(start.worker_s if start else 0.0, client.worker_s) for start, client in pairs
    )
    return tuple(
        client_interval(start, client, node=now.number, seconds=seconds, worker_s=worker_s)
        for start, client in pairs
    )


def _client_key(client: ClientSnapshot) -> tuple[str, str, str]:
    return client.account, client.name, client.dataset


def _busy_s(snapshot: NodeSnapshot) -> float:
    return snapshot.lost_worker_busy_s + _sum(worker.busy_s for worker in snapshot.workers)


def _sum(values: Iterable[float]) -> float:
    return sum(values, 0.0)


def _grown(before: float, now: float) -> float:
    return now - before if now >= before else now


def _rates(seconds: float) -> Callable[[float, float], float]:
    """Return a function of two totals: their growth a second; 0 over no time."""
    is_long_enough = seconds >= _SHORTEST_S
    return lambda before, now: _grown(before, now) / seconds if is_long_enough else 0.0


def _at_start(now: NodeSnapshot) -> NodeSnapshot:
    """Return the snapshot at the start of the process that ``now`` describes."""
    return NodeSnapshot(
        number=now.number,
        name=now.name,
        pid=now.pid,
        clock_s=max(0.0, now.clock_s - now.uptime_s),
        uptime_s=0.0,
        endpoints=now.endpoints,
    )
