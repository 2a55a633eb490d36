"""A report as Prometheus text, read back with the official parser."""

from collections.abc import Mapping
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from feeder.metrics.counters import GROUPS
from feeder.metrics.fields import fields_of
from feeder.metrics.records import CLIENTS_MAX as SNAPSHOT_CLIENTS_MAX
from feeder.metrics.records import (
    OTHER_JOBS,
    OTHERS,
    CacheRecord,
    Histogram,
    JobRecord,
    NodeRecord,
    StoreRecord,
    WorkerRecord,
)
from feeder.metrics.report import HostLoad, HostReport, NodeReport, ServedDatasetReport, Verdict
from feeder.monitoring.exposition import CLIENTS_MAX, OTHER, Exposition, name_client, take_places
from feeder.session.filling import FailureReason
from tests.monitoring.reports import busy_report, client, host_report, node_snapshot
from tests.node.test_service import Host
from tests.support.host_reports import store_bound

Series = Mapping[tuple[str, frozenset[tuple[str, str]]], float]
PLAIN = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


def series(report: HostReport) -> Series:
    text, _ = Exposition().render(report)
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for family in parse_text(text.decode()):
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found, "each series appears once"
            found[key] = sample.value
    return found


def value(found: Series, name: str, **labels: str) -> float:
    return found[f"feeder_{name}", frozenset(labels.items())]


OTHER_FAILURES = [
    ("batches_failed_total", reason)
    for reason in {*get_args(FailureReason)} - {"bad-sample", "stalled-storage"}
]
RECORDS = (
    *GROUPS,
    *(HostReport, HostLoad, NodeReport, ServedDatasetReport, Verdict),
    *(NodeRecord, WorkerRecord, JobRecord, CacheRecord, StoreRecord),
)
SHOWN_ELSEWHERE = {
    "node feeder_version self_test decoder library dataset",  # texts
    "uptime_s workers node_restarts bytes_sent cache_used_bytes cache_budget_bytes fallbacks",
}
"""Texts, and flat counters that are fields of NodeRecord or NodeReport too."""


def test_every_declared_metric_is_exported_as_it_is_declared() -> None:
    exposition = Exposition()
    exposition.render(busy_report())
    exported = {family.name: (family.type, family.documentation) for family in exposition.collect()}
    for record in RECORDS:
        for name, field in fields_of(record).items():
            if field.help:
                metric = f"feeder_{field.metric}"
                assert exported[metric] == (field.kind, field.help), (record, name)


def test_every_count_of_a_node_process_is_declared_and_has_a_metric() -> None:
    """A new counter takes two places: its declaration, and where it is counted."""
    returned = Host(loss="some").service.counters(1000.0)
    declared = {name for group in GROUPS for name in group.__struct_fields__}
    declared |= {fields_of(NodeRecord)[name].metric for name in NodeRecord.FLAT}
    assert {name.partition(".")[0] for name in returned} <= declared
    elsewhere = {name for names in SHOWN_ELSEWHERE for name in names.split()}
    for group in GROUPS:
        fields = fields_of(group)
        assert all(field.help for field in fields.values()), group
        assert {*group.__struct_fields__} - {*fields} <= elsewhere, group


def test_a_duration_is_counted_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram()
    for seconds in (-1.0, 0.001, 0.0011, 0.002, 60.0, 61.0):
        histogram.add(seconds)
    assert histogram.counts == [2, 2, *[0] * 12, 1, 1]
    assert histogram.total_s == pytest.approx(121.0041)
    snapshot = msgspec.structs.replace(node_snapshot(100.0), chunk_s=histogram)
    found = series(host_report(NodeReport(number=0, state="ready", now=snapshot)))
    buckets = [
        value(found, "chunk_duration_seconds_bucket", node="0", le=bound)
        for bound in ("0.001", "0.002", "20.0", "60.0", "+Inf")
    ]
    assert buckets == [2, 4, 4, 5, 6]


def by_reason(name: str, node: int, **values: float) -> list[tuple[str, dict[str, str], float]]:
    """The values of a metric of a node process by reason, with "_" for "-"."""
    labels = ({"node": str(node), "reason": reason.replace("_", "-")} for reason in values)
    return [(name, each, value) for each, value in zip(labels, values.values(), strict=True)]


