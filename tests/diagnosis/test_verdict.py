"""Which condition a report is named after, and what the line says."""

import re
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given

from feeder.diagnosis.interval import HostInterval
from feeder.diagnosis.verdict import Judge, diagnose
from feeder.metrics.records import OTHERS, CacheRecord, NodeRecord, SlotSeconds
from feeder.metrics.report import VERDICT_CHARS_MAX, HostReport, VerdictKind
from tests.diagnosis.reports import client, node, report, worker
from tests.diagnosis.test_interval import snapshots
from tests.support.sources import REPOSITORY

DECODE = {"read": 2.0, "decode": 30.0, "resize": 6.0}


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


def test_workers_that_always_compute_are_compute_bound_and_cores_would_help() -> None:
    verdict = diagnose(host())
    assert verdict.kind == "compute-bound"
    assert verdict.text == (
        "compute-bound: decode takes 79 % of 4 busy workers, the client waits 30 % of its time; "
        "2 more cores would give about 4,500 images/s (estimate)"
    )
    assert verdict.is_problem
    assert verdict.estimate_images_a_s == pytest.approx(4500)


def test_idle_cpus_are_for_more_workers() -> None:
    verdict = diagnose(host(count=2, machine={"cpus": 4, "busy_cpus": 2.0}))
    assert verdict.kind == "compute-bound"
    assert "2 more workers (--workers)" in verdict.text


def test_more_workers_are_worth_no_more_than_the_cpus_that_are_idle() -> None:
    """One worker of two CPUs, whose client takes 0.6: there is room for 0.45 of a worker."""
    trainer = client("t", waited_s=5.0, cpu_s=6.0, worker_s=9.5)
    verdict = diagnose(
        host(count=1, cpu=1.0, clients=(trainer,), machine={"cpus": 2, "busy_cpus": 1.55})
    )
    assert "1 more worker (--workers)" in verdict.text
    assert verdict.estimate_images_a_s == pytest.approx(3000 * 2 / 1.55)


def test_no_change_gives_clients_more_than_they_would_take() -> None:
    """A loop that waits a fifth of its time takes a quarter more once it waits no longer."""
    trainer = {"worker_s": 38.0, "images": 30_000}
    paced = diagnose(host(clients=(client("t", waited_s=2.0, **trainer),)))
    assert paced.text.endswith("2 more cores would give about 3,800 images/s (estimate)")
    assert paced.estimate_images_a_s == pytest.approx(3000 / 0.8)
    two = (client("t", waited_s=2.0, **trainer), client("u", waited_s=9.9, **trainer))
    assert diagnose(host(clients=two)).estimate_images_a_s == pytest.approx(1.5 * 3000)
    neighbours = {"cpu": 0.5, "delay": 0.5, "machine": {"busy_cpus": 4.0}}
    hardly = diagnose(host(clients=(client("t", waited_s=0.6, **trainer),), **neighbours))
    assert hardly.kind == "neighbour-bound"
    assert hardly.estimate_images_a_s == pytest.approx(3000 / 0.94)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("healthy", {"waits": 0.01, "busy": 0.6}),
        ("client-bound", {"waits": 0.0, "busy": 0.1}),
        ("io-bound", {"cpu": 0.3, "stages": {"read": 25.0, "decode": 9.0}}),
        ("neighbour-bound", {"cpu": 0.5, "delay": 0.5, "machine": {"busy_cpus": 4.0}}),
        ("quota-bound", {"cpu": 0.5, "machine": {"throttled_s": 19.0}}),
        ("memory-short", {"cpu": 0.4, "machine": {"pressure_memory_s": 9.0}}),
        ("memory-bound", {"memory_bytes_a_s": 1e9, "lent_bytes": 25 * 10**8}),
        ("dispatch-bound", {"busy": 0.5, "own_cpu_s": 9.9, "loop_cpu_s": 9.7}),
        ("window-bound", {"busy": 0.4}),
        ("stalled-storage", {"stalled_datasets": ("train",)}),
        ("silent-worker", {"silences": 1, "workers_killed": 1}),
        ("node-down", {"state": "silent"}),
        ("node-down", {"state": "hung"}),
        ("node-down", {"state": "restarting"}),
        ("draining", {"state": "draining"}),
        ("starting", {"seconds": 0.5}),
    ],
)
def test_each_condition_is_named(kind: str, fields: dict[str, Any]) -> None:
    verdict = diagnose(host(**fields))
    assert verdict.kind == kind
    assert verdict.text.startswith(f"{kind}: ")
    quiet = {"healthy", "client-bound", "starting", "draining"}
    assert verdict.is_problem == (kind not in quiet)


