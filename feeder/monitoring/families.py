"""Prometheus metrics from records: a family for each declared field that has a help text."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from feeder.metrics.fields import Field, Record, fields_of
from feeder.metrics.records import BOUNDS_S, Histogram

Labels: TypeAlias = tuple[str, ...]


def gauge(
    name: str, text: str, labels: Sequence[str] = (), series: Mapping[Labels, float] | float = 0.0
) -> Metric:
    """A gauge; ``series`` is by label values, or a number where there are no labels."""
    values: Mapping[Labels, float] = series if isinstance(series, Mapping) else {(): series}
    return _family(name, Field("gauge", text), labels, values)


def families(
    kind: type[Record], labels: Sequence[str], rows: Iterable[tuple[Labels, Record]]
) -> Iterator[Metric]:
    """Yield the metrics of a kind of record, given records with the values of their labels.

    Several records with the same values are summed up.
    """
    by_metric: dict[str, list[tuple[str, Field]]] = {}
    for name, field in fields_of(kind).items():
        if field.help:
            by_metric.setdefault(field.metric or name, []).append((name, field))
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
