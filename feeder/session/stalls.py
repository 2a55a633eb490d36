"""Stuck workers, which are killed, and stalled datasets: reads from them do not return, as from a
dead NFS server.

A worker without progress for its deadline (``silence``) is stuck. One that uses little CPU time,
though it could have more, is stuck once its *patience* is over, if it delays other datasets:

    it holds a chunk of another dataset behind the one that it reads; or
    chunks of other datasets wait for a worker, and another worker is silent in the same dataset
    (one of these workers is spared until the deadline).

So while others wait, a stalled dataset blocks at most one worker for longer than the patience,
which is PATIENCE_S, or more where the dataset's chunks take long.

The dataset of a stuck worker *stalls*, unless the worker was stopped or used CPU time all the time,
which proves nothing about storage. It stalls until a chunk of it is finished (a failure counts)
that was dispatched after the kill, or that a silent worker was reading at that time. Until then at
most one worker at a time probes it with one chunk. None does while the kernel still holds a killed
worker, which cannot die before its read returns: another worker would only get stuck too. Pure: the
caller passes the time.

Invariant: at most one chunk of a stalled dataset is dispatched at a time. So the kernel holds at
most the workers that had chunks of it in flight when the stall began, and later one at a time.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from feeder.metrics.process_looks import Condition
from feeder.session.chunk_state import PendingBatch, PendingChunk, WorkInFlight
from feeder.session.silence import PATIENCE_S, Silences

UNANSWERED_S: Final = 36.0
"""How long a batch waits for a stalled dataset: until the first stuck worker's deadline, and some
seconds for the next probe. Clients retry after 40 s."""


@dataclass(frozen=True, slots=True)
class Stuck:
    """A worker to kill."""

    worker: int
    dataset: str
    """Of the chunk that it was filling."""
    condition: Condition
    silent_s: float
    """How long it made no progress."""


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

    def on_resumed(self, lost_s: float) -> None:
        """Discount time in which nothing ran."""
        for stall in self._stalls.values():
            stall.since_s += lost_s

    def is_unanswered(self, batch: PendingBatch, now_s: float) -> bool:
        """Whether a batch of a stalled dataset has waited for UNANSWERED_S."""
        since_s = max(batch.enqueued_s, self._stalls[batch.dataset].since_s)
        return now_s - since_s >= UNANSWERED_S

    def find_stuck(
        self,
        work: Mapping[int, WorkInFlight],
        silences: Silences,
        waiting: Collection[str],
        last_ticket: int,
        now_s: float,
    ) -> list[Stuck]:
        """Return the workers to kill; the datasets of some of them stall from now on.

        ``waiting`` are the datasets that have chunks to dispatch.
        """
        stuck: list[Stuck] = []
        silent: dict[str, list[PendingChunk]] = {}
        spared: set[str] = set()
        for worker, held in work.items():
            if not held.chunks or held.is_stuck:
                continue
            silent_s = now_s - held.progress_s
            condition, is_over = silences.condition(held, now_s)
            if not is_over and now_s < held.progress_s + PATIENCE_S:
                continue
            is_patience_over = silences.is_patience_over(held, condition, now_s)
            oldest, *behind = held.chunks.values()
            dataset = oldest.batch.dataset
            may_be_storage = condition not in ("stopped", "looping", "starved")
            has_others_behind = any(chunk.batch.dataset != dataset for chunk in behind)
            is_surplus = dataset in spared and any(other != dataset for other in waiting)
            delays_others = has_others_behind or (is_surplus and may_be_storage)
            if is_over or (is_patience_over and delays_others):
                stuck.append(Stuck(worker, dataset, condition, silent_s))
                if may_be_storage:
                    self._begin(dataset, oldest, held.progress_s, last_ticket)
            elif may_be_storage:
                silent.setdefault(dataset, []).append(oldest)
                if is_patience_over:
                    spared.add(dataset)
        for dataset, chunks in silent.items():
            if dataset in self._stalls:
                for chunk in chunks:
                    chunk.is_stalled = True
        return stuck

    def _begin(self, dataset: str, chunk: PendingChunk, since_s: float, last_ticket: int) -> None:
        """Begin or extend the stall of a dataset from which a stuck worker reads a chunk."""
        chunk.is_stalled = True
        stall = self._stalls.setdefault(dataset, _Stall(since_s, last_ticket))
        stall.since_s = min(stall.since_s, since_s)
        stall.after_ticket = max(stall.after_ticket, last_ticket)
