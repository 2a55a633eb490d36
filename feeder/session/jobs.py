"""Jobs: which sessions are one, what share of the workers' time each has, and what it has got.

A job is an account (``MessageReceived``) and the name in its sessions' Hellos. The sessions of an
account that give no name are one job. Pure.

Invariant: tallies only grow, and there are at most JOBS_MAX of them besides that of the others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from feeder.metrics.snapshot import JOBS_MAX

JobKey: TypeAlias = tuple[str, str]
"""An account, and the name of a job of its own; "" for the sessions without one."""

OTHERS_KEY: Final[JobKey] = ("", "")
"""Those that have no place among the tallies: no account is empty."""


@dataclass(frozen=True, slots=True)
class JobWeights:
    """The weights of jobs, from the configuration: a job's share is its weight over their sum."""

    by_account: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def of(self, job: JobKey) -> float:
        """Return a job's weight: 1 unless it is configured."""
        account, name = job
        return self.by_account.get(account, {}).get(name, 1.0)


@dataclass(slots=True, eq=False)
class JobTally:
    """Totals of a job's sessions, those that have ended included."""

    sessions: int = 0
    """Now."""
    images: int = 0
    batches: int = 0
    worker_s: float = 0.0


class JobTallies:
    """A tally for each job, in bounded memory.

    A job keeps its place while it has sessions, and then until another job needs it.
    """

    def __init__(self) -> None:
        self._jobs: dict[JobKey, JobTally] = {}  # those whose sessions began last at the end
        self._others = JobTally()

    def __iter__(self) -> Iterator[tuple[JobKey, JobTally]]:
        """Yield each job with a place, then the others, if there were any, as OTHERS_KEY."""
        yield from self._jobs.items()
        if self._others.sessions or self._others.worker_s:
            yield OTHERS_KEY, self._others

    def join(self, job: JobKey) -> JobTally:
        """Count a session that begins; return the tally that it adds to."""
        tally = self._jobs.pop(job, None)
        if tally is None and (len(self._jobs) < JOBS_MAX or self._make_room()):
            tally = JobTally()
        if tally is None:
            tally = self._others
        else:
            self._jobs[job] = tally
        tally.sessions += 1
        return tally

    def _make_room(self) -> bool:
        """Add the first job without sessions to the others; False if all have some."""
        for job, tally in self._jobs.items():
            if not tally.sessions:
                self._others.images += tally.images
                self._others.batches += tally.batches
                self._others.worker_s += tally.worker_s
                del self._jobs[job]
                return True
        return False
