"""A worker that takes a fixed time for each chunk, so that a rate does not depend on the cores.

    python -m bench.cluster.paced_worker CHANNEL_FD PARENT_PID

It is the product's worker in all but that: chunks are really read, decoded and written, and then it
waits until CHUNK_TIME, from its environment, has passed since the chunk before.
"""

import os
import sys
import time
from typing import Any, Final

from feeder.wire.chunk_work import Fill, Filled
from feeder.worker import __main__ as worker
from feeder.worker import filler

CHUNK_TIME: Final = "FEEDER_BENCH_CHUNK_S"
_LATE_S: Final = 0.01
"""A chunk that begins so soon after the last one was due was waiting for it: the wait is made up,
or each chunk would take as much longer as the worker sleeps too long."""


class PacedFiller(filler.ChunkFiller):
    """A filler that waits after each chunk."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._chunk_s = float(os.environ[CHUNK_TIME])
        self._due_s = 0.0

    def fill(self, chunk: Fill) -> Filled:
        """Fill the chunk, and wait for the rest of its time."""
        began_s = time.monotonic()
        if began_s - self._due_s > _LATE_S:
            self._due_s = began_s
        self._due_s += self._chunk_s
        filled = super().fill(chunk)
        time.sleep(max(0.0, self._due_s - time.monotonic()))
        return filled


if __name__ == "__main__":
    filler.ChunkFiller = PacedFiller  # type: ignore[misc]  # what ``start`` imports
    sys.exit(worker.main(int(sys.argv[1]), int(sys.argv[2])))
