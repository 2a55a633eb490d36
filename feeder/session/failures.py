"""Why batches failed, counted by reason, and the bad samples that were found. Pure."""

from typing import Final, Literal

from feeder.metrics.counters import SessionCounters
from feeder.session.events import ChunkFailed

FailureReason = Literal["bad-sample", "unreadable", "stalled-storage", "resource", "worker-died"]

BAD_SAMPLES_MAX: Final = 10_000
"""Samples that are remembered, so that each is counted once: 1 MB at most."""


class Failures:
    """Counts the failures of one node process."""

    def __init__(self, counters: SessionCounters) -> None:
        self._counters = counters
        self._bad_samples: set[tuple[str, int]] = set()

    def reason_for(self, failed: ChunkFailed, dataset: str) -> FailureReason:
        """Return why a worker could not fill a chunk; record the sample at fault."""
        if failed.code == "resource":
            return "resource"
        if failed.sample is None:
            return "unreadable"
        if len(self._bad_samples) < BAD_SAMPLES_MAX:
            self._bad_samples.add((dataset, failed.sample))
            self._counters.bad_samples = len(self._bad_samples)
        return "bad-sample"

    def count(self, reason: FailureReason) -> None:
        """Count a failed batch."""
        found = self._counters.batches_failed
        found[reason] = found.get(reason, 0) + 1
