"""What the supervisor keeps of its node processes, and the reports it makes of it."""

import msgspec
import pytest

from feeder.daemon.watch import (
    HISTORY_S,
    INTERVAL_S,
    POINT_S,
    TURN_S,
    HostWatch,
)
from feeder.diagnosis.interval import HostInterval
from feeder.metrics.records import ClientRecord, NodeRecord, StoreRecord, WorkerRecord
from feeder.metrics.report import (
    HostLoad,
    HostReport,
    NodeReport,
    NodeState,
)
from feeder.process.log_lines import counters


class Machine:
    """A clock, and a load that is one busy CPU of two."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def read_load(self) -> HostLoad:
        return HostLoad(clock_s=self.now_s, usable_cpus=2.0, cpus=2, busy_s=self.now_s / 2)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def watch_of(machine: Machine, nodes: int = 1) -> HostWatch:
    return HostWatch(
        nodes,
        read_load=machine.read_load,
        find_neighbours=lambda known, now_s: (),
    )


def node(number: int, state: NodeState = "ready", restarts: int = 0) -> NodeReport:
    return NodeReport(number=number, state=state, restarts=restarts)


READY = node(0)


def snapshot(at_s: float, images: int = 0, *, number: int = 0, pid: int = 50) -> NodeRecord:
    return NodeRecord(
        number=number,
        name=f"h/{number}",
        pid=pid,
        clock_s=at_s,
        uptime_s=at_s,
        endpoints=(),
        images=images,
        workers=(WorkerRecord(number=0, pid=51, state="busy", busy_s=images / 200),),
    )


def test_lines_of_the_supervisor_s_own_log_are_counted(machine: Machine) -> None:
    watch = watch_of(machine)
    counters.log_lines_dropped += 2
    counters.log_lines_limited += 7
    report = watch.turn([READY])
    counted = (report.log_lines_dropped, report.log_lines_limited)
    assert counted == (counters.log_lines_dropped, counters.log_lines_limited)


def test_rates_are_over_the_last_ten_seconds(machine: Machine) -> None:
    watch = watch_of(machine)
    for second in range(30):
        machine.now_s = 1000.0 + second
        watch.take(snapshot(machine.now_s, images=second**2))
        report = watch.turn([READY])
    node = report.nodes[0]
    assert node.now is not None
    assert node.before is not None
    assert (node.before.clock_s, node.now.clock_s) == (1019.0, 1029.0)
    assert report.load.clock_s - report.load_before.clock_s == INTERVAL_S
    assert HostInterval(report).images_a_s == (29**2 - 19**2) / 10
    assert report.uptime_s == 29.0


def test_a_fetcher_s_rates_are_its_own_and_end_with_its_records(machine: Machine) -> None:
    """Not over two processes, nor over a suspension; and not those of before while it is silent."""
    watch, fetched = watch_of(machine), 0

    def rate(pid: int = 3, *, is_sent: bool = True) -> float:
        nonlocal fetched
        machine.now_s += 1.0
        fetched += 100
        if is_sent:
            watch.take_store(StoreRecord(pid=pid, clock_s=machine.now_s, fetched_bytes=fetched))
        store = HostInterval(watch.turn([READY])).store
        assert store is not None
        return store.bytes_a_s

    assert [rate(), rate(), rate(), rate(pid=4), rate(pid=4)] == [0, 100, 100, 0, 100]
    assert [rate(pid=4, is_sent=False) for _ in range(4)] == [100, 100, 100, 0]
    machine.now_s += 30.0
    assert [rate(pid=4), rate(pid=4)] == [0, 100]
    assert HostInterval(watch_of(machine).turn([READY])).store is None


@pytest.mark.parametrize("is_early", [False, True])
def test_rates_begin_anew_after_a_suspension(machine: Machine, is_early: bool) -> None:
    """``is_early``: the first snapshot after it arrives before the first report."""
    watch = watch_of(machine)
    for second in range(20):
        machine.now_s = 1000.0 + second
        watch.take(snapshot(machine.now_s, images=100 * second))
        watch.turn([READY])
    machine.now_s += 30.0
    if is_early:
        watch.take(snapshot(machine.now_s, images=2000))
    report = watch.turn([READY])
    assert report.load_before == report.load
    for second in range(3):
        machine.now_s += 1.0
        watch.take(snapshot(machine.now_s, images=2100 + 100 * second))
        report = watch.turn([READY])
    assert HostInterval(report).images_a_s == 100.0
    assert HostInterval(report).seconds <= 3.0


@pytest.mark.parametrize("is_connected", [False, True])
def test_rates_begin_anew_with_the_first_request(machine: Machine, is_connected: bool) -> None:
    """Else a worker that is busy since then is half idle five seconds later. Jobs connect, then
    build their model."""
    watch = watch_of(machine)
    trainer = ClientRecord(name="t", account="u", dataset="d", is_lent=True)
    for second in range(20):
        machine.now_s = 1000.0 + second
        idle = snapshot(machine.now_s)
        watch.take(msgspec.structs.replace(idle, clients=(trainer,) if is_connected else ()))
        watch.turn([READY])
    trainer = msgspec.structs.replace(trainer, wanted=4)
    for second in range(1, 6):
        machine.now_s += 1.0
        busy = snapshot(machine.now_s, images=200 * second)
        watch.take(msgspec.structs.replace(busy, clients=(trainer,)))
        report = watch.turn([READY])
    interval = HostInterval(report)
    assert (interval.seconds, interval.images_a_s, interval.busy_share) == (4.0, 200.0, 1.0)


def test_snapshots_of_a_predecessor_are_not_compared_with_those_of_its_successor(
    machine: Machine,
) -> None:
    watch = watch_of(machine, nodes=2)
    for second in range(3):
        watch.take(snapshot(1000.0 + second, 100, number=0))
        watch.take(snapshot(1000.0 + second, 100, number=1))
    watch.take(snapshot(1003.0, 5, number=0, pid=60))
    first, second_node = watch.turn([node(0, restarts=1), node(1)]).nodes
    assert (first.before, first.restarts) == (None, 1)
    assert second_node.before is not None
    gone = watch.turn([node(0, restarts=1), node(1, "restarting", restarts=1)]).nodes[1]
    assert (gone.state, gone.now, gone.before) == ("restarting", None, None)


def test_the_curves_have_a_point_each_five_seconds_for_fifteen_minutes(machine: Machine) -> None:
    watch = watch_of(machine)
    for second in range(1000):
        machine.now_s = 1000.0 + second
        watch.take(snapshot(machine.now_s, images=100 * second))
        report = watch.turn([READY])
        assert watch.due_s == machine.now_s + TURN_S
    assert len(report.history) == HISTORY_S / POINT_S
    last = report.history[-1]
    assert (last.images_a_s, last.busy_share) == (100.0, 0.5)
    assert last.clock_s - report.history[0].clock_s == HISTORY_S - POINT_S


def test_the_warnings_of_the_start_are_in_every_report(machine: Machine) -> None:
    watch = watch_of(machine)
    watch.warn(["swap is on\x1b[31m", *["x" * 600] * 100])
    warnings = watch.turn([READY]).warnings
    assert warnings[0] == "swap is on\\x1b[31m"
    assert len(warnings) == 64
    report = msgspec.msgpack.encode(watch.report)
    assert msgspec.msgpack.decode(report, type=HostReport) == watch.report
