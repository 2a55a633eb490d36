"""Jobs: whose chunk is next, by weighted fair queueing, and what each job has got. Pure.

A job is an account (``HelloReceived``) and the name in its sessions' Hellos. The sessions of an
account that give no name are one job, and the sessions of a job take turns.

Jobs share the workers' time. Each has a *virtual time*: the seconds that its chunks took, over its
weight. The next chunk is that of the job with the lowest virtual time among those that have chunks
to dispatch. A chunk is charged when it is dispatched, with an estimate, and corrected when it is
finished, to what it took: a chunk that looked cheap gains nothing.

A job is *active* while it has chunks to dispatch or unfinished. What the other active jobs owe it
is its *credit*, in seconds of a worker; a negative one is a debt. Credits and debts add up to zero,
so a job that is alone has neither. A debt outlives the job's sessions: it is paid by waiting while
the others are served. A credit is kept while the whole window is in flight, and while the client
handles what it got: a job that wants nothing stays active until it has lost its credit, by the time
that workers spend meanwhile. It is at most CREDIT_S for each chunk in flight, so that a job which
takes less than its share has no hoard when it wants more.

This is start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996) for a server that has several
requests at a time (Jin, Chase, Kaur: SIGMETRICS 2004), with debts and credits as the lag in EEVDF
(Stoica, Abdel-Wahab: 1995).
"""

from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Final, TypeAlias

from feeder.metrics.fields import add
from feeder.metrics.records import JOBS_MAX, OTHER_JOBS, JobRecord
from feeder.session.state import Job, JobKey, Session

CREDIT_S: Final = 1.0
"""A chunk hardly takes longer, so this exceeds what others get while a job waits for its first."""

_IDLE_MAX: Final = 4096
"""Jobs without a record of their own, about: their debts are remembered."""

_VIRTUAL_S: Final = attrgetter("virtual_s")

JobWeights: TypeAlias = Mapping[str, Mapping[str, float]]
"""From the configuration, by account and name, 1 for all others: a job's share is its weight over
their sum."""


class Jobs:
    """All jobs, and the sessions that have chunks to dispatch."""

    def __init__(self, weights: JobWeights) -> None:
        self._weights = weights
        self._jobs: dict[JobKey, Job] = {}
        # Those with a record of their own, whose sessions began last at the end. A job keeps it
        # while it has sessions, and then until another job needs the place: records only grow.
        self._recorded: dict[JobKey, Job] = {}
        self._others = JobRecord(name=OTHER_JOBS, account="")
        self._active: dict[Job, None] = {}
        self.ready = 0
        """How many sessions have chunks to dispatch."""
        self._last_virtual_s = 0.0  # of the job that was active last

    @property
    def records(self) -> Iterator[JobRecord]:
        """The jobs with a record of their own, then the others as one, if there were any."""
        for job in self._recorded.values():
            yield job.record
        if self._others.sessions or self._others.worker_s:
            yield self._others

    def join(self, key: JobKey) -> Job:
        """Count a session that begins; return its job."""
        account, name = key
        job = self._jobs.get(key)
        if job is None:
            if len(self._jobs) >= _IDLE_MAX:
                self._forget()
            weight = self._weights.get(account, {}).get(name, 1.0)
            job = self._jobs[key] = Job(weight, self._others)
        has_record = self._recorded.pop(key, None) is not None
        if not has_record and (len(self._recorded) < JOBS_MAX or self._make_room()):
            job.record = JobRecord(name=name, account=account, weight=job.weight)
        if job.record is not self._others:
            self._recorded[key] = job
        job.record.sessions += 1
        return job

    def turns(self) -> Iterator[Session]:
        """Yield the sessions that have chunks to dispatch, the next one first."""
        for job in sorted((job for job in self._active if job.ready), key=_VIRTUAL_S):
            yield from job.ready

    def add(self, session: Session) -> None:
        """Add a session that has chunks to dispatch, behind the others of its job."""
        job = session.job
        if job not in self._active:
            self._enter(job)
        if not job.ready:
            self.limit_credit(job, CREDIT_S * sum(other.unfinished for other in self._active))
        job.ready[session] = None
        self.ready += 1

    def remove(self, session: Session) -> None:
        """Remove a session that has nothing more to dispatch."""
        del session.job.ready[session]
        self.ready -= 1
        self._leave_if_settled(session.job)

    def share(self, job: Job) -> float:
        """An active job's share of the workers' time, 0 to 1."""
        return job.weight / sum(other.weight for other in self._active)

    def credit_s(self, job: Job) -> float:
        """An active job's credit, in seconds of a worker; below zero: its debt."""
        mean_s, others_weight = self._others_of(job)
        return (mean_s - job.virtual_s) * job.weight * others_weight / (job.weight + others_weight)

    def begin_chunk(self, session: Session) -> None:
        """Count a chunk that is taken from a session; others of its job come first from now on."""
        session.job.ready.move_to_end(session)
        session.job.unfinished += 1

    def charge(self, job: Job, charged_s: float) -> None:
        """Charge a job the estimate for a chunk that is dispatched."""
        job.virtual_s += charged_s / job.weight

    def settle(
        self, job: Job, charged_s: float, took_s: float, *, is_finished: bool = True
    ) -> None:
        """Replace the estimate for a chunk that is no longer in flight by its real time."""
        job.virtual_s += (took_s - charged_s) / job.weight
        job.unfinished -= is_finished
        for other in list(self._active):
            if other is not job and not (other.ready or other.unfinished):
                self.limit_credit(other, self.credit_s(other) - took_s)
                self._leave_if_settled(other)
        self._leave_if_settled(job)

    def limit_credit(self, job: Job, most_s: float) -> None:
        """Take what exceeds ``most_s`` of a job's credit."""
        mean_s, weight = self._others_of(job)
        # A second of credit moves the mean of the others, too.
        most_virtual_s = max(0.0, most_s) * (1 / job.weight + 1 / weight) if weight else 0.0
        job.virtual_s = max(job.virtual_s, mean_s - most_virtual_s)

    def _enter(self, job: Job) -> None:
        self.limit_credit(job, 0.0)
        self._active[job] = None

    def _leave_if_settled(self, job: Job) -> None:
        """Make a job that wants nothing now inactive, once it has no credit."""
        if not (job.ready or job.unfinished) and self.credit_s(job) <= 0:
            del self._active[job]
            self._last_virtual_s = job.virtual_s

    def _others_of(self, job: Job) -> tuple[float, float]:
        """The mean virtual time of the other active jobs, by weight, and their total weight; the
        virtual time of the last one and 0 if there are none."""
        weight = total_s = 0.0
        for other in self._active:
            if other is not job:
                weight += other.weight
                total_s += other.weight * other.virtual_s
        return (total_s / weight, weight) if weight else (self._last_virtual_s, 0.0)

    def _make_room(self) -> bool:
        """Add the record of the first job without sessions to the others; False if all have
        some."""
        for key, job in self._recorded.items():
            if not job.record.sessions:
                add(self._others, job.record)
                job.record = self._others
                del self._recorded[key]
                return True
        return False

    def _forget(self) -> None:
        """Forget the idle job without a debt, or with the smallest."""
        idle = [key for key, job in self._jobs.items() if job.record is self._others]
        idle = [key for key in idle if self._jobs[key] not in self._active]
        if idle:
            del self._jobs[min(idle, key=lambda key: self._jobs[key].virtual_s)]
