"""Jobs: which sessions are one, what share of the workers' time each has, and what it has got.

A job is an account (``MessageReceived``) and the name in its sessions' Hellos. The sessions of an
account that give no name are one job. Pure.

Invariant: counters only grow, and there are at most JOBS_MAX records besides that of the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from feeder.metrics.fields import add
from feeder.metrics.records import JOBS_MAX, OTHER_JOBS, JobRecord

JobKey: TypeAlias = tuple[str, str]
"""An account, and the name of a job of its own; "" for the sessions without one."""


@dataclass(frozen=True, slots=True)
class JobWeights:
    """The weights of jobs, from the configuration: a job's share is its weight over their sum."""

    by_account: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, job: JobKey) -> float:
        """Return a job's weight: 1 unless it is configured."""
        account, name = job
        return self.by_account.get(account, {}).get(name, 1.0)


class JobRecords:
    """The record of each job, in bounded memory.

    A job keeps its place while it has sessions, and then until another job needs it.
    """

    def __init__(self, weights: JobWeights) -> None:
        self._weights = weights
        self._jobs: dict[JobKey, JobRecord] = {}  # those whose sessions began last at the end
        self._others = JobRecord(name=OTHER_JOBS, account="")

    def __iter__(self) -> Iterator[JobRecord]:
        """Yield the jobs with a place, then the others as one, if there were any."""
        yield from self._jobs.values()
        if self._others.sessions or self._others.worker_s:
            yield self._others

    def join(self, job: JobKey) -> JobRecord:
        """Count a session that begins; return the record that it counts in."""
        record = self._jobs.pop(job, None)
        if record is None and (len(self._jobs) < JOBS_MAX or self._make_room()):
            account, name = job
            record = JobRecord(name=name, account=account, weight=self._weights.of(job))
        if record is None:
            record = self._others
        else:
            self._jobs[job] = record
        record.sessions += 1
        return record

    def _make_room(self) -> bool:
        """Add the first job without sessions to the others; False if all have some."""
        for job, record in self._jobs.items():
            if not record.sessions:
                add(self._others, record)
                del self._jobs[job]
                return True
        return False
