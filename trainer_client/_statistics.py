"""The counters of a loader."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStatistics:
    """Counts since the loader was made."""

    batches: int  # returned to the consumer
    images: int  # in these batches, without padding
    feeders: int  # node processes that serve this loader now
    feeders_left_out: int  # endpoints that reply but cannot serve this job; the log has the reason
    batches_asked_again: int  # requested again: their node was lost, or failed to make them
    batches_hedged: int  # requested from a second node, as they were late or their node silent
    batches_lent: int  # read from the feeder's own memory, without a copy
    copied_because: str | None  # why batches are copied over the socket; None when they are lent
    received_bytes: int  # pixels, labels and sample ids copied, discarded chunks included
    wait_s: float  # time that the consumer waited for batches
    first_batch_s: float | None  # from the first request to the first complete batch
    reconnects: int  # connections that came back after a daemon restarted or a connection broke
    chunks_discarded: int  # duplicates, and chunks of an epoch that was dropped
    compile_failures: int  # when not 0, normalising runs uncompiled and is slower
    page_locks_refused: int  # lent slots that CUDA copies through staging memory, which is slower
