"""Rates and shares from two snapshots; which condition a report is named after, and its line."""

import re
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.diagnosis.interval import HostInterval, NodeInterval
from feeder.diagnosis.verdict import Judge, diagnose
from feeder.metrics.records import (
    OTHERS,
    CacheRecord,
    FailureRecord,
    NodeRecord,
    SlotSeconds,
    WorkerRecord,
)
from feeder.metrics.report import VERDICT_CHARS_MAX, HostReport, NodeReport, VerdictKind
from tests.support import host_reports
from tests.support.host_reports import client, fetches, node, report, worker
from tests.support.sources import REPOSITORY

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


def test_rates_and_shares_are_growth_over_the_time_between() -> None:
    interval = HostInterval(report(node(images=3000, seconds=10.0)))
    assert (interval.seconds, interval.images_a_s) == (10.0, 300.0)
    for run_delay_s, delayed, blocked in ((1.0, 0.1, 0.2), (9.0, 0.3, 0.0)):  # also between chunks
        busy = worker(1, busy_s=8.0, cpu_s=5.0, run_delay_s=run_delay_s)
        (share,) = NodeInterval(*_ends(node(workers=(busy,)))).workers
        assert (share.busy_share, share.cpu_share) == (0.8, 0.5)
        assert share.run_delay_share == pytest.approx(delayed)
        assert share.blocked_share == pytest.approx(blocked)
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


@pytest.mark.parametrize(
    ("ago_s", "is_last", "kind"),
    [
        (2.9, False, "failing-batches"),
        (3.1, False, "idle"),
        (59.0, True, "failing-batches"),
        (61.0, True, "idle"),
    ],
)
def test_a_failed_batch_counts_for_a_minute_unless_others_of_its_dataset_were_made_since(
    ago_s: float, is_last: bool, kind: VerdictKind
) -> None:
    failure = FailureRecord(dataset="d", ago_s=ago_s, is_last=is_last)
    assert diagnose(report(node(failures=(failure,)))).kind == kind


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


QUIET = {"healthy", "client-bound", "starting", "draining", "idle"}
DECODE = {"read": 2.0, "decode": 30.0, "resize": 6.0}
READING = {"read": 25.0, "decode": 9.0}


def host(
    *,
    busy: float = 0.95,
    cpu: float = 0.95,
    delay: float = 0.0,
    waits: float = 0.3,
    count: int = 4,
    clients: Any = None,
    machine: dict[str, Any] | None = None,
    **fields: Any,
) -> HostReport:
    """Workers that are ``busy``, ``cpu`` of that on a CPU, for ten seconds."""
    workers = tuple(
        worker(n, busy_s=10 * busy, cpu_s=10 * busy * cpu, run_delay_s=10 * busy * delay, images=9)
        for n in range(1, count + 1)
    )
    if clients is None:
        clients = (client("trainer pid 5", waited_s=10 * waits, worker_s=10 * busy * count),)
    values = {"images": 30_000, "stages": DECODE, "workers": workers, "clients": clients}
    return report(node(**(values | fields)), **({"busy_cpus": 4.0, "cpus": 4} | (machine or {})))


def silent(number: int, silent_s: float, kernel_state: str, **totals: Any) -> Any:
    return worker(number, state="silent", silent_s=silent_s, kernel_state=kernel_state, **totals)


def taking(name: str, waited_s: float, worker_s: float, **totals: Any) -> Any:
    return client(name, waited_s=waited_s, worker_s=worker_s, **totals)


class Case(NamedTuple):
    """A report, the condition that it is named after, and the line's evidence."""

    kind: str
    evidence: str
    estimate_images_a_s: float | None
    report: HostReport


def case(
    kind: str, evidence: str = "", estimate_images_a_s: float | None = None, **fields: Any
) -> Case:
    """A ``host`` of these fields."""
    return Case(kind, evidence, estimate_images_a_s, host(**fields))


def bare(kind: str, evidence: str = "", **fields: Any) -> Case:
    """A node process of these fields alone."""
    return Case(kind, evidence, None, report(node(**fields)))


