"""A worker that takes a fixed time for each chunk, so that a rate does not depend on the cores.

    python -m bench.cluster.paced_worker CHANNEL_FD PARENT_PID

It is the product's worker in all but that: chunks are really read, decoded and written, and then it
waits until CHUNK_TIME, from its environment, has passed since the chunk before.
"""

import contextlib
import os
import signal
import socket
import sys
import time
from typing import Any, Final

from feeder.process.channel import Channel, ChannelClosedError
from feeder.process.child import die_with_parent
from feeder.wire.chunk_work import Fill, Filled
from feeder.worker.__main__ import serve, start
from feeder.worker.filler import ChunkFiller
from feeder.worker.messages import NodeToWorker, WorkerToNode

CHUNK_TIME: Final = "FEEDER_BENCH_CHUNK_S"
_LATE_S: Final = 0.01
"""A chunk that begins so soon after the last one was due was waiting for it: the wait is made up,
or each chunk would take as much longer as the worker sleeps too long."""


class PacedFiller:
    """A filler that waits after each chunk."""

    def __init__(self, filler: ChunkFiller) -> None:
        self._filler = filler
        self._chunk_s = float(os.environ[CHUNK_TIME])
        self._due_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filler, name)

    def fill(self, chunk: Fill) -> Filled:
        """Fill the chunk, and wait for the rest of its time."""
        began_s = time.monotonic()
        if began_s - self._due_s > _LATE_S:
            self._due_s = began_s
        self._due_s += self._chunk_s
        filled = self._filler.fill(chunk)
        time.sleep(max(0.0, self._due_s - time.monotonic()))
        return filled


def main(channel_fd: int, parent: int) -> None:
    """Run a worker on an inherited channel, as the product does."""
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    channel: Channel[WorkerToNode, NodeToWorker] = Channel(
        socket.socket(fileno=channel_fd), NodeToWorker
    )
    with contextlib.suppress(ChannelClosedError):
        serve(channel, PacedFiller(start(channel)))  # type: ignore[arg-type]  # a filler to its users


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
