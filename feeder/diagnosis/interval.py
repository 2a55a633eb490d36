"""What a host did between the two snapshots of each node process in a report: rates and shares.

Shares of workers' time are of all workers' wall-clock time: of two workers, one of which is always
busy, ``busy_share`` is 0.5. Counts that went backwards, because a process was replaced in between,
count from zero.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from feeder.diagnosis.client_interval import ClientInterval, client_intervals, mean_slots
from feeder.diagnosis.job_interval import JobInterval, job_intervals, merge_jobs
from feeder.diagnosis.machine_interval import MachineInterval, machine_interval
from feeder.diagnosis.rates import growth, rates
from feeder.diagnosis.worker_interval import WorkerInterval, worker_interval
from feeder.metrics.records import NodeRecord, SlotSeconds
from feeder.metrics.report import HostReport


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInterval:
    """A node process that reported at both ends."""

    number: int
    seconds: float
    images_a_s: float
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
    """Memory traffic of the sample path as a share of the probed bandwidth, estimated.

    Blobs are read; so are pixels of the decoded cache. A batch is written, which reads its cache
    lines first; then its client reads it in place, or the socket reads it and writes a copy.
    Pixels between decoding and resizing stay in the core's own cache.
    """
    clients: tuple[ClientInterval, ...]
    jobs: tuple[JobInterval, ...]
    slots: SlotSeconds
    """Mean number of slots in each state."""
    cache_hit_share: float | None
    """None where nothing was looked up."""
    own_cpus: float
    """CPUs that the node process itself used, with the threads of its sockets."""
    loop_cpus: float
    """The part of its event loop, which is one thread."""
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
    def jobs(self) -> tuple[JobInterval, ...]:
        """Jobs over all node processes, those that use most workers first."""
        return merge_jobs(job for node in self.nodes for job in node.jobs)

    @property
    def client_count(self) -> int:
        """Clients, a client of several node processes once."""
        return sum(_clients_by_name(self.clients).values())

    @property
    def wait_share(self) -> float | None:
        """Share of the clients' time spent waiting for this host; None where none has reported.

        A client's waits for several node processes add up; clients count equally.
        """
        clients = [client for client in self.clients if client.wait_share is not None]
        if not clients:
            return None
        numbers = _clients_by_name(clients)
        total = sum(
            (client.wait_share or 0.0) * numbers[client.account, client.name] for client in clients
        )
        return min(1.0, total / sum(numbers.values()))

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


def node_interval(before: NodeRecord, now: NodeRecord) -> NodeInterval:
    """Return what one process did between two of its snapshots."""
    if before.pid != now.pid:  # a successor: since its start
        before = _at_start(now)
    seconds = max(0.0, now.clock_s - before.clock_s)  # 0 when it has sent no other snapshot since
    rate = rates(seconds)
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
    sent = rate(before.sent_bytes, now.sent_bytes)
    lent = rate(before.lent_bytes, now.lent_bytes)
    cached = rate(before.cache.moved_bytes, now.cache.moved_bytes)
    traffic = requested + cached + 4 * sent + 3 * lent
    looked_up = growth(before.cache.hits, now.cache.hits) + growth(
        before.cache.misses, now.cache.misses
    )
    return NodeInterval(
        number=now.number,
        seconds=seconds,
        images_a_s=rate(before.images, now.images),
        sent_bytes_a_s=sent,
        lent_bytes_a_s=lent,
        workers=workers,
        worker_count=len(now.workers),
        busy_workers=min(rate(0.0, busy_s), float(len(now.workers))),
        cpu_share=shares[0],
        run_delay_share=shares[1],
        blocked_share=shares[2],
        stages={
            stage: min(1.0, growth(before.stages.get(stage, 0.0), total) / busy_s)
            if busy_s
            else 0.0
            for stage, total in now.stages.items()
        },
        storage_bytes_a_s=storage,
        requested_bytes_a_s=requested,
        memory_share=traffic / now.memory_bytes_a_s if now.memory_bytes_a_s >= 1 else 0.0,
        clients=client_intervals(before, now, seconds),
        jobs=job_intervals(before, now, seconds),
        slots=mean_slots(before.slots, now.slots, seconds),
        cache_hit_share=growth(before.cache.hits, now.cache.hits) / looked_up
        if looked_up
        else None,
        own_cpus=rate(before.own_cpu_s, now.own_cpu_s),
        loop_cpus=rate(before.loop_cpu_s, now.loop_cpu_s),
        silences=round(growth(before.silences, now.silences)),
        workers_killed=round(growth(before.workers_killed, now.workers_killed)),
        worker_restarts=round(growth(before.worker_restarts, now.worker_restarts)),
    )


def _clients_by_name(clients: Iterable[ClientInterval]) -> Mapping[tuple[str, str], int]:
    """Return how many clients each account and name stands for: 1, or those of OTHERS."""
    numbers: dict[tuple[str, str], int] = {}
    for client in clients:
        key = client.account, client.name
        numbers[key] = max(client.clients, numbers.get(key, 0))
    return numbers


def _busy_s(snapshot: NodeRecord) -> float:
    return snapshot.lost_worker_busy_s + sum(worker.busy_s for worker in snapshot.workers)


def _at_start(now: NodeRecord) -> NodeRecord:
    """Return the snapshot at the start of the process that ``now`` describes."""
    return NodeRecord(
        number=now.number,
        name=now.name,
        pid=now.pid,
        clock_s=max(0.0, now.clock_s - now.uptime_s),
        uptime_s=0.0,
        endpoints=now.endpoints,
    )
