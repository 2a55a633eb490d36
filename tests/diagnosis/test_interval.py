"""Rates and shares from two snapshots."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.diagnosis.interval import HostInterval, NodeInterval
from feeder.metrics.records import OTHERS, NodeRecord, SlotSeconds, WorkerRecord
from feeder.metrics.report import NodeReport
from tests.support.host_reports import client, node, report, worker

totals = st.integers(0, 10**9)
seconds = st.floats(0, 1e6)
workers = st.builds(
    WorkerRecord,
    number=st.integers(1, 4),
    pid=st.integers(1, 99),
    state=st.sampled_from(["starting", "idle", "busy", "silent"]),
    images=totals,
    busy_s=seconds,
    cpu_s=seconds,
    run_delay_s=seconds,
    read_bytes=totals,
    requested_bytes=totals,
)
snapshots = st.builds(
    NodeRecord,
    number=st.just(0),
    name=st.just("host/0"),
    pid=st.integers(1, 2),
    clock_s=seconds,
    uptime_s=seconds,
    endpoints=st.just(("ipc:///n",)),
    workers=st.lists(workers, max_size=3).map(tuple),
    lost_worker_busy_s=seconds,
    images=totals,
    stages=st.dictionaries(st.sampled_from(["read", "decode"]), seconds),
    memory_bytes_a_s=seconds,
)


@given(before=snapshots, now=snapshots)
def test_any_two_snapshots_give_finite_shares(before: NodeRecord, now: NodeRecord) -> None:
    interval = NodeInterval(before, now)
    assert interval.seconds >= 0
    assert 0 <= interval.busy_workers <= len(now.workers)
    for busy in interval.workers:
        shares = busy.cpu_share + busy.run_delay_share + busy.blocked_share
        assert shares == pytest.approx(busy.busy_share)
        assert 0 <= busy.busy_share <= 1
    assert interval.images_a_s >= 0


def test_rates_and_shares_are_growth_over_the_time_between() -> None:
    interval = HostInterval(report(node(images=3000, seconds=10.0)))
    assert (interval.seconds, interval.images_a_s) == (10.0, 300.0)
    busy = worker(1, busy_s=8.0, cpu_s=5.0, run_delay_s=1.0)
    (share,) = NodeInterval(*_ends(node(workers=(busy,)))).workers
    assert (share.busy_share, share.cpu_share) == (0.8, 0.5)
    assert share.run_delay_share == pytest.approx(0.1)
    assert share.blocked_share == pytest.approx(0.2)
    slots = SlotSeconds(free=10.0, filling=25.0, sending=5.0)
    (one,) = NodeInterval(*_ends(node(clients=(client("a", slots=slots),)))).clients
    assert one.slots == SlotSeconds(free=1.0, filling=2.5, sending=0.5)
    both = tuple(worker(number, busy_s=10.0) for number in (1, 2))
    host = HostInterval(report(node(workers=both, stages={"decode": 15.0})))
    assert host.stages == {"decode": 0.75}, "of the time in chunks"


def test_a_replaced_process_counts_from_its_start() -> None:
    before, _ = _ends(node(images=900_000))
    _, now = _ends(node(images=50))
    successor = msgspec.structs.replace(now, pid=now.pid + 1, uptime_s=5.0)
    interval = NodeInterval(before, successor)
    assert (interval.seconds, interval.images_a_s) == (5.0, 10.0)


def test_the_work_of_workers_that_have_ended_counts() -> None:
    before, now = _ends(node(workers=(worker(2, busy_s=1.0),)))
    now = msgspec.structs.replace(now, lost_worker_busy_s=4.0)
    assert NodeInterval(before, now).busy_workers == 0.5


def test_clients_wait_for_all_node_processes_or_report_nothing() -> None:
    nodes = [node(number, clients=(client("a", waited_s=2.0 + number),)) for number in (0, 1)]
    assert HostInterval(report(*nodes)).wait_share == pytest.approx(0.5)
    host = report(node(clients=(client("a", clock_s=0.0), client("b", waited_s=1.0))))
    interval = HostInterval(host)
    assert [row.wait_share for row in interval.node_clients] == [None, pytest.approx(0.1)]
    assert interval.wait_share == pytest.approx(0.1)


def test_each_of_the_others_counts_as_a_client() -> None:
    others = client(OTHERS, clients=3, waited_s=15.0, clock_s=30.0, cpu_s=12.0)
    interval = HostInterval(report(node(clients=(client("a", waited_s=1.0), others))))
    assert interval.client_count == 4
    assert interval.wait_share == pytest.approx((0.1 + 3 * 0.5) / 4)
    assert interval.node_clients[1].cpus == pytest.approx(1.2)


def test_others_without_a_start_have_done_nothing_yet() -> None:
    process = node(clients=(client("a", images=100), client(OTHERS, images=10**6, worker_s=10**4)))
    before, now = _ends(process)
    first = msgspec.structs.replace(before, clients=before.clients[:1])
    more = msgspec.structs.replace(before.clients[1], images=2 * 10**6)
    shrunk = msgspec.structs.replace(before, clients=(before.clients[0], more))
    for start in (first, shrunk):
        one, others = NodeInterval(start, now).clients
        assert (one.images_a_s, others.images_a_s) == (10.0, 0.0)


def test_a_process_that_sends_nothing_more_has_no_rates() -> None:
    """Its curve falls to zero; it does not show the mean since its start."""
    _, now = _ends(node(images=900_000, workers=(worker(1, busy_s=10.0),)))
    interval = NodeInterval(now, now)
    assert (interval.seconds, interval.images_a_s, interval.busy_workers) == (0.0, 0.0, 0.0)


def _ends(process: NodeReport) -> tuple[NodeRecord, NodeRecord]:
    assert process.before is not None
    assert process.now is not None
    return process.before, process.now