def fetching(
    kind: str,
    evidence: str,
    estimate_images_a_s: float | None = None,
    *,
    wait_s: float = 3.375,
    wanted: int = 8,
    more: tuple[Any, ...] = (),
    store: dict[str, Any] | None = None,
    **fields: Any,
) -> Case:
    """A host of which 16 batches waited so long for samples from a store, and 4 did not."""
    waiting = taking("t pid 5", 4.0, 14.4, images=30_000, window=8, wanted=wanted)
    values = {"busy": 0.36, "clients": (waiting, *more), "fetch_s": fetches(4, 16, wait_s)}
    made = host(**(values | {"machine": {"busy_cpus": 1.4}} | fields))
    made = msgspec.structs.replace(made, **host_reports.store(**(store or {})))
    return Case(kind, evidence, estimate_images_a_s, made)


SMALL = {"used_bytes": 39 * 10**9, "evicted_bytes": 3 * 10**9}
PLACED = tuple(taking(f"c{n}", 5.0, 0.2) for n in range(64))
OTHER_CLIENTS = taking(OTHERS, 5.0 * 136, 27.0, clients=136, clock_s=10.0 * 136)
CROWDED: dict[str, Any] = {"cpu": 0.5, "delay": 0.5, "machine": {"busy_cpus": 4.0}}
SWAPPING = {"pressure_memory_s": 9.0, "refaults": 40_000}
SHORT = "memory pressure is 90 % and 4,000 pages/s are read again"
CACHE = CacheRecord(
    budget_bytes=16 * 10**6, used_bytes=15 * 10**6, full_bytes=10**9, hits=600, misses=29_400
)
ON_THE_WAY = SlotSeconds(free=2.0, filling=3.0, sending=30.0, client=5.0)
FAR = taking("far", 9.0, 2.0, is_lent=False, is_local=False, slots=ON_THE_WAY)
STARVED = {
    "workers": tuple(
        silent(n, 6.0, "runs", busy_s=9.5, cpu_s=0.9, run_delay_s=8.6) for n in (1, 2)
    ),
    "images": 90,
}
"""Workers that lack CPU time are neither silent nor waiting for storage."""
UNCACHED = worker(1, busy_s=9.5, cpu_s=2.0, read_bytes=98, requested_bytes=100, images=9)
TWO_FULL = {"cpus": 2, "busy_cpus": 2.0}

