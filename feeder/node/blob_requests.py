"""Other feeders' requests for blobs, which workers read: copies in place of bytes from a store.

    BlobsRequest ─► those that are there ─► ReadBlobs ─► worker ─► BlobsRead + memory ─► Blobs

Reading for others takes SHARE of the workers' time at most, by a token bucket that BlobsRead
empties. What would exceed it is refused at once, as are requests while all workers have some: the
other feeder turns to the store. A worker writes the blobs into memory that the socket then
sends from, so this process copies none of them.

Invariant: a worker has READS_MAX requests at most; two answers at most are on their way to a peer,
and SENDING_MAX to all. Each takes 16 MiB of memory at most, and a descriptor.
"""

import mmap
import os
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import count
from typing import Final, NamedTuple

import numpy as np
import zmq
from numpy.typing import NDArray

from feeder.metrics.counters import CopyCounters
from feeder.node.router import Router
from feeder.node.worker_pool import WorkerPool
from feeder.session.admission import MESSAGE_CHARS_MAX, ServedDataset
from feeder.session.worker_watch import WorkerWatch
from feeder.wire.messages import Blobs, BlobsRequest, Refused, RefusedCode, encode
from feeder.worker.messages import BlobsRead, ReadBlobs

SHARE: Final = 0.05
"""Of the workers' time, which is what batches lose by it at most."""

READS_MAX: Final = 2
"""Of a worker at a time, each of 20 ms at most, so that a chunk does not wait for long."""

BURST_S: Final = 2.0
"""The share of so much time may be used at once."""

SENDING_MAX: Final = 8

_TO_PEER_MAX: Final = 2
"""A peer may ask again before the socket reports that all of the answer before has left."""

_BUSY: Final = Refused(
    code="rate", message="reading for other feeders takes its share of the workers' time already"
)


class _Reading(NamedTuple):
    peer: bytes
    worker: int
    samples: int
    """How many were requested."""
    there: NDArray[np.int64]
    """Which of them are read, by position."""


class BlobRequests:
    """The requests that workers have, and the answers that the socket has."""

    def __init__(
        self,
        datasets: Mapping[str, ServedDataset | str],
        find_there: Callable[[str, NDArray[np.int64]], NDArray[np.bool_]],
        pool: WorkerPool,
        watch: WorkerWatch,
        router: Router,
    ) -> None:
        """``find_there`` returns which samples of a dataset are on this host; ``watch`` has the
        chunks of the workers in ``pool``."""
        self.counters = CopyCounters()
        self._datasets = datasets
        self._find_there = find_there
        self._pool = pool
        self._watch = watch
        self._router = router
        self._tickets = count(1)
        self._reading: dict[int, _Reading] = {}  # by ticket
        self._sending: list[tuple[bytes, zmq.MessageTracker]] = []  # by peer
        self._left_s = 0.0
        self._filled_s = 0.0

    def add(self, peer: bytes, request: BlobsRequest, now_s: float) -> None:
        """Have a worker read what is there, or refuse the request."""
        found = self._find_dataset(request)
        if isinstance(found, Refused):
            self._router.send(peer, encode(found))
            return
        ids = np.array(request.sample_ids, np.int64)
        there = np.flatnonzero(self._find_there(found, ids))
        self.counters.blobs_missed += len(ids) - len(there)
        if not len(there):
            self._router.send(peer, encode(Blobs(sizes=(0,) * len(ids))), b"")
            return
        worker = self._choose_worker(peer, now_s)
        if worker is None:
            self.counters.blobs_refused += 1
            self._router.send(peer, encode(_BUSY))
            return
        ticket = next(self._tickets)
        self._reading[ticket] = _Reading(peer, worker, len(ids), there)
        self._pool.send(worker, ReadBlobs(ticket, found, tuple(ids[there].tolist())))

    def on_read(self, read: BlobsRead, fd: int | None) -> None:
        """Send what a worker has read; closes ``fd``."""
        self._left_s -= read.busy_s
        self.counters.blobs_read_s += read.busy_s
        memory: mmap.mmap | bytes = b""
        problem = read.problem
        if fd is not None:
            try:
                if any(read.sizes):
                    memory = mmap.mmap(fd, sum(read.sizes), prot=mmap.PROT_READ)
            except OSError as error:
                problem = f"no memory for them ({error.strerror})"
            finally:
                os.close(fd)
        reading = self._reading.pop(read.ticket, None)
        if reading is None:
            return
        if problem:
            refused = _refuse("unreadable", f"samples cannot be read: {problem}")
            self._router.send(reading.peer, encode(refused))
            return
        # The answer ends before the first sample that is there and was not read.
        number, there = len(read.sizes), reading.there
        sizes = np.zeros(there[number] if number < len(there) else reading.samples, np.int64)
        sizes[there[:number]] = read.sizes
        frame = zmq.Frame(memory, track=True, copy=False)
        if self._router.send(reading.peer, encode(Blobs(sizes=tuple(sizes.tolist()))), frame):
            self._sending.append((reading.peer, frame.tracker))
            self.counters.blobs_sent += int(np.count_nonzero(sizes))
            self.counters.blobs_sent_bytes += len(memory)

    def on_lost(self, worker: int) -> None:
        """Handle the end of a worker: its request is refused."""
        for ticket, reading in list(self._reading.items()):
            if reading.worker == worker:
                self.on_read(BlobsRead(ticket, (), 0.0, "the worker ended"), None)

    def _find_dataset(self, request: BlobsRequest) -> str | Refused:
        """Return the name of the dataset that has the requested samples."""
        contents = []
        for name, dataset in self._datasets.items():
            if not isinstance(dataset, ServedDataset):
                continue
            contents.append(dataset.content)
            if dataset.content == request.content:
                if name in self._watch.stalled_names:
                    return _refuse("unreadable", f"the storage of dataset {name} does not answer")
                if max(request.sample_ids) >= dataset.layout.samples:
                    return _refuse("range", f"dataset {name} has {dataset.layout.samples} samples")
                return name
        served = ", ".join(sorted(contents)) or "none"
        text = f"no dataset with content fingerprint {request.content} is served here, but {served}"
        return _refuse("unknown-dataset", text)

    def _choose_worker(self, peer: bytes, now_s: float) -> int | None:
        """Return the worker with the fewest chunks before it; None if none may read now."""
        self._sending = [answer for answer in self._sending if not answer[1].done]
        numbers = self._pool.numbers
        earned_s = SHARE * len(numbers) * min(BURST_S, now_s - self._filled_s)
        self._left_s = min(SHARE * len(numbers) * BURST_S, self._left_s + earned_s)
        self._filled_s = now_s
        peers = [reading.peer for reading in self._reading.values()]
        peers += [sending for sending, _ in self._sending]
        if (
            self._left_s <= 0
            or peers.count(peer) >= _TO_PEER_MAX
            or len(self._sending) >= SENDING_MAX
        ):
            return None
        reads = Counter(reading.worker for reading in self._reading.values())
        workers = self._watch.workers
        free = [number for number in numbers if number in workers and reads[number] < READS_MAX]
        return min(free, key=lambda n: reads[n] + len(workers[n].chunks), default=None)


def _refuse(code: RefusedCode, text: str) -> Refused:
    return Refused(code=code, message=text[:MESSAGE_CHARS_MAX])
