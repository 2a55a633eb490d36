"""A host's report as Prometheus metrics.

Counters are those of the node processes, labelled with their number: one that is restarted begins
at zero again, which Prometheus takes into account. What belongs to a worker has its own series, by
its place (``worker_places``), because a sum over workers would go back when one is replaced. Gauges
of rates and shares are over the report's interval.

Label values are bounded: numbers, words of Feeder's own, datasets of the configuration, and at most
CLIENTS_MAX clients at a time. A client's name is without its process id, so that a job that is
restarted keeps its series.

Source of names and units: https://prometheus.io/docs/practices/naming/.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest as encode_text
from prometheus_client.openmetrics.exposition import generate_latest as encode_openmetrics
from prometheus_client.registry import Collector, CollectorRegistry

from feeder.diagnosis.client_interval import ClientInterval
from feeder.diagnosis.interval import HostInterval
from feeder.metrics.histogram import BOUNDS_S, HistogramSnapshot
from feeder.metrics.report import HostLoad, HostReport, NodeReport, VerdictKind
from feeder.metrics.snapshot import OTHERS, NodeSnapshot, WorkerSnapshot
from feeder.monitoring.counter_metrics import COUNTERS, CounterMetric
from feeder.monitoring.worker_places import WorkerPlaces

CLIENTS_MAX: Final = 64
OTHER: Final = "other"

KINDS: Final[tuple[VerdictKind, ...]] = get_args(VerdictKind)
NODE_STATES: Final[tuple[str, ...]] = get_args(NodeReport.__annotations__["state"])
WORKER_STATES: Final[tuple[str, ...]] = get_args(WorkerSnapshot.__annotations__["state"])

_PID: Final = re.compile(r" pid [0-9]+")
_CLIENT_CHARS_MAX: Final = 128
_VERSION: Final = re.compile(r";\s*version\s*=\s*([^;]*)")

_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_NODE_COUNTERS: Final[tuple[tuple[str, str, Callable[[NodeSnapshot], float]], ...]] = (
    ("images", "Real images delivered, without padding.", lambda node: node.images),
    ("batches", "Batches delivered whole.", lambda node: node.batches),
    ("sent_bytes", "Bytes copied over sockets to clients.", lambda node: node.sent_bytes),
    ("lent_bytes", "Bytes that clients read in place.", lambda node: node.lent_bytes),
    ("decoded_bytes", "Bytes of decoded pixels.", lambda node: node.decoded_bytes),
    ("cache_hits", "Images found in the decoded cache.", lambda node: node.cache.hits),
    ("cache_misses", "Images not found in the decoded cache.", lambda node: node.cache.misses),
    ("cache_fills", "Entries added to the decoded cache.", lambda node: node.cache.fills),
    ("worker_silences", "Times that a worker became silent.", lambda node: node.silences),
    ("workers_killed", "Workers killed without progress.", lambda node: node.workers_killed),
    ("worker_restarts", "Workers that were replaced.", lambda node: node.worker_restarts),
    ("node_cpu_seconds", "CPU time of node processes, no workers.", lambda node: node.own_cpu_s),
)
_NODE_GAUGES: Final[tuple[tuple[str, str, Callable[[NodeSnapshot], float]], ...]] = (
    ("queued_batches", "Batches that wait for a worker or slot.", lambda node: node.queued_batches),
    ("chunks_in_flight", "Chunks that workers have.", lambda node: node.chunks_in_flight),
    ("cache_used_bytes", "Memory of cached images.", lambda node: node.cache.used_bytes),
    ("cache_budget_bytes", "Memory for the cache.", lambda node: node.cache.budget_bytes),
    ("cache_full_bytes", "Memory to cache all images.", lambda node: node.cache.full_bytes),
    ("node_uptime_seconds", "Since the node process started.", lambda node: node.uptime_s),
    (
        "memory_bandwidth_bytes_per_second",
        "Copy bandwidth that was measured at the start, bytes read plus bytes written.",
        lambda node: node.memory_bytes_a_s,
    ),
    (
        "worker_silent_seconds",
        "Now: how long the worker has made no progress that has made none for longest.",
        lambda node: max((worker.silent_s for worker in node.workers), default=0.0),
    ),
)
_WORKER_COUNTERS: Final[tuple[tuple[str, str, Callable[[WorkerSnapshot], float]], ...]] = (
    ("worker_images", "Images that workers have made.", lambda worker: worker.images),
    ("worker_busy_seconds", "Time of workers in chunks.", lambda worker: worker.busy_s),
    ("worker_cpu_seconds", "CPU time of workers in chunks.", lambda worker: worker.cpu_s),
    (
        "worker_run_delay_seconds",
        "Time in which workers could run and waited for a CPU.",
        lambda worker: worker.run_delay_s,
    ),
    (
        "worker_storage_bytes",
        "Bytes that workers read from storage, past the page cache.",
        lambda worker: worker.read_bytes,
    ),
    (
        "worker_read_bytes",
        "Bytes that workers read, from page cache or storage.",
        lambda worker: worker.requested_bytes,
    ),
)
_HOST_COUNTERS: Final[tuple[tuple[str, str, Callable[[HostLoad], float]], ...]] = (
    ("host_cpu_busy_seconds", "CPU time of all processes.", lambda load: load.busy_s),
    ("host_cpu_io_wait_seconds", "Idle CPU time with a read waiting.", lambda load: load.io_wait_s),
    ("host_throttled_seconds", "Time stopped by the CPU quota.", lambda load: load.throttled_s),
    ("host_page_cache_refaults", "Pages read again after eviction.", lambda load: load.refaults),
)
_HOST_GAUGES: Final[tuple[tuple[str, str, Callable[[HostLoad], float]], ...]] = (
    ("host_cpus", "CPUs of the daemon's affinity.", lambda load: load.cpus),
    ("host_usable_cpus", "CPUs that affinity and quota leave.", lambda load: load.usable_cpus),
    ("host_free_memory_bytes", "Memory that is available.", lambda load: load.free_memory_bytes),
)


class Exposition:
    """Renders reports; keeps the last rendering in each of the two formats."""

    __slots__ = ("_collector", "_kept", "_registry")

    def __init__(self) -> None:
        self._collector = _ReportCollector()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self._collector)
        self._kept: dict[str, tuple[HostReport, bytes]] = {}  # by content type

    def render(self, report: HostReport, accept: str = "") -> tuple[bytes, str]:
        """Return the text and its content type, in the format that an Accept header asks for."""
        content_type = choose_format(accept)
        kept = self._kept.get(content_type)
        if kept is not None and kept[0] is report:
            return kept[1], content_type
        self._collector.report = report
        encode = encode_openmetrics if content_type == _OPENMETRICS else encode_text
        text: bytes = encode(self._registry)
        self._kept[content_type] = report, text
        return text, content_type


def choose_format(accept: str) -> str:
    """Return the content type for an Accept header: one of two, whatever the header contains.

    The first format that is listed and known; Prometheus text if there is none. Prometheus lists
    the formats by preference. The library's own choice copies the version into the content type,
    so that a client could have the report rendered and kept any number of times.
    """
    for listed in accept.lower().split(","):
        name = listed.partition(";")[0].strip()
        if name == "text/plain":
            return _TEXT
        if name == "application/openmetrics-text":
            version = _VERSION.search(listed)
            if version is None or version[1].strip() in ("", "1") or version[1].startswith("1."):
                return _OPENMETRICS
    return _TEXT


class _ReportCollector(Collector):
    """Yields the metrics of a report."""

    report: HostReport | None = None

    def __init__(self) -> None:
        self._places = WorkerPlaces()

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        if self.report is not None:
            yield from describe_report(self.report, self._places)


def describe_report(report: HostReport, places: WorkerPlaces) -> Iterator[Metric]:
    """Yield all metrics of a report; ``places`` are those of earlier ones."""
    interval = HostInterval.of(report)
    yield from _daemon(report)
    yield from _nodes(report)
    snapshots = [node.now for node in report.nodes if node.now is not None]
    for name, text, read in _NODE_COUNTERS:
        yield _counter(name, text, ["node"], (([str(s.number)], read(s)) for s in snapshots))
    for name, text, read in _NODE_GAUGES:
        yield _gauge(name, text, ["node"], (([str(s.number)], read(s)) for s in snapshots))
    yield _counter(
        "stage_seconds",
        "Time of workers in each stage of the sample path.",
        ["node", "stage"],
        (([str(s.number), stage], total) for s in snapshots for stage, total in s.stages.items()),
    )
    yield from _workers(snapshots, places)
    yield _histogram(
        "chunk_duration_seconds",
        "From a chunk's dispatch to its last row.",
        {str(s.number): s.chunk_s for s in snapshots},
    )
    yield _histogram(
        "batch_duration_seconds",
        "From a batch's request to its last row.",
        {str(s.number): s.batch_s for s in snapshots},
    )
    yield from _node_counters(snapshots)
    yield from _rates(interval)
    yield from _host(report.load)


def name_client(name: str) -> str:
    """Return a client's label: its name without the process id."""
    return OTHER if name == OTHERS else _PID.sub("", name, count=1)[:_CLIENT_CHARS_MAX]


