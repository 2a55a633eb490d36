"""A host's report as text for scrapers: Prometheus text 0.0.4 or OpenMetrics 1.0.0.

Each declared field of a record that has a help text is a metric (``feeder.metrics``); here are the
labels, and the gauges that no field has: states, rates and shares, which are over the report's
interval. Label values are bounded: numbers, words of Feeder's own, datasets of the configuration,
and a limited number of clients. A node process that is restarted begins at zero again, which
Prometheus takes into account.

Source of names and units: https://prometheus.io/docs/practices/naming/.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
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
    JobRecord,
    NodeRecord,
    StoreRecord,
    WorkerRecord,
)
from feeder.metrics.report import HostLoad, HostReport, NodeReport, ServedDatasetReport, Verdict

Labels: TypeAlias = tuple[str, ...]

CLIENTS_MAX: Final = 64
OTHER: Final = "other"

_CLIENT_CHARS_MAX: Final = 128
_PID: Final = re.compile(r" pid [0-9]+")
_WORKER_STATES: Final[tuple[str, ...]] = get_args(WorkerRecord.__annotations__["state"])
_FORMATS: Final[Mapping[str, tuple[str, Callable[[Collector], bytes]]]] = {
    "text/plain": ("text/plain; version=0.0.4; charset=utf-8", encode_text),
    "application/openmetrics-text": (
        "application/openmetrics-text; version=1.0.0; charset=utf-8",
        encode_openmetrics,
    ),
}


class Exposition(Collector):
    """Renders reports; keeps the latest one's text in each of the two formats."""

    def __init__(self) -> None:
        self._report: HostReport | None = None
        self._texts: dict[str, bytes] = {}  # by format
        self._places: defaultdict[int, list[int]] = defaultdict(list)  # by node process

    def render(self, report: HostReport | None, accept: str = "") -> tuple[bytes, str]:
        """The text and its content type, in the format that an Accept header asks for: the first
        one of the list that is known, as Prometheus lists them by preference, or else plain text.

        There is no report while the daemon packs.
        """
        if report is not self._report:
            self._report, self._texts = report, {}
        names = [listed.partition(";")[0].strip() for listed in accept.lower().split(",")]
        name = next((name for name in names if name in _FORMATS), "text/plain")
        content_type, encode = _FORMATS[name]
        if name not in self._texts:
            self._texts[name] = encode(self)
        return self._texts[name], content_type

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of the report, and the one that is there before there is any."""
        text = "1 while the daemon packs what it will serve, before it has other metrics."
        yield gauge("packing", text, [], {(): float(self._report is None)})
        if self._report is not None:
            yield from _describe(self._report, self._places)


def take_places(places: list[int], workers: Sequence[int]) -> list[int]:
    """The places of a node process's present workers, given their numbers; ``places`` has the
    worker at each place, and is changed.

    Places label the metrics. Numbers of workers are never used again, so as labels they would make
    new series with each replacement: a successor takes the place of the worker that it replaces.
    Its counters begin at zero, which Prometheus takes into account.
    """
    new = [worker for worker in workers if worker not in places]
    for place, worker in enumerate(places):
        if new and worker not in workers:
            places[place] = new.pop(0)
    places += new
    return [places.index(worker) for worker in workers]


def _describe(report: HostReport, places: defaultdict[int, list[int]]) -> Iterator[Metric]:
    version = {(report.feeder_version, report.host): 1.0}
    yield gauge("build_info", "The daemon's version.", ["version", "host"], version)
    yield from families(HostReport, (), {(): report})
    yield from families(Verdict, (), {(): report.verdict})
    yield from families(HostLoad, (), {(): report.load})
    datasets = {(served.name, served.content[:12]): served for served in report.datasets}
    yield from families(ServedDatasetReport, ("dataset", "content"), datasets)
    yield from families(NodeReport, ("node",), {(str(n.number),): n for n in report.nodes})
    nodes = {(str(node.number),): node.now for node in report.nodes if node.now is not None}
    yield from families(NodeRecord, ("node",), nodes)
    yield from families(CacheRecord, ("node",), {label: n.cache for label, n in nodes.items()})
    stores = {} if report.store is None else {(): report.store}
    yield from families(StoreRecord, (), stores)
    for kind in GROUPS:
        groups = {label: unflatten(kind, node.counters) for label, node in nodes.items()}
        yield from families(kind, ("node",), groups)
    jobs = {(*label, j.account, j.name): j for label, node in nodes.items() for j in node.jobs}
    yield from families(JobRecord, ("node", "client", "job"), jobs)
    # A worker has a series of its own: a sum over workers would go back when one is replaced.
    workers = {}
    for label, node in nodes.items():
        numbers = [worker.number for worker in node.workers]
        rows = zip(take_places(places[node.number], numbers), node.workers, strict=True)
        workers.update({(*label, str(place)): worker for place, worker in rows})
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
    text = "Longest current time without progress of any worker."
    silent_s = {
        label: max((worker.silent_s for worker in node.workers), default=0.0)
        for label, node in nodes.items()
    }
    yield gauge("worker_silent_seconds", text, ["node"], silent_s)
    yield from _describe_rates(HostInterval(report))


def _describe_rates(interval: HostInterval) -> Iterator[Metric]:
    slots = {
        (str(node.number), state): getattr(node.slots, state)
        for node in interval.nodes
        for state in node.slots.__struct_fields__
    }
    text = "Mean number of slots by state, over the last seconds."
    yield gauge("slots", text, ["node", "state"], slots)
    rates: defaultdict[str, float] = defaultdict(float)
    waits: defaultdict[str, list[float]] = defaultdict(list)
    # The fastest clients first, and one that is on several node processes once.
    for (_, name), group in sorted(interval.by_client.items(), key=_rank):
        label = name_client(name)
        if label not in rates and len(rates) >= CLIENTS_MAX:
            label = OTHER
        rates[label] += sum(client.images_a_s for client in group)
        shares = [client.wait_share for client in group if client.wait_share is not None]
        if shares:
            waits[label].append(min(1.0, sum(shares)))
    text = "Images a second by client, over the last seconds."
    by_client = {(label,): images for label, images in rates.items()}
    yield gauge("client_images_per_second", text, ["client"], by_client)
    text = "Share of its time in which a client's training loop waited for this host."
    means = {(label,): sum(shares) / len(shares) for label, shares in waits.items()}
    yield gauge("client_wait_ratio", text, ["client"], means)
    if interval.wait_share is not None:
        text = "Share of the clients' time in which they waited for this host."
        yield gauge("wait_ratio", text, [], {(): interval.wait_share})


def _rank(item: tuple[tuple[str, ...], list[ClientInterval]]) -> tuple[bool, float, str]:
    (_, name), group = item
    return name == OTHERS, -sum(client.images_a_s for client in group), name


def name_client(name: str) -> str:
    """A client's label: its name without the process id, so that a job that is restarted
    keeps its series."""
    return OTHER if name == OTHERS else _PID.sub("", name, count=1)[:_CLIENT_CHARS_MAX]


def gauge(name: str, text: str, labels: Sequence[str], series: Mapping[Any, float]) -> Metric:
    """A gauge that no field declares; ``series`` is by label values."""
    return _family(name, Field("gauge", text), labels, series)


def families(
    kind: type[Record], labels: Sequence[str], records: Mapping[Any, Record]
) -> Iterator[Metric]:
    """Yield the metrics of a kind of record, given records by the values of their labels."""
    by_metric: defaultdict[str, list[tuple[str, Field]]] = defaultdict(list)
    for name, field in fields_of(kind).items():
        if field.help:
            by_metric[field.metric].append((name, field))
    for metric, parts in by_metric.items():
        field = parts[0][1]
        series = {
            (*values, *more): value
            for values, record in records.items()
            for name, part in parts
            for more, value in _series(part, getattr(record, name))
        }
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


def _family(name: str, field: Field, labels: Sequence[str], series: Mapping[Any, Any]) -> Metric:
    if field.kind == "histogram":
        histogram = HistogramMetricFamily(f"feeder_{name}", field.help, labels=labels)
        bounds = [*map(str, BOUNDS_S), "+Inf"]
        for values, durations in series.items():
            buckets = list(zip(bounds, accumulate(durations.counts), strict=False))
            histogram.add_metric(values, buckets, durations.total_s)
        return histogram
    kind = CounterMetricFamily if field.kind == "counter" else GaugeMetricFamily
    family = kind(f"feeder_{name}", field.help, labels=labels)
    for values, value in series.items():
        family.add_metric(values, float(value))
    return family
