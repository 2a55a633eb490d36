"""Leases and lost connections in a node process that may have been suspended itself."""

import logging
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.metrics.counters import ClaimCounters, NodeStatus, SocketCounters, WorkerCounters
from feeder.metrics.hangs import ProcessLook
from feeder.metrics.records import NodeRecord
from feeder.metrics.report import HostReport
from feeder.node.clients import log_refusal
from feeder.node.fetches import Fetches
from feeder.node.messages import Board, write_board
from feeder.node.polling import PollSet
from feeder.node.service import REPORT_MAX_S, NodeService, log_session_end
from feeder.node.snapshots import Snapshots
from feeder.plan.epoch import ShardLayout
from feeder.session.admission import ServedDataset
from feeder.session.events import SessionEnd, SlotsClaimed, WorkerJoined, WorkerLost
from feeder.session.table import SessionTable
from feeder.wire.chunk_work import Fill, Filled, FillFailed
from feeder.wire.messages import (
    ClientMessage,
    Hello,
    HostStats,
    HostStatsRequest,
    NamesRequest,
    NodeMessage,
    Ping,
    Pong,
    Refused,
    Request,
    Welcome,
    decode_from_node,
    encode,
)
from tests.support.host_reports import healthy, many_nodes
from tests.support.session_shell import IDENTITY, SAMPLES, limits, make_session, recipe

LEASE_S = 10.0


class Host:
    """A node service whose clock the test sets; what it sends is kept."""

    def __init__(self, lease_s: float = LEASE_S, dataset: str = "d", loss: str = "") -> None:
        self.now_s = 1000.0
        self.sent: list[NodeMessage] = []
        self.router: Any = SimpleNamespace(
            counters=SocketCounters(),
            has_unread=False,
            ended=[],
            take_ended=self.take_ended,
            waste=lambda _: None,
            sender=lambda: ("", True, True),
            send=lambda _, frame: self.sent.append(decode_from_node(frame)),
        )
        self.board = os.memfd_create("board")
        layout = ShardLayout(samples=SAMPLES, shards=5)
        pool: Any = SimpleNamespace(
            look=lambda _: {},
            counters=WorkerCounters(),
            record=NodeRecord(),
            pids={},
            numbers=(),
            send=lambda *_: None,
        )
        served = ServedDataset(content="f" * 32, classes=("a", "b"), layout=layout, loss=loss)
        table = SessionTable({dataset: served}, limits(lease_s=lease_s), pool.record)
        table.identity = IDENTITY
        claim_listener: Any = SimpleNamespace(counters=ClaimCounters())
        parts = (table, self.router, claim_listener, pool, NodeStatus())
        fetches = Fetches({}, b"", PollSet())
        self.service = NodeService(*parts, fetches=fetches, board=self.board)
        self.receive(Hello(dataset=dataset, recipe=recipe(), seed=0, window=1, client="test"))
        (welcome,) = self.sent
        assert isinstance(welcome, Welcome)
        self.session = welcome.session

    def receive(self, message: ClientMessage, peer: bytes = b"peer") -> None:
        self.service.clients.take(peer, encode(message), self.now_s)

    def take_ended(self) -> list[bytes]:
        return [] if self.router.has_unread else [self.router.ended.pop()]

    def turn(self, due_s: float) -> None:
        self.service.begin_turn(self.now_s, due_s)
        self.service.run_due(self.now_s)

    def post(self, verdict: str = "idle", report: HostReport | None = None) -> None:
        frame = encode(HostStats(report=report))
        write_board(self.board, Board(clock_s=self.now_s, verdict=verdict, frame=frame))

    def advance(self, seconds: float) -> None:
        """Advance the clock in steps, with the process running."""
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            self.turn(self.now_s)

    def count(self, name: str) -> object:
        return self.service.counters(self.now_s)[name]

    @property
    def expired(self) -> object:
        return self.count("sessions_expired")


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    os.close(host.board)


def test_client_that_stays_silent_after_a_stall_expires(host: Host) -> None:
    host.now_s += 100.0
    host.turn(host.now_s - 99.9)
    host.advance(0.9)
    assert host.expired == 0
    host.advance(0.4)
    assert host.expired == 1
    assert host.service.deadline_s > host.now_s


