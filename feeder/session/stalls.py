"""Detects stalled datasets: reads from them do not return, as from a dead NFS server.

A worker without progress for CHUNK_DEADLINE_S is stuck and is killed. One without progress for
PATIENCE_S is *silent*; it is killed before the deadline if it delays other datasets:

    it holds a chunk of another dataset behind the one that it reads; or
    chunks of other datasets wait for a worker, and another worker is silent in the same dataset
    (one of these workers is spared until the deadline).

So while others wait, a stalled dataset blocks at most one worker for longer than PATIENCE_S.

The dataset of a killed worker *stalls* until a chunk of it is finished (a failure counts) that was
dispatched after the kill, or that a silent worker was reading at that time. Until then at most one
worker at a time probes it with one chunk. None does while the kernel still holds a killed worker,
which cannot die before its read returns: another worker would only get stuck too. Pure: the caller
passes the time.

Invariant: at most one chunk of a stalled dataset is dispatched at a time. So the kernel holds at
most the workers that had chunks of it in flight when the stall began, and later one at a time.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from feeder.session.chunk_state import PendingBatch, PendingChunk, WorkInFlight

CHUNK_DEADLINE_S: Final = 30.0
"""A worker without progress for this long hangs or waits for a dead disk; a chunk takes 30 ms."""

SILENT_S: Final = 2.0
"""A worker without progress for this long is reported."""

PATIENCE_S: Final = 5.0
"""A busy hard disk takes a second for a chunk."""

UNANSWERED_S: Final = 36.0
"""How long a batch waits for a stalled dataset: until the first stuck worker's deadline, and some
seconds for the next probe. Clients retry after 40 s."""

_RECHECK_S: Final = 1.0


@dataclass(slots=True)
class _Stall:
    since_s: float
    """When the first stuck worker last made progress."""
    after_ticket: int
    """A later chunk that is finished ends the stall."""
    held: set[int] = field(default_factory=set)
    """Killed workers that the kernel still holds."""


class Stalls:
    """The stalled datasets."""

    def __init__(self) -> None:
        self._stalls: dict[str, _Stall] = {}

    def __len__(self) -> int:
        return len(self._stalls)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stalls)

    def __contains__(self, dataset: str) -> bool:
        return dataset in self._stalls

    def hold(self, dataset: str, worker: int) -> None:
        """Record that the kernel holds a killed worker that was reading this dataset."""
        stall = self._stalls.get(dataset)
        if stall is not None:
            stall.held.add(worker)

    def release(self, worker: int) -> None:
        """Record that the kernel has released a killed worker."""
        for stall in self._stalls.values():
            stall.held.discard(worker)

    def may_probe(self, dataset: str, in_flight: Iterable[PendingChunk]) -> bool:
        """Whether a chunk of this dataset may be dispatched alone now."""
        stall = self._stalls.get(dataset)
        if stall is None:
            return True
        return not stall.held and all(chunk.batch.dataset != dataset for chunk in in_flight)

    def on_finished(self, chunk: PendingChunk) -> None:
        """End the stall of a chunk's dataset if this chunk proves that reads return again."""
        stall = self._stalls.get(chunk.batch.dataset)
        if stall is not None and (chunk.is_stalled or chunk.ticket > stall.after_ticket):
            del self._stalls[chunk.batch.dataset]

    def is_unanswered(self, batch: PendingBatch, now_s: float) -> bool:
        """Whether a batch of a stalled dataset has waited for UNANSWERED_S."""
        since_s = max(batch.enqueued_s, self._stalls[batch.dataset].since_s)
        return now_s - since_s >= UNANSWERED_S

    def find_stuck(
        self,
        work: Mapping[int, WorkInFlight],
        waiting: Collection[str],
        last_ticket: int,
        now_s: float,
    ) -> list[tuple[int, str]]:
        """Return the workers to kill, each with its dataset; these datasets stall from now on.

        ``waiting`` are the datasets that have chunks to dispatch.
        """
        stuck: list[tuple[int, str]] = []
        spared: dict[str, list[PendingChunk]] = {}
        for worker, held in work.items():
            if not held.chunks or held.is_stuck:
                continue
            silent_s = now_s - held.progress_s
            if silent_s < PATIENCE_S:
                continue
            oldest, *behind = held.chunks.values()
            dataset = oldest.batch.dataset
            has_others_behind = any(chunk.batch.dataset != dataset for chunk in behind)
            is_surplus = dataset in spared and any(other != dataset for other in waiting)
            if silent_s >= CHUNK_DEADLINE_S or has_others_behind or is_surplus:
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
        self, work: Mapping[int, WorkInFlight], has_waiting: bool, now_s: float
    ) -> float:
        """Return when to look for stuck workers again; infinity if all are idle.

        ``has_waiting``: batches wait for stalled datasets, so check again within a second.
        """
        busy = [held for held in work.values() if held.chunks and not held.is_stuck]
        oldest_s = min((held.progress_s for held in busy), default=float("inf"))
        at_s = oldest_s + PATIENCE_S
        if at_s <= now_s:  # silent already, and stuck as soon as other datasets wait
            at_s = min(now_s + _RECHECK_S, oldest_s + CHUNK_DEADLINE_S)
        return min(at_s, now_s + _RECHECK_S) if has_waiting else at_s
