"""A host's report as Prometheus metrics.

Gauges of rates and shares are over the report's interval. Label values are bounded: numbers, words
of Feeder's own, datasets of the configuration, and a limited number of clients.

Source of names and units: https://prometheus.io/docs/practices/naming/.
"""

from collections.abc import Callable, Iterator
from typing import Final, get_args

from prometheus_client.core import Metric

from feeder.diagnosis.interval import HostInterval
from feeder.metrics.report import HostLoad, HostReport, NodeReport, VerdictKind
from feeder.monitoring.client_metrics import describe_clients
from feeder.monitoring.families import counter, gauge
from feeder.monitoring.job_metrics import describe_jobs
from feeder.monitoring.node_metrics import describe_snapshots
from feeder.monitoring.worker_places import WorkerPlaces

KINDS: Final[tuple[VerdictKind, ...]] = get_args(VerdictKind)
NODE_STATES: Final[tuple[str, ...]] = get_args(NodeReport.__annotations__["state"])

_HOST_COUNTERS: Final[tuple[tuple[str, str, Callable[[HostLoad], float]], ...]] = (
    ("host_cpu_busy_seconds", "CPU time of all processes.", lambda load: load.busy_s),
    ("host_cpu_io_wait_seconds", "Idle CPU time with a read waiting.", lambda load: load.io_wait_s),
    (
        "host_throttled_seconds",
        "Time for which a CPU quota stopped threads, by CPU.",
        lambda load: load.throttled_s,
    ),
    ("host_page_cache_refaults", "Pages read again after eviction.", lambda load: load.refaults),
)
_HOST_GAUGES: Final[tuple[tuple[str, str, Callable[[HostLoad], float]], ...]] = (
    ("host_cpus", "CPUs of the daemon's affinity.", lambda load: load.cpus),
    ("host_usable_cpus", "CPUs that affinity and quota leave.", lambda load: load.usable_cpus),
    ("host_free_memory_bytes", "Memory that is available.", lambda load: load.free_memory_bytes),
)


def describe_packing(*, is_packing: bool) -> Metric:
    """Return the metric that is there before there is a report, and stays."""
    text = "1 while the daemon packs what it will serve, before it has other metrics."
    return gauge("packing", text, [], [([], float(is_packing))])


def describe_report(report: HostReport, places: WorkerPlaces) -> Iterator[Metric]:
    """Yield all metrics of a report; ``places`` are those of earlier ones."""
    yield from _daemon(report)
    yield from _nodes(report)
    snapshots = [node.now for node in report.nodes if node.now is not None]
    yield from describe_snapshots(snapshots, places)
    yield from describe_jobs(snapshots)
    yield from _rates(HostInterval.of(report))
    yield from _host(report.load)


def _daemon(report: HostReport) -> Iterator[Metric]:
    yield gauge(
        "build_info",
        "The daemon's version.",
        ["version", "host"],
        [([report.feeder_version, report.host], 1)],
    )
    for name, text, lines in (
        ("dropped", "dropped because nothing read them", report.log_lines_dropped),
        ("limited", "suppressed because they repeated", report.log_lines_limited),
    ):
        text = f"Log lines of the supervisor that were {text}."
        yield counter(f"supervisor_log_lines_{name}", text, [], [([], lines)])
    yield gauge("uptime_seconds", "Since the daemon started.", [], [([], report.uptime_s)])
    yield gauge(
        "verdict",
        "What sets the daemon's pace: 1 for the kind that holds.",
        ["kind"],
        (([kind], float(kind == report.verdict.kind)) for kind in KINDS),
    )
    yield gauge(
        "verdict_is_problem",
        "Whether clients wait or something is broken.",
        [],
        [([], float(report.verdict.is_problem))],
    )
    yield gauge(
        "dataset_samples",
        "Samples of each dataset that is served.",
        ["dataset", "fingerprint"],
        (([each.name, each.fingerprint[:12]], each.samples) for each in report.datasets),
    )


def _nodes(report: HostReport) -> Iterator[Metric]:
    yield gauge(
        "node_state",
        "The state of each node process: 1 for the one that holds.",
        ["node", "state"],
        (
            ([str(node.number), state], float(state == node.state))
            for node in report.nodes
            for state in NODE_STATES
        ),
    )
    yield counter(
        "node_restarts",
        "Node processes that were replaced.",
        ["node"],
        (([str(node.number)], node.restarts) for node in report.nodes),
    )
    yield counter(
        "node_hangs",
        "Node processes that were replaced because they sent no heartbeats.",
        ["node"],
        (([str(node.number)], node.hangs) for node in report.nodes),
    )


def _rates(interval: HostInterval) -> Iterator[Metric]:
    yield gauge(
        "slots",
        "Mean number of slots by state, over the last seconds.",
        ["node", "state"],
        (
            ([str(node.number), state], getattr(node.slots, state))
            for node in interval.nodes
            for state in node.slots.__struct_fields__
        ),
    )
    yield from describe_clients(interval.clients)
    if interval.wait_share is not None:
        yield gauge(
            "wait_ratio",
            "Share of the clients' time in which they waited for this host.",
            [],
            [([], interval.wait_share)],
        )


def _host(load: HostLoad) -> Iterator[Metric]:
    for name, text, read in _HOST_COUNTERS:
        yield counter(name, text, [], [([], read(load))])
    for name, text, read in _HOST_GAUGES:
        yield gauge(name, text, [], [([], read(load))])
    yield counter(
        "host_pressure_seconds",
        "Time in which some task of the machine waited for the resource.",
        ["resource"],
        [
            (["cpu"], load.pressure_cpu_s),
            (["io"], load.pressure_io_s),
            (["memory"], load.pressure_memory_s),
        ],
    )
