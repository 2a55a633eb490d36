"""Why batches failed: in a line for the client, by reason and by dataset, and the bad samples that
were found. Pure."""

from typing import Final, Literal

from feeder.metrics.counters import SessionCounters
from feeder.metrics.records import FailureRecord
from feeder.session.dispatch import DEATHS_MAX, HANGS_MAX, KILLS_MAX
from feeder.session.state import PendingChunk
from feeder.session.worker_watch import CHUNK_DEADLINE_S, UNANSWERED_S
from feeder.wire.chunk_work import FillFailed

FailureReason = Literal["bad-sample", "unreadable", "stalled-storage", "resource", "worker-died"]

BAD_SAMPLES_MAX: Final = 10_000
"""Samples that are remembered, so that each is counted once: 1 MB at most."""


class Failures:
    """Counts the failures of one node process."""

    def __init__(self, counters: SessionCounters) -> None:
        self._counters = counters
        self._bad_samples: set[tuple[str, int]] = set()
        self.by_dataset: dict[str, tuple[FailureRecord, float]] = {}
        """With the time of the last failure; the datasets that failed last at the end."""

    def reason_for(self, failed: FillFailed, dataset: str) -> FailureReason:
        """Why a worker could not fill a chunk; records the sample at fault."""
        if failed.code == "resource":
            return "resource"
        if failed.sample is None:
            return "unreadable"
        if len(self._bad_samples) < BAD_SAMPLES_MAX:
            self._bad_samples.add((dataset, failed.sample))
            self._counters.bad_samples = len(self._bad_samples)
        return "bad-sample"

    def count(self, dataset: str, reason: FailureReason, message: str, now_s: float) -> None:
        """Count a failed batch."""
        self._counters.batches_failed[reason] += 1
        former = self.by_dataset.pop(dataset, None)
        record = FailureRecord(
            dataset=dataset,
            batches=1 if former is None else former[0].batches + 1,
            reason=reason,
            message=message,
            ago_s=0.0,
            is_last=True,
        )
        self.by_dataset[dataset] = record, now_s

    def on_whole(self, dataset: str) -> None:
        """Record that a batch of a dataset was made."""
        if dataset in self.by_dataset:
            self.by_dataset[dataset][0].is_last = False


def blame_chunk(chunk: PendingChunk) -> str:
    rows = f"rows {chunk.first} .. {chunk.first + chunk.count - 1}"
    if chunk.deaths >= DEATHS_MAX:
        return (
            f"{rows} crashed {DEATHS_MAX} workers that had no other rows to fill: look for a "
            "damaged sample with `feeder verify`"
        )
    if chunk.hangs >= HANGS_MAX:
        return (
            f"{HANGS_MAX} workers did not finish {rows}, the last one in {CHUNK_DEADLINE_S:.0f} s: "
            "look for a damaged sample with `feeder verify`"
        )
    return (
        f"{KILLS_MAX} workers that had only {rows} to fill were killed (SIGKILL): is the memory of "
        "the machine or of its cgroup too small?"
    )


def blame_dataset(dataset: str) -> str:
    return (
        f"dataset {dataset} cannot be read: no answer in {UNANSWERED_S:.0f} s, is its file system "
        "alive?"
    )
