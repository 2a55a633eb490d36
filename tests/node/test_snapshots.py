"""Snapshots of a node process in bounded size: workers, and clients over all their sessions."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.diagnosis.interval import NodeInterval
from feeder.metrics.counters import SocketCounters, WorkerCounters
from feeder.metrics.hangs import ProcessLook
from feeder.metrics.records import (
    CLIENTS_MAX,
    OTHERS,
    WORKERS_MAX,
    ClientRecord,
    NodeRecord,
    SlotSeconds,
    WorkerRecord,
)
from feeder.node import snapshots
from feeder.node.messages import Heartbeat
from feeder.node.snapshots import (
    SNAPSHOT_BYTES_MAX,
    ClientBook,
    Snapshots,
    fit_snapshot,
)
from feeder.session.admission import HelloReceived
from feeder.session.state import PendingBatch, PendingChunk, Session, SlotTimes
from feeder.session.worker_watch import POLICY, Worker
from feeder.wire.messages import Hello
from tests.support.session_shell import Shell, limits, recipe

NOW_S = 1000.0


def open_sessions(*clients: str) -> list[Session]:
    shell = Shell(limits(sessions_max=1000, slots_bytes=1 << 40))
    for number, name in enumerate(clients):
        hello = Hello(dataset="d", recipe=recipe(), seed=1, window=2, client=name)
        shell.apply(HelloReceived(number, b"%d" % number, hello, 1 << 40, "user 7", True))
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


class Pool:
    """The workers of a pool that does not run."""

    def __init__(self, workers: int) -> None:
        self.counters = WorkerCounters()
        self.record = NodeRecord()
        self.pids = {number: 1000 + number for number in range(1, workers + 1)}
        self.numbers = tuple(self.pids)


def taker_of(pool: Pool) -> Snapshots:
    """What takes the snapshots of a node process with this pool."""
    control: Any = None
    service: Any = SimpleNamespace(
        table=Shell().table,
        pool=pool,
        cache=None,
        router=SimpleNamespace(counters=SocketCounters()),
        caught_up_s=0.0,
        started_s=0.0,
        counters=lambda now_s: {},
        read_board=lambda: None,
    )
    log: Any = SimpleNamespace(report_suppressed=lambda: None)
    return Snapshots(service, control, log)


def worker_of(number: int, *, chunk_s: float = 0.0, **totals: float) -> Worker:
    """A worker that has had a chunk for so long, or none."""
    worker = Worker(POLICY, NOW_S - chunk_s, record=WorkerRecord(number=number, **totals))  # type: ignore[arg-type]
    if chunk_s:
        batch = PendingBatch(open_sessions("c")[0], 0, 0, 7)
        worker.chunks.append(PendingChunk(batch, 0, 3))
    return worker


def test_a_long_chunk_in_flight_is_busy_time_that_its_own_figure_replaces() -> None:
    """A total that fell would count from zero."""
    taker = taker_of(Pool(1))

    def busy_s(done_s: float, chunk_s: float) -> float:
        (record,) = taker._workers({1: worker_of(1, chunk_s=chunk_s, busy_s=done_s)}, NOW_S)
        return record.busy_s

    assert busy_s(5.0, 0.03) == 5.0
    assert busy_s(5.0, 12.5) == 16.5
    assert busy_s(17.5, 0.0) == 17.5


def test_a_silent_worker_has_its_kernel_state(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = ProcessLook("stopped", 3.0)
    monkeypatch.setattr(snapshots, "look_at", lambda pid: stopped)
    workers = {1: worker_of(1, chunk_s=2.5), 2: worker_of(2, chunk_s=0.1, cpu_s=1.0)}
    workers[1].is_reported = True
    one, other = taker_of(Pool(2))._workers(workers, NOW_S)
    assert (one.state, one.silent_s, one.kernel_state) == ("silent", 2.5, "stopped")
    assert (other.state, other.silent_s, other.kernel_state) == ("busy", 0.0, None)
    assert other.cpu_s == 3.0, "what the kernel counts comes before what chunks report"


# --- Clients ----------------------------------------------------------------------------------


def train(sessions: Sequence[Session], images: int, seconds: float = 1.0) -> None:
    """Let the sessions get images, each in the seconds of their process's clock."""
    for session in sessions:
        session.record.images += images
        session.record.clock_s += seconds


