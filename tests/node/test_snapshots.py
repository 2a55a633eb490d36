"""Snapshots of a node process: clients and workers, in bounded size."""

import os
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.host.processes import ProcessLoad
from feeder.metrics.counters import WorkerCounters
from feeder.metrics.records import (
    CLIENTS_MAX,
    WORKERS_MAX,
    ClientRecord,
    NodeRecord,
    WorkerRecord,
)
from feeder.node import snapshots
from feeder.node.messages import Heartbeat
from feeder.node.snapshots import (
    SNAPSHOT_BYTES_MAX,
    Snapshots,
    begin_record,
    fit_snapshot,
)
from feeder.session.events import MessageReceived
from feeder.session.state import Session
from feeder.wire.messages import Hello
from tests.support.session_shell import Shell, limits, recipe


def open_sessions(*clients: str) -> list[Session]:
    """Return sessions of clients of these names."""
    shell = Shell(limits(sessions_max=1000, slots_bytes=1 << 40))
    for number, name in enumerate(clients):
        hello = Hello(dataset="d", recipe=recipe(), seed=1, window=2, client=name)
        shell.apply(MessageReceived(b"%d" % number, hello, number, 1 << 40, "user 7", True))
    return list(shell.table.sessions.open.values())


def _snapshot(clients: int, workers: int, name: str) -> NodeRecord:
    client = ClientRecord(name=name, account=name, dataset=name, is_lent=False, images=3)
    return NodeRecord(
        number=0,
        name="n",
        pid=1,
        clock_s=1.0,
        uptime_s=1.0,
        endpoints=(),
        clients=(client,) * clients,
        workers=(WorkerRecord(number=1, pid=1, state="idle"),) * workers,
        counters={f"dataset.{number}.loss": "x" * 100 for number in range(100)},
    )


@given(
    st.integers(0, CLIENTS_MAX + 1), st.integers(0, WORKERS_MAX), st.sampled_from(("a", "🐟" * 128))
)
def test_any_snapshot_fits_into_a_packet(clients: int, workers: int, name: str) -> None:
    full = _snapshot(clients, workers, name)
    fitted = fit_snapshot(full)
    packet = msgspec.msgpack.encode(Heartbeat(snapshot=fitted))
    assert len(packet) < SNAPSHOT_BYTES_MAX + 100
    assert msgspec.msgpack.decode(packet, type=Heartbeat).snapshot == fitted
    assert sum(each.images for each in fitted.clients) == 3 * clients
    if len(msgspec.msgpack.encode(full)) <= SNAPSHOT_BYTES_MAX:
        assert fitted == full


@pytest.mark.parametrize("bytes_max", [0, 3000, 20_000])
def test_a_snapshot_shrinks_to_its_limit_or_as_far_as_it_can(bytes_max: int) -> None:
    fitted = fit_snapshot(_snapshot(30, 200, "client"), bytes_max)
    assert len(msgspec.msgpack.encode(fitted)) <= max(bytes_max, 2000)
    assert sum(each.sessions for each in fitted.clients) == 30


class Pool:
    """The workers of a pool that does not run."""

    def __init__(self, workers: int) -> None:
        self.counters = WorkerCounters()
        self.pids = {number: 1000 + number for number in range(1, workers + 1)}
        self.numbers = tuple(self.pids)


def test_only_workers_that_have_worked_are_looked_up_and_many_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []

    def record(pid: int) -> Any:
        read.append(pid)
        return ProcessLoad(cpu=1, run_delay_s=0.5, read_bytes=2, requested_bytes=3)

    monkeypatch.setattr(snapshots, "read_process_load", record)
    monkeypatch.setattr(snapshots, "_LOADS_A_SNAPSHOT", 2)
    pool: Any = Pool(4)
    taker = Snapshots(NodeRecord(), pool, None)
    records = {number: WorkerRecord(number=number) for number in range(1, 5)}
    records[1].chunks = 1
    busy = {3: 0.1, 4: 0.2}
    workers = taker._workers(records, busy, frozenset())
    assert read == [1001, 1003]
    assert [each.state for each in workers] == ["idle", "idle", "busy", "busy"]
    assert [each.run_delay_s for each in workers] == [0.5, 0.0, 0.5, 0.0]
    taker._workers(records, busy, frozenset())
    assert read[2:] == [1004, 1003]
    del pool.pids[3], records[3]
    workers = taker._workers(records, busy, frozenset())
    assert read[4:] == [1004]
    assert [each.number for each in workers] == [1, 2, 4]


def test_a_long_chunk_in_flight_is_busy_time_that_its_own_figure_replaces() -> None:
    """A total that fell would count from zero."""
    pool: Any = Pool(1)
    taker = Snapshots(NodeRecord(), pool, None)

    def busy_s(done_s: float, chunk_s: float) -> float:
        records = {1: WorkerRecord(number=1, busy_s=done_s)}
        (worker,) = taker._workers(records, {1: chunk_s}, frozenset())
        return worker.busy_s

    assert busy_s(5.0, 0.03) == 5.0
    assert busy_s(5.0, 12.5) == 16.5
    assert busy_s(17.5, 0.0) == 17.5


def test_a_silent_worker_has_its_kernel_state(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = ProcessLoad(state="stopped", cpu_s=3.0)
    monkeypatch.setattr(snapshots, "read_process_load", lambda pid: stopped)
    pool: Any = Pool(2)
    records = {1: WorkerRecord(number=1), 2: WorkerRecord(number=2, cpu_s=1.0)}
    times = {1: 2.5, 2: 0.1}
    one, other = Snapshots(NodeRecord(), pool, None)._workers(records, times, frozenset({1}))
    assert (one.state, one.silent_s, one.kernel_state) == ("silent", 2.5, "stopped")
    assert (other.state, other.silent_s, other.kernel_state) == ("busy", 0.0, None)
    assert other.cpu_s == 3.0, "what the kernel counts comes before what chunks report"


def test_a_process_without_clients_describes_itself() -> None:
    pool: Any = Pool(2)
    pool.numbers = (1,)
    record = begin_record(3, "host/3\n", ("ipc:///run/\x07",), 1e10)
    snapshot = Snapshots(record, pool, None).take(1e9, None)
    assert (snapshot.number, snapshot.name, snapshot.pid) == (3, r"host/3\n", os.getpid())
    assert snapshot.endpoints == (r"ipc:///run/\x07",)
    assert [worker.state for worker in snapshot.workers] == ["idle", "starting"]
    packet = msgspec.msgpack.encode(snapshot)
    assert msgspec.msgpack.decode(packet, type=NodeRecord) == snapshot
