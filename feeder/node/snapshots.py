"""Takes snapshots of a node process, in bounded time and size: its record, with what is so now.

With 64 workers and 512 sessions one takes 5 ms; it is taken twice a second, in the event loop.

At most CLIENTS_MAX clients are sent one by one, the rest as one. A client's counters are of the
time since it has a place among them. They only grow while it has an open session, whichever of its
sessions end, so differences between two snapshots are rates; so do the counters of the rest. A
client keeps its place unless one of the rest gets images SWAP_RATIO times as fast: ranks of one
job, all equally fast, do not take turns.
"""

import copy
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from feeder.host.processes import ProcessLoad, read_process_load
from feeder.host.topology import format_cpulist
from feeder.metrics.fields import add, growth, merged
from feeder.metrics.records import (
    CLIENTS_MAX,
    OTHERS,
    WORKERS_MAX,
    ClientRecord,
    FailureRecord,
    NodeRecord,
    WorkerRecord,
)
from feeder.node.service import NodeService
from feeder.node.worker_pool import WorkerPool
from feeder.process.path_text import printable
from feeder.sample.cache_file import DecodedCache
from feeder.session.state import Session
from feeder.session.table import SessionTable

SNAPSHOT_BYTES_MAX: Final = 100 * 1024
"""Its MessagePack, without the envelope; a packet of the channel has 128 KB."""

_LABEL_CHARS: Final = 128
_TEXT_CHARS: Final = 512
_CPUS_CHARS: Final = 256
_DATASETS: Final = 64

_LONG_CHUNK_S: Final = 1.0
"""A chunk in flight counts as busy time from then on, so that a worker with long ones is busy
before it finishes them. Its own figure, which then replaces this one, is larger: no total falls."""

_LOADS_A_SNAPSHOT: Final = 64
"""Workers whose files in /proc are read each time; with more of them, in turn."""

SWAP_RATIO: Final = 2.0
PACE_S: Final = 30.0
"""Time constant of the mean rates that decide on places."""

_NOTHING: Final = ClientRecord(name=OTHERS, account="", dataset="", is_lent=True)


def begin_record(
    number: int, name: str, endpoints: Iterable[str], memory_bytes_a_s: float
) -> NodeRecord:
    """The record of this process, at its start."""
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
        """The process's present state; without ``service`` it takes no clients yet."""
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
                name=printable(job.name)[:_LABEL_CHARS],
                account=printable(job.account)[:_LABEL_CHARS],
            )
            for job in table.jobs
        )
        record.sent_bytes = service.sent_bytes
        record.queued_batches = table.queued_batches
        record.chunks_in_flight = table.dispatcher.chunks_in_flight
        names = sorted(table.watch.stalled_names)[:_DATASETS]
        record.stalled_datasets = tuple(printable(name)[:_LABEL_CHARS] for name in names)
        record.failures = describe_failures(table, service.refused_datasets, now_s)
        counters = service.counters(now_s)
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
    """The snapshot, with fewer clients, then without the flat counters, then with fewer
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
    """The failures of each dataset that has had some, the latest first, after those of the
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
        record.dataset = printable(record.dataset)[:_LABEL_CHARS]
        record.message = printable(record.message)[:_TEXT_CHARS]
    return tuple(failures[:_DATASETS])


@dataclass(slots=True, eq=False)
class _Client:
    """A client with at least one open session."""

    sessions: list[Session] = field(default_factory=list)
    latest: ClientRecord = _NOTHING
    """Its counters are what has grown since the last update."""
    record: ClientRecord | None = None
    """Since it has a place; None without one."""
    pace: float = 0.0
    """Images of the last PACE_S or so, weighted by age."""


