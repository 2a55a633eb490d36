"""A host's report as text for scrapers: Prometheus text 0.0.4 or OpenMetrics 1.0.0.

Each declared field of a record that has a help text is a metric (``feeder.metrics``); here are the
labels, and the gauges that no field has: states, rates and shares, which are over the report's
interval. Label values are bounded: numbers, words of Feeder's own, datasets of the configuration,
and a limited number of clients. A node process that is restarted begins at zero again, which
Prometheus takes into account.

Source of names and units: https://prometheus.io/docs/practices/naming/.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest as encode_text
from prometheus_client.openmetrics.exposition import generate_latest as encode_openmetrics
from prometheus_client.registry import Collector

from feeder.diagnosis.interval import ClientInterval, HostInterval
from feeder.metrics.counters import GROUPS
from feeder.metrics.fields import Field, Record, fields_of, unflatten
from feeder.metrics.records import (
    BOUNDS_S,
    OTHERS,
    CacheRecord,
    Histogram,
    JobRecord,
    NodeRecord,
    WorkerRecord,
)
from feeder.metrics.report import HostLoad, HostReport, NodeReport, ServedDatasetReport, Verdict

Labels: TypeAlias = tuple[str, ...]

CLIENTS_MAX: Final = 64
OTHER: Final = "other"

_CLIENT_CHARS_MAX: Final = 128
_PID: Final = re.compile(r" pid [0-9]+")
_WORKER_STATES: Final[tuple[str, ...]] = get_args(WorkerRecord.__annotations__["state"])
_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
_OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
_VERSION: Final = re.compile(r";\s*version\s*=\s*([^;]*)")


class Exposition(Collector):
    """Renders reports; keeps the latest one's text in each of the two formats."""

    def __init__(self) -> None:
        self._report: HostReport | None = None
        self._texts: dict[str, bytes] = {}  # by content type
        self._places = WorkerPlaces()

    def render(self, report: HostReport | None, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, in the format that an Accept header asks for.

        There is no report while the daemon packs.
        """
        if report is not self._report:
            self._report, self._texts = report, {}
        content_type = choose_format(accept)
        if content_type not in self._texts:
            encode = encode_openmetrics if content_type == _OPENMETRICS else encode_text
            self._texts[content_type] = encode(self)
        return self._texts[content_type], content_type

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the report, and the one that is there before there is any."""
        text = "1 while the daemon packs what it will serve, before it has other metrics."
        yield gauge("packing", text, [], {(): float(self._report is None)})
        if self._report is not None:
            yield from _describe(self._report, self._places)


def choose_format(accept: str) -> str:
    """The content type for an Accept header: one of two, whatever the header contains.

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


class WorkerPlaces:
    """Places of workers, from 0, which label their metrics: a successor takes the place of the
    worker that it replaces.

    Numbers of workers are never used again, so as labels they would make new series with each
    replacement. The successor's counters begin at zero, which Prometheus takes into account.
    """

    def __init__(self) -> None:
        self._workers: dict[int, list[int]] = {}  # by node process: the worker at each place

    def of(self, node: int, workers: Sequence[int]) -> list[int]:
        """The places of a node process's present workers, given their numbers."""
        places = self._workers.setdefault(node, [])
        new = [worker for worker in workers if worker not in places]
        for place, worker in enumerate(places):
            if new and worker not in workers:
                places[place] = new.pop(0)
        places += new
        return [places.index(worker) for worker in workers]


def _describe(report: HostReport, places: WorkerPlaces) -> Iterator[Metric]:
    version: dict[Labels, float] = {(report.feeder_version, report.host): 1.0}
    yield gauge("build_info", "The daemon's version.", ["version", "host"], version)
    yield from families(HostReport, (), [((), report)])
    yield from families(Verdict, (), [((), report.verdict)])
    yield from families(HostLoad, (), [((), report.load)])
    datasets = [((served.name, served.fingerprint[:12]), served) for served in report.datasets]
    yield from families(ServedDatasetReport, ("dataset", "fingerprint"), datasets)
    reports = [((str(node.number),), node) for node in report.nodes]
    yield from families(NodeReport, ("node",), reports)
    nodes: dict[Labels, NodeRecord] = {
        (str(node.number),): node.now for node in report.nodes if node.now is not None
    }
    yield from _describe_nodes(nodes, places)
    yield from _describe_rates(HostInterval(report))


def _describe_nodes(nodes: Mapping[Labels, NodeRecord], places: WorkerPlaces) -> Iterator[Metric]:
    yield from families(NodeRecord, ("node",), nodes.items())
    yield from families(CacheRecord, ("node",), ((label, n.cache) for label, n in nodes.items()))
    for kind in GROUPS:
        rows = ((label, unflatten(kind, node.counters)) for label, node in nodes.items())
        yield from families(kind, ("node",), rows)
    jobs = (((*label, j.account, j.name), j) for label, node in nodes.items() for j in node.jobs)
    yield from families(JobRecord, ("node", "client", "job"), jobs)
    # A worker has a series of its own: a sum over workers would go back when one is replaced.
    workers = [
        ((*label, str(place)), worker)
        for label, node in nodes.items()
        for worker, place in zip(
            node.workers,
            places.of(node.number, [worker.number for worker in node.workers]),
            strict=True,
        )
    ]
    yield from families(WorkerRecord, ("node", "worker"), workers)
    yield gauge(
        "workers",
        "Workers by state; a silent one has made no progress for two seconds.",
        ["node", "state"],
        {
            (*label, state): sum(worker.state == state for worker in node.workers)
            for label, node in nodes.items()
            for state in _WORKER_STATES
        },
    )
    yield gauge(
        "worker_silent_seconds",
        "Longest current time without progress of any worker.",
        ["node"],
        {
            label: max((worker.silent_s for worker in node.workers), default=0.0)
            for label, node in nodes.items()
        },
    )


def _describe_rates(interval: HostInterval) -> Iterator[Metric]:
    yield gauge(
        "slots",
        "Mean number of slots by state, over the last seconds.",
        ["node", "state"],
        {
            (str(node.number), state): getattr(node.slots, state)
            for node in interval.nodes
            for state in node.slots.__struct_fields__
        },
    )
    yield from _describe_clients(interval.node_clients)
    if interval.wait_share is not None:
        text = "Share of the clients' time in which they waited for this host."
        yield gauge("wait_ratio", text, [], {(): interval.wait_share})


def name_client(name: str) -> str:
    """A client's label: its name without the process id, so that a job that is restarted
    keeps its series."""
    return OTHER if name == OTHERS else _PID.sub("", name, count=1)[:_CLIENT_CHARS_MAX]


def _describe_clients(clients: Iterable[ClientInterval]) -> Iterator[Metric]:
    """Yield the metrics of at most CLIENTS_MAX clients, those with the same label as one."""
    by_label: dict[str, list[ClientInterval]] = {}
    for client in clients:
        by_label.setdefault(name_client(client.name), []).append(client)
    images = {label: sum(client.images_a_s for client in by_label[label]) for label in by_label}
    ranked = sorted(images, key=lambda label: (label == OTHER, -images[label], label))
    rates: dict[Labels, float] = {}
    waits: dict[Labels, dict[tuple[str, str], float]] = {}  # by client, over node processes
    for rank, label in enumerate(ranked):
        key = (label if rank < CLIENTS_MAX else OTHER,)
        rates[key] = rates.get(key, 0.0) + images[label]
        for client in by_label[label]:
            if client.wait_share is not None:
                shares = waits.setdefault(key, {})
                identity = client.account, client.name
                shares[identity] = shares.get(identity, 0.0) + client.wait_share
    text = "Images a second by client, over the last seconds."
    yield gauge("client_images_per_second", text, ["client"], rates)
    text = "Share of its time in which a client's training loop waited for this host."
    means = {key: sum(min(1.0, w) for w in own.values()) / len(own) for key, own in waits.items()}
    yield gauge("client_wait_ratio", text, ["client"], means)


def gauge(name: str, text: str, labels: Sequence[str], series: Mapping[Labels, float]) -> Metric:
    """A gauge that no field declares; ``series`` is by label values."""
    return _family(name, Field("gauge", text), labels, series)


def families(
    kind: type[Record], labels: Sequence[str], rows: Iterable[tuple[Labels, Record]]
) -> Iterator[Metric]:
    """Yield the metrics of a kind of record, given records with the values of their labels.

    Several records with the same values are summed up.
    """
    by_metric: dict[str, list[tuple[str, Field]]] = {}
    for name, field in fields_of(kind).items():
        if field.help:
            by_metric.setdefault(field.metric, []).append((name, field))
    rows = list(rows)
    for metric, parts in by_metric.items():
        field = parts[0][1]
        series: dict[Labels, Any] = {}
        for values, record in rows:
            for name, part in parts:
                for more, value in _series(part, getattr(record, name)):
                    key = (*values, *more)
                    series[key] = value if key not in series else series[key] + value
        yield _family(metric, field, [*labels, field.label] if field.label else labels, series)


def _series(field: Field, value: Any) -> Iterator[tuple[Labels, Any]]:
    """Yield the values of a field's own label, if it has one, with the number for each."""
    if isinstance(value, dict):
        for reason, number in sorted({**dict.fromkeys(field.values, 0), **value}.items()):
            yield (reason,), number
    elif isinstance(value, str):
        yield from (((state,), state == value) for state in field.values)
    else:
        yield (field.value,) if field.label else (), value


def _family(name: str, field: Field, labels: Sequence[str], series: Mapping[Labels, Any]) -> Metric:
    if field.kind == "histogram":
        histogram = HistogramMetricFamily(f"feeder_{name}", field.help, labels=labels)
        for values, durations in series.items():
            histogram.add_metric(values, _buckets(durations), durations.total_s)
        return histogram
    kind = CounterMetricFamily if field.kind == "counter" else GaugeMetricFamily
    family = kind(f"feeder_{name}", field.help, labels=labels)
    for values, value in series.items():
        family.add_metric(values, float(value))
    return family


def _buckets(durations: Histogram) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    below = 0
    for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], durations.counts, strict=False):
        below += count
        buckets.append((bound, below))
    return buckets