@given(phase_s=st.floats(0, 1), ran_s=st.floats(0, 4), stall_s=st.floats(0, 10))
def test_no_stall_expires_a_client_that_pings(phase_s: float, ran_s: float, stall_s: float) -> None:
    """Its lease is the shortest; the first turn after the stall does not see the backlog yet."""
    host = Host(lease_s=2.0)
    ping_s = host.now_s + phase_s
    stopped_s = host.now_s + ran_s
    resumed_s = stopped_s + stall_s
    while host.now_s < resumed_s + 3.0:
        due_s = host.service.deadline_s
        host.now_s = max(host.now_s, min(due_s, ping_s))
        is_resumed = stopped_s <= host.now_s < resumed_s
        if is_resumed:
            host.now_s = resumed_s
        host.service.begin_turn(host.now_s, due_s)
        if not is_resumed and ping_s <= host.now_s:
            host.receive(Ping(session=host.session))
            ping_s += 1.0
        host.service.run_due(host.now_s)
    assert host.expired == 0


def give_work(host: Host) -> list[int]:
    """Have a worker that sleeps with a chunk; return the workers that are killed from now on."""
    killed: list[int] = []
    pool: Any = host.service.pool
    pool.look = lambda numbers: dict.fromkeys(numbers, ProcessLook("sleeps", 0.0))
    pool.send = lambda *_: None
    pool.kill = lambda number, _: killed.append(number)
    pool.pids = {1: 1001}
    host.service.on_worker(WorkerJoined(1), host.now_s)
    host.receive(Request(session=host.session, want=((0, 0),)))
    return killed


def run(host: Host, seconds: float) -> float:
    """Let the loop turn for a while; return when its next turn is due."""
    end_s = host.now_s + seconds
    while (due_s := host.service.deadline_s) <= end_s:
        host.now_s = max(host.now_s, due_s)
        host.turn(due_s)
    host.now_s = end_s
    return due_s


def test_no_worker_is_blamed_for_a_suspension_of_all(host: Host) -> None:
    killed = give_work(host)
    due_s = run(host, 0.7)
    host.now_s += 40.0
    host.turn(due_s)
    host.receive(Ping(session=host.session))
    run(host, 1.1)
    assert not killed
    assert host.count("worker_silences") == 0
    run(host, 1.1)
    assert host.count("worker_silences") == 1, "now it has made no progress for 2 s of its own"


