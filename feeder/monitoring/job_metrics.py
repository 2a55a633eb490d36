"""Totals by job: JOBS_MAX (feeder.metrics.records) at most at a node process, others as one."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from prometheus_client.core import Metric

from feeder.metrics.records import JobRecord, NodeRecord
from feeder.monitoring.families import counter

_TOTALS: Final[tuple[tuple[str, str, Callable[[JobRecord], float]], ...]] = (
    ("job_batches", "Batches delivered whole, by job.", lambda job: job.batches),
    ("job_images", "Real images delivered, by job.", lambda job: job.images),
    (
        "job_worker_seconds",
        "Time of workers in chunks, by job: what jobs share by weight.",
        lambda job: job.worker_s,
    ),
)


def describe_jobs(snapshots: Sequence[NodeRecord]) -> Iterator[Metric]:
    """Yield the metrics of all jobs; ``client`` is the account."""
    for name, text, read in _TOTALS:
        totals: dict[tuple[str, str, str], float] = {}
        for snapshot in snapshots:
            for job in snapshot.jobs:
                labels = str(snapshot.number), job.account, job.name
                totals[labels] = totals.get(labels, 0.0) + read(job)
        rows = ((list(labels), total) for labels, total in totals.items())
        yield counter(name, text, ["node", "client", "job"], rows)