def _daemon(report: HostReport) -> Iterator[Metric]:
    yield _gauge(
        "build_info",
        "The daemon's version.",
        ["version", "host"],
        [([report.feeder_version, report.host], 1)],
    )
    yield _gauge("uptime_seconds", "Since the daemon started.", [], [([], report.uptime_s)])
    yield _gauge(
        "verdict",
        "What sets the daemon's pace: 1 for the kind that holds.",
        ["kind"],
        (([kind], float(kind == report.verdict.kind)) for kind in KINDS),
    )
    yield _gauge(
        "verdict_is_problem",
        "Whether clients wait or something is broken.",
        [],
        [([], float(report.verdict.is_problem))],
    )
    yield _gauge(
        "dataset_samples",
        "Samples of each dataset that is served.",
        ["dataset", "fingerprint"],
        (([each.name, each.fingerprint[:12]], each.samples) for each in report.datasets),
    )


def _nodes(report: HostReport) -> Iterator[Metric]:
    yield _gauge(
        "node_state",
        "The state of each node process: 1 for the one that holds.",
        ["node", "state"],
        (
            ([str(node.number), state], float(state == node.state))
            for node in report.nodes
            for state in NODE_STATES
        ),
    )
    yield _counter(
        "node_restarts",
        "Node processes that were replaced.",
        ["node"],
        (([str(node.number)], node.restarts) for node in report.nodes),
    )
    yield _counter(
        "node_hangs",
        "Node processes that were replaced because they sent no heartbeats.",
        ["node"],
        (([str(node.number)], node.hangs) for node in report.nodes),
    )


