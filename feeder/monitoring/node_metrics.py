"""The metrics of node processes and their workers, from their latest snapshots.

Counters are those of the node processes, labelled with their number: one that is restarted begins
at zero again, which Prometheus takes into account. What belongs to a worker has its own series, by
its place (``worker_places``), because a sum over workers would go back when one is replaced.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, get_args

from prometheus_client.core import Metric

from feeder.metrics.records import NodeRecord, WorkerRecord
from feeder.monitoring.counter_metrics import COUNTERS, CounterMetric
from feeder.monitoring.families import counter, gauge, histogram
from feeder.monitoring.worker_places import WorkerPlaces

WORKER_STATES: Final[tuple[str, ...]] = get_args(WorkerRecord.__annotations__["state"])

_NODE_COUNTERS: Final[tuple[tuple[str, str, Callable[[NodeRecord], float]], ...]] = (
    ("images", "Real images delivered, without padding.", lambda node: node.images),
    ("batches", "Batches delivered whole.", lambda node: node.batches),
    ("sent_bytes", "Bytes copied over sockets to clients.", lambda node: node.sent_bytes),
    ("lent_bytes", "Bytes that clients read in place.", lambda node: node.lent_bytes),
    ("decoded_bytes", "Bytes of decoded pixels.", lambda node: node.decoded_bytes),
    ("cache_hits", "Images found in the decoded cache.", lambda node: node.cache.hits),
    ("cache_misses", "Images not found in the decoded cache.", lambda node: node.cache.misses),
    ("cache_fills", "Entries added to the decoded cache.", lambda node: node.cache.fills),
    (
        "cache_moved_bytes",
        "Bytes of pixels read from the decoded cache or written to it.",
        lambda node: node.cache.moved_bytes,
    ),
    ("worker_silences", "Times that a worker became silent.", lambda node: node.silences),
    ("workers_killed", "Workers killed without progress.", lambda node: node.workers_killed),
    ("worker_restarts", "Workers that were replaced.", lambda node: node.worker_restarts),
    ("node_cpu_seconds", "CPU time of node processes, no workers.", lambda node: node.own_cpu_s),
)
_NODE_GAUGES: Final[tuple[tuple[str, str, Callable[[NodeRecord], float]], ...]] = (
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
        "Longest current time without progress of any worker.",
        lambda node: max((worker.silent_s for worker in node.workers), default=0.0),
    ),
)
_WORKER_COUNTERS: Final[tuple[tuple[str, str, Callable[[WorkerRecord], float]], ...]] = (
    ("worker_images", "Images that workers have made.", lambda worker: worker.images),
    ("worker_busy_seconds", "Time of workers in chunks.", lambda worker: worker.busy_s),
    ("worker_cpu_seconds", "CPU time of workers.", lambda worker: worker.cpu_s),
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


def describe_snapshots(snapshots: Sequence[NodeRecord], places: WorkerPlaces) -> Iterator[Metric]:
    """Yield the metrics of all node processes; ``places`` are those of earlier reports."""
    for name, text, read in _NODE_COUNTERS:
        yield counter(name, text, ["node"], (([str(s.number)], read(s)) for s in snapshots))
    for name, text, read in _NODE_GAUGES:
        yield gauge(name, text, ["node"], (([str(s.number)], read(s)) for s in snapshots))
    yield counter(
        "stage_seconds",
        "Time of workers in each stage of the sample path.",
        ["node", "stage"],
        (([str(s.number), stage], total) for s in snapshots for stage, total in s.stages.items()),
    )
    yield from _workers(snapshots, places)
    yield histogram(
        "chunk_duration_seconds",
        "From a chunk's dispatch to its last row.",
        {str(s.number): s.chunk_s for s in snapshots},
    )
    yield histogram(
        "batch_duration_seconds",
        "From a batch's request to its last row.",
        {str(s.number): s.batch_s for s in snapshots},
    )
    yield from _node_counters(snapshots)


def _workers(snapshots: Sequence[NodeRecord], places: WorkerPlaces) -> Iterator[Metric]:
    placed = [
        ([str(snapshot.number), str(place)], worker)
        for snapshot in snapshots
        for worker, place in zip(
            snapshot.workers,
            places.of(snapshot.number, [worker.number for worker in snapshot.workers]),
            strict=True,
        )
    ]
    yield gauge(
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
        yield counter(
            name,
            text,
            ["node", "worker"],
            ((labels, read(worker)) for labels, worker in placed),
        )


def _node_counters(snapshots: Sequence[NodeRecord]) -> Iterator[Metric]:
    """Yield the metrics of all counters of COUNTERS, those of several counters once."""
    by_metric: dict[str, list[tuple[str, CounterMetric]]] = {}
    for source, metric in COUNTERS.items():
        by_metric.setdefault(metric.name, []).append((source, metric))
    for name, parts in by_metric.items():
        first = parts[0][1]
        labels = ["node", first.label] if first.label else ["node"]
        rows = [
            ([str(snapshot.number), *above], value)
            for snapshot in snapshots
            for source, metric in parts
            for above, value in _values(snapshot.counters, source, metric)
        ]
        yield (gauge if first.is_gauge else counter)(name, first.help, labels, rows)


def _values(
    counters: Mapping[str, int | float | str], source: str, metric: CounterMetric
) -> Iterator[tuple[list[str], float]]:
    """Yield label values, none without a label, and the value of each series of a counter."""
    if not metric.label or metric.value:
        value = counters.get(source, 0)
        if not isinstance(value, str):
            yield [metric.value] if metric.label else [], value
        return
    found = dict.fromkeys(metric.known, 0.0)
    for name, value in counters.items():
        if name.startswith(f"{source}.") and not isinstance(value, str):
            found[name.removeprefix(f"{source}.")] = value
    for reason, value in sorted(found.items()):
        yield [reason], value