def test_a_new_kind_must_be_found_twice() -> None:
    judge = Judge()

    def look(clock_s: float, **fields: Any) -> str:
        now = msgspec.structs.replace(host(**fields), clock_s=clock_s)
        return judge.judge(now, now).kind

    quiet = {"waits": 0.01, "busy": 0.6}
    assert look(100.0, **quiet) == "healthy"
    assert look(100.5) == "healthy"
    assert look(101.0, **quiet) == "healthy"
    assert look(101.5) == "healthy"
    assert look(102.0) == "compute-bound"
    assert look(102.5, state="silent") == "node-down", "that has lasted already"


def test_nothing_to_do_is_idle() -> None:
    assert diagnose(report(node())).text == "idle: no client is connected"
    waiting = report(node(clients=(client("a"),)))
    assert diagnose(waiting).text == "idle: 1 client requested nothing"


def test_a_client_that_has_requested_and_gets_nothing_is_not_idle() -> None:
    stuck = report(node(workers=(worker(1),), clients=(client("a", wanted=4, waited_s=9.0),)))
    assert diagnose(stuck).kind == "window-bound"


def test_a_silent_worker_is_named_with_what_the_kernel_says() -> None:
    silent = worker(3, state="silent", silent_s=2.4, kernel_state="stopped")
    verdict = diagnose(report(node(workers=(silent,))))
    assert verdict.kind == "silent-worker"
    assert "worker 3 (pid 103, stopped by a signal) of node process 0" in verdict.text


def test_a_short_silence_is_no_verdict_unless_the_worker_is_stopped() -> None:
    silent = worker(1, state="silent", silent_s=2.4, kernel_state="sleeps", busy_s=9.5)
    assert diagnose(report(node(workers=(silent,), silences=3))).kind != "silent-worker"
    long = msgspec.structs.replace(silent, silent_s=6.0)
    assert diagnose(report(node(workers=(long, worker(2), worker(3))))).kind == "silent-worker"


def test_most_workers_silent_for_long_is_storage() -> None:
    waiting = tuple(worker(n, state="silent", silent_s=6.0, kernel_state="sleeps") for n in (1, 2))
    verdict = diagnose(report(node(workers=(*waiting, worker(3)))))
    assert verdict.kind == "stalled-storage"
    assert "2 of 3 workers have waited for up to 6 s" in verdict.text


@pytest.mark.parametrize(
    ("machine", "kind"),
    [
        ({"busy_cpus": 2.0, "cpus": 2}, "neighbour-bound"),
        ({"throttled_s": 19.0, "cpus": 2}, "quota-bound"),
    ],
)
def test_workers_that_lack_cpu_time_are_neither_silent_nor_waiting_for_storage(
    machine: dict[str, Any], kind: str
) -> None:
    times = {"busy_s": 9.5, "cpu_s": 0.9, "run_delay_s": 8.6}
    starved = tuple(
        worker(n, state="silent", silent_s=6.0, kernel_state="runs", **times) for n in (1, 2)
    )
    assert diagnose(host(workers=starved, images=90, machine=machine)).kind == kind


def test_a_worker_that_loops_is_silent() -> None:
    looping = worker(1, state="silent", silent_s=6.0, kernel_state="runs", busy_s=9.5, cpu_s=9.4)
    verdict = diagnose(host(workers=(looping, worker(2), worker(3))))
    assert verdict.kind == "silent-worker"
    assert "(pid 101, running or waiting for a CPU)" in verdict.text


def test_more_workers_are_not_advised_where_the_cpus_are_full() -> None:
    trainer = client("t", waited_s=5.0, cpu_s=10.0, worker_s=9.5)
    verdict = diagnose(
        host(count=1, cpu=1.0, clients=(trainer,), machine={"cpus": 2, "busy_cpus": 2.0})
    )
    assert "1 more core would give" in verdict.text