def _workers(snapshots: Iterable[NodeSnapshot], places: WorkerPlaces) -> Iterator[Metric]:
    snapshots = list(snapshots)
    placed = [
        ([str(snapshot.number), str(place)], worker)
        for snapshot in snapshots
        for worker, place in zip(
            snapshot.workers,
            places.of(snapshot.number, [worker.number for worker in snapshot.workers]),
            strict=True,
        )
    ]
    yield _gauge(
        "workers",
        "Workers by state; a silent one has made no progress for two seconds.",
        ["node", "state"],
        (
            ([str(s.number), state], sum(worker.state == state for worker in s.workers))
            for s in snapshots
            for state in WORKER_STATES
        ),
    )
    for name, text, read in _WORKER_COUNTERS:
        yield _counter(
            name,
            text,
            ["node", "worker"],
            ((labels, read(worker)) for labels, worker in placed),
        )


def _node_counters(snapshots: Iterable[NodeSnapshot]) -> Iterator[Metric]:
    """Yield the metrics of all counters of COUNTERS, those of several counters once."""
    snapshots = list(snapshots)
    by_metric: dict[str, list[tuple[str, CounterMetric]]] = {}
    for counter, metric in COUNTERS.items():
        by_metric.setdefault(metric.name, []).append((counter, metric))
    for name, parts in by_metric.items():
        first = parts[0][1]
        labels = ["node", first.label] if first.label else ["node"]
        rows = [
            ([str(snapshot.number), *above], value)
            for snapshot in snapshots
            for counter, metric in parts
            for above, value in _values(snapshot.counters, counter, metric)
        ]
        yield (_gauge if first.is_gauge else _counter)(name, first.help, labels, rows)


