"""Workers that make no progress, and *stalled* datasets, from which reads do not return, as from a
dead NFS server.

``metrics.hangs`` judges the worker's process. Its deadline is KILL_AFTER times what chunks of this
dataset and recipe usually take, within DEADLINE_MIN_S and CHUNK_DEADLINE_S; always the latter for a
worker that has finished no chunk yet, while nothing is known of such chunks, and for a chunk that
has taken another worker too long already. A worker that has passed it is *stuck* and is killed.

A worker that delays other datasets is stuck sooner: after its *patience*, PATIENT_AFTER times what
such chunks have taken so far, but at least PATIENCE_S, and never while it lacks CPU time or uses
its CPU. It delays others if

    it holds a chunk of another dataset behind the one that it reads; or
    chunks of other datasets wait for a worker, and another worker is silent in the same dataset
    (one of these workers is spared until the deadline).

So while others wait, a stalled dataset blocks at most one worker for longer than the patience.

The dataset of a stuck worker stalls, unless the worker was stopped or used CPU time all the time,
which proves nothing about storage. It stalls until a chunk of it is finished (a failure counts)
that was dispatched after the kill, or that a silent worker was reading at that time. Until then at
most one worker at a time probes it with one chunk. None does while the kernel still holds a killed
worker, which cannot die before its read returns: another worker would only get stuck too.

Invariant: at most one chunk of a stalled dataset is dispatched at a time. So the kernel holds at
most the workers that had chunks of it in flight when the stall began, and later one at a time.
Pure: the caller passes the time and the looks.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from feeder.metrics.hangs import Condition, Policy, ProcessLook, Watch
from feeder.session.events import KillWorker, LogSilence
from feeder.session.state import ChunkKind, PendingBatch, PendingChunk

CHUNK_DEADLINE_S: Final = 30.0
"""A worker without progress for this long hangs or waits for a dead disk; a chunk takes 30 ms."""

DEADLINE_MIN_S: Final = 3.0
KILL_AFTER: Final = 10.0

PATIENCE_S: Final = 5.0
"""A busy hard disk takes a second for a chunk."""

PATIENT_AFTER: Final = 3.0

SILENT_S: Final = 2.0
"""A worker without progress for this long is reported, unless chunks like its take long."""

LOOK_S: Final = 1.0
"""Without progress; nearly all chunks are finished before."""

POLICY: Final = Policy(
    look_s=LOOK_S, silent_s=SILENT_S, stopped_s=DEADLINE_MIN_S, most_s=CHUNK_DEADLINE_S
)

UNANSWERED_S: Final = 36.0
"""How long a batch waits for a stalled dataset: until the first stuck worker's deadline, and some
seconds for the next probe. Clients retry after 40 s."""

KINDS_MAX: Final = 256

KNOWN_AFTER: Final = 16
"""Chunks of a kind; the first ones open files and fill caches."""

GROWTH_MAX: Final = 4.0
"""One outlier does not count for much, and some in a row do."""

_DECAY: Final = 0.995
"""For each chunk: it forgets a peak by half in 140 chunks, which is some seconds."""

_LEARNED: Final = 1 / 4
"""With each chunk the mean moves by this part of the difference."""

_LEAST_S: Final = 1e-3
_FIRST_ROW_S: Final = 1e-3
"""Guess before any chunk is finished."""


class ChunkTimes:
    """What chunks take, by dataset and recipe: at most as a rule, for deadlines, and on average,
    for what their jobs are charged. Bounded: KINDS_MAX kinds, those used last."""

    def __init__(self) -> None:
        # How many were finished, a slowly decaying maximum of seconds, and a moving mean for a row.
        self._kinds: OrderedDict[ChunkKind, tuple[int, float, float]] = OrderedDict()
        self._row_s = _FIRST_ROW_S  # of the kind that was filled last

    def __len__(self) -> int:
        return len(self._kinds)

    def add(self, kind: ChunkKind, took_s: float, row_s: float | None = None) -> None:
        """Learn from a finished chunk, which took so long, and ``row_s`` for a row if filled."""
        number, most_s, mean_s = self._kinds.get(kind, (0, max(took_s, _LEAST_S), self._row_s))
        most_s = max(min(took_s, GROWTH_MAX * most_s), _DECAY * most_s, _LEAST_S)
        if row_s is not None:
            mean_s += _LEARNED * (row_s - mean_s)
            self._row_s = mean_s
        self._kinds[kind] = min(number + 1, KNOWN_AFTER), most_s, mean_s
        self._kinds.move_to_end(kind)
        if len(self._kinds) > KINDS_MAX:
            self._kinds.popitem(last=False)

    def usual_s(self, kind: ChunkKind) -> float:
        """What such a chunk takes at most as a rule; 0 while that is not known yet."""
        number, most_s, _ = self._kinds.get(kind, (0, 0.0, 0.0))
        return most_s if number >= KNOWN_AFTER else 0.0

    def so_far_s(self, kind: ChunkKind) -> float:
        """The same after any number of chunks; 0 before the first one."""
        return self._kinds.get(kind, (0, 0.0, 0.0))[1]

    def row_s(self, kind: ChunkKind) -> float:
        """What a row takes on average; of a new kind, that of the last one."""
        return self._kinds.get(kind, (0, 0.0, self._row_s))[2]


@dataclass(slots=True, eq=False)
class WorkInFlight(Watch):
    """A worker and its chunks; it makes progress when it begins or finishes one."""

    chunks: dict[int, PendingChunk] = field(default_factory=dict)
    """By ticket, oldest first."""
    is_proven: bool = False
    """It has finished a chunk."""
    is_reported: bool = False
    """Its silence was reported."""
    stuck_as: Condition | None = None
    """What it did when it was found to be stuck; it is being killed for that."""
    stuck_ticket: int = 0
    """The chunk that it did not finish then; it may finish it before it is killed."""

    @property
    def oldest(self) -> PendingChunk:
        """The chunk that it fills; it must have one."""
        return next(iter(self.chunks.values()))


@dataclass(slots=True)
class _Stall:
    since_s: float
    """When the first stuck worker last made progress."""
    after_ticket: int
    """A later chunk that is finished ends the stall."""
    held: set[int] = field(default_factory=set)
    """Killed workers that the kernel still holds."""


class WorkerWatch:
    """Watches the workers that have chunks."""

    def __init__(self) -> None:
        self.workers: dict[int, WorkInFlight] = {}
        """The dispatcher adds and removes them."""
        self.times = ChunkTimes()
        self.stalled: dict[str, _Stall] = {}
        """By dataset."""

    @property
    def stalled_names(self) -> frozenset[str]:
        """The datasets that stall, or from which a silent worker waits for a read."""
        hanging = (
            work for work in self._watched().values() if work.is_reported and work.is_read_hanging()
        )
        return frozenset(self.stalled) | {work.oldest.batch.session.dataset for work in hanging}

    @property
    def silent_workers(self) -> frozenset[int]:
        """The workers whose silence was reported and goes on."""
        return frozenset(worker for worker, work in self.workers.items() if work.is_reported)

    def chunk_times(self, now_s: float) -> Mapping[int, float]:
        """How long each worker has had the chunk that it fills, seconds."""
        return {
            worker: max(0.0, now_s - work.progress_s)
            for worker, work in self.workers.items()
            if work.chunks
        }

    def quiet_workers(self, now_s: float) -> list[int]:
        """The workers to look at: those without progress for a while."""
        return [worker for worker, work in self._watched().items() if work.is_quiet(now_s)]

    def on_progress(
        self, work: WorkInFlight, chunk: PendingChunk, now_s: float, row_s: float | None
    ) -> None:
        """Learn from a finished chunk, filled with ``row_s`` for a row or failed (None)."""
        took_s = now_s - work.progress_s
        chunk.silent_s = took_s if work.is_reported else 0.0
        if work.looks is None or not work.looks.is_stopped:
            self.times.add(chunk.batch.session.kind, min(took_s, CHUNK_DEADLINE_S), row_s)
        work.progress_s, work.looks, work.is_reported, work.is_proven = now_s, None, False, True
        stall = self.stalled.get(chunk.batch.session.dataset)
        if stall is not None and (chunk.is_stalled or chunk.ticket > stall.after_ticket):
            del self.stalled[chunk.batch.session.dataset]  # reads return again

    def on_resumed(self, lost_s: float, now_s: float) -> None:
        """Discount time in which neither this process nor, most likely, the workers have run."""
        for work in self._watched().values():
            work.resume(lost_s, now_s)
        for stall in self.stalled.values():
            stall.since_s += lost_s

    def hold(self, dataset: str, worker: int) -> None:
        """Record that the kernel holds a killed worker that was reading this dataset."""
        if dataset in self.stalled:
            self.stalled[dataset].held.add(worker)

    def release(self, worker: int) -> None:
        """Record that the kernel has released a killed worker: its file system has answered."""
        for stall in self.stalled.values():
            stall.held.discard(worker)

    def may_probe(self, dataset: str, in_flight: Iterable[PendingChunk]) -> bool:
        """Whether a chunk of this dataset may be dispatched alone now."""
        stall = self.stalled.get(dataset)
        if stall is None:
            return True
        return not stall.held and all(chunk.batch.session.dataset != dataset for chunk in in_flight)

    def is_unanswered(self, batch: PendingBatch, now_s: float) -> bool:
        """Whether a batch of a stalled dataset has waited for UNANSWERED_S."""
        since_s = max(batch.enqueued_s, self.stalled[batch.session.dataset].since_s)
        return now_s - since_s >= UNANSWERED_S

    def observe(self, looks: Mapping[int, ProcessLook], now_s: float) -> Iterator[LogSilence]:
        """Take looks at the processes of quiet workers; yield the silences that have begun."""
        for worker, work in self._watched().items():
            if not work.is_quiet(now_s):
                continue
            work.add_look(looks.get(worker), now_s)
            chunk = work.oldest
            usual_s = self.times.usual_s(chunk.batch.session.kind)
            if not work.is_reported and work.is_silent(now_s, usual_s):
                work.is_reported = True
                yield LogSilence(chunk, now_s - work.progress_s, work.describe())

    def find_stuck(
        self, waiting: Collection[str], last_ticket: int, now_s: float
    ) -> list[KillWorker]:
        """Find the workers to kill, each once; the datasets of some of them stall from now on.

        ``waiting`` are the datasets that have chunks to dispatch.
        """
        stuck: list[KillWorker] = []
        silent: dict[str, list[PendingChunk]] = {}
        spared: set[str] = set()
        for worker, work in self._watched().items():
            oldest, *behind = work.chunks.values()
            dataset = oldest.batch.session.dataset
            condition, is_hung = work.judge(now_s, self._deadline_s(work))
            if not is_hung and now_s < work.progress_s + PATIENCE_S:
                continue
            is_working = condition == "starved" or (work.looks is not None and work.looks.is_busy)
            is_patience_over = not is_working and now_s >= work.progress_s + self._patience_s(work)
            may_be_storage = condition not in ("stopped", "looping", "starved")
            has_others_behind = any(chunk.batch.session.dataset != dataset for chunk in behind)
            is_surplus = dataset in spared and any(other != dataset for other in waiting)
            delays_others = has_others_behind or (is_surplus and may_be_storage)
            if is_hung or (is_patience_over and delays_others):
                work.stuck_as, work.stuck_ticket = condition, oldest.ticket
                stuck.append(KillWorker(worker, dataset, condition, now_s - work.progress_s))
                if may_be_storage:
                    self._stall(dataset, oldest, work.progress_s, last_ticket)
            elif may_be_storage:
                silent.setdefault(dataset, []).append(oldest)
                if is_patience_over:
                    spared.add(dataset)
        for dataset in silent.keys() & self.stalled.keys():
            for chunk in silent[dataset]:
                chunk.is_stalled = True
        return stuck

    def check_at_s(self, now_s: float) -> float:
        """When to call ``observe`` and ``find_stuck`` again; infinity if all workers are idle."""
        return min(
            (
                work.check_at_s(now_s, self._patience_s(work), self._deadline_s(work))
                for work in self._watched().values()
            ),
            default=float("inf"),
        )

    def _watched(self) -> dict[int, WorkInFlight]:
        """The workers that have chunks and are not being killed."""
        return {
            worker: work
            for worker, work in self.workers.items()
            if work.chunks and work.stuck_as is None
        }

    def _deadline_s(self, work: WorkInFlight) -> float:
        """How long a worker may take for a chunk that does not wait for storage."""
        usual_s = self.times.usual_s(work.oldest.batch.session.kind)
        if not usual_s or work.oldest.hangs or not work.is_proven:
            return CHUNK_DEADLINE_S
        return min(max(KILL_AFTER * usual_s, DEADLINE_MIN_S), CHUNK_DEADLINE_S)

    def _patience_s(self, work: WorkInFlight) -> float:
        """How long a worker may take for a chunk while it delays other datasets.

        One finished chunk counts: an error on the long side delays, one on the short side kills.
        """
        so_far_s = self.times.so_far_s(work.oldest.batch.session.kind)
        return min(max(PATIENCE_S, PATIENT_AFTER * so_far_s), CHUNK_DEADLINE_S)

    def _stall(self, dataset: str, chunk: PendingChunk, since_s: float, last_ticket: int) -> None:
        """Begin or extend the stall of a dataset from which a stuck worker reads a chunk."""
        chunk.is_stalled = True
        stall = self.stalled.setdefault(dataset, _Stall(since_s, last_ticket))
        stall.since_s = min(stall.since_s, since_s)
        stall.after_ticket = max(stall.after_ticket, last_ticket)
