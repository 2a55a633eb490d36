"""Takes snapshots of a node process, in bounded time and size.

With 64 workers and 512 sessions one takes under 5 ms; it is taken once a second, in the event loop.
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
    CLIENTS_MAX,
    OTHERS,
    WORKERS_MAX,
    CacheSnapshot,
    ClientSnapshot,
    NodeSnapshot,
    WorkerSnapshot,
)
from feeder.node.service import NodeService
from feeder.node.worker_pool import WorkerPool
from feeder.process.path_text import printable
from feeder.sample.cache_file import DecodedCache
from feeder.session.state import Session
from feeder.session.table import SessionTable
from feeder.session.tally import WorkerTally, add_slot_seconds

SNAPSHOT_BYTES_MAX: Final = 100 * 1024
"""Of its MessagePack; a packet of the channel has 128 KB."""

_LABEL_CHARS: Final = 128
_TEXT_CHARS: Final = 512
_CPUS_CHARS: Final = 256

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
        self._started_s = time.monotonic()
        self._cpus = format_cpulist(os.sched_getaffinity(0))[:_CPUS_CHARS]
        self._loads: dict[int, ProcessLoad] = {}  # by worker, as last read
        self._read_chunks: dict[int, int] = {}  # by worker: its chunks when that was read

    def take(
        self,
        now_s: float,
        endpoints: Iterable[str],
        service: NodeService | None,
        *,
        is_draining: bool = False,
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
            is_draining=is_draining,
            cpus=self._cpus,
            stages=dict(counters.stage_seconds),
            memory_bytes_a_s=facts.memory_bytes_a_s,
            cache=self._cache_snapshot(counters),
            workers_killed=counters.workers_killed,
            worker_restarts=counters.worker_restarts,
            own_cpu_s=time.process_time(),
            workers=self._workers({}, {}) if service is None else (),
        )
        return snapshot if service is None else fit_snapshot(self._serving(snapshot, service))

    def _serving(self, snapshot: NodeSnapshot, service: NodeService) -> NodeSnapshot:
        """Add what the service knows."""
        now_s, table, tally = snapshot.clock_s, service.table, service.table.tally
        clients = client_snapshots(table.sessions.open.values(), now_s)
        slots = tally.ended_slots
        for client in clients:
            slots = add_slot_seconds(slots, client.slots)
        return msgspec.structs.replace(
            snapshot,
            workers=self._workers(tally.workers, table.silent_workers(now_s)),
            lost_worker_busy_s=tally.lost_worker_busy_s,
            clients=clients,
            images=table.counters.images,
            batches=table.counters.batches,
            sent_bytes=service.sent_bytes,
            lent_bytes=tally.lent_bytes,
            decoded_bytes=service.decoded_bytes,
            slots=slots,
            queued_batches=table.queued_batches,
            chunks_in_flight=table.chunks_in_flight,
            stalled_datasets=_stalled(table),
            silences=table.counters.worker_silences,
            chunk_s=tally.chunk_s.snapshot(),
            batch_s=tally.batch_s.snapshot(),
            counters=_printable_counters(service.counters()),
        )

    def _workers(
        self, tallies: Mapping[int, WorkerTally], silent: Mapping[int, float]
    ) -> tuple[WorkerSnapshot, ...]:
        pids, up = self._pool.pids_by_number, frozenset(self._pool.numbers)
        self._read_loads(pids, tallies)
        workers = []
        for number, pid in list(pids.items())[:WORKERS_MAX]:
            tally = tallies.get(number) or WorkerTally()
            load = self._loads.get(number) or ProcessLoad()
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
                    silent_s=silent.get(number, 0.0),
                    kernel_state=load.state if number in silent else "",
                    cpu=load.cpu,
                    chunks=tally.chunks,
                    images=tally.images,
                    busy_s=tally.busy_s,
                    cpu_s=max(0.0, tally.cpu_s),
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
        )


def client_snapshots(sessions: Iterable[Session], now_s: float) -> tuple[ClientSnapshot, ...]:
    """Return the clients of sessions, those with the most images first; at most CLIENTS_MAX, and
    one for all the others."""
    clients: dict[tuple[str, str, str], ClientSnapshot] = {}
    for session in sessions:
        key = session.account, session.hello.client, session.hello.dataset
        client = _client_of(session, now_s)
        former = clients.get(key)
        clients[key] = client if former is None else _join(former, client)
    ordered = sorted(clients.values(), key=lambda client: client.images, reverse=True)
    if len(ordered) <= CLIENTS_MAX:
        return tuple(ordered)
    return (*ordered[:CLIENTS_MAX], _sum_others(ordered[CLIENTS_MAX:]))


def fit_snapshot(snapshot: NodeSnapshot, bytes_max: int = SNAPSHOT_BYTES_MAX) -> NodeSnapshot:
    """Return the snapshot, with fewer clients, then without the flat counters, then with fewer
    workers, where it would not fit into a packet."""
    encoder = msgspec.msgpack.Encoder()
    while len(encoder.encode(snapshot)) > bytes_max:
        clients, workers = snapshot.clients, snapshot.workers
        if len(clients) > 1:
            half = len(clients) // 2
            others = _sum_others(clients[half:])
            kept = (*clients[:half], others) if half > 1 else (_sum_others(clients),)
            snapshot = msgspec.structs.replace(snapshot, clients=kept)
        elif snapshot.counters:
            snapshot = msgspec.structs.replace(snapshot, counters={})
        elif workers:
            snapshot = msgspec.structs.replace(snapshot, workers=workers[: len(workers) // 2])
        else:
            break
    return snapshot


def _client_of(session: Session, now_s: float) -> ClientSnapshot:
    tally = session.tally
    return ClientSnapshot(
        name=printable(session.hello.client)[:_LABEL_CHARS],
        account=printable(session.account)[:_LABEL_CHARS],
        dataset=printable(session.hello.dataset)[:_LABEL_CHARS],
        is_lent=session.is_held,
        window=session.layout.slots,
        wanted=len(session.wanted),
        images=tally.images,
        batches=tally.batches,
        sent_bytes=tally.sent_bytes,
        worker_s=tally.worker_s,
        waited_s=tally.waited_s,
        clock_s=tally.clock_s,
        cpu_s=tally.cpu_s,
        is_local=session.is_local,
        slots=tally.slots.seconds(now_s),
    )


def _join(one: ClientSnapshot, other: ClientSnapshot) -> ClientSnapshot:
    """Return the sum of two clients, under the name of the first."""
    return msgspec.structs.replace(
        one,
        is_lent=one.is_lent and other.is_lent,
        sessions=one.sessions + other.sessions,
        window=one.window + other.window,
        wanted=one.wanted + other.wanted,
        images=one.images + other.images,
        batches=one.batches + other.batches,
        sent_bytes=one.sent_bytes + other.sent_bytes,
        worker_s=one.worker_s + other.worker_s,
        waited_s=one.waited_s + other.waited_s,
        clock_s=one.clock_s + other.clock_s,
        cpu_s=one.cpu_s + other.cpu_s,
        is_local=one.is_local and other.is_local,
        slots=add_slot_seconds(one.slots, other.slots),
    )


def _sum_others(clients: Iterable[ClientSnapshot]) -> ClientSnapshot:
    first, *rest = clients
    total = msgspec.structs.replace(first, name=OTHERS, account="", dataset="")
    for client in rest:
        total = _join(total, client)
    return total


def _stalled(table: SessionTable) -> tuple[str, ...]:
    names = sorted(table.stalled_names)[:64]
    return tuple(printable(name)[:_LABEL_CHARS] for name in names)


def _printable_counters(counters: Mapping[str, float | str]) -> dict[str, int | float | str]:
    return {printable(name)[:256]: value for name, value in counters.items()}
