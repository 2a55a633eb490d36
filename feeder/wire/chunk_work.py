"""What a node process asks of a worker about one chunk, and the answers.

The state machine in ``session`` returns a Fill and takes its answer, and the channel to the worker
carries them as they are.
"""

import msgspec


class Fill(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Write rows first .. first + count - 1 of a batch into a slot."""

    ticket: int
    """Of one chunk dispatched to one worker; never reused."""
    session: int
    slot: int
    epoch: int
    index: int
    first: int
    count: int
    worker: int = 0
    """Number of the worker that is to do it."""


class Filled(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """All rows of the chunk are written."""

    ticket: int
    busy_s: float = 0.0
    """Wall-clock time of the whole chunk."""
    cpu_s: float = 0.0
    decoded_bytes: int = 0
    """Of decoded pixels."""
    fallbacks: int = 0
    """Images that Feeder's own decoder left to TurboJPEG."""
    stage_seconds: dict[str, float] = {}
    """Spent in each stage."""
    cache_counts: dict[str, int] = {}
    """Use of the decoded cache, by the names of CacheRecord's fields."""


class FillFailed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The chunk cannot be filled; the worker lives on."""

    ticket: int
    code: str
    message: str
    sample: int | None = None
    """The sample at fault, if it is one."""
    shard: str = ""
    """The path of its shard, escaped."""