@pytest.mark.parametrize(
    ("report", "values"),
    [
        (
            busy_report(),
            [
                ("images_total", {"node": "0"}, 1005),
                ("images_total", {"node": "1"}, 505),
                ("stage_seconds_total", {"node": "1", "stage": "decode"}, 20),
                ("worker_busy_seconds_total", {"node": "0", "worker": "1"}, 50),
                ("cache_hits_total", {"node": "0"}, 7),
                ("workers", {"node": "0", "state": "silent"}, 1),
                ("worker_silent_seconds", {"node": "0"}, 2.5),
                ("queued_batches", {"node": "0"}, 3),
                # Rates of a client are summed over node processes.
                ("client_images_per_second", {"client": "trainer rank 3"}, 150),
                ("slots", {"node": "0", "state": "client"}, 1.5),
                # Counters by reason are there from the start.
                *by_reason("frames_dropped_total", 0, malformed=5, over_rate=0, newly_found=2),
                *by_reason("sessions_ended_total", 1, closed=4, expired=1, lost=0),
                *by_reason("batches_failed_total", 0, bad_sample=6, stalled_storage=1),
                *((n, {"node": "0", "reason": r}, 0) for n, r in OTHER_FAILURES),
                *by_reason("fallbacks_total", 0, copied_refused=0, copied_tcp=8, turbojpeg=5),
                *by_reason("fallbacks_total", 0, copied_unclaimed=0),
                ("worker_pause_seconds", {"node": "0"}, 0.25),
                ("bad_samples_total", {"node": "0"}, 2),
                ("library_warnings", {"node": "0"}, 1),
                ("placement_warnings", {"node": "1"}, 0),
                # Buckets accumulate.
                ("chunk_duration_seconds_bucket", {"node": "0", "le": "0.001"}, 1),
                ("chunk_duration_seconds_bucket", {"node": "0", "le": "0.002"}, 3),
                ("chunk_duration_seconds_bucket", {"node": "0", "le": "60.0"}, 3),
                ("chunk_duration_seconds_bucket", {"node": "0", "le": "+Inf"}, 7),
                ("chunk_duration_seconds_count", {"node": "0"}, 7),
                ("batch_duration_seconds_sum", {"node": "1"}, 300.25),
            ],
        ),
        (
            msgspec.structs.replace(busy_report(), log_lines_dropped=2, log_lines_limited=7),
            [
                ("supervisor_log_lines_dropped_total", {}, 2),
                ("supervisor_log_lines_limited_total", {}, 7),
            ],
        ),
        (
            store_bound(),
            [
                ("store_fetched_bytes_total", {}, 3_800_000_000),
                ("store_retries_total", {"reason": "throttled"}, 9),
                ("store_retries_total", {"reason": "timeout"}, 0),
                ("store_failures_total", {"reason": "denied"}, 3),
                ("store_failures_total", {"reason": "expired"}, 0),
                ("disk_cache_budget_bytes", {}, 40_000_000_000),
                ("disk_cache_full_bytes", {}, 140_000_000_000),
                ("disk_cache_evicted_bytes_total", {}, 1_200_000_000),
                ("credentials_expire_seconds", {}, 240),
                ("fetching_batches", {"node": "0"}, 6),
                ("fetch_duration_seconds_bucket", {"node": "0", "le": "0.001"}, 7),
                ("fetch_duration_seconds_count", {"node": "0"}, 23),
            ],
        ),
        (
            host_report(NodeReport(number=0, state="starting"), kind="starting"),
            [
                ("node_state", {"node": "0", "state": "starting"}, 1),
                ("node_state", {"node": "0", "state": "ready"}, 0),
                ("host_pressure_seconds_total", {"resource": "io"}, 4.5),
                ("build_info", {"version": "1.2.3", "host": "h"}, 1),
            ],
        ),
    ],
    ids=["busy", "the supervisor's log", "a store", "starting"],
)
def test_values(report: HostReport, values: list[tuple[str, dict[str, str], float]]) -> None:
    found = series(report)
    for name, labels, expected in values:
        assert value(found, name, **labels) == pytest.approx(expected), (name, labels)


def test_waits_of_one_process_add_up_and_those_of_several_are_averaged() -> None:
    clients = client("t pid 1", 1000, waited_s=2.0), client("t pid 2", 1000, waited_s=4.0)
    before = node_snapshot(90.0, clients=(client("t pid 1", 0), client("t pid 2", 0)))
    now = node_snapshot(100.0, clients=clients)
    node = NodeReport(number=0, state="ready", now=now, before=before)
    assert value(series(host_report(node)), "client_wait_ratio", client="t") == pytest.approx(0.3)
    twin = msgspec.structs.replace(
        node,
        number=1,
        now=msgspec.structs.replace(now, number=1),
        before=msgspec.structs.replace(before, number=1),
    )
    found = series(host_report(node, twin))
    assert value(found, "client_wait_ratio", client="t") == pytest.approx(0.6)
    assert value(found, "wait_ratio") == pytest.approx(0.6)


