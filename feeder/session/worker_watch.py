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
which proves nothing about storage. It stalls until a chunk of it is finished (a failure counts).
Until then at most one worker at a time probes it with one chunk. None does while the kernel still
holds a killed worker, which cannot die before its read returns: another worker would only get stuck
too. Pure: the caller passes the time and the looks.
"""

from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from feeder.metrics.hangs import Condition, Policy, ProcessLook, Watch
from feeder.metrics.records import WorkerRecord
from feeder.session.events import KillWorker, LogSilence
from feeder.session.state import ChunkKind, PendingChunk

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


@dataclass(slots=True, eq=False, kw_only=True)
class Worker(Watch):
    """A worker and its chunks; it makes progress when it begins or finishes one."""

    record: WorkerRecord
    chunks: list[PendingChunk] = field(default_factory=list)
    """Oldest first: it fills that one."""
    is_reported: bool = False
    """Its silence was reported."""
    stuck_as: Condition | None = None
    """What it did when it was found to be stuck; it is being killed for that."""
    stuck_with: PendingChunk | None = None
    """The chunk that it did not finish then; it may finish it before it is killed."""

    def chunk_s(self, now_s: float) -> float:
        """How long it has had the chunk that it fills, seconds."""
        return max(0.0, now_s - self.progress_s) if self.chunks else 0.0


class WorkerWatch:
    """Watches the workers that have chunks."""

    def __init__(self) -> None:
        self.workers: dict[int, Worker] = {}
        """By number, those that are up; the dispatcher adds and removes them."""
        self.times = ChunkTimes()
        self.stalled: dict[str, float] = {}
        """The datasets that stall, and when the first stuck worker last made progress."""
        self.held: dict[int, str] = {}
        """Killed workers that the kernel still holds, and the dataset that each was reading."""

    @property
    def stalled_names(self) -> set[str]:
        """The datasets that stall, or from which a silent worker waits for a read."""
        names = {*self.stalled}
        for worker in self._watched().values():
            if worker.is_reported and worker.is_read_hanging:
                names.add(worker.chunks[0].batch.session.dataset)
        return names

    def quiet_workers(self, now_s: float) -> list[int]:
        """The workers to look at: those without progress for a while."""
        return [number for number, worker in self._watched().items() if worker.is_quiet(now_s)]

    def on_progress(
        self, worker: Worker, chunk: PendingChunk, now_s: float, row_s: float | None
    ) -> None:
        """Learn from a finished chunk, filled with ``row_s`` for a row or failed (None)."""
        took_s = now_s - worker.progress_s
        chunk.silent_s = took_s if worker.is_reported else 0.0
        if not worker.is_stopped:
            self.times.add(chunk.batch.session.kind, min(took_s, CHUNK_DEADLINE_S), row_s)
        worker.restart(now_s)
        worker.is_reported = False
        self.stalled.pop(chunk.batch.session.dataset, None)  # reads return

    def on_resumed(self, now_s: float) -> None:
        """Start all silences again: neither this process nor, most likely, the workers have run."""
        for worker in self._watched().values():
            worker.restart(now_s)
        self.stalled.update(dict.fromkeys(self.stalled, now_s))

    def check(
        self, looks: Mapping[int, ProcessLook], waiting: Collection[str], now_s: float
    ) -> list[LogSilence | KillWorker]:
        """Take looks at quiet workers; return the silences that have begun, and the workers to
        kill, each once. The datasets of some of these stall from now on.

        ``waiting`` are the datasets that have chunks to dispatch.
        """
        instructions: list[LogSilence | KillWorker] = []
        spared: set[str] = set()
        for number, worker in self._watched().items():
            if not worker.is_quiet(now_s):
                continue
            if (look := looks.get(number)) is not None:
                worker.looks.append((now_s, look))
            oldest, *behind = worker.chunks
            dataset, kind = oldest.batch.session.dataset, oldest.batch.session.kind
            silent_s, usual_s = now_s - worker.progress_s, self.times.usual_s(kind)
            if not worker.is_reported and worker.is_silent(now_s, usual_s):
                worker.is_reported = True
                instructions.append(LogSilence(oldest, silent_s, worker.describe()))
            deadline_s = CHUNK_DEADLINE_S
            if usual_s and worker.record.chunks and not oldest.hangs:
                deadline_s = min(max(KILL_AFTER * usual_s, DEADLINE_MIN_S), CHUNK_DEADLINE_S)
            condition, is_hung = worker.judge(now_s, deadline_s)
            may_be_storage = condition not in ("stopped", "looping", "starved")
            if not is_hung:
                # One finished chunk counts here: an error on the long side delays, one on the
                # short side kills.
                patience_s = max(PATIENCE_S, PATIENT_AFTER * self.times.so_far_s(kind))
                is_working = condition == "starved" or worker.is_busy
                if is_working or silent_s < min(patience_s, CHUNK_DEADLINE_S):
                    continue
                has_others_behind = any(chunk.batch.session.dataset != dataset for chunk in behind)
                is_surplus = dataset in spared and any(other != dataset for other in waiting)
                if not (has_others_behind or (is_surplus and may_be_storage)):
                    if may_be_storage:
                        spared.add(dataset)
                    continue
            worker.stuck_as, worker.stuck_with = condition, oldest
            instructions.append(KillWorker(oldest, condition, silent_s))
            if may_be_storage:
                self.stalled.setdefault(dataset, worker.progress_s)
        return instructions

    def _watched(self) -> dict[int, Worker]:
        """The workers that have chunks and are not being killed."""
        return {
            number: worker
            for number, worker in self.workers.items()
            if worker.chunks and worker.stuck_as is None
        }
