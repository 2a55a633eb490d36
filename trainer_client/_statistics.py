"""What a loader did so far, counted."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStatistics:
    """What a loader did so far."""

    batches: int  # given to the consumer
    images: int  # real ones in them
    feeders: int  # node processes that serve this loader now
    feeders_left_out: int  # endpoints that answer but cannot serve this job; the log says why
    batches_asked_again: int  # of another node: theirs was lost, or could not make them
    batches_hedged: int  # late, or their node was silent: asked of another node too
    batches_lent: int  # arrived in the feeder's own memory, no byte of them copied to get here
    copied_because: str | None  # why batches are copied over the socket; None when they are lent
    received_bytes: int  # copied: of pixels, labels and sample ids, discarded ones included
    wait_s: float  # how long the consumer waited for batches
    first_batch_s: float | None  # from the first request to the first whole batch
    reconnects: int  # how often a daemon restarted or a connection broke and came back
    chunks_discarded: int  # arrived twice, or for an epoch that was given up
    compile_failures: int  # normalising runs uncompiled, and slower, when this is not 0
    page_locks_refused: int  # lent slots that CUDA copies through staging memory, and slower
