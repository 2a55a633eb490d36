"""Whose chunk is next: jobs by weighted fair queueing, and the sessions of a job in turn.

Jobs share the workers' time. Each has a *virtual time*: what its chunks cost, over its weight. The
next chunk is that of the job with the lowest virtual time among those that have chunks to dispatch,
so over any time in which jobs have some, their shares of the workers' time are as their weights.

A chunk costs its rows times the mean time of a worker for a row of its dataset and recipe, rather
than its own time: on a busy machine that has a long tail, whatever the chunk. Worker time,
rather than images, because it is what is scarce: a batch of large crops takes many times that of a
small one. Before the first chunk of a kind is filled, its cost is a guess, which is corrected then.

A job that had nothing to dispatch begins again at the virtual time of the last chunk that was
dispatched, unless its own is later: it gets nothing for the time that it left to others. This is
start-time fair queueing (Goyal, Vin, Cheng: Start-time Fair Queueing, SIGCOMM 1996).

Invariant: a session is in at most one job's turns. Memory is bounded by the sessions that have
chunks to dispatch or in flight, and _DEBTORS_MAX jobs that have used more than their share.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from feeder.session.jobs import JobKey, JobWeights
from feeder.session.usual_times import KINDS_MAX, ChunkKind

_FIRST_GUESS_S: Final = 1e-3
"""For a row before the first chunk of any kind is filled."""

_LEAST_S: Final = 1e-6

_LEARNED: Final = 1 / 32
"""Of the difference to the mean, with each chunk."""

_LEARNED_FIRST: Final = 1 / 8
"""With each of the first chunks that took less: those before them may have waited for cold storage,
and a job whose rows count for too much gets few chunks to learn from."""

_FIRST_CHUNKS: Final = 64

_COUNTED_MAX: Final = 16.0
"""Times the mean: more counts for no chunk, even if its worker was stopped or its disk slow."""

_DEBTORS_MAX: Final = 4096


class RowCosts:
    """The worker time of a row, by dataset and recipe: a moving average. At most KINDS_MAX kinds,
    those used last."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[ChunkKind, float] = OrderedDict()
        self._chunks: dict[ChunkKind, int] = {}  # learnt from, up to _FIRST_CHUNKS

    def cost_s(self, kind: ChunkKind, rows: int) -> float:
        """Return what a chunk costs: before the first one of its kind, as one of the latest."""
        row_s = self._kinds.get(kind)
        if row_s is None:
            row_s = next(reversed(self._kinds.values()), _FIRST_GUESS_S)
        return rows * row_s

    def learn(self, kind: ChunkKind, rows: int, took_s: float) -> None:
        """Learn from a chunk that took a worker so long."""
        mean_s = self._kinds.get(kind)
        if mean_s is None:
            like_s = next(reversed(self._kinds.values()), took_s / rows)
            self._kinds[kind] = min(took_s / rows, _COUNTED_MAX * max(like_s, _LEAST_S))
            self._chunks[kind] = 1
            if len(self._kinds) > KINDS_MAX:
                del self._chunks[self._kinds.popitem(last=False)[0]]
            return
        row_s = min(took_s / rows, _COUNTED_MAX * max(mean_s, _LEAST_S))
        is_first = self._chunks[kind] < _FIRST_CHUNKS
        self._chunks[kind] += is_first
        learned = _LEARNED_FIRST if is_first and row_s < mean_s else _LEARNED
        self._kinds[kind] = mean_s + learned * (row_s - mean_s)
        self._kinds.move_to_end(kind)


