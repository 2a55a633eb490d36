"""Sends the supervisor a snapshot of the node process twice a second: its record and present state.

A snapshot is taken in the event loop, so it is also the heartbeat. It is bounded in time and size;
with 64 workers and 512 sessions one takes 5 ms.

At most CLIENTS_MAX clients are sent one by one, the rest as one. A client's counters are of the
time since it has a place among them, and only grow while it has one, so differences between two
snapshots are rates; so do those of the rest. A client keeps its place unless one of the rest gets
images SWAP_RATIO times as fast: ranks of one job, all equally fast, do not take turns.
"""

import copy
import math
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from feeder.host.processes import look_at
from feeder.host.topology import format_cpulist
from feeder.metrics.fields import add, growth, merged
from feeder.metrics.hangs import ProcessLook
from feeder.metrics.records import (
    CLIENTS_MAX,
    OTHERS,
    WORKERS_MAX,
    ClientRecord,
    FailureRecord,
    NodeRecord,
    WorkerRecord,
)
from feeder.node.messages import Heartbeat, NodeToSupervisor, SupervisorToNode
from feeder.node.service import NodeService
from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError
from feeder.process.log_lines import LineStream
from feeder.process.path_text import printable
from feeder.session.state import Session
from feeder.session.table import SessionTable
from feeder.session.worker_watch import POLICY, Worker

INTERVAL_S: Final = 0.5
SNAPSHOT_BYTES_MAX: Final = 100 * 1024
"""Its MessagePack, without the envelope; a packet of the channel has 128 KB."""

_LABEL_CHARS: Final = 128
_TEXT_CHARS: Final = 512
_CPUS_CHARS: Final = 256
_DATASETS: Final = 64

_LONG_CHUNK_S: Final = 1.0
"""A chunk in flight counts as busy time from then on, so that a worker with long ones is busy
before it finishes them. Its own figure, which then replaces this one, is larger: no total falls."""

SWAP_RATIO: Final = 2.0
_FADING: Final = math.exp(-INTERVAL_S / 30.0)
"""Of the paces that decide on places: their time constant is half a minute."""

_NOTHING: Final = ClientRecord(name=OTHERS, account="", dataset="", is_lent=True)


def begin_record(
    number: int, name: str, endpoints: Iterable[str], memory_bytes_a_s: float
) -> NodeRecord:
    """The record of this process, at its start."""
    return NodeRecord(
        number=number,
        name=_text(name),
        pid=os.getpid(),
        endpoints=tuple(map(_text, endpoints)),
        cpus=format_cpulist(os.sched_getaffinity(0))[:_CPUS_CHARS],
        memory_bytes_a_s=memory_bytes_a_s,
    )


class Snapshots:
    """Takes and sends the snapshots of a node process."""

    def __init__(
        self,
        service: NodeService,
        control: Channel[NodeToSupervisor, SupervisorToNode],
        log: LineStream,
    ) -> None:
        """The channel to the supervisor must not block once ``run_due`` is due."""
        self._service = service
        self._control = control
        self._log = log
        self._clients = ClientBook()
        self.deadline_s = float("inf")
        """When ``run_due`` is due; set it to begin."""

    def run_due(self, now_s: float) -> None:
        """Send a snapshot; read what the supervisor has written to the board meanwhile."""
        self.deadline_s = now_s + INTERVAL_S
        try:
            self._control.send(Heartbeat(snapshot=self.take(now_s)))
        except ChannelFullError:
            pass  # the supervisor is stopped or overloaded: the next one carries the same totals
        except ChannelClosedError:
            self.deadline_s = float("inf")  # the loop reads the end of the channel, and ends
        self._service.read_board()
        self._log.report_suppressed()

    def take(self, now_s: float) -> NodeRecord:
        service, table, record = self._service, self._service.table, self._service.pool.record
        record.clock_s, record.uptime_s = now_s, max(0.0, now_s - service.started_s)
        record.own_cpu_s, record.loop_cpu_s = time.process_time(), time.thread_time()
        if service.cache is not None:
            record.cache.used_bytes = service.cache.used_bytes
        sessions = table.sessions.open.values()
        record.workers = self._workers(table.watch.workers, now_s)
        record.clients = self._clients.update(sessions, now_s, service.caught_up_s)
        record.jobs = tuple(
            msgspec.structs.replace(job, name=_label(job.name), account=_label(job.account))
            for job in table.jobs.records
        )
        record.sent_bytes = service.router.counters.bytes_sent
        record.queued_batches = table.queued_batches
        record.fetching_batches = len(table.fetching)
        record.chunks_in_flight = table.dispatcher.chunks_in_flight
        record.stalled_datasets = tuple(map(_label, sorted(table.watch.stalled_names)[:_DATASETS]))
        record.failures = describe_failures(table, now_s)
        counters = service.counters(now_s)
        record.counters = {printable(name)[:256]: value for name, value in counters.items()}
        slots = copy.copy(record.slots)  # those of sessions that have ended
        for session in sessions:
            add(slots, session.record.slots)
        return fit_snapshot(msgspec.structs.replace(record, slots=slots))

    def _workers(self, workers: Mapping[int, Worker], now_s: float) -> tuple[WorkerRecord, ...]:
        up = self._service.pool.numbers
        records = []
        for number, pid in list(self._service.pool.pids.items())[:WORKERS_MAX]:
            worker = workers.get(number) or Worker(POLICY, record=WorkerRecord(number=number))
            record, is_silent = worker.record, worker.is_reported
            look = look_at(pid) or ProcessLook("ended", 0.0)
            chunk_s = worker.chunk_s(now_s)
            state = "silent" if is_silent else "busy" if worker.chunks else "idle"
            records.append(
                msgspec.structs.replace(
                    record,
                    pid=pid,
                    state=state if number in up else "starting",
                    silent_s=chunk_s if is_silent else 0.0,
                    kernel_state=look.state if is_silent else None,
                    cpu=look.cpu,
                    busy_s=record.busy_s + max(0.0, chunk_s - _LONG_CHUNK_S),
                    cpu_s=look.cpu_s or max(0.0, record.cpu_s),
                    run_delay_s=look.run_delay_s,
                    read_bytes=look.read_bytes,
                    requested_bytes=look.requested_bytes,
                )
            )
        return tuple(records)


