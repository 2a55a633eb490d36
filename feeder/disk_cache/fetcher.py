"""The fetcher, without its sockets: takes messages, runs transfers in threads, gives answers.

    handle ─► wants, windows ─► room? ─► threads: transfers ─► results ─► run ─► answers
          └► threads: peers ─►┘    └► thread: eviction

One thread calls it. ``wake_fd`` is readable when a transfer has ended; then, and at ``deadline_s``,
``run`` is due. A store that is away, and a disk that is full or fails, end in answers: the fetcher
goes on, and tries again for the next Want.
"""

import errno
import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from feeder.disk_cache.cached import PRESENCE_NAME, CachedDataset
from feeder.disk_cache.eviction import Holding
from feeder.disk_cache.folder import DiskCache, open_mended
from feeder.disk_cache.messages import (
    Ahead,
    Behind,
    FetcherToNode,
    Forget,
    NodeToFetcher,
    Owned,
    Want,
)
from feeder.disk_cache.ranges import Ranges, split_pieces
from feeder.disk_cache.room import STUCK_S, Evictor, Room, Served
from feeder.disk_cache.threads import Result, Results, Threads
from feeder.disk_cache.transfers import Transfers
from feeder.disk_cache.wants import Key, Task, Wants
from feeder.disk_cache.windows import Windows
from feeder.errors import DatasetError, FeederError, ProtocolError, ResourceError, StoreError
from feeder.metrics.records import REFRESH, StoreRecord
from feeder.process.backoff import Backoff
from feeder.store.address import StoreAddress
from feeder.store.client import Store

if TYPE_CHECKING:
    from feeder.disk_cache.peers import Peers
    from feeder.security.keys import ClientKeys

PIECES_MAX: Final = 8
"""Transfers of pieces at a time: as fast as any number, with the least processor time."""
BLOBS_MAX: Final = 64
"""Transfers of single samples at a time: they wait for the store most of the time."""
INDEXES_MAX: Final = 2
"""Indexes fetched ahead at a time: they are small."""
ASKS_MAX: Final = 4
"""Wants for which peers are asked at a time. Each holds 16 MiB at most."""
ASK_S: Final = 2.0
"""For all that peers send for a Want, however many of them are slow."""
PATIENCE_S: Final = 30.0

_POSTPONED_S: Final = 0.05
"""Between looks at a piece that another process fetches."""
_FULL_TRIES: Final = 3
"""Of writing to a full disk, with an eviction after each."""

_NAMED_MAX: Final = 16
"""How often a message may name a dataset's samples: lanes of several orders overlap."""

_log = logging.getLogger(__name__)


