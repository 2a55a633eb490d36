"""Workers without progress: when they are reported, and how long each may take for a chunk.

    LOOK_S without progress        the shell looks at the worker's process, again and again
    3 times what such chunks take  it is *silent*: reported once, and once more when it goes on
    deadline                       it is stuck and is killed (``stalls``)

The deadline is KILL_AFTER times what chunks of this dataset and recipe usually take, within
DEADLINE_MIN_S and CHUNK_DEADLINE_S, for a worker that sleeps, or has used CPU time for all of it;
always DEADLINE_MIN_S for one that is stopped; and CHUNK_DEADLINE_S otherwise: for one that waits
for storage; for one that the machine gives no CPU time, since a successor would get none either;
while nothing is known yet; and for a chunk that has taken another worker too long already.

A worker that delays other datasets is stuck sooner: after PATIENT_AFTER times what such chunks have
taken so far, but at least PATIENCE_S, and never while it lacks CPU time or uses its CPU.

While the whole daemon is suspended, as by a cgroup freezer, the clock goes on: the node process
notices that by a wake-up that is late, and that time does not count.

Pure: the caller passes the time and the looks.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from feeder.metrics.process_looks import Condition, ProcessLook, ProcessLooks, describe_looks
from feeder.session.chunk_state import PendingChunk, WorkInFlight
from feeder.session.usual_times import UsualTimes

CHUNK_DEADLINE_S: Final = 30.0
"""A worker without progress for this long hangs or waits for a dead disk; a chunk takes 30 ms."""

DEADLINE_MIN_S: Final = 3.0
KILL_AFTER: Final = 10.0

PATIENCE_S: Final = 5.0
"""A busy hard disk takes a second for a chunk."""

PATIENT_AFTER: Final = 3.0

SILENT_S: Final = 2.0
"""A worker without progress for this long is reported, unless chunks like its take long."""

SILENT_AFTER: Final = 3.0

LOOK_S: Final = 1.0
"""Without progress; nearly all chunks are finished before."""

LOOK_INTERVAL_S: Final = 0.5

_SLACK_S: Final = 0.25
"""Looks come late on a busy machine."""


@dataclass(frozen=True, slots=True)
class Silence:
    """A worker has become silent."""

    worker: int
    chunk: PendingChunk
    silent_s: float
    kernel_state: str
    """Of its process, in words, such as "stopped by a signal"."""


class Silences:
    """Watches workers that have chunks."""

    def __init__(self) -> None:
        self._usual = UsualTimes()

    def on_progress(self, work: WorkInFlight, chunk: PendingChunk, now_s: float) -> None:
        """Learn from a finished chunk; its worker is no longer silent."""
        took_s = now_s - work.progress_s
        chunk.silent_s = took_s if work.is_silent else 0.0
        if work.looks is None or not work.looks.is_stopped:
            self._usual.add(chunk.batch.kind, min(took_s, CHUNK_DEADLINE_S))
        work.looks, work.is_silent = None, False

    def on_resumed(self, works: Iterable[WorkInFlight], lost_s: float, now_s: float) -> None:
        """Discount time in which nothing ran; what was seen before proves nothing."""
        for work in works:
            if work.chunks and not work.is_stuck:
                work.progress_s = min(work.progress_s + lost_s, now_s)
                work.looks = None

    def deadline_s(self, chunk: PendingChunk) -> float:
        """Return how long a worker that does not wait for storage may take for a chunk."""
        usual_s = self._usual.of(chunk.batch.kind)
        if usual_s is None or chunk.hangs:
            return CHUNK_DEADLINE_S
        return min(max(KILL_AFTER * usual_s, DEADLINE_MIN_S), CHUNK_DEADLINE_S)

    def patience_s(self, chunk: PendingChunk) -> float:
        """Return how long a worker may take for a chunk while it delays other datasets.

        One finished chunk counts: an error on the long side delays, one on the short side kills.
        """
        patience_s = max(PATIENCE_S, PATIENT_AFTER * self._usual.so_far(chunk.batch.kind))
        return min(patience_s, CHUNK_DEADLINE_S)

    def is_patience_over(self, work: WorkInFlight, condition: Condition, now_s: float) -> bool:
        """Whether a worker with chunks, in this condition, may delay other datasets no longer."""
        if condition == "starved" or (work.looks is not None and work.looks.is_busy):
            return False
        return now_s >= work.progress_s + self.patience_s(work.oldest)

    def silent_after_s(self, work: WorkInFlight) -> float:
        """Return after how long a worker with chunks is silent."""
        usual_s = self._usual.of(work.oldest.batch.kind) or 0.0
        if _is_stopped(work, SILENT_S):
            usual_s = 0.0
        return min(max(SILENT_S, SILENT_AFTER * usual_s), CHUNK_DEADLINE_S / 2)

    def observe(
        self, work: Mapping[int, WorkInFlight], looks: Mapping[int, ProcessLook], now_s: float
    ) -> Iterator[Silence]:
        """Take looks at workers; yield those that have become silent."""
        for worker, held in work.items():
            look = looks.get(worker)
            if look is not None and held.is_quiet(now_s, LOOK_S):
                if held.looks is None:
                    held.looks = ProcessLooks(look, now_s)
                else:
                    held.looks.add(look, now_s)
            if not held.is_silent and held.is_quiet(now_s, SILENT_S):
                if now_s < held.progress_s + self.silent_after_s(held):
                    continue
                held.is_silent = True
                shown = describe_looks(held.looks)
                yield Silence(worker, held.oldest, now_s - held.progress_s, shown)

    def condition(self, work: WorkInFlight, now_s: float) -> tuple[Condition, bool]:
        """Return what a worker with chunks does, and whether its deadline is over."""
        silent_s = now_s - work.progress_s
        deadline_s = self.deadline_s(work.oldest)
        if _is_stopped(work, DEADLINE_MIN_S):
            return "stopped", now_s >= work.progress_s + DEADLINE_MIN_S
        condition: Condition = "unclear"
        if work.looks is not None:
            condition = work.looks.condition(min(deadline_s, silent_s) - LOOK_S - _SLACK_S)
        if condition not in ("asleep", "looping") or not work.is_proven:
            deadline_s = CHUNK_DEADLINE_S
        return condition, now_s >= work.progress_s + deadline_s

    def check_at_s(self, work: WorkInFlight, now_s: float) -> float:
        """Return when to look at a worker with chunks again."""
        if not work.is_quiet(now_s, LOOK_S):
            return work.progress_s + LOOK_S
        deadline_s, patience_s = self.deadline_s(work.oldest), self.patience_s(work.oldest)
        dues_s = (SILENT_S, DEADLINE_MIN_S, patience_s, deadline_s, CHUNK_DEADLINE_S)
        later = (work.progress_s + due_s for due_s in dues_s)
        return min([now_s + LOOK_INTERVAL_S, *(at_s for at_s in later if at_s > now_s)])


def is_read_hanging(work: WorkInFlight) -> bool:
    """Whether a worker is silent because a read does not return; slow storage returns some."""
    return (
        work.is_silent
        and bool(work.chunks)
        and work.looks is not None
        and work.looks.is_read_hanging(SILENT_S - LOOK_S - _SLACK_S)
    )


def _is_stopped(work: WorkInFlight, for_s: float) -> bool:
    """Whether a worker is stopped, and was in all looks of about the last ``for_s``."""
    looks = work.looks
    return looks is not None and looks.condition(for_s - LOOK_S - _SLACK_S) == "stopped"
