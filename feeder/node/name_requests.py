"""Clients' requests for the names of samples, which a worker reads.

One request at a time is with a worker, and the next one follows after nine times as long as that
took: names cost a tenth of one worker's time at most, however many clients want them.

Invariant: at most WAITING_MAX requests wait, one of each client, and none for longer than
NAMES_WITHIN_S.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping
from typing import Final, NamedTuple

from feeder.node.worker_pool import WorkerPool
from feeder.session.admission import MESSAGE_CHARS_MAX, ServedDataset
from feeder.wire.messages import Names, NamesRequest, Refused, SourcesRequest
from feeder.worker.messages import NamesRead, ReadNames

WAITING_MAX: Final = 64
NAMES_WITHIN_S: Final = 4.0
"""A worker that takes longer is stopped, or its storage does not answer."""

PAUSE: Final = 9.0
"""Between two requests for names, in multiples of the first one's time."""

_CHECK_S: Final = 0.02


class _Request(NamedTuple):
    peer: bytes
    message: NamesRequest
    expires_s: float


class NameRequests:
    """The requests that wait; a worker may have the first one."""

    def __init__(
        self,
        datasets: Mapping[str, ServedDataset | str],
        pool: WorkerPool,
        answer: Callable[[bytes, Names | Refused], None],
    ) -> None:
        """``answer`` sends a message to a peer."""
        self._datasets = datasets
        self._pool = pool
        self._answer = answer
        self._waiting: deque[_Request] = deque()
        self._ticket = 0
        self._worker: int | None = None  # until it has answered
        self._next_s = 0.0
        self.deadline_s = float("inf")
        """When ``run_due`` is due."""

    def add(
        self, peer: bytes, message: NamesRequest, stalled: Collection[str], now_s: float
    ) -> None:
        """Handle a request; ``stalled`` are datasets with storage that does not answer."""
        refusal = find_refusal(message, self._datasets)
        if refusal is None and message.dataset in stalled:
            refusal = _unreadable(message, "its storage does not answer")
        is_second = any(request.peer == peer for request in self._waiting)
        if refusal is None and (is_second or len(self._waiting) >= WAITING_MAX):
            refusal = Refused(code="rate", message="too many requests for names: try again later")
        if refusal is not None:
            self._answer(peer, refusal)
        else:
            self._waiting.append(_Request(peer, message, now_s + NAMES_WITHIN_S))
            self.run_due(now_s)

    def run_due(self, now_s: float) -> None:
        """Pass on the next request, if a worker may read names now; refuse those that expire."""
        while self._waiting and self._waiting[0].expires_s <= now_s:
            late = "its workers or its storage do not answer in time: try again later"
            request = self._waiting.popleft()
            self._ticket += 1  # of no request: a late answer is dropped
            self._answer(request.peer, _unreadable(request.message, late))
        workers = self._pool.numbers
        if self._waiting and workers and self._worker is None and now_s >= self._next_s:
            self._ticket += 1
            self._worker = workers[self._ticket % len(workers)]
            message = self._waiting[0].message
            read = ReadNames(self._ticket, message.dataset, message.sample_ids)
            self._pool.send(self._worker, read)
        self.deadline_s = now_s + _CHECK_S if self._waiting else float("inf")

    def on_read(self, read: NamesRead, now_s: float) -> None:
        """Handle a worker's answer."""
        self._worker, self._next_s = None, now_s + PAUSE * read.busy_s
        if read.ticket == self._ticket and self._waiting:
            request = self._waiting.popleft()
            answer = Names(names=read.names) if read.names else None
            self._answer(request.peer, answer or _unreadable(request.message, read.problem))

    def on_lost(self, worker: int) -> None:
        """Handle the end of a worker: another one gets its request."""
        if worker == self._worker:
            self._worker = None


def find_refusal(
    message: NamesRequest | SourcesRequest, datasets: Mapping[str, ServedDataset | str]
) -> Refused | None:
    """Why a request for samples of a dataset is refused; None if it is not."""
    dataset = datasets.get(message.dataset)
    if dataset is None:
        served = ", ".join(sorted(datasets)) or "none"
        text = f"no dataset {message.dataset!r} here; served: {served}"
        return Refused(code="unknown-dataset", message=text[:MESSAGE_CHARS_MAX])
    if isinstance(dataset, str):
        return Refused(code="dataset", message=dataset[:MESSAGE_CHARS_MAX])
    if message.content not in ("", dataset.content):
        text = (
            f"dataset {message.dataset!r} is a different one here, with content fingerprint "
            f"{dataset.content}"
        )
        return Refused(code="unknown-dataset", message=text)
    samples = dataset.layout.ids
    beyond = [number for number in message.sample_ids if number >= samples]
    if beyond:
        text = f"dataset {message.dataset!r} has no sample {beyond[0]}, it has 0 .. {samples - 1}"
        return Refused(code="range", message=text)
    return None


def _unreadable(message: NamesRequest, problem: str) -> Refused:
    text = f"names of dataset {message.dataset!r} cannot be read: {problem}"
    return Refused(code="unreadable", message=text[:MESSAGE_CHARS_MAX])