class Fetcher:
    """Fetches for the datasets in ``folders``, by name, and evicts from all of the cache."""

    def __init__(
        self,
        cache: DiskCache,
        folders: Mapping[str, Path],
        *,
        budget_bytes: int = 0,
        patience_s: float = PATIENCE_S,
    ) -> None:
        """``budget_bytes`` 0: what leaves a share of the file system free.

        Raises DatasetError or ResourceError if a folder is no cached dataset.
        """
        self.record = StoreRecord(pid=os.getpid())
        self.problem: FeederError | None = None
        """The last one of a piece that no batch waited for."""
        self._results = Results()
        self.wake_fd = self._results.wake_fd
        self.deadline_s = 0.0
        self._cache = cache
        self._patience_s = patience_s
        self._datasets: dict[str, Transfers] = {}
        self._stores: list[Store] = []
        for name, folder in folders.items():
            cached = open_mended(cache, folder)
            address = StoreAddress.parse(cached.url)
            store = Store(address, on_retry=self._count_retry, patience_s=patience_s)
            self._stores.append(store)
            self._datasets[name] = Transfers(cached, store, self.record)
        self._wants = Wants({n: t.cached for n, t in self._datasets.items()}, patience_s)
        self._windows = Windows()
        self._threads = [
            Threads(most, self._results)
            for most in (PIECES_MAX, BLOBS_MAX, INDEXES_MAX, ASKS_MAX, 1, 1)
        ]
        self._pieces, self._blobs, self._indexes, self._asks, chores, sweeps = self._threads
        evictor = Evictor(cache, budget_bytes)
        self._room = Room(evictor, self._hold, chores, self._log_trouble, self.record)
        self._peers: Peers | None = None
        self._asked: dict[tuple[int, int], Want] = {}  # of peers, by connection and number
        self._in_flight: set[Key] = set()
        self._unindexed: set[tuple[str, int]] = set()  # shards whose indexes are being fetched
        self._postponed: list[tuple[float, Callable[[], None]]] = []
        self._pauses: dict[str, tuple[Backoff, float]] = {}  # of a dataset's aheads, until when
        self._full_tries: Counter[Key] = Counter()
        self._measure_owned()
        for transfers in self._datasets.values():
            sweeps.start(transfers.sweep, self._log_trouble)  # it may take some seconds

    def follow_peers(self, listed: Sequence[str], name: str, keys: "ClientKeys | None") -> None:
        """Ask the feeders of a list before the store, as ``Peers`` does; ConfigError."""
        from feeder.disk_cache.peers import Peers

        contents = frozenset(t.cached.manifest.content for t in self._datasets.values())
        self._peers = Peers(listed, name, keys, contents, self.record)

    # --- The caller's side ------------------------------------------------------------------------

    def handle(self, client: int, message: NodeToFetcher) -> None:
        """Take a message of a connection; ProtocolError if it names what is not there."""
        match message:
            case Want(number, dataset, ranges):
                self._check(dataset, ranges)
                self._asked.pop((client, number), None)
                if message.lanes and self._peers and self._datasets[dataset].find_missing(ranges):
                    self._ask(client, message, self._peers)
                else:
                    self._want(client, message)
            case Forget(number):
                self._asked.pop((client, number), None)
                self._wants.forget(client, number)
            case Ahead(dataset, ranges):
                cached = self._check(dataset, ranges)
                parts = split_pieces(ranges, cached.piece)
                for piece in parts:
                    cached.pin(piece)  # for the evictions of other daemons
                self._windows.enter(client, dataset, parts)
                self._wants.ahead(dataset, parts)
                self._fetch_indexes(dataset, ranges)
            case Behind(dataset, ranges):
                parts = split_pieces(ranges, self._check(dataset, ranges).piece)
                self._leave(self._windows.leave(client, dataset, parts))
            case Owned(dataset, ranges):
                self._check(dataset, ranges)
                self._windows.own(client, dataset, ranges)
                self._measure_owned()

    def disconnect(self, client: int) -> None:
        """Forget all of a connection that has ended."""
        self._wants.forget_all(client)
        self._asked = {key: want for key, want in self._asked.items() if key[0] != client}
        self._leave(self._windows.disconnect(client))
        self._measure_owned()

    def run(self) -> list[tuple[int, FetcherToNode]]:
        """Finish and start what can be; return the answers, each with its connection."""
        self._results.take()
        now_s = time.monotonic()
        for due_s, begin in list(self._postponed):
            if due_s <= now_s:
                self._postponed.remove((due_s, begin))
                begin()
        self._start_transfers(now_s)
        self._room.run_due(now_s)
        due = [*self._room.deadlines_s, *(due_s for due_s, _ in self._postponed)]
        due += [until_s for _, until_s in self._pauses.values()]
        self.deadline_s = min(due_s for due_s in due if due_s > now_s)
        self._fill_gauges(now_s)
        answers, self._wants.answers = self._wants.answers, []
        return answers

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight that a message would not begin."""
        is_at_work = self._in_flight or self._asks.busy or self._room.is_evicting
        return not (is_at_work or self._postponed)

    @property
    def is_full(self) -> bool:
        """Whether what is ahead waits for room, and nothing may be evicted for it."""
        return self.is_idle and self._room.is_stuck(time.monotonic())

    def cached(self, name: str) -> CachedDataset:
        """Return a dataset, open until ``close``."""
        return self._datasets[name].cached

    def close(self) -> None:
        """Close the datasets. While threads are at work, the end of the process does: what they
        write to a descriptor must not end up in another file that got its number.
        """
        if self._peers is not None:
            self._peers.close()
        self._results.take()
        if not any(threads.busy for threads in self._threads):
            os.close(self.wake_fd)
            for transfers in self._datasets.values():
                transfers.cached.close()

    # --- Peers ------------------------------------------------------------------------------------

    def _ask(self, client: int, want: Want, peers: "Peers") -> None:
        """Have peers send what a Want misses; the rest is fetched after that."""
        transfers = self._datasets[want.dataset]
        expected = transfers.missing_bytes(want.ranges)
        self._asked[client, want.number] = want
        self._room.expect(expected)
        end_s = time.monotonic() + ASK_S

        def is_due() -> bool:
            is_forgotten = self._asked.get((client, want.number)) is not want
            return time.monotonic() < end_s and not is_forgotten

        work = partial(peers.fetch, transfers, want, is_due)
        self._asks.start(work, partial(self._end_ask, client, want, expected))

    def _end_ask(
        self, client: int, want: Want, expected: int, written: Result, error: Exception | None
    ) -> None:
        self._log_trouble(None, error)
        self._room.settle(expected, written if isinstance(written, int) else 0)
        if self._asked.get((client, want.number)) is want:  # else it was forgotten
            del self._asked[client, want.number]
            self._want(client, want)

    def _want(self, client: int, want: Want) -> None:
        self._wants.want(
            *(client, want.number, want.dataset, want.ranges, time.monotonic()),
            whole=want.whole,
            doubted=want.doubted,
        )

    # --- Transfers --------------------------------------------------------------------------------

    def _start_transfers(self, now_s: float) -> None:
        while (task := self._wants.take_doubted(now_s)) is not None:
            self._start(self._blobs, task, self._datasets[task.key[0]].check, 0)
        takes: tuple[tuple[Threads, Callable[[], Task | None]], ...] = (
            (self._blobs, lambda: self._wants.take_wanted(now_s, whole=False)),
            (self._pieces, lambda: self._wants.take_wanted(now_s, whole=True)),
            (self._pieces, lambda: self._take_ahead(now_s)),
        )
        for threads, take in takes:
            while threads.busy < threads.most and (task := take()) is not None:
                transfers = self._datasets[task.key[0]]
                expected = transfers.missing_bytes(task.ranges)
                if not self._room.may_take(expected, now_s, is_wanted=task.is_wanted):
                    self._wants.put_back(task)
                    break
                work = partial(transfers.fetch, ranges=task.ranges)
                self._start(threads, task, work, expected)

    def _fetch_indexes(self, dataset: str, ranges: Ranges) -> None:
        """Fetch the indexes of what is ahead before its pieces, which would wait for them."""
        transfers = self._datasets[dataset]

        def fetch(shard: int) -> None:
            if dataset not in self._pauses:  # else the store is away
                transfers.fetch_index(shard)

        for shard in transfers.find_unindexed(ranges):
            if (dataset, shard) not in self._unindexed:
                self._unindexed.add((dataset, shard))
                self._indexes.start(
                    partial(fetch, shard), partial(self._end_index, (dataset, shard))
                )

    def _end_index(self, key: tuple[str, int], _: Result, error: Exception | None) -> None:
        self._unindexed.discard(key)
        if error is not None:
            self._explain(error)  # a piece that needs it fails with this, and says so

    def _take_ahead(self, now_s: float) -> Task | None:
        if self._room.is_stuck(now_s):
            return None
        paused = {name for name, (_, until_s) in self._pauses.items() if until_s > now_s}
        return self._wants.take_ahead(now_s, paused)

    def _start(
        self, threads: Threads, task: Task, work: Callable[[int], bool], expected: int
    ) -> None:
        self._in_flight.add(task.key)
        again = partial(self._start, threads, task, work, expected)
        threads.start(partial(work, task.key[1]), partial(self._end, task, again, expected))

    def _end(
        self,
        task: Task,
        again: Callable[[], None],
        expected: int,
        is_done: Result,
        error: Exception | None,
    ) -> None:
        self._in_flight.discard(task.key)
        now_s = time.monotonic()
        if error is None and not is_done:  # another process is at it
            if now_s < task.began_s + self._patience_s:
                self._postponed.append((now_s + _POSTPONED_S, again))
                return
            path = self._datasets[task.key[0]].cached.folder / PRESENCE_NAME
            error = ResourceError(
                f"another process has been fetching the same samples of {task.key[0]} for "
                f"{self._patience_s:.0f} s: end it (`fuser {path}` shows it)"
            )
        self._room.settle(expected, 0 if error else expected)
        if error is not None:
            self._fail(task, error, now_s)
        else:
            self._full_tries.pop(task.key, None)
            self._pauses.pop(task.key[0], None)
            self.record.pieces += len(task.ranges) == 1
            self._wants.done(task)

    def _fail(self, task: Task, error: Exception, now_s: float) -> None:
        dataset, (kind, message) = task.key[0], self._explain(error)
        if kind == "disk-full":
            self._full_tries[task.key] += 1
            if self._full_tries[task.key] < _FULL_TRIES:
                missing = self._datasets[dataset].missing_bytes(task.ranges)
                self._room.make(missing, with_windows=task.is_wanted)
                self._postponed.append((now_s + STUCK_S, partial(self._wants.put_back, task)))
                return
            self._full_tries.clear()  # what this batch held may be evicted for the others
        _log.warning("%s", message, extra={"kind": kind, "dataset": dataset})
        is_transient = isinstance(error, StoreError) and error.is_transient
        failed = self._wants.failed(task, kind, message, now_s, is_transient=is_transient)
        self.record.failures[kind] += failed
        if not task.is_wanted:
            self.problem = error if isinstance(error, FeederError) else ResourceError(message)
            backoff = self._pauses.get(dataset, (Backoff(1.0, PATIENCE_S), 0.0))[0]
            self._pauses[dataset] = backoff, now_s + backoff.next_s()

    def _explain(self, error: Exception) -> tuple[str, str]:
        """The kind and the message of an Absent; raises an exception that has none."""
        if isinstance(error, StoreError):
            return error.kind, str(error)
        if isinstance(error, DatasetError):
            return "damaged", str(error)
        if isinstance(error, ResourceError):
            return "timeout", str(error)  # of another process
        if not isinstance(error, OSError) or error.errno is None:
            raise error
        where = f"the disk cache in {self._cache.root}"
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                return "disk-full", f"{where} has no room left: free some, or lower disk_bytes"
            case errno.EROFS | errno.EACCES | errno.EPERM:
                why = f"cannot be written ({error.strerror})"
                return "disk-read-only", f"{where} {why}: make it writable, then start again"
        return "disk-failing", f"{where} fails ({error.strerror}): check the disk"

    # --- Room -------------------------------------------------------------------------------------

    def _hold(self) -> Callable[[], list[Served]]:
        # With sample 0, which a start without the store decodes.
        held = {name: [0, *self._wants.held(name)] for name in self._datasets}
        return lambda: [self._hold_pieces(name, held[name]) for name in self._datasets]

    def _hold_pieces(self, name: str, held_pieces: list[int]) -> Served:
        """What there is to evict of a dataset; called in the thread that evicts."""
        transfers = self._datasets[name]
        pieces, piece = transfers.cached.pieces, transfers.cached.piece
        held = np.zeros(pieces, np.bool_)
        held[held_pieces] = True
        return transfers, Holding(
            there_bytes=transfers.there_bytes(),
            owned=self._windows.owned(name, pieces, piece),
            window=self._windows.added(name, pieces),
            held=held,
        )

    def _log_trouble(self, _: Result, error: Exception | None) -> None:
        if error is not None:
            _log.warning("%s", self._explain(error)[1], extra={"kind": "room"})

    # --- Parts ------------------------------------------------------------------------------------

    def _leave(self, keys: list[Key]) -> None:
        for dataset, piece in keys:
            self._datasets[dataset].cached.unpin(piece)
        self._wants.drop_ahead(keys)
        self._room.look_again()

    def _check(self, dataset: str, ranges: Ranges) -> CachedDataset:
        transfers = self._datasets.get(dataset)
        if transfers is None:
            raise ProtocolError(f"there is no dataset {dataset!r} to fetch")
        samples = transfers.cached.manifest.samples
        if any(not 0 <= first < end <= samples for first, end in ranges):
            raise ProtocolError(f"{dataset} has samples 0 .. {samples - 1}, others were named")
        if sum(end - first for first, end in ranges) > _NAMED_MAX * samples:
            raise ProtocolError(f"a message names each sample of {dataset} too often")
        return transfers.cached

    def _count_retry(self, kind: str) -> None:
        self.record.retries[kind] += 1
        self.record.requests += kind != REFRESH

    def _measure_owned(self) -> None:
        full = 0.0
        for name, transfers in self._datasets.items():
            cached = transfers.cached
            owned = self._windows.owned(name, cached.pieces, cached.piece)
            share = 1.0 if owned is None else float(owned.mean())
            full += share * transfers.mean_bytes * cached.manifest.samples
        self.record.full_bytes = int(full)

    def _fill_gauges(self, now_s: float) -> None:
        record = self.record
        record.clock_s, record.cpu_s = now_s, time.process_time()
        record.waiting = self._wants.waiting + len(self._asked)
        record.queued_pieces = self._wants.queued
        record.transfers = len(self._in_flight)
        ends_s = [end_s for s in self._stores if (end_s := s.credentials_expire_s) is not None]
        record.expires_in_s = max(0.0, min(ends_s) - time.time()) if ends_s else -1.0