@dataclass(slots=True, eq=False)
class _JobTurns:
    """A job that has chunks to dispatch or in flight, or has used more than its share."""

    weight: float
    virtual_s: float
    sessions: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Those with chunks to dispatch; the next one first."""
    in_flight: int = 0


class Turns:
    """The sessions that have chunks to dispatch, by job."""

    def __init__(self, weights: JobWeights) -> None:
        self._weights = weights
        self._jobs: dict[JobKey, _JobTurns] = {}
        self._ready: dict[JobKey, _JobTurns] = {}  # those with sessions, served last at the end
        self._job_of: dict[int, JobKey] = {}  # of the sessions in turns
        self._in_flight = 0  # chunks of all jobs
        self._now_virtual_s = 0.0  # of the last chunk that was dispatched in its turn

    def __bool__(self) -> bool:
        """Whether any session has a turn."""
        return bool(self._ready)

    def __iter__(self) -> Iterator[int]:
        """Yield the sessions, the next one first."""
        ready = list(self._ready.values())
        if not ready:
            return
        first = min(ready, key=lambda job: job.virtual_s)
        yield from first.sessions
        for job in sorted(ready, key=lambda job: job.virtual_s):
            if job is not first:
                yield from job.sessions

    def add(self, session: int, key: JobKey) -> None:
        """Add a session that has chunks to dispatch, behind the others of its job."""
        job = self._jobs.get(key) or self._begin(key)
        if not job.sessions:
            job.virtual_s = max(job.virtual_s, self._now_virtual_s)
            self._ready[key] = job
        job.sessions[session] = None
        self._job_of[session] = key

    def remove(self, session: int) -> None:
        """Remove a session that has nothing more to dispatch."""
        key = self._job_of.pop(session)
        job = self._jobs[key]
        del job.sessions[session]
        if not job.sessions:
            del self._ready[key]
            self._forget_if_settled(key, job)

    def serve(self, session: int, *, is_in_turn: bool) -> None:
        """Move a session, of which a chunk was taken, behind the others of its job.

        ``is_in_turn``: the chunk is dispatched now, rather than set aside.
        """
        key = self._job_of[session]
        job = self._ready.pop(key)
        self._ready[key] = job
        job.sessions.move_to_end(session)
        if is_in_turn:
            self._now_virtual_s = max(self._now_virtual_s, job.virtual_s)

    def pass_over(self, sessions: Collection[int]) -> None:
        """Record that these sessions could not use their turns: their jobs get no credit for it."""
        for key in {self._job_of[session] for session in sessions if session in self._job_of}:
            job = self._jobs[key]
            if all(session in sessions for session in job.sessions):
                job.virtual_s = max(job.virtual_s, self._now_virtual_s)

    def charge(self, key: JobKey, worker_s: float) -> None:
        """Charge a job for a chunk that is dispatched."""
        job = self._jobs.get(key) or self._begin(key)
        job.in_flight += 1
        job.virtual_s += worker_s / job.weight
        self._in_flight += 1

    def settle(self, key: JobKey, correction_s: float) -> None:
        """Correct the charge for a chunk that is no longer in flight."""
        job = self._jobs[key]
        job.in_flight -= 1
        job.virtual_s += correction_s / job.weight
        self._in_flight -= 1
        self._forget_if_settled(key, job)

    def _begin(self, key: JobKey) -> _JobTurns:
        if len(self._jobs) >= _DEBTORS_MAX:
            idle = [k for k, job in self._jobs.items() if not job.sessions and not job.in_flight]
            for each in sorted(idle, key=lambda k: self._jobs[k].virtual_s)[: _DEBTORS_MAX // 2]:
                del self._jobs[each]
        job = self._jobs[key] = _JobTurns(self._weights.of(key), self._now_virtual_s)
        return job

    def _forget_if_settled(self, key: JobKey, job: _JobTurns) -> None:
        """Forget an idle job that would begin again where a new one does; all if all are idle."""
        if not self._ready and not self._in_flight:
            latest_s = max(each.virtual_s for each in self._jobs.values())
            self._now_virtual_s = max(self._now_virtual_s, latest_s)
            self._jobs.clear()
        elif not job.sessions and not job.in_flight and job.virtual_s <= self._now_virtual_s:
            del self._jobs[key]