def _text(text: str) -> str:
    return printable(text)[:_TEXT_CHARS]


def _label(text: str) -> str:
    return printable(text)[:_LABEL_CHARS]


def fit_snapshot(snapshot: NodeRecord, bytes_max: int = SNAPSHOT_BYTES_MAX) -> NodeRecord:
    """The snapshot, with fewer clients, or at last without workers and flat counters, where it
    would not fit into a packet."""
    replace = msgspec.structs.replace
    while len(msgspec.msgpack.encode(snapshot)) > bytes_max:
        half = len(snapshot.clients) // 2
        if not half:
            return replace(snapshot, counters={}, workers=())
        first, rest = snapshot.clients[: half - 1], snapshot.clients[half - 1 :]
        snapshot = replace(snapshot, clients=(*first, sum_clients(rest)))
    return snapshot


def describe_failures(table: SessionTable, now_s: float) -> tuple[FailureRecord, ...]:
    """The failures of each dataset that has had some, the latest first, after those of the
    datasets that cannot be served."""
    failures = [
        FailureRecord(dataset=name, reason="dataset", message=served)
        for name, served in table.datasets.items()
        if isinstance(served, str)  # why it cannot be
    ]
    for record, at_s in reversed(table.failures.values()):
        failures.append(msgspec.structs.replace(record, ago_s=max(0.0, now_s - at_s)))
    for record in failures:
        record.dataset, record.message = _label(record.dataset), _text(record.message)
    return tuple(failures[:_DATASETS])


@dataclass(slots=True, eq=False)
class _Client:
    """A client with at least one open session."""

    latest: ClientRecord = _NOTHING
    """Its counters are what has grown since the last update."""
    record: ClientRecord | None = None
    """Since it has a place; None if it has none."""
    pace: float = 0.0
    """Images of the last half minute or so, weighted by age."""

    @property
    def claim(self) -> tuple[float, bool]:
        """The clients with the largest ones have places."""
        has_place = self.record is not None
        return self.pace * (SWAP_RATIO if has_place else 1.0), has_place


class ClientBook:
    """Keeps the counters from one snapshot to the next."""

    def __init__(self) -> None:
        self._seen: WeakKeyDictionary[Session, ClientRecord] = WeakKeyDictionary()
        self._clients: dict[tuple[str, str, str], _Client] = {}
        self._rest = _NOTHING

    def update(
        self, sessions: Iterable[Session], now_s: float, heard_s: float = 0.0
    ) -> tuple[ClientRecord, ...]:
        """The clients of the open sessions, the fastest first, then the rest as one.

        Until ``heard_s`` their messages may have waited to be read: none was silent then.
        """
        latest: defaultdict[tuple[str, str, str], list[ClientRecord]] = defaultdict(list)
        for session in sessions:
            key = session.account, session.hello.client, session.dataset
            latest[key].append(self._look(session, now_s, heard_s))
        self._clients = {key: self._clients.get(key) or _Client() for key in latest}
        for key, client in self._clients.items():
            records = latest[key]
            record = client.latest = records[0] if len(records) == 1 else merged(records)
            record.clients = 1
            # Each session reports the clock and the CPU time of its process, so these count by
            # their mean. Waits add up: a training loop waits for one of its sessions at a time.
            record.clock_s /= len(records)
            record.cpu_s /= len(records)
            client.pace = client.pace * _FADING + record.images
        clients = sorted(self._clients.values(), key=attrgetter("claim"), reverse=True)
        placed, rest = clients[:CLIENTS_MAX], clients[CLIENTS_MAX:]
        for client in placed:
            record = client.latest
            add(record, client.record or _NOTHING)
            record.name, record.account = _label(record.name), _label(record.account)
            record.dataset, record.job = _label(record.dataset), _label(record.job)
            client.record = record
        placed.sort(key=attrgetter("pace"), reverse=True)
        records = [client.latest for client in placed]
        if rest:
            others = sum_clients([client.latest for client in rest])
            add(others, self._rest)
            self._rest = others
            records.append(others)
        for client in rest:
            client.record = None
        return tuple(records)

    def _look(self, session: Session, now_s: float, heard_s: float) -> ClientRecord:
        """A session as it is now, its counters being what it has done since the last update."""
        record = session.record
        record.is_lent, record.wanted = session.is_held, len(session.wanted)
        record.slots = session.slot_times.seconds(now_s)
        silent_since_s = max(heard_s, session.last_message_s) if record.clock_s else now_s
        record.silent_s = max(0.0, now_s - silent_since_s)
        before, self._seen[session] = self._seen.get(session, _NOTHING), copy.copy(record)
        return growth(before, record)


def sum_clients(clients: Sequence[ClientRecord]) -> ClientRecord:
    """Clients as one, named OTHERS."""
    unnamed = {"name": OTHERS, "account": "", "dataset": "", "job": ""}
    return msgspec.structs.replace(merged(clients), **unnamed)
