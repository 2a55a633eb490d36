"""Takes snapshots of a node process, in bounded time and size.

With 64 workers and 512 sessions one takes under 5 ms; it is taken twice a second, in the event
loop.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from feeder.host.process_load import ProcessLoad, read_process_load
from feeder.host.topology import format_cpulist
from feeder.metrics.counters import WorkerCounters
from feeder.metrics.snapshot import (
    OTHER_JOBS,
    WORKERS_MAX,
    CacheSnapshot,
    FailureSnapshot,
    JobSnapshot,
    NodeSnapshot,
    WorkerSnapshot,
)
from feeder.node.client_book import LABEL_CHARS, ClientBook, sum_clients
from feeder.node.service import NodeService
from feeder.node.worker_pool import WorkerPool
from feeder.process.path_text import printable
from feeder.sample.cache_file import DecodedCache
from feeder.session.jobs import OTHERS_KEY
from feeder.session.table import SessionTable
from feeder.session.tally import WorkerTally, add_slot_seconds

SNAPSHOT_BYTES_MAX: Final = 100 * 1024
"""Of its MessagePack; a packet of the channel has 128 KB."""

_TEXT_CHARS: Final = 512
_CPUS_CHARS: Final = 256
_DATASETS: Final = 64

_LONG_CHUNK_S: Final = 1.0
"""A chunk in flight counts as busy time from then on, so that a worker with long ones is busy
before it finishes them. Its own figure, which then replaces this one, is larger: no total falls."""

_LOADS_A_SNAPSHOT: Final = 64
"""Workers whose files in /proc are read each time; with more of them, in turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What is known of a node process from its start on."""

    number: int
    name: str
    memory_bytes_a_s: float
    """Copy bandwidth; 0 if not measured."""
    decoded_bytes: float
    """What all images of the served datasets would take, decoded."""


class Snapshots:
    """Takes the snapshots of a node process."""

    def __init__(self, facts: NodeFacts, pool: WorkerPool, cache: DecodedCache | None) -> None:
        self._facts = facts
        self._pool = pool
        self._cache = cache
        self._clients = ClientBook()
        self._started_s = time.monotonic()
        self._cpus = format_cpulist(os.sched_getaffinity(0))[:_CPUS_CHARS]
        self._loads: dict[int, ProcessLoad] = {}  # by worker, as last read
        self._read_chunks: dict[int, int] = {}  # by worker: its chunks when that was read

    def take(
        self,
        now_s: float,
        endpoints: Iterable[str],
        service: NodeService | None,
    ) -> NodeSnapshot:
        """Return the process's present state; without ``service`` it takes no clients yet."""
        facts, counters = self._facts, self._pool.counters
        snapshot = NodeSnapshot(
            number=facts.number,
            name=printable(facts.name)[:_TEXT_CHARS],
            pid=os.getpid(),
            clock_s=now_s,
            uptime_s=max(0.0, now_s - self._started_s),
            endpoints=tuple(printable(each)[:_TEXT_CHARS] for each in endpoints),
            cpus=self._cpus,
            stages=dict(counters.stage_seconds),
            memory_bytes_a_s=facts.memory_bytes_a_s,
            cache=self._cache_snapshot(counters),
            workers_killed=counters.workers_killed,
            worker_restarts=counters.worker_restarts,
            own_cpu_s=time.process_time(),
            loop_cpu_s=time.thread_time(),
            workers=self._workers({}, {}, frozenset()) if service is None else (),
        )
        return snapshot if service is None else fit_snapshot(self._serving(snapshot, service))

    def _serving(self, snapshot: NodeSnapshot, service: NodeService) -> NodeSnapshot:
        """Add what the service knows."""
        now_s, table, tally = snapshot.clock_s, service.table, service.table.tally
        watch = table.watch
        sessions = table.sessions.open.values()
        slots = tally.ended_slots
        for session in sessions:
            slots = add_slot_seconds(slots, session.tally.slots.seconds(now_s))
        return msgspec.structs.replace(
            snapshot,
            workers=self._workers(tally.workers, watch.chunk_times(now_s), watch.silent_workers),
            lost_worker_busy_s=tally.lost_worker_busy_s,
            clients=self._clients.update(sessions, now_s, service.caught_up_s),
            jobs=describe_jobs(table),
            images=table.counters.images,
            batches=table.counters.batches,
            sent_bytes=service.sent_bytes,
            lent_bytes=tally.lent_bytes,
            decoded_bytes=service.decoded_bytes,
            slots=slots,
            queued_batches=table.queued_batches,
            chunks_in_flight=table.chunks_in_flight,
            stalled_datasets=_stalled(table),
            failures=describe_failures(table, service.refused_datasets, now_s),
            silences=table.counters.worker_silences,
            chunk_s=tally.chunk_s.snapshot(),
            batch_s=tally.batch_s.snapshot(),
            counters=_printable_counters(service.counters()),
        )

    def _workers(
        self,
        tallies: Mapping[int, WorkerTally],
        chunk_times: Mapping[int, float],
        silent: frozenset[int],
    ) -> tuple[WorkerSnapshot, ...]:
        pids, up = self._pool.pids_by_number, frozenset(self._pool.numbers)
        self._read_loads(pids, tallies)
        workers = []
        for number, pid in list(pids.items())[:WORKERS_MAX]:
            tally = tallies.get(number) or WorkerTally()
            load, chunk_s = self._loads.get(number) or ProcessLoad(), chunk_times.get(number, 0.0)
            workers.append(
                WorkerSnapshot(
                    number=number,
                    pid=pid,
                    state=(
                        "starting"
                        if number not in up
                        else "silent"
                        if number in silent
                        else "busy"
                        if tally.in_flight
                        else "idle"
                    ),
                    silent_s=chunk_s if number in silent else 0.0,
                    kernel_state=load.state if number in silent else None,
                    cpu=load.cpu,
                    chunks=tally.chunks,
                    images=tally.images,
                    busy_s=tally.busy_s + max(0.0, chunk_s - _LONG_CHUNK_S),
                    cpu_s=load.cpu_s or max(0.0, tally.cpu_s),
                    run_delay_s=load.run_delay_s,
                    read_bytes=load.read_bytes,
                    requested_bytes=load.requested_bytes,
                )
            )
        return tuple(workers)

    def _read_loads(self, pids: Mapping[int, int], tallies: Mapping[int, WorkerTally]) -> None:
        """Read the loads of the workers that have worked since they were last read, in turn."""
        for gone in self._loads.keys() - pids.keys():
            del self._loads[gone], self._read_chunks[gone]
        due = [
            number
            for number, tally in tallies.items()
            if number in pids
            and (tally.in_flight or tally.chunks != self._read_chunks.get(number, 0))
        ]
        # Dicts keep their order, and what is read moves to the end: the oldest ones come first.
        order = {number: place for place, number in enumerate(self._loads)}
        due.sort(key=lambda number: order.get(number, -1))
        for number in due[:_LOADS_A_SNAPSHOT]:
            self._loads.pop(number, None)
            self._loads[number] = read_process_load(pids[number])
            self._read_chunks[number] = tallies[number].chunks

    def _cache_snapshot(self, counters: WorkerCounters) -> CacheSnapshot:
        cache = self._cache
        if cache is None:
            return CacheSnapshot()
        counts = counters.cache
        return CacheSnapshot(
            budget_bytes=cache.plan.total_bytes,
            used_bytes=cache.used_bytes,
            full_bytes=int(self._facts.decoded_bytes),
            hits=counts.get("hits", 0),
            misses=counts.get("misses", 0),
            fills=counts.get("fills", 0),
            moved_bytes=counts.get("moved_bytes", 0),
        )


