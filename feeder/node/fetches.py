"""The fetches of a node process: batches whose samples are to be on disk before workers read them.

    FetchSamples ─► pieces pinned ─► all samples there        ─► SamplesFetched
                                  └─ Want ─► fetcher ─► Here  ─► pinned and looked at again
    LetGo        ─► pieces unpinned

While a piece is pinned no process evicts it, so what is there stays there for as long as a worker
may read it. Two batches of a window pin the same pieces: they are counted here. A fetcher that ends
is connected to again, and asked again for all that is outstanding; while none has been running for
PATIENCE_S, what is missing fails.

A batch that another feeder owns is drawn from pieces that this host does not need: its samples
are fetched alone, from that feeder if it has them. So are leftovers, and those of a lane that is
permuted as a whole, whose batches need a sample of each piece at once, while all its pieces follow.
"""

import functools
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.disk_cache.cached import CachedDataset
from feeder.disk_cache.messages import (
    Absent,
    FetcherToNode,
    Forget,
    Here,
    NodeToFetcher,
    Serving,
    Want,
)
from feeder.disk_cache.ranges import find_runs
from feeder.node.hints import Hints
from feeder.node.polling import PollSet
from feeder.node.selected_parts import SelectedParts
from feeder.plan.epoch import EpochPlan, ShardLayout
from feeder.plan.recipe import Recipe
from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError
from feeder.session.events import SamplesFetched
from feeder.session.state import PendingBatch, PendingChunk, Session

RECONNECT_S: Final = 0.2
"""Between two tries to connect; a fetcher that has ended is replaced in about that time."""

PATIENCE_S: Final = 30.0
"""As long as the fetcher tries to reach a store that is away."""

_FLUSH_S: Final = 0.005
"""Between two tries to send to a fetcher that is behind."""

_RANGES_MAX: Final = 4096
"""In a message: where there are more runs of samples, pieces are named."""

_NUMBER_MAX: Final = 2**40 - 1

_Report = Callable[[list[SamplesFetched], float], None]


@dataclass(slots=True, eq=False)
class _Fetch:
    """What a batch, or a chunk of one, reads of a dataset."""

    dataset: str
    session: int
    sample_ids: NDArray[np.int64]
    is_whole: bool
    """Whether whole pieces are wanted, or only these samples."""
    place: tuple[int, int, int] = (0, 0, 0)
    """As in Want: the lanes, the lane and the index of a batch that another feeder owns."""
    doubted: bool = False
    unpinned: list[int] = field(default_factory=list)
    """Its pieces that could not be pinned yet, as they were just being evicted."""
    pinned: list[int] = field(default_factory=list)
    is_waiting: bool = True


