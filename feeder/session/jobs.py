"""Jobs: whose chunk is next, by weighted fair queueing, and what each job has got. Pure.

A job is an account (``HelloReceived``) and the name in its sessions' Hellos. The sessions of an
account that give no name are one job, and the sessions of a job take turns.

Jobs share the workers' time. Each has a *virtual time*: the seconds that its chunks took, over its
weight. The next chunk is that of the job with the lowest virtual time among those that have chunks
to dispatch. A chunk is charged when it is dispatched, with an estimate, and corrected when it is
finished, to what it took: a chunk that looked cheap gains nothing.

A job is *active* while it has chunks to dispatch or in flight. What the other active jobs owe it is
its *credit*, in seconds of a worker; a negative one is a debt. Credits and debts add up to zero, so
a job that is alone has neither.

- A debt outlives the job's sessions. It is paid by waiting while the others are served.
- A credit is kept while the whole window is in flight, and while the client handles what it got. A
  job that wants nothing stays active until it has lost its credit: by the time that workers spend
  meanwhile. So it gets nothing for the time that it left to others.
- A credit is at most CREDIT_S for each chunk in flight, so that a job which takes less than its
  share has no hoard when it wants more.

This is start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996) for a server that has several
requests at a time (Jin, Chase, Kaur: SIGMETRICS 2004), with debts and credits as the lag in EEVDF
(Stoica, Abdel-Wahab: 1995).

Invariants: records only grow, and there are at most JOBS_MAX of them besides that of the others.
Accounts are bounded by the sessions that have chunks to dispatch or in flight, and _JOBS_MAX jobs
that have none.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, TypeAlias

from feeder.metrics.fields import add
from feeder.metrics.records import JOBS_MAX, OTHER_JOBS, JobRecord
from feeder.session.state import JobKey, Session

CREDIT_S: Final = 1.0
"""A chunk hardly takes longer, so this exceeds what others get while a job waits for its first."""

_JOBS_MAX: Final = 4096


JobWeights: TypeAlias = Mapping[JobKey, float]
"""From the configuration, 1 for all others: a job's share is its weight over their sum."""


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
            record = JobRecord(name=name, account=account, weight=self._weights.get(job, 1.0))
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


@dataclass(slots=True, eq=False)
class _JobTurns:
    """A job's account, and its sessions that have chunks to dispatch."""

    weight: float
    virtual_s: float
    sessions: OrderedDict[Session, None] = field(default_factory=OrderedDict)
    """The next one first."""
    in_flight: int = 0


_VIRTUAL_S: Final = attrgetter("virtual_s")