def test_storage_says_what_the_page_cache_misses() -> None:
    reading = worker(
        1, busy_s=9.5, cpu_s=2.0, read_bytes=98 * 10**6, requested_bytes=100 * 10**6, images=9
    )
    verdict = diagnose(
        host(workers=(reading,), stages={"read": 7.5, "decode": 1.5}, machine={"busy_cpus": 0.3})
    )
    assert verdict.kind == "io-bound"
    assert "98 % of what they read is not in the page cache" in verdict.text


def test_pressure_stall_information_is_evidence() -> None:
    starved = host(cpu=0.5, delay=0.5, machine={"busy_cpus": 4.0, "pressure_cpu_s": 9.4})
    assert "of their time, CPU pressure 94 %, the client waits" in diagnose(starved).text
    reading = {"cpu": 0.3, "stages": {"read": 25.0}}
    blocked = host(**reading, machine={"pressure_io_s": 8.0})
    assert ", storage pressure 80 %, the client waits" in diagnose(blocked).text


def test_a_run_delay_without_neighbours_is_the_daemons_own() -> None:
    """Workers that wait for a CPU because of the training loop beside them are compute-bound."""
    trainer = client("t", waited_s=3.0, cpu_s=19.0, worker_s=38.0)
    verdict = diagnose(host(cpu=0.5, delay=0.5, clients=(trainer,)))
    assert verdict.kind == "compute-bound"


def test_other_processes_that_use_little_of_a_large_machine_are_not_to_blame() -> None:
    """Half a CPU of 64 does not explain that the workers wait a quarter of their time."""
    verdict = diagnose(host(cpu=0.7, delay=0.25, count=64, machine={"cpus": 64, "busy_cpus": 43.1}))
    assert verdict.kind == "compute-bound"


def test_neighbours_are_charged_no_more_than_what_they_use() -> None:
    """They use as much as the daemon, which waits for more than that."""
    verdict = diagnose(host(cpu=0.25, delay=0.75, machine={"cpus": 4, "busy_cpus": 1.9}))
    assert verdict.kind == "neighbour-bound"
    assert verdict.estimate_images_a_s == pytest.approx(2 * 3000)


def test_all_that_a_batch_moves_counts_as_memory_traffic() -> None:
    def share(**totals: Any) -> float:
        return HostInterval(host(memory_bytes_a_s=1e9, **totals)).nodes[0].memory_share

    assert share(lent_bytes=10**9) == pytest.approx(0.3)
    assert share(sent_bytes=10**9) == pytest.approx(0.4)
    assert share(cache=CacheRecord(moved_bytes=10**9)) == pytest.approx(0.1)
    assert share(decoded_bytes=10**9) == 0, "scratch stays in the core's own cache"


def test_a_quota_is_judged_by_the_cpu_time_that_it_withholds() -> None:
    """The kernel adds up the throttled time of all CPUs: 1 s of 10 on one CPU of 64 is little."""
    much = host(cpu=0.5, machine={"throttled_s": 19.0, "cpus": 4, "usable_cpus": 2.0})
    assert "quota of 2 CPUs withheld 50 % of the CPU time" in diagnose(much).text
    one = host(cpu=0.5, machine={"throttled_s": 19.0, "cpus": 4, "usable_cpus": 1.0})
    assert "quota of 1 CPU withheld" in diagnose(one).text
    little = host(count=61, cpu=1.0, machine={"throttled_s": 1.0, "cpus": 64, "busy_cpus": 61.0})
    assert diagnose(little).kind == "compute-bound"


def test_memory_that_is_short_is_not_mistaken_for_storage_or_cores() -> None:
    swapping = {"pressure_memory_s": 9.0, "refaults": 40_000}
    for stages in (DECODE, {"read": 30.0, "decode": 5.0}):
        verdict = diagnose(host(cpu=0.4, stages=stages, machine=swapping))
        assert verdict.kind == "memory-short"
        assert "memory pressure is 90 % and 4,000 pages/s are read again" in verdict.text


def test_a_full_socket_thread_is_not_the_event_loop() -> None:
    assert diagnose(host(busy=0.5, own_cpu_s=12.0, loop_cpu_s=4.0)).kind == "window-bound"