class ClientBook:
    """Keeps the counters from one snapshot to the next."""

    def __init__(self) -> None:
        self._seen: dict[int, ClientRecord] = {}  # by session, at the last update
        self._clients: dict[tuple[str, str, str], _Client] = {}
        self._rest = _NOTHING
        self._at_s = -math.inf

    def update(
        self, sessions: Iterable[Session], now_s: float, heard_s: float = 0.0
    ) -> tuple[ClientRecord, ...]:
        """The clients of the open sessions, the fastest first, then the rest as one.

        Until ``heard_s`` their messages may have waited to be read: none was silent then.
        """
        self._find_clients(sessions)
        clients = list(self._clients.values())
        fading = math.exp(min(0.0, self._at_s - now_s) / PACE_S)
        self._at_s = now_s
        for client in clients:
            client.latest = self._look(client.sessions, now_s, heard_s)
            client.pace = client.pace * fading + client.latest.images
        _assign_places(clients)
        placed = sorted((c for c in clients if c.record is not None), key=lambda c: -c.pace)
        for client in placed:
            assert client.record is not None
            record = client.latest
            add(record, client.record)
            record.name = printable(record.name)[:_LABEL_CHARS]
            record.account = printable(record.account)[:_LABEL_CHARS]
            record.dataset = printable(record.dataset)[:_LABEL_CHARS]
            record.job = printable(record.job)[:_LABEL_CHARS]
            client.record = record
        rest = [client.latest for client in clients if client.record is None]
        if rest:
            others = sum_clients(rest)
            add(others, self._rest)
            self._rest = others
        records = [client.latest for client in placed]
        return (*records, self._rest) if rest else tuple(records)

    def _find_clients(self, sessions: Iterable[Session]) -> None:
        """Assign the sessions to their clients; forget those that have none."""
        for client in self._clients.values():
            client.sessions = []
        numbers = set()
        for session in sessions:
            numbers.add(session.number)
            key = session.account, session.hello.client, session.hello.dataset
            self._clients.setdefault(key, _Client()).sessions.append(session)
        self._clients = {key: client for key, client in self._clients.items() if client.sessions}
        self._seen = {number: self._seen[number] for number in self._seen.keys() & numbers}

    def _look(self, sessions: Sequence[Session], now_s: float, heard_s: float) -> ClientRecord:
        """A client as it is now, its counters being what its sessions have done since the
        last update."""
        growths = []
        for session in sessions:
            record = session.record
            record.is_lent, record.wanted = session.is_held, len(session.wanted)
            record.slots = session.slot_times.seconds(now_s)
            pings = record.clock_s > 0
            silent_since_s = max(heard_s, session.last_message_s) if pings else now_s
            record.silent_s = max(0.0, now_s - silent_since_s)
            growths.append(growth(self._seen.get(session.number, _NOTHING), record))
            self._seen[session.number] = copy.copy(record)
        latest = growths[0] if len(growths) == 1 else merged(growths)
        latest.clients = 1
        # Each session reports the clock and the CPU time of its process, so these count by their
        # mean. Waits add up: a training loop waits for one of its sessions at a time.
        latest.clock_s /= len(growths)
        latest.cpu_s /= len(growths)
        return latest


def sum_clients(clients: Sequence[ClientRecord]) -> ClientRecord:
    """Clients as one, named OTHERS."""
    unnamed = {"name": OTHERS, "account": "", "dataset": "", "job": ""}
    return msgspec.structs.replace(merged(clients), **unnamed)


def _assign_places(clients: Sequence[_Client]) -> None:
    """Give places to the fastest clients without one, and to those that are much faster than the
    slowest clients with one."""
    placed = sorted((c for c in clients if c.record is not None), key=lambda client: client.pace)
    waiting = sorted((c for c in clients if c.record is None), key=lambda client: -client.pace)
    free = CLIENTS_MAX - len(placed)
    for client in waiting[:free]:
        client.record = _NOTHING
    for slow, fast in zip(placed, waiting[max(0, free) :], strict=False):
        if fast.pace <= SWAP_RATIO * slow.pace:
            break
        slow.record, fast.record = None, _NOTHING