def _values(
    counters: Mapping[str, int | float | str], counter: str, metric: CounterMetric
) -> Iterator[tuple[list[str], float]]:
    """Yield the label value, if there is a label, and the value of each series of a counter."""
    if not metric.label or metric.value:
        value = counters.get(counter, 0)
        if not isinstance(value, str):
            yield [metric.value] if metric.label else [], value
        return
    found = dict.fromkeys(metric.known, 0.0)
    for name, value in counters.items():
        if name.startswith(f"{counter}.") and not isinstance(value, str):
            found[name.removeprefix(f"{counter}.")] = value
    for reason, value in sorted(found.items()):
        yield [reason], value


def _rates(interval: HostInterval) -> Iterator[Metric]:
    yield _gauge(
        "slots",
        "Mean number of slots by state, over the last seconds.",
        ["node", "state"],
        (
            ([str(node.number), state], getattr(node.slots, state))
            for node in interval.nodes
            for state in node.slots.__struct_fields__
        ),
    )
    yield from _clients(interval.clients)
    if interval.wait_share is not None:
        yield _gauge(
            "wait_ratio",
            "Share of the clients' time in which they waited for this host.",
            [],
            [([], interval.wait_share)],
        )


def _clients(clients: Iterable[ClientInterval]) -> Iterator[Metric]:
    images: dict[str, float] = {}
    waits: dict[str, dict[tuple[str, str], float]] = {}
    for client in clients:
        label = name_client(client.name)
        images[label] = images.get(label, 0.0) + client.images_a_s
        if client.wait_share is not None:
            own = waits.setdefault(label, {})
            key = client.account, client.name
            own[key] = own.get(key, 0.0) + client.wait_share
    ranked = sorted(images, key=lambda label: (label == OTHER, -images[label], label))
    labels = {label: label if at < CLIENTS_MAX else OTHER for at, label in enumerate(ranked)}
    totals: dict[str, float] = {}
    shares: dict[str, list[float]] = {}
    for label, shown in labels.items():
        totals[shown] = totals.get(shown, 0.0) + images[label]
        each = (min(1.0, share) for share in waits.get(label, {}).values())
        shares.setdefault(shown, []).extend(each)
    yield _gauge(
        "client_images_per_second",
        "Images a second by client, over the last seconds.",
        ["client"],
        (([label], rate) for label, rate in totals.items()),
    )
    yield _gauge(
        "client_wait_ratio",
        "Share of its time in which a client's training loop waited for this host.",
        ["client"],
        (([label], sum(own) / len(own)) for label, own in shares.items() if own),
    )


def _host(load: HostLoad) -> Iterator[Metric]:
    for name, text, read in _HOST_COUNTERS:
        yield _counter(name, text, [], [([], read(load))])
    for name, text, read in _HOST_GAUGES:
        yield _gauge(name, text, [], [([], read(load))])
    yield _counter(
        "host_pressure_seconds",
        "Time in which some task of the machine waited for the resource.",
        ["resource"],
        [
            (["cpu"], load.pressure_cpu_s),
            (["io"], load.pressure_io_s),
            (["memory"], load.pressure_memory_s),
        ],
    )


_Rows = Iterable[tuple[list[str], float]]


def _counter(name: str, text: str, labels: list[str], rows: _Rows) -> Metric:
    family = CounterMetricFamily(f"feeder_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _gauge(name: str, text: str, labels: list[str], rows: _Rows) -> Metric:
    family = GaugeMetricFamily(f"feeder_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def _histogram(name: str, text: str, by_node: Mapping[str, HistogramSnapshot | None]) -> Metric:
    family = HistogramMetricFamily(f"feeder_{name}", text, labels=["node"])
    for node, histogram in by_node.items():
        if histogram is None:
            continue
        buckets: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], histogram.counts, strict=False):
            below += count
            buckets.append((bound, below))
        family.add_metric([node], buckets, histogram.total_s)
    return family