def fit_snapshot(snapshot: NodeSnapshot, bytes_max: int = SNAPSHOT_BYTES_MAX) -> NodeSnapshot:
    """Return the snapshot, with fewer clients, then without the flat counters, then with fewer
    workers, where it would not fit into a packet."""
    encoder = msgspec.msgpack.Encoder()
    while len(encoder.encode(snapshot)) > bytes_max:
        clients, workers = snapshot.clients, snapshot.workers
        if len(clients) > 1:
            half = len(clients) // 2
            others = sum_clients(clients[half:])
            kept = (*clients[:half], others) if half > 1 else (sum_clients(clients),)
            snapshot = msgspec.structs.replace(snapshot, clients=kept)
        elif snapshot.counters:
            snapshot = msgspec.structs.replace(snapshot, counters={})
        elif workers:
            snapshot = msgspec.structs.replace(snapshot, workers=workers[: len(workers) // 2])
        else:
            break
    return snapshot


def describe_jobs(table: SessionTable) -> tuple[JobSnapshot, ...]:
    """Return the jobs that have had sessions, as many as a snapshot takes one by one."""
    return tuple(
        JobSnapshot(
            name=printable(key[1])[:LABEL_CHARS] if key != OTHERS_KEY else OTHER_JOBS,
            account=printable(key[0])[:LABEL_CHARS],
            weight=table.weights.of(key),
            sessions=tally.sessions,
            images=tally.images,
            batches=tally.batches,
            worker_s=tally.worker_s,
        )
        for key, tally in table.tally.jobs
    )


def describe_failures(
    table: SessionTable, refused: Mapping[str, str], now_s: float
) -> tuple[FailureSnapshot, ...]:
    """Return the failures of each dataset that has had some, the latest first, after those of the
    datasets that cannot be served."""
    of_refused = [
        FailureSnapshot(
            dataset=printable(name)[:LABEL_CHARS],
            batches=0,
            reason="dataset",
            message=printable(reason)[:_TEXT_CHARS],
            ago_s=0.0,
            is_last=True,
        )
        for name, reason in refused.items()
    ]
    latest = sorted(table.failures.by_dataset.items(), key=lambda item: -item[1].at_s)
    of_served = [
        FailureSnapshot(
            dataset=printable(name)[:LABEL_CHARS],
            batches=failures.batches,
            reason=failures.reason,
            message=printable(failures.message)[:_TEXT_CHARS],
            ago_s=max(0.0, now_s - failures.at_s),
            is_last=failures.is_last,
        )
        for name, failures in latest
    ]
    return (*of_refused, *of_served)[:_DATASETS]


def _stalled(table: SessionTable) -> tuple[str, ...]:
    names = sorted(table.watch.stalled_names)[:_DATASETS]
    return tuple(printable(name)[:LABEL_CHARS] for name in names)


def _printable_counters(counters: Mapping[str, float | str]) -> dict[str, int | float | str]:
    return {printable(name)[:256]: value for name, value in counters.items()}