class Fetches:
    """All fetches of a node process."""

    def __init__(
        self,
        datasets: Mapping[str, CachedDataset],
        address: bytes,
        poll_set: PollSet,
        parts: SelectedParts | None = None,
    ) -> None:
        """Fetch for these datasets, by name, with the fetcher that listens at ``address``, a Unix
        socket. ``parts`` has the selections that have samples of them."""
        self._datasets = datasets
        self._address = address
        self._poll_set = poll_set
        self.report: _Report
        """Gets the answers that do not come at once."""
        self._channel: Channel[NodeToFetcher, FetcherToNode] | None = None
        self._fetches: dict[int, _Fetch] = {}  # by number, as in Want: see ``_number``
        self._parts = parts or SelectedParts({}, {}, datasets)
        self._pins: Counter[tuple[str, int]] = Counter()
        self._outgoing: deque[NodeToFetcher] = deque()  # what the socket had no room for
        self._due_s = 0.0 if datasets else inf  # to connect, or to send more
        self._give_up_s = time.monotonic() + PATIENCE_S  # inf while the fetcher runs
        self._hints = Hints(self._send, self._plans_of, self._parts.spread)
        self._plan = functools.lru_cache(16)(_plan_epoch)

    @property
    def deadline_s(self) -> float:
        """When ``run_due`` is due."""
        return min(self._due_s, self._give_up_s) if self.waiting else self._due_s

    @property
    def waiting(self) -> int:
        """How many fetches wait for the fetcher."""
        return sum(fetch.is_waiting for fetch in self._fetches.values())

    def find_there(self, dataset: str, sample_ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which samples (n,) of a dataset are on this host now: all of one that is local."""
        if dataset not in self._datasets:
            return np.ones(len(sample_ids), np.bool_)
        return self._datasets[dataset].samples_there[sample_ids].astype(np.bool_)

    def begin(self, batch: PendingBatch) -> list[SamplesFetched]:
        """Carry out FetchSamples; return the answer if all samples are there."""
        session = batch.session
        plan = self._plans_of(session)(batch.epoch)
        is_scattered = plan.draws_whole_lanes or plan.lane(batch.index) is None
        is_whole, place = not (batch.is_unowned or is_scattered), (0, 0, 0)
        if batch.is_unowned and (lane := plan.lane(batch.index)) is not None:
            place = plan.shape.lanes, lane, batch.index
        is_there = True
        parts = self._parts.split(session.dataset, plan.samples(batch.index))
        for part, (dataset, ids, are_alone) in enumerate(parts):
            fetch = _Fetch(dataset, session.number, ids, is_whole and not are_alone, place)
            fetch.unpinned = self._datasets[dataset].pieces_of(ids).tolist()
            number = _number(batch.fetch, part)
            self._fetches[number] = fetch
            if not self._is_there(fetch):
                is_there = False
                self._ask(number, fetch)
        if not batch.is_unowned:
            self._hints.give(session, batch.epoch, batch.index)
        return [SamplesFetched(batch.fetch)] if is_there else []

    def check(self, number: int, chunk: PendingChunk) -> list[SamplesFetched]:
        """Carry out CheckSamples; return the answer if no sample is of a dataset in a store. The
        batch's own fetch keeps the pieces pinned."""
        batch = chunk.batch
        plan = self._plans_of(batch.session)(batch.epoch)
        session, ids = batch.session, plan.samples(batch.index, chunk.first, chunk.count)
        for part, (dataset, own_ids, _) in enumerate(self._parts.split(session.dataset, ids)):
            fetch = _Fetch(dataset, session.number, own_ids, False, doubted=True)
            self._fetches[_number(number, part)] = fetch
            self._ask(_number(number, part), fetch)
        return [] if number in self._fetches else [SamplesFetched(number)]

    def let_go(self, number: int) -> None:
        """Carry out LetGo."""
        for own_number in self._find_parts(number):
            fetch = self._fetches.pop(own_number)
            if fetch.is_waiting:
                self._send(Forget(own_number))
            for piece in fetch.pinned:
                key = fetch.dataset, piece
                self._pins[key] -= 1
                if not self._pins[key]:
                    del self._pins[key]
                    self._datasets[fetch.dataset].unpin(piece)

    def end_session(self, number: int) -> None:
        """Forget what belongs to a session whose slots are closed."""
        for left in [own for own, fetch in self._fetches.items() if fetch.session == number]:
            if left <= _NUMBER_MAX:
                self.let_go(left)
        self._hints.end_session(number)

    def run_due(self, now_s: float) -> None:
        """Connect, or send what the socket had no room for."""
        if now_s >= self._give_up_s:
            self._fail_waiting(now_s)
        if self._channel is not None:
            self._flush(now_s)
            return
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            end.settimeout(0)
            end.connect(self._address)
        except OSError:
            end.close()
            self._due_s = now_s + RECONNECT_S
            return
        self._channel = Channel(end, FetcherToNode)
        self._poll_set.add(self._channel.fileno(), self._read)
        self._due_s = inf

    def close(self) -> None:
        """Close the connection and the datasets, which unpins their pieces."""
        if self._channel is not None:
            self._disconnect(time.monotonic())
        for dataset in self._datasets.values():
            dataset.close()

    # --- The fetcher ----------------------------------------------------------------------------

    def _is_there(self, fetch: _Fetch) -> bool:
        """Pin the pieces of a fetch and return whether its samples are on disk, for good then."""
        dataset = self._datasets[fetch.dataset]
        left = []
        for piece in fetch.unpinned:
            key = fetch.dataset, piece
            if self._pins[key] or dataset.pin(piece):
                self._pins[key] += 1
                fetch.pinned.append(piece)
            else:
                left.append(piece)
        fetch.unpinned = left
        fetch.is_waiting = bool(left) or not dataset.has(fetch.sample_ids)
        return not fetch.is_waiting

    def _tell_all(self) -> None:
        """Tell a fetcher that has just begun to serve all that holds."""
        self._hints.repeat()
        for number, fetch in self._fetches.items():
            if fetch.is_waiting:
                self._ask(number, fetch)

    def _ask(self, number: int, fetch: _Fetch) -> None:
        # Of whole pieces, too, the samples are named: others that are damaged must not matter.
        ranges = find_runs(np.unique(fetch.sample_ids))
        is_whole, doubted = fetch.is_whole, fetch.doubted
        if len(ranges) > _RANGES_MAX:
            dataset, is_whole = self._datasets[fetch.dataset], True
            ranges = dataset.ranges_of(dataset.pieces_of(fetch.sample_ids))
        self._send(Want(number, fetch.dataset, ranges, is_whole, *fetch.place, doubted=doubted))

    def _read(self, now_s: float) -> None:
        assert self._channel is not None, "it is read while it is open"
        try:
            message = self._channel.receive()
        except ChannelClosedError:
            self._disconnect(now_s)
            return
        match message:
            case Serving():
                self._give_up_s = inf
                self._tell_all()
            case Here(number):
                fetch = self._fetches.get(number)
                if fetch is None or not fetch.is_waiting:
                    return
                if self._is_there(fetch):
                    self._answer(number, fetch, "", now_s)
                else:  # evicted between the fetcher's answer and the pin
                    self._ask(number, fetch)
            case Absent(number, _, text):
                fetch = self._fetches.get(number)
                if fetch is None or not fetch.is_waiting:
                    return
                # What is missing may be others' samples of the same pieces. Doubted ones count as
                # there until they were found damaged.
                problem = "" if self._is_there(fetch) and not fetch.doubted else text
                fetch.is_waiting = False
                self._answer(number, fetch, problem, now_s)

    def _answer(self, number: int, fetch: _Fetch, problem: str, now_s: float) -> None:
        parts = self._find_parts(number & _NUMBER_MAX)
        if not problem and any(self._fetches[part].is_waiting for part in parts):
            return
        for part in parts:
            if self._fetches[part].is_waiting:  # one problem is enough
                self._fetches[part].is_waiting = False
                self._send(Forget(part))
            if fetch.doubted:
                self._fetches.pop(part)  # the batch's own fetch has its pins
        self.report([SamplesFetched(number & _NUMBER_MAX, problem)], now_s)

    def _find_parts(self, number: int) -> list[int]:
        """The numbers of all parts of the session's fetch ``number``."""
        parts: list[int] = []
        while (part := _number(number, len(parts))) in self._fetches:
            parts.append(part)
        return parts

    def _send(self, message: NodeToFetcher) -> None:
        if self._give_up_s == inf:  # else it is told all of it once it runs
            self._outgoing.append(message)
            if len(self._outgoing) == 1:  # else the socket had no room a moment ago
                self._flush(time.monotonic())

    def _flush(self, now_s: float) -> None:
        """Send what waits, in order. A burst is larger than the socket's buffer."""
        self._due_s = inf
        try:
            while self._outgoing and self._channel is not None:
                self._channel.send(self._outgoing[0])
                self._outgoing.popleft()
        except ChannelFullError:
            self._due_s = now_s + _FLUSH_S
        except ChannelClosedError:
            self._disconnect(now_s)

    def _disconnect(self, now_s: float) -> None:
        assert self._channel is not None, "there is a connection"
        self._poll_set.remove(self._channel.fileno())
        self._channel.close()
        self._channel = None
        self._outgoing.clear()
        self._due_s = now_s + RECONNECT_S
        self._give_up_s = min(self._give_up_s, now_s + PATIENCE_S)

    def _fail_waiting(self, now_s: float) -> None:
        problem = f"the fetcher has not been running for {PATIENCE_S:.0f} s: see the feeder's log"
        for number, fetch in list(self._fetches.items()):
            if fetch.is_waiting:
                fetch.is_waiting = False
                self._answer(number, fetch, problem, now_s)

    def _plans_of(self, session: Session) -> Callable[[int], EpochPlan]:
        hello = session.hello
        return functools.partial(self._plan, hello.recipe, session.plan.layout, hello.seed)


def _number(fetch: int, part: int) -> int:
    """The number of a part of a session's fetch: there is one for each dataset that it reads."""
    return fetch + part * (_NUMBER_MAX + 1)


def _plan_epoch(recipe: Recipe, layout: ShardLayout, seed: int, epoch: int) -> EpochPlan:
    return recipe.plan_epoch(layout, seed=seed, epoch=epoch)
