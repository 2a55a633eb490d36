"""Metrics with their series, from rows of label values and a value; names without ``feeder_``."""

from collections.abc import Iterable, Mapping

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from feeder.metrics.records import BOUNDS_S, Histogram

Rows = Iterable[tuple[list[str], float]]


def counter(name: str, text: str, labels: list[str], rows: Rows) -> Metric:
    family = CounterMetricFamily(f"feeder_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def gauge(name: str, text: str, labels: list[str], rows: Rows) -> Metric:
    family = GaugeMetricFamily(f"feeder_{name}", text, labels=labels)
    for values, value in rows:
        family.add_metric(values, value)
    return family


def histogram(name: str, text: str, by_node: Mapping[str, Histogram | None]) -> Metric:
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
