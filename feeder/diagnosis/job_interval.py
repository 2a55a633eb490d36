"""What the jobs of a host got between two snapshots, over all node processes that serve them."""

from collections.abc import Iterable
from dataclasses import dataclass

from feeder.diagnosis.rates import growth, rates
from feeder.metrics.records import OTHER_JOBS, JobRecord, NodeRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInterval:
    """A job: an account, and the name that its sessions gave; or all others together."""

    name: str
    account: str
    weight: float
    sessions: int
    """Now."""
    images_a_s: float
    batches_a_s: float
    batches: int
    """Since its node processes started."""
    workers: float
    """Mean number of workers that filled its chunks."""
    worker_share: float = 0.0
    """Its part of the workers' time that was spent on all jobs, 0 to 1."""


def job_intervals(before: NodeRecord, now: NodeRecord, seconds: float) -> tuple[JobInterval, ...]:
    """Return what each job of ``now`` got at one node process; shares are not known here."""
    earlier = {(job.account, job.name): job for job in before.jobs}
    rate = rates(seconds)
    found = []
    for job in now.jobs:
        start = earlier.get((job.account, job.name)) or _at_start(job)
        found.append(
            JobInterval(
                name=job.name,
                account=job.account,
                weight=job.weight,
                sessions=job.sessions,
                images_a_s=rate(start.images, job.images),
                batches_a_s=rate(start.batches, job.batches),
                batches=job.batches,
                workers=growth(start.worker_s, job.worker_s) / seconds if seconds else 0.0,
            )
        )
    return tuple(found)


def merge_jobs(jobs: Iterable[JobInterval]) -> tuple[JobInterval, ...]:
    """Return each job over all node processes, those that use most workers first."""
    groups: dict[tuple[str, str], list[JobInterval]] = {}
    for job in jobs:
        groups.setdefault((job.account, job.name), []).append(job)
    workers = sum(job.workers for group in groups.values() for job in group)
    merged = [
        JobInterval(
            name=name,
            account=account,
            weight=group[0].weight,
            sessions=sum(job.sessions for job in group),
            images_a_s=sum(job.images_a_s for job in group),
            batches_a_s=sum(job.batches_a_s for job in group),
            batches=sum(job.batches for job in group),
            workers=sum(job.workers for job in group),
            worker_share=sum(job.workers for job in group) / workers if workers else 0.0,
        )
        for (account, name), group in groups.items()
    ]
    return tuple(sorted(merged, key=lambda job: (job.name == OTHER_JOBS, -job.workers, job.name)))


def _at_start(job: JobRecord) -> JobRecord:
    """Return the totals of a job that was not there before: zero, but not known of the others."""
    return job if job.name == OTHER_JOBS else JobRecord(name=job.name, account=job.account)
