"""Which datasets stall: reads from them do not return, as from a dead NFS server.

A worker that makes no progress for the deadline is stuck, and is killed. One that made none for
PATIENCE of the deadline is *silent*. A silent worker is killed before the deadline if it keeps
other datasets waiting:

    it holds a chunk of another dataset behind the one that it reads; or
    chunks of other datasets wait for a worker, and another worker is silent in the same dataset
    (one of these workers is spared until the deadline).

So while others wait, a dataset whose reads do not return blocks one worker at most for longer than
that.

The dataset of a killed worker *stalls* until one of its chunks is finished (an error counts) that
was given to a worker after the kill, or that a silent worker was reading at that time. Until then
one worker at a time tries one chunk of it; none does while the kernel holds a killed worker, which
cannot die before its read returns: the next one would only get stuck beside it. Pure: the caller
passes the time.

Invariant: while a dataset stalls, at most one worker at a time is given a chunk of it. So the
kernel holds at most the workers that had its chunks in hand when it began to stall; after these,
one at a time.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from feeder.session.chunk_state import Batch, Chunk, WorkInFlight

PATIENCE: Final = 1 / 6
"""5 of 30 s: a chunk takes some 30 ms, a second from a busy hard disk."""

UNANSWERED: Final = 1.2
"""A batch waits so many deadlines for a dataset that stalls: that of the first stuck worker, and
some seconds for the next try. 36 of 30 s: a client asks again after 40."""

_RECHECK_S: Final = 1.0


@dataclass(slots=True)
class _Stall:
    since_s: float
    """When the first stuck worker last made progress."""
    after_ticket: int
    """Later chunks prove that the dataset answers."""
    held: set[int] = field(default_factory=set)
    """Killed workers that the kernel holds."""


class Stalls:
    """The datasets that stall."""

    def __init__(self) -> None:
        self._stalls: dict[str, _Stall] = {}

    def __len__(self) -> int:
        return len(self._stalls)

    def __contains__(self, dataset: str) -> bool:
        return dataset in self._stalls

    def hold(self, dataset: str, worker: int) -> None:
        """Note that the kernel holds an ended worker that was reading this dataset."""
        stall = self._stalls.get(dataset)
        if stall is not None:
            stall.held.add(worker)

    def release(self, worker: int) -> None:
        """Note that the kernel let go of it."""
        for stall in self._stalls.values():
            stall.held.discard(worker)

    def may_try(self, dataset: str, in_flight: Iterable[Chunk]) -> bool:
        """Whether a worker may try a chunk of this dataset now."""
        stall = self._stalls.get(dataset)
        if stall is None:
            return True
        return not stall.held and all(chunk.batch.dataset != dataset for chunk in in_flight)

    def answered(self, chunk: Chunk) -> None:
        """Take note of a chunk that is finished: its dataset may stall no more."""
        stall = self._stalls.get(chunk.batch.dataset)
        if stall is not None and (chunk.is_stalled or chunk.ticket > stall.after_ticket):
            del self._stalls[chunk.batch.dataset]

    def waited_s(self, batch: Batch, now_s: float) -> float:
        """Return for how long a batch has waited for its dataset, which stalls."""
        return now_s - max(batch.enqueued_s, self._stalls[batch.dataset].since_s)

    def find_stuck(
        self,
        work: Mapping[int, WorkInFlight],
        waiting: Collection[str],
        last_ticket: int,
        now_s: float,
        deadline_s: float,
    ) -> list[tuple[int, str]]:
        """Return the workers to end, with their datasets, which stall from now on.

        ``waiting`` are the datasets that have chunks which no worker has in hand.
        """
        stuck: list[tuple[int, str]] = []
        spared: dict[str, list[Chunk]] = {}
        for worker, held in work.items():
            if not held.chunks or held.is_stuck:
                continue
            silent_s = now_s - held.progress_s
            if silent_s < PATIENCE * deadline_s:
                continue
            oldest, *behind = held.chunks.values()
            dataset = oldest.batch.dataset
            has_others_behind = any(chunk.batch.dataset != dataset for chunk in behind)
            is_surplus = dataset in spared and any(other != dataset for other in waiting)
            if silent_s >= deadline_s or has_others_behind or is_surplus:
                oldest.is_stalled = True
                stuck.append((worker, dataset))
                stall = self._stalls.setdefault(dataset, _Stall(held.progress_s, last_ticket))
                stall.since_s = min(stall.since_s, held.progress_s)
                stall.after_ticket = max(stall.after_ticket, last_ticket)
            else:
                spared.setdefault(dataset, []).append(oldest)
        for dataset, silent in spared.items():
            if dataset in self._stalls:
                for chunk in silent:
                    chunk.is_stalled = True
        return stuck

    def check_at_s(
        self, work: Mapping[int, WorkInFlight], has_waiting: bool, now_s: float, deadline_s: float
    ) -> float:
        """Return when a worker may be stuck, at the earliest; infinity where none is busy.

        ``has_waiting``: batches wait for datasets that stall, so it is time again soon.
        """
        busy = [held for held in work.values() if held.chunks and not held.is_stuck]
        oldest_s = min((held.progress_s for held in busy), default=float("inf"))
        at_s = oldest_s + PATIENCE * deadline_s
        if at_s <= now_s:  # it is silent, and stuck as soon as others wait for it
            at_s = min(now_s + _RECHECK_S, oldest_s + deadline_s)
        return min(at_s, now_s + _RECHECK_S) if has_waiting else at_s