class Turns:
    """The sessions that have chunks to dispatch, by job."""

    def __init__(self, weights: JobWeights) -> None:
        self._weights = weights
        self._jobs: dict[JobKey, _JobTurns] = {}
        self._active: dict[JobKey, _JobTurns] = {}
        self.ready = 0
        """How many sessions have chunks to dispatch."""
        self._in_flight = 0  # chunks of all jobs
        self._last_virtual_s = 0.0  # of the job that was active last

    def __iter__(self) -> Iterator[Session]:
        """Yield the sessions, the next one first."""
        ready = [job for job in self._active.values() if job.sessions]
        if not ready:
            return
        yield from min(ready, key=_VIRTUAL_S).sessions  # as a rule, no other one is needed
        for job in sorted(ready, key=_VIRTUAL_S)[1:]:
            yield from job.sessions

    def add(self, session: Session) -> None:
        """Add a session that has chunks to dispatch, behind the others of its job."""
        job = self._active.get(session.job) or self._enter(session.job)
        if not job.sessions:
            self._limit_credit(job, CREDIT_S * self._in_flight)
        job.sessions[session] = None
        self.ready += 1

    def remove(self, session: Session) -> None:
        """Remove a session that has nothing more to dispatch."""
        job = self._jobs[session.job]
        del job.sessions[session]
        self.ready -= 1
        if not job.sessions:
            self._leave_if_settled(session.job, job)

    def serve(self, session: Session) -> None:
        """Move a session behind the others of its job, after a chunk of it was taken."""
        self._jobs[session.job].sessions.move_to_end(session)

    def pass_over(self, sessions: Collection[Session]) -> None:
        """Record that these sessions could not use their turns: their jobs get no credit for it."""
        for key in {session.job for session in sessions}:
            job = self._jobs[key]
            if job.sessions.keys() <= {*sessions}:
                self._limit_credit(job, 0.0)

    def share(self, key: JobKey) -> float:
        """An active job's share of the workers' time, 0 to 1."""
        return self._jobs[key].weight / sum(job.weight for job in self._active.values())

    def credit_s(self, key: JobKey) -> float:
        """An active job's credit, in seconds of a worker; below zero: its debt."""
        job = self._jobs[key]
        mean_s, others_weight = self._others(job)
        return (mean_s - job.virtual_s) * job.weight * others_weight / (job.weight + others_weight)

    def charge(self, key: JobKey, charged_s: float) -> None:
        """Charge a job the estimate for a chunk that is dispatched."""
        job = self._active.get(key) or self._enter(key)
        job.virtual_s += charged_s / job.weight
        job.in_flight += 1
        self._in_flight += 1

    def settle(self, key: JobKey, charged_s: float, took_s: float) -> None:
        """Replace the estimate for a chunk that is no longer in flight by its real time."""
        job = self._jobs[key]
        job.virtual_s += (took_s - charged_s) / job.weight
        job.in_flight -= 1
        self._in_flight -= 1
        for other_key, other in list(self._active.items()):
            if other is not job and not (other.sessions or other.in_flight):
                self._limit_credit(other, self.credit_s(other_key) - took_s)
                self._leave_if_settled(other_key, other)
        if not job.sessions:
            self._leave_if_settled(key, job)

    def _enter(self, key: JobKey) -> _JobTurns:
        """The account of a job that becomes active."""
        job = self._jobs.get(key)
        if job is None:
            if len(self._jobs) >= _JOBS_MAX:
                self._forget_jobs()
            job = _JobTurns(self._weights.get(key, 1.0), self._others(None)[0])
            self._jobs[key] = job
        self._limit_credit(job, 0.0)
        self._active[key] = job
        return job

    def _leave_if_settled(self, key: JobKey, job: _JobTurns) -> None:
        """Make a job that wants nothing now inactive, once it has no credit."""
        if not (job.sessions or job.in_flight) and self.credit_s(key) <= 0:
            del self._active[key]
            self._last_virtual_s = job.virtual_s

    def _others(self, job: _JobTurns | None) -> tuple[float, float]:
        """The mean virtual time of the other active jobs, by weight, and their total weight; the
        virtual time of the last one and 0 if there are none."""
        weight = total_s = 0.0
        for other in self._active.values():
            if other is not job:
                weight += other.weight
                total_s += other.weight * other.virtual_s
        return (total_s / weight, weight) if weight else (self._last_virtual_s, 0.0)

    def _limit_credit(self, job: _JobTurns, most_s: float) -> None:
        """Take what exceeds ``most_s`` of a job's credit."""
        mean_s, weight = self._others(job)
        # A second of credit moves the mean of the others, too.
        most_virtual_s = max(0.0, most_s) * (1 / job.weight + 1 / weight) if weight else 0.0
        if job.virtual_s < mean_s - most_virtual_s:
            job.virtual_s = mean_s - most_virtual_s

    def _forget_jobs(self) -> None:
        """Forget half of the idle jobs: those without debts, or with the smallest."""
        idle = [key for key in self._jobs if key not in self._active]
        idle.sort(key=lambda key: self._jobs[key].virtual_s)
        for key in idle[: len(idle) // 2 + 1]:
            del self._jobs[key]
