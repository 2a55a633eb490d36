"""Takes snapshots of a node process, in bounded time and size: its record, with what is so now.

With 64 workers and 512 sessions one takes 5 ms; it is taken twice a second, in the event
loop.
"""

import copy
import os
import time
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from feeder.host.processes import ProcessLoad, read_process_load
from feeder.host.topology import format_cpulist
from feeder.metrics.fields import add
from feeder.metrics.records import WORKERS_MAX, FailureRecord, NodeRecord, WorkerRecord
from feeder.node.client_book import LABEL_CHARS, ClientBook, sum_clients
from feeder.node.service import NodeService
from feeder.node.worker_pool import WorkerPool
from feeder.process.path_text import printable
from feeder.sample.cache_file import DecodedCache
from feeder.session.table import SessionTable

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


def begin_record(
    number: int, name: str, endpoints: Iterable[str], memory_bytes_a_s: float
) -> NodeRecord:
    """Return the record of this process, at its start."""
    return NodeRecord(
        number=number,
        name=printable(name)[:_TEXT_CHARS],
        pid=os.getpid(),
        endpoints=tuple(printable(endpoint)[:_TEXT_CHARS] for endpoint in endpoints),
        cpus=format_cpulist(os.sched_getaffinity(0))[:_CPUS_CHARS],
        memory_bytes_a_s=memory_bytes_a_s,
    )


class Snapshots:
    """Takes the snapshots of a node process."""

    def __init__(self, record: NodeRecord, pool: WorkerPool, cache: DecodedCache | None) -> None:
        self._record = record
        self._pool = pool
        self._cache = cache
        self._clients = ClientBook()
        self._started_s = time.monotonic()
        self._loads: dict[int, ProcessLoad] = {}  # by worker, as last read
        self._read_chunks: dict[int, int] = {}  # by worker: its chunks when that was read

    def take(self, now_s: float, service: NodeService | None) -> NodeRecord:
        """Return the process's present state; without ``service`` it takes no clients yet."""
        record = self._record
        record.clock_s, record.uptime_s = now_s, max(0.0, now_s - self._started_s)
        record.own_cpu_s, record.loop_cpu_s = time.process_time(), time.thread_time()
        if self._cache is not None:
            record.cache.used_bytes = self._cache.used_bytes
        if service is None:
            record.workers = self._workers({}, {}, frozenset())
            return record
        table = service.table
        sessions = table.sessions.open.values()
        chunk_times = table.watch.chunk_times(now_s)
        record.workers = self._workers(table.workers, chunk_times, table.watch.silent_workers)
        record.clients = self._clients.update(sessions, now_s, service.caught_up_s)
        record.jobs = tuple(
            msgspec.structs.replace(
                job,
                name=printable(job.name)[:LABEL_CHARS],
                account=printable(job.account)[:LABEL_CHARS],
            )
            for job in table.jobs
        )
        record.sent_bytes = service.sent_bytes
        record.queued_batches = table.queued_batches
        record.chunks_in_flight = table.dispatcher.chunks_in_flight
        names = sorted(table.watch.stalled_names)[:_DATASETS]
        record.stalled_datasets = tuple(printable(name)[:LABEL_CHARS] for name in names)
        record.failures = describe_failures(table, service.refused_datasets, now_s)
        counters = service.counters()
        record.counters = {printable(name)[:256]: value for name, value in counters.items()}
        slots = copy.copy(record.slots)  # those of sessions that have ended
        for session in sessions:
            add(slots, session.record.slots)
        return fit_snapshot(msgspec.structs.replace(record, slots=slots))

    def _workers(
        self,
        records: Mapping[int, WorkerRecord],
        chunk_times: Mapping[int, float],
        silent: frozenset[int],
    ) -> tuple[WorkerRecord, ...]:
        """``chunk_times`` has how long each busy worker has had the chunk that it fills."""
        pids, up = self._pool.pids, frozenset(self._pool.numbers)
        self._read_loads(pids, records, chunk_times)
        workers = []
        for number, pid in list(pids.items())[:WORKERS_MAX]:
            record = records.get(number) or WorkerRecord(number=number)
            load, chunk_s = self._loads.get(number) or ProcessLoad(), chunk_times.get(number, 0.0)
            is_silent, state = number in silent, "busy" if number in chunk_times else "idle"
            workers.append(
                msgspec.structs.replace(
                    record,
                    pid=pid,
                    state="starting" if number not in up else "silent" if is_silent else state,
                    silent_s=chunk_s if is_silent else 0.0,
                    kernel_state=load.state if is_silent else None,
                    cpu=load.cpu,
                    busy_s=record.busy_s + max(0.0, chunk_s - _LONG_CHUNK_S),
                    cpu_s=load.cpu_s or max(0.0, record.cpu_s),
                    run_delay_s=load.run_delay_s,
                    read_bytes=load.read_bytes,
                    requested_bytes=load.requested_bytes,
                )
            )
        return tuple(workers)

    def _read_loads(
        self,
        pids: Mapping[int, int],
        records: Mapping[int, WorkerRecord],
        chunk_times: Mapping[int, float],
    ) -> None:
        """Read the loads of the workers that have worked since they were last read, in turn."""
        for gone in self._loads.keys() - pids.keys():
            del self._loads[gone], self._read_chunks[gone]
        due = [
            number
            for number, record in records.items()
            if number in pids
            and (number in chunk_times or record.chunks != self._read_chunks.get(number, 0))
        ]
        # Dicts keep their order, and what is read moves to the end: the oldest ones come first.
        order = {number: place for place, number in enumerate(self._loads)}
        due.sort(key=lambda number: order.get(number, -1))
        for number in due[:_LOADS_A_SNAPSHOT]:
            self._loads.pop(number, None)
            self._loads[number] = read_process_load(pids[number])
            self._read_chunks[number] = records[number].chunks


def fit_snapshot(snapshot: NodeRecord, bytes_max: int = SNAPSHOT_BYTES_MAX) -> NodeRecord:
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


def describe_failures(
    table: SessionTable, refused: Mapping[str, str], now_s: float
) -> tuple[FailureRecord, ...]:
    """Return the failures of each dataset that has had some, the latest first, after those of the
    datasets that cannot be served."""
    failures = [
        FailureRecord(
            dataset=name, batches=0, reason="dataset", message=reason, ago_s=0.0, is_last=True
        )
        for name, reason in refused.items()
    ]
    for record, at_s in reversed(table.failures.by_dataset.values()):
        failures.append(msgspec.structs.replace(record, ago_s=max(0.0, now_s - at_s)))
    for record in failures:
        record.dataset = printable(record.dataset)[:LABEL_CHARS]
        record.message = printable(record.message)[:_TEXT_CHARS]
    return tuple(failures[:_DATASETS])