def rates(before: Sequence[ClientRecord], now: Sequence[ClientRecord]) -> dict[str, float]:
    """Return images a second by client, of two snapshots a second apart."""
    first, last = (
        NodeRecord(number=0, name="n", pid=1, clock_s=at_s, uptime_s=9.0, endpoints=(), clients=c)
        for at_s, c in ((1.0, tuple(before)), (2.0, tuple(now)))
    )
    return {client.name: client.images_a_s for client in NodeInterval(first, last).clients}


def test_a_clients_sessions_are_one() -> None:
    one, other, third = open_sessions("a", "b", "a")
    one.record.images, other.record.images, third.record.images = 5, 3, 7
    third.record.is_local = False
    first, second = ClientBook().update([one, other, third], 10.0)
    assert (first.name, first.account, first.dataset) == ("a", "user 7", "d")
    assert (first.sessions, first.images, first.window) == (2, 12, 4)
    assert first.slots == SlotSeconds(free=40.0)
    assert not first.is_local
    assert (second.name, second.sessions, second.images, second.is_local) == ("b", 1, 3, True)


def test_the_waits_of_a_processs_sessions_add_up_over_its_one_clock() -> None:
    sessions = open_sessions(*["a"] * 8)
    for session in sessions:
        session.record.clock_s, session.record.waited_s, session.record.cpu_s = 10.0, 1.2, 4.0
    (client,) = ClientBook().update(sessions, 10.0)
    assert client.waited_s == pytest.approx(9.6)
    assert (client.clock_s, client.cpu_s) == (10.0, 4.0)


def test_more_clients_than_places_are_counted_together() -> None:
    sessions = open_sessions(*(f"c{number}" for number in range(CLIENTS_MAX + 10)))
    for number, session in enumerate(sessions):
        session.record.images = number
    *placed, rest = ClientBook().update(sessions, 1.0)
    assert [client.images for client in placed] == list(range(73, 9, -1))
    assert (rest.name, rest.clients, rest.sessions, rest.images) == (OTHERS, 10, 10, 45)


@pytest.fixture(scope="module")
def pool() -> list[Session]:
    return open_sessions(*(f"c{number % 90}" for number in range(120)))


@settings(max_examples=30)
@given(st.data())
def test_no_rate_is_more_than_what_was_delivered(pool: list[Session], data: st.DataObject) -> None:
    """Sessions of 90 clients open, get images, and end; each may end for good once."""
    for session in pool:
        session.slot_times = SlotTimes(session.layout.slots, 0.0)
        session.record = ClientRecord(
            name=session.hello.client, account="user 7", dataset="d", is_lent=False
        )
    book, left = ClientBook(), set(range(120))
    before: tuple[ClientRecord, ...] = ()
    was_open: set[int] = set()
    for turn in range(5):
        opened = data.draw(st.sets(st.sampled_from(sorted(left)), min_size=min(70, len(left))))
        left -= was_open - opened
        was_open = opened
        delivered = 0
        for number in sorted(opened):
            images = (number * 7919 + turn * 104729) % 3000
            pool[number].record.images += images
            delivered += images
        sessions = [pool[number] for number in sorted(opened)]
        now = book.update(sessions, float(turn))
        assert len(now) <= CLIENTS_MAX + 1
        assert sum(client.clients for client in now) == len({s.hello.client for s in sessions})
        assert sum(client.sessions for client in now) == len(sessions)
        if before:
            assert sum(rates(before, now).values()) <= delivered
        before = now


def test_a_client_is_silent_since_its_last_message_if_it_sends_pings() -> None:
    sessions = open_sessions("a", "a", "b")
    for session, at_s in zip(sessions, (5.0, 8.0, 5.0), strict=True):
        session.last_message_s = at_s
    sessions[0].record.clock_s = sessions[1].record.clock_s = 1.0
    silent, without_pings = ClientBook().update(sessions, 9.0)
    assert (silent.silent_s, without_pings.silent_s) == (4.0, 0.0)
    (silent, _) = ClientBook().update(sessions, 9.0, heard_s=8.5)
    assert silent.silent_s == 0.5
    (silent, _) = ClientBook().update(sessions, 9.0, heard_s=9.5)
    assert silent.silent_s == 0