def test_the_client_that_takes_all_is_named() -> None:
    trainers = (
        client("hungry pid 7", waited_s=4.0, worker_s=34.0),
        client("starved pid 8", waited_s=8.0, worker_s=4.0),
    )
    verdict = diagnose(host(clients=trainers))
    assert verdict.kind == "greedy-client"
    assert "hungry pid 7 takes 89 % of the workers' time" in verdict.text
    assert "others wait up to 80 %" in verdict.text


def test_many_clients_together_are_not_one_greedy_client() -> None:
    placed = tuple(client(f"c{n}", waited_s=5.0, worker_s=0.2) for n in range(64))
    others = client(OTHERS, clients=136, waited_s=5.0 * 136, clock_s=10.0 * 136, worker_s=27.0)
    assert diagnose(host(clients=(*placed, others))).kind == "compute-bound"
    greedy = client("greedy", worker_s=38.0)
    verdict = diagnose(host(clients=(greedy, *placed[1:], others)))
    assert verdict.kind == "compute-bound", "the others together get more than 40 % of its time"
    verdict = diagnose(host(clients=(client("greedy", worker_s=200.0), *placed[1:], others)))
    assert verdict.kind == "greedy-client"
    assert "greedy takes 83 % of the workers' time" in verdict.text


def test_two_clients_that_share_are_not_greedy() -> None:
    trainers = tuple(client(name, waited_s=4.0, worker_s=19.0) for name in "ab")
    assert diagnose(host(clients=trainers)).kind == "compute-bound"


def test_a_client_that_takes_most_while_the_other_does_not_wait_is_not_greedy() -> None:
    trainers = (
        client("a", waited_s=4.0, worker_s=36.0),
        client("b", waited_s=0.1, worker_s=2.0),
    )
    assert diagnose(host(clients=trainers)).kind == "compute-bound"


@pytest.mark.parametrize(("full", "kind"), [(10**9, "cache-bound"), (20 * 10**6, "compute-bound")])
def test_a_decoded_cache_that_is_far_too_small_is_named(full: int, kind: str) -> None:
    cache = CacheRecord(
        budget_bytes=16 * 10**6, used_bytes=15 * 10**6, full_bytes=full, hits=600, misses=29_400
    )
    assert diagnose(host(cache=cache)).kind == kind


def test_batches_on_their_way_are_the_networks() -> None:
    slots = SlotSeconds(free=2.0, filling=3.0, sending=30.0, client=5.0)
    far = client("far", is_lent=False, is_local=False, waited_s=9.0, worker_s=2.0, slots=slots)
    verdict = diagnose(host(busy=0.05, clients=(far,)))
    assert verdict.kind == "network-bound"
    assert "3.5 finished batches are on their way to far at 0.0 MB/s" in verdict.text


def test_clients_without_pings_count_as_waiting_while_all_workers_are_busy() -> None:
    silent = (client("old", clock_s=0.0),)
    assert diagnose(host(clients=silent)).kind == "compute-bound"
    assert diagnose(host(clients=silent, busy=0.5)).kind == "healthy"


@given(before=snapshots, now=snapshots)
def test_any_two_snapshots_have_a_verdict_that_fits(before: NodeRecord, now: NodeRecord) -> None:
    verdict = diagnose(report(msgspec.structs.replace(node(), before=before, now=now)))
    assert 0 < len(verdict.text) <= VERDICT_CHARS_MAX
    assert "nan" not in verdict.text
    assert "inf" not in verdict.text


def test_the_document_lists_every_verdict_in_the_order_in_which_they_are_tried() -> None:
    text = (REPOSITORY / "docs/diagnosis.md").read_text()
    listed = re.findall(r"^\| `([a-z-]+)`", text, re.MULTILINE)
    assert listed == list(get_args(VerdictKind))


def test_a_long_name_is_cut() -> None:
    name = "x" * 256
    trainers = (client(name, waited_s=4.0, worker_s=34.0), client("b", waited_s=8.0, worker_s=4.0))
    stalled = tuple(f"{'y' * 200}{n}" for n in range(9))
    assert len(diagnose(host(clients=trainers)).text) <= VERDICT_CHARS_MAX
    assert len(diagnose(host(stalled_datasets=stalled)).text) == VERDICT_CHARS_MAX