CASES = [
    case("healthy", waits=0.01, busy=0.6),
    bare("idle", "idle: no client is connected"),
    bare("idle", "idle: 1 client requested nothing", clients=(client("a"),)),
    # A client that has requested, and gets nothing, is not idle.
    bare("window-bound", workers=(worker(1),), clients=(client("a", wanted=4, waited_s=9.0),)),
    case("window-bound", busy=0.4),
    case("client-bound", waits=0.0, busy=0.1),
    case("starting", seconds=0.5),
    *(case("node-down", state=state) for state in ("silent", "hung", "restarting")),
    case("draining", state="draining"),
    # --- Cores and workers: idle CPUs are for more workers
    case(
        "compute-bound",
        "compute-bound: decode takes 79 % of 4 busy workers, the client waits 30 % of its time; "
        "2 more cores would give about 4,500 images/s (estimate)",
        4500,
    ),
    case("compute-bound", "2 more workers (--workers)", count=2, machine={"busy_cpus": 2.0}),
    # One worker of two CPUs, whose client takes 0.6: there is room for 0.45 of a worker.
    case(
        "compute-bound",
        "1 more worker (--workers)",
        3000 * 2 / 1.55,
        count=1,
        cpu=1.0,
        clients=(taking("t", 5.0, 9.5, cpu_s=6.0),),
        machine={"cpus": 2, "busy_cpus": 1.55},
    ),
    case(
        "compute-bound",
        "1 more core would give",
        count=1,
        cpu=1.0,
        clients=(taking("t", 5.0, 9.5, cpu_s=10.0),),
        machine=TWO_FULL,
    ),
    # A loop that waits a fifth of its time takes a quarter more once it waits no longer.
    case(
        "compute-bound",
        "2 more cores would give about 3,800 images/s (estimate)",
        3000 / 0.8,
        clients=(taking("t", 2.0, 38.0, images=30_000),),
    ),
    case(
        "compute-bound",
        estimate_images_a_s=1.5 * 3000,
        clients=tuple(taking(n, s, 38.0, images=30_000) for n, s in (("t", 2.0), ("u", 9.9))),
    ),
    # Clients that never ping count as waiting while all workers are busy.
    case("compute-bound", clients=(client("old", clock_s=0.0),)),
    case("healthy", clients=(client("old", clock_s=0.0),), busy=0.5),
    # --- Neighbours and quotas
    case("neighbour-bound", **CROWDED),
    case(
        "neighbour-bound",
        estimate_images_a_s=3000 / 0.94,
        clients=(taking("t", 0.6, 38.0, images=30_000),),
        **CROWDED,
    ),
    case(
        "neighbour-bound",
        "of their time, CPU pressure 94 %, the client waits",
        **CROWDED | {"machine": {"pressure_cpu_s": 9.4}},
    ),
    case("neighbour-bound", **STARVED, machine=TWO_FULL),
    # The workers wait for a CPU because of the training loop beside them.
    case("compute-bound", cpu=0.5, delay=0.5, clients=(taking("t", 3.0, 38.0, cpu_s=19.0),)),
    # Half a CPU of 64 does not explain that the workers wait a quarter of their time.
    case("compute-bound", cpu=0.7, delay=0.25, count=64, machine={"cpus": 64, "busy_cpus": 43.1}),
    # Neighbours that use as much as the daemon, which waits for more than that.
    case("neighbour-bound", "", 2 * 3000, cpu=0.25, delay=0.75, machine={"busy_cpus": 1.9}),
    case(
        "quota-bound",
        "quota of 2 CPUs withheld 50 % of the CPU time",
        cpu=0.5,
        machine={"throttled_s": 19.0, "usable_cpus": 2.0},
    ),
    case(
        "quota-bound",
        "quota of 1 CPU withheld",
        cpu=0.5,
        machine={"throttled_s": 19.0, "usable_cpus": 1.0},
    ),
    case("quota-bound", **STARVED, machine={"throttled_s": 19.0, "cpus": 2}),
    # The kernel adds up the throttled time of all CPUs: 1 s of 10 on one CPU of 64 is little.
    case(
        "compute-bound",
        count=61,
        cpu=1.0,
        machine={"throttled_s": 1.0, "cpus": 64, "busy_cpus": 61.0},
    ),
    # --- Stores
    fetching(
        "store-bound",
        "store-bound: 5.4 batches wait for samples from the store at 380 MB/s and 95 requests/s, 8 "
        "transfers in flight, the client waits 40 % of its time, 4 workers are busy 36 %; `feeder "
        "cache fetch` before the job would give about 5,000 images/s (estimate), else a faster "
        "network or store or more feeders",
        3000 / 0.6,
    ),
    fetching(
        "store-bound",
        "in flight, repeated: throttled 9, reset 1, the client",
        store={"retries": {"reset": 1, "throttled": 9, "timeout": 0, "credentials": 7}},
    ),
    # No record since: the rates of before mean nothing now.
    fetching(
        "store-bound",
        "store, and the fetcher has sent nothing for 3.5 s, the client",
        store={"clock_s": host_reports.CLOCK_S + 6.5},
    ),
    # They wait since before the interval, so no wait has ended.
    fetching(
        "store-bound",
        "5.0 batches wait",
        fetch_s=fetches(4, 0, 0.0),
        fetching_batches=6,
        before={"fetching_batches": 5},
    ),
    # The others want batches, too, of a local dataset, and do not wait.
    fetching("store-bound", "", more=(taking("local", 0.0, 1.0, wanted=99, window=99),)),
    # Most of what the client wants is with it: not the store's samples are late.
    fetching("window-bound", "", wait_s=1.0),
    fetching("compute-bound", "", busy=0.9, stages=DECODE),
    fetching("quota-bound", "", machine={"throttled_s": 19.0, "cpus": 4}),
    # The fetcher is no neighbour.
    fetching(
        "window-bound",
        "",
        wait_s=0.0,
        delay=0.5,
        cpu=0.5,
        machine={"busy_cpus": 2.0},
        store={"cpu_s": 12.8},
    ),
    fetching("neighbour-bound", "", wait_s=0.0, delay=0.5, cpu=0.5, machine={"busy_cpus": 2.0}),
    fetching(
        "cache-small",
        "cache-small: the disk cache is full, 39.0 GB of 40.0 GB, and evicts 300 MB/s while 380 "
        "MB/s come from the store, 20 % of batches found their samples in it, the client waits 40 "
        "% of its time, 4 workers are busy 36 %; cache.disk_bytes for all that this host owns, "
        "140.0 GB, would give about 5,000 images/s (estimate), or more feeders",
        3000 / 0.6,
        store={**SMALL, "full_bytes": 140 * 10**9},
    ),
    fetching("cache-small", "for all that this host owns would give about", store=SMALL),
    # What is evicted is of other datasets, or of a disk that others fill.
    fetching(
        "store-bound",
        ", a larger cache.disk_bytes or more",
        store={**SMALL, "full_bytes": 20 * 10**9},
    ),
    fetching("store-bound", "", store={**SMALL, "used_bytes": 10**9}),
    # --- Storage and memory
    case(
        "io-bound",
        ", storage pressure 80 %, the client waits",
        cpu=0.3,
        stages=READING,
        machine={"pressure_io_s": 8.0},
    ),
    case(
        "io-bound",
        "98 % of what they read is not in the page cache",
        workers=(UNCACHED,),
        stages={"read": 7.5, "decode": 1.5},
        machine={"busy_cpus": 0.3},
    ),
    case("stalled-storage", stalled_datasets=("train",)),
    *(
        case("memory-short", SHORT, cpu=0.4, stages=stages, machine=SWAPPING)
        for stages in (DECODE, READING)
    ),
    case("memory-bound", memory_bytes_a_s=1e9, lent_bytes=25 * 10**8),
    case("cache-bound", cache=CACHE),
    case("compute-bound", cache=msgspec.structs.replace(CACHE, full_bytes=20 * 10**6)),
    # --- Processes and the network
    case("dispatch-bound", busy=0.5, own_cpu_s=9.9, loop_cpu_s=9.7),
    # A full socket thread is not the event loop.
    case("window-bound", busy=0.5, own_cpu_s=12.0, loop_cpu_s=4.0),
    case("silent-worker", silences=1, workers_killed=1),
    bare(
        "silent-worker",
        "worker 3 (pid 103, stopped by a signal) of node process 0",
        workers=(silent(3, 2.4, "stopped"),),
    ),
    # A short silence is no verdict unless the worker is stopped.
    case("compute-bound", workers=(silent(1, 2.4, "sleeps", busy_s=9.5),), silences=3),
    bare("silent-worker", workers=(silent(1, 6.0, "sleeps"), worker(2), worker(3))),
    bare(
        "stalled-storage",
        "2 of 4 workers have waited for up to 6 s",
        workers=(silent(1, 6.0, "sleeps"), silent(2, 6.0, "sleeps"), worker(3), worker(4)),
    ),
    case(
        "silent-worker",
        "(pid 101, running or waiting for a CPU)",
        workers=(silent(1, 6.0, "runs", busy_s=9.5, cpu_s=9.4), worker(2), worker(3)),
    ),
    case(
        "network-bound",
        "3.5 finished batches are on their way to far at 0.0 MB/s",
        busy=0.05,
        clients=(FAR,),
    ),
    # --- Clients that take too much
    case(
        "greedy-client",
        "hungry pid 7 takes 89 % of the workers' time, others wait up to 80 %",
        clients=(taking("hungry pid 7", 4.0, 34.0), taking("starved pid 8", 8.0, 4.0)),
    ),
    case("compute-bound", clients=(*PLACED, OTHER_CLIENTS)),
    # The others together get more than 40 % of its time.
    case("compute-bound", clients=(client("x", worker_s=38.0), *PLACED[1:], OTHER_CLIENTS)),
    case(
        "greedy-client",
        "x takes 83 % of the workers' time",
        clients=(client("x", worker_s=200.0), *PLACED[1:], OTHER_CLIENTS),
    ),
    case("compute-bound", clients=tuple(taking(name, 4.0, 19.0) for name in "ab")),
    # One takes most, and the other does not wait.
    case("compute-bound", clients=(taking("a", 4.0, 36.0), taking("b", 0.1, 2.0))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.evidence[:40] or case.kind)
def test_each_condition_is_named_with_its_evidence(case: Case) -> None:
    verdict = diagnose(case.report)
    assert verdict.kind == case.kind
    assert verdict.text.startswith(f"{case.kind}: ")
    assert case.evidence in verdict.text
    assert verdict.is_problem == (case.kind not in QUIET)
    if case.estimate_images_a_s is not None:
        assert verdict.estimate_images_a_s == pytest.approx(case.estimate_images_a_s)


def test_the_document_lists_every_verdict_in_the_order_in_which_they_are_tried() -> None:
    text = (REPOSITORY / "docs/diagnosis.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)`", text, re.MULTILINE)
    assert listed == list(get_args(VerdictKind))
    elsewhere = {"silent-client", "failing-batches", "packing"}
    assert {case.kind for case in CASES} == {*listed} - elsewhere


def test_a_new_kind_must_be_found_twice() -> None:
    judge = Judge()

    def look(clock_s: float, **fields: Any) -> str:
        now = msgspec.structs.replace(host(**fields), clock_s=clock_s)
        return judge.judge(now, now).kind

    quiet = {"waits": 0.01, "busy": 0.6}
    looks = [look(100.0, **quiet), look(100.5), look(101.0, **quiet), look(101.5), look(102.0)]
    assert looks == [*["healthy"] * 4, "compute-bound"]
    assert look(102.5, state="silent") == "node-down", "that has lasted already"


def test_that_no_cause_was_found_must_be_found_for_longer() -> None:
    judge, kinds = Judge(), []
    for clock_s in (100.0, 100.5, 101.0, 101.5, 102.0):
        fields = {"waits": 0.01, "busy": 0.6} if clock_s == 100.0 else {"busy": 0.4}
        now = msgspec.structs.replace(host(**fields), clock_s=clock_s)
        kinds.append(judge.judge(now, now).kind)
    assert kinds == [*["healthy"] * 4, "window-bound"]


def test_all_that_a_batch_moves_counts_as_memory_traffic() -> None:
    def share(**totals: Any) -> float:
        return HostInterval(host(memory_bytes_a_s=1e9, **totals)).nodes[0].memory_share

    assert share(lent_bytes=10**9) == pytest.approx(0.3)
    assert share(sent_bytes=10**9) == pytest.approx(0.4)
    assert share(cache=CacheRecord(moved_bytes=10**9)) == pytest.approx(0.1)
    assert share(decoded_bytes=10**9) == 0, "scratch stays in the core's own cache"


@given(before=snapshots, now=snapshots)
def test_any_two_snapshots_have_a_verdict_that_fits(before: NodeRecord, now: NodeRecord) -> None:
    verdict = diagnose(report(msgspec.structs.replace(node(), before=before, now=now)))
    assert 0 < len(verdict.text) <= VERDICT_CHARS_MAX
    assert not re.search("nan|inf", verdict.text)


def test_a_long_name_is_cut() -> None:
    trainers = (taking("x" * 256, 4.0, 34.0), taking("b", 8.0, 4.0))
    stalled = tuple(f"{'y' * 200}{n}" for n in range(9))
    assert len(diagnose(host(clients=trainers)).text) <= VERDICT_CHARS_MAX
    assert len(diagnose(host(stalled_datasets=stalled)).text) == VERDICT_CHARS_MAX