def test_bad_samples_are_limited_for_each_shard(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    def kind_of(sample: int | None, shard: str) -> object:
        failed = FillFailed(ticket=9, code="dataset", message="damaged", sample=sample, shard=shard)
        host.service.on_worker(failed, host.now_s)
        return vars(caplog.records[-1])["kind"]

    first, other = kind_of(3, "/d/shard-1.fds"), kind_of(8, "/d/shard-2.fds")
    assert kind_of(4, "/d/shard-1.fds") == first
    assert len({first, other, kind_of(None, "")}) == 3


def test_a_turn_begins_before_the_messages_that_waited_are_handled() -> None:
    """Else a suspension would count as time that the chunks took."""
    reader, writer = os.pipe()
    calls: list[str] = []
    poll_set = PollSet()
    poll_set.add(reader, lambda now_s: calls.append("message"))
    os.write(writer, b"x")
    poll_set.run(0.0, lambda now_s, due_s: calls.append("begin"))
    assert calls == ["begin", "message"]
    for end in (reader, writer):
        os.close(end)


def test_connection_that_ends_without_bye_is_lost(host: Host) -> None:
    host.router.ended = [b"peer"]
    assert host.service.deadline_s <= host.now_s
    host.advance(0.2)
    assert (host.count("sessions_closed"), host.count("sessions_lost")) == (0, 1)


def test_clients_get_the_supervisors_report_as_long_as_it_makes_reports(host: Host) -> None:
    host.receive(HostStatsRequest())
    assert host.sent[-1] == HostStats(report=None), "it has made none yet"
    for report in (many_nodes(), healthy()):  # the second one is shorter
        host.post(report=report)
        host.receive(HostStatsRequest())
        assert host.sent[-1] == HostStats(report=report)
    host.advance(REPORT_MAX_S + 0.2)
    host.receive(HostStatsRequest())
    assert host.sent[-1] == HostStats(report=None)


def test_a_report_that_is_being_written_is_not_read(host: Host) -> None:
    host.post(report=healthy())
    host.receive(HostStatsRequest())
    os.pwrite(host.board, b"new", 200)
    host.receive(HostStatsRequest())
    assert host.sent[-2:] == [HostStats(report=healthy())] * 2


def test_a_verdict_with_control_characters_is_made_printable(host: Host) -> None:
    host.post("io-bound\n" + "x" * 1000)
    host.service.read_board()
    host.receive(Ping(session=host.session))
    pong = host.sent[-1]
    assert isinstance(pong, Pong)
    assert decode_from_node(encode(pong)) == pong
    assert pong.verdict.startswith(r"io-bound\nxxx")


def test_an_invalid_message_costs_four_tokens_of_a_burst_of_256(host: Host) -> None:
    for _ in range(70):
        host.service.clients.take(b"another", b"garbage", host.now_s)
    assert host.router.counters.frames_dropped == {"malformed": 64, "over-rate": 6}


def test_a_chunk_that_is_sent_earns_eight_tokens(host: Host) -> None:
    fills: list[Fill] = []
    host.service.pool.send = lambda _, fill: fills.append(fill)  # type: ignore[method-assign]
    host.service.apply([WorkerJoined(1)], host.now_s)
    host.receive(Request(session=host.session, want=((0, 0),)))
    dropped = host.router.counters.frames_dropped

    def spend() -> int:
        """The number of invalid messages until there are no tokens."""
        before = dropped["malformed"], dropped["over-rate"]
        while dropped["over-rate"] == before[1]:
            host.service.clients.take(b"peer", b"garbage", host.now_s)
        return dropped["malformed"] - before[0]

    spend()
    host.router.send_chunk = lambda *_: SimpleNamespace(done=True)
    host.service.apply([Filled(fills[0].ticket)], host.now_s)
    assert spend() == 2


def test_counters_and_snapshots_have_what_is_there_now(host: Host) -> None:
    service, table = host.service, host.service.table
    service.cache = SimpleNamespace(entries=3, used_bytes=4096)  # type: ignore[assignment]
    table.watch.stalled["another"] = host.now_s
    names = "datasets_stalled", "cache_entries", "cache_used_bytes"
    assert [host.count(name) for name in names] == [1, 3, 4096]
    host.service.apply([WorkerJoined(1)], host.now_s)
    host.receive(Request(session=host.session, want=((0, 0),)))
    nothing: Any = None
    snapshot = Snapshots(service, nothing, nothing).take(host.now_s)
    assert snapshot.queued_batches == table.queued_batches > 0
    assert snapshot.chunks_in_flight == table.dispatcher.chunks_in_flight > 0
    assert snapshot.cache.used_bytes == 4096


def test_names_are_read_by_another_worker_when_theirs_is_lost(host: Host) -> None:
    asked: list[int] = []
    pool: Any = host.service.pool
    pool.numbers, pool.send = (1, 2), lambda worker, _: asked.append(worker)
    host.receive(NamesRequest(dataset="d", sample_ids=(0,)))
    host.service.on_worker(WorkerLost(asked[0], was_killed=True), host.now_s)
    host.service.names.run_due(host.now_s)
    assert sorted(asked) == [1, 2]


def test_memory_that_clients_map_is_counted(host: Host) -> None:
    assert host.count("slots_held_bytes") == 0
    host.service._claim_listener.grant = lambda *_: True  # type: ignore[method-assign]
    host.service.apply([SlotsClaimed(host.session, 1)], host.now_s)
    assert host.count("slots_held_bytes") == host.count("slots_committed_bytes") != 0


# --- the log ----------------------------------------------------------------------------------

SESSION = 0x7FFF_FFFF_1A2B_3C4D


@pytest.mark.parametrize(
    ("how", "level", "text"),
    [
        ("closed", "DEBUG", "ended"),
        ("lost", "INFO", "lost: its process or its connection has ended"),
        ("expired", "WARNING", "expired: its client was silent for 15 s"),
    ],
)
def test_the_end_of_a_session_is_logged_with_its_id_and_client(
    how: SessionEnd, level: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log_session_end(
        make_session(SESSION, "user 1000", "resnet", client="gpu-3 pid 7 rank 5"), how, 15.0
    )
    line = f"session 1a2b3c4d of gpu-3 pid 7 rank 5 in job resnet (user 1000) on d: {text}"
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [(level, line)]
    assert vars(caplog.records[0])["session"] == "1a2b3c4d"
    assert vars(caplog.records[0])["client"] == "user 1000"


def test_names_that_a_client_gives_move_no_cursor(caplog: pytest.LogCaptureFixture) -> None:
    log_session_end(make_session(SESSION, "user 1", client="a\u202eb"), "expired", 15.0)
    assert r"session 1a2b3c4d of a\u202eb (user 1) on d: " in caplog.text


@pytest.mark.parametrize(
    ("code", "session", "level", "line"),
    [
        ("memory", None, "WARNING", "refused address 10.0.0.7 (memory): no room"),
        ("bad-recipe", None, "INFO", "refused address 10.0.0.7 (bad-recipe): no room"),
        (
            "window",
            SESSION,
            "INFO",
            "refused session 1a2b3c4d of address 10.0.0.7 (window): no room",
        ),
    ],
)
def test_a_refusal_is_a_warning_where_the_feeder_lacks_something(
    code: Literal["memory", "bad-recipe", "window"],
    session: int | None,
    level: str,
    line: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    log_refusal(Refused(code=code, message="no room", session=session), "address 10.0.0.7")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [(level, line)]