def test_the_number_of_clients_is_bounded() -> None:
    nodes = []
    for number in range(3):
        clients = tuple(
            client(f"{number}-{each}", 10 * (each + 1)) for each in range(SNAPSHOT_CLIENTS_MAX)
        )
        now = node_snapshot(100.0, number=number, clients=(*clients, client(OTHERS, 7)))
        before = node_snapshot(90.0, number=number, clients=(client(OTHERS, 0),))
        nodes.append(NodeReport(number=number, state="ready", now=now, before=before))
    found = series(host_report(*nodes))
    rates = {
        dict(labels)["client"]: rate
        for (name, labels), rate in found.items()
        if name == "feeder_client_images_per_second"
    }
    assert len(rates) == CLIENTS_MAX + 1
    assert rates["0-63"] == 64
    everything = 3 * (7 + sum(10 * (each + 1) for each in range(SNAPSHOT_CLIENTS_MAX))) / 10
    assert sum(rates.values()) == pytest.approx(everything)
    assert rates[OTHER] > 0


def test_a_client_s_label_is_without_its_process_id() -> None:
    assert name_client("gpu7 pid 4711 rank 3") == "gpu7 rank 3"
    assert name_client("gpu7 pid 4711") == "gpu7"
    assert name_client(OTHERS) == OTHER
    assert len(name_client("x" * 256)) == 128


def test_the_verdict_is_one_of_all_kinds() -> None:
    found = series(host_report(kind="io-bound"))
    kinds = {
        dict(labels)["kind"]: held
        for (name, labels), held in found.items()
        if "kind" in str(labels) and name == "feeder_verdict"
    }
    assert kinds["io-bound"] == 1
    assert sum(kinds.values()) == 1
    assert len(kinds) > 10
    assert value(found, "verdict_is_problem") == 1


@given(
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=256),
    st.dictionaries(st.text(max_size=20), st.one_of(st.integers(0), st.floats(0, 1e18), st.text())),
)
def test_any_names_give_text_that_prometheus_reads(
    name: str, found: dict[str, int | float | str]
) -> None:
    now = node_snapshot(100.0, clients=(client(name, 10),))
    now = msgspec.structs.replace(now, counters=found)
    report = host_report(NodeReport(number=0, state="ready", now=now, before=node_snapshot(90.0)))
    assert series(report)


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/html,application/xhtml+xml,*/*;q=0.8", PLAIN),
        (
            "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;"
            "version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,*/*;q=0.1",
            OPENMETRICS,
        ),
        ("application/openmetrics-text;version=1.2.3; escaping=allow-utf-8", OPENMETRICS),
        ("application/openmetrics-text; version=", OPENMETRICS),
        ("APPLICATION/OpenMetrics-Text", OPENMETRICS),
        ("text/plain; version=nonsense", PLAIN),
        ("text/plain;version=0.0.4,application/openmetrics-text;version=1.0.0", PLAIN),
    ],
)
def test_the_format_is_the_one_that_is_asked_for(accept: str, content_type: str) -> None:
    text, given_type = Exposition().render(busy_report(), accept)
    assert given_type == content_type
    parse = parse_openmetrics if content_type == OPENMETRICS else parse_text
    names = {family.name for family in parse(text.decode())}
    assert {"feeder_images", "feeder_verdict"} <= names


def test_a_text_is_kept_until_the_next_report() -> None:
    exposition, report = Exposition(), busy_report()
    text, _ = exposition.render(report)
    assert exposition.render(report)[0] is text
    assert exposition.render(None)[0] != text


def test_jobs_have_totals_and_those_without_a_place_are_one() -> None:
    jobs = tuple(
        JobRecord(name=name, account=account, images=256 * n, batches=n, worker_s=0.5 * n)
        for name, account, n in (("big", "alice", 3), ("", "alice", 2), (OTHER_JOBS, "", 7))
    )
    report = busy_report()
    nodes = tuple(
        msgspec.structs.replace(node, now=msgspec.structs.replace(node.now, jobs=jobs))
        for node in report.nodes
        if node.now is not None
    )
    found = series(msgspec.structs.replace(report, nodes=nodes))
    assert value(found, "job_batches_total", node="0", client="alice", job="big") == 3
    assert value(found, "job_images_total", node="1", client="alice", job="") == 512
    assert value(found, "job_worker_seconds_total", node="0", client="", job="other jobs") == 3.5


def test_a_successor_takes_the_place_and_the_others_keep_theirs() -> None:
    places: list[int] = []
    assert take_places(places, [1, 2, 3]) == [0, 1, 2]
    assert take_places(places, [1, 3, 4]) == [0, 2, 1]
    assert take_places(places, [3, 4, 5]) == [2, 1, 0]
