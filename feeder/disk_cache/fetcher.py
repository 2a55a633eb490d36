"""The fetcher, without its sockets: takes messages, runs transfers in threads, gives answers.

    handle ─► wants, windows ─► threads: transfers ─► results ─► run ─► answers
                 room is made first: eviction, in a thread, too

One thread calls it. ``wake_fd`` is readable when a transfer has ended; then, and at ``deadline_s``,
``run`` is due. A store that is away, and a disk that is full or fails, end in answers: the fetcher
goes on, and tries again for the next Want.
"""

import contextlib
import errno
import logging
import os
import queue
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from feeder.dataset.manifest import load_manifest
from feeder.disk_cache.cached import CachedDataset, is_cached
from feeder.disk_cache.eviction import Holding, eviction_order
from feeder.disk_cache.folder import DiskCache, mend_presence
from feeder.disk_cache.messages import (
    Ahead,
    Behind,
    Doubt,
    FetcherToNode,
    Forget,
    NodeToFetcher,
    Owned,
    Want,
)
from feeder.disk_cache.transfers import Transfers
from feeder.disk_cache.wants import Key, Task, Wants, split_pieces
from feeder.disk_cache.windows import Windows
from feeder.errors import DatasetError, ProtocolError, StoreError
from feeder.metrics.records import StoreRecord
from feeder.process.backoff import Backoff
from feeder.store.address import StoreAddress
from feeder.store.client import Store

PIECES_MAX: Final = 8
"""Transfers of pieces at a time: as fast as any number, with the least processor time."""
BLOBS_MAX: Final = 64
"""Transfers of single samples at a time: they wait for the store most of the time."""
PATIENCE_S: Final = 30.0

_POSTPONED_S: Final = 0.05
"""Between looks at a piece that another process fetches."""
_STUCK_S: Final = 0.5
"""Between evictions, after one that could not free what was needed."""
_MEASURE_S: Final = 5.0
"""Between measurements of the room that all processes' pieces take."""
_FREE_SHARE: Final = 10
"""Of the file system, one in so many bytes stays free where the budget is "auto": for logs,
checkpoints and the file system itself, which slows down when it is full."""
_SLACK_SHARE: Final = 64
"""An eviction frees one in so many bytes of the budget beside what is needed, as the order of all
pieces costs some ms."""
_FULL_TRIES: Final = 3

_log = logging.getLogger(__name__)


class _Threads:
    """Daemon threads that run jobs, as many as needed up to ``most``."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.busy = 0
        self._threads = 0
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def submit(self, job: Callable[[], None]) -> None:
        self.busy += 1
        self._jobs.put(job)
        if self._threads < min(self.busy, self.most):
            self._threads += 1
            threading.Thread(target=self._run, name="transfer", daemon=True).start()

    def _run(self) -> None:
        while True:
            self._jobs.get()()


class Fetcher:
    """Fetches for the datasets in ``folders``, by name, and evicts from all of the cache."""

    def __init__(
        self,
        cache: DiskCache,
        folders: Mapping[str, Path],
        *,
        budget_bytes: int = 0,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``budget_bytes`` 0: what leaves a share of the file system free.

        Raises DatasetError or ResourceError if a folder is no cached dataset.
        """
        self.record = StoreRecord()
        self.wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.deadline_s = 0.0
        self._cache = cache
        self._fixed_bytes = budget_bytes
        self._clock = clock
        self._datasets = {
            name: Transfers(_open(cache, folder), self._open_store(folder, patience_s), self.record)
            for name, folder in folders.items()
        }
        for transfers in self._datasets.values():
            transfers.sweep()
        cached = {name: transfers.cached for name, transfers in self._datasets.items()}
        self._wants = Wants(cached, patience_s)
        self._windows = Windows()
        self._pieces, self._blobs, self._chores = (
            _Threads(PIECES_MAX),
            _Threads(BLOBS_MAX),
            _Threads(1),
        )
        self._results: deque[Callable[[], None]] = deque()
        self._in_flight: dict[Key, int] = {}  # expected bytes
        self._postponed: list[tuple[float, Task]] = []
        self._pauses: dict[str, tuple[Backoff, float]] = {}  # of aheads, by dataset, until when
        self._full_tries: Counter[Key] = Counter()
        self._used_bytes = self._measured_at_s = 0.0
        self._is_evicting = False
        self._stuck_until_s = {True: 0.0, False: 0.0}  # evictions with and without windows
        self._set_used(cache.used_bytes())

    # --- The caller's side ------------------------------------------------------------------------

    def handle(self, client: int, message: NodeToFetcher) -> None:
        """Take a message of a connection; ProtocolError if it names what is not there."""
        now_s = self._clock()
        match message:
            case Want(number, dataset, ranges, whole):
                self._check(dataset, ranges)
                self._wants.want(client, number, dataset, ranges, now_s, whole=whole)
            case Forget(number):
                self._wants.forget(client, number)
            case Ahead(dataset, ranges) | Behind(dataset, ranges):
                parts = split_pieces(ranges, self._check(dataset, ranges).piece)
                if isinstance(message, Ahead):
                    self._windows.enter(client, dataset, parts)
                    self._wants.ahead(dataset, parts)
                else:
                    self._leave(self._windows.leave(client, dataset, parts))
            case Owned(dataset, ranges):
                self._check(dataset, ranges)
                self._windows.own(client, dataset, ranges)
            case Doubt(dataset, sample):
                cached = self._check(dataset, ((sample, sample + 1),))
                self._wants.doubt((dataset, sample // cached.piece))

    def disconnect(self, client: int) -> None:
        """Forget all of a connection that has ended."""
        self._wants.forget_all(client)
        self._leave(self._windows.disconnect(client))

    def run(self) -> list[tuple[int, FetcherToNode]]:
        """Start and finish what can be; return the answers, each with its connection."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.wake_fd)
        while self._results:
            self._results.popleft()()
        now_s = self._clock()
        for due_s, task in list(self._postponed):
            if due_s <= now_s:
                self._postponed.remove((due_s, task))
                self._wants.put_back(task)
        if now_s - self._measured_at_s >= _MEASURE_S:
            self._measured_at_s = now_s
            self._start(self._chores, self._cache.used_bytes, lambda used, _: self._set_used(used))
        self._start_transfers(now_s)
        if self._used_bytes > self.budget_bytes and self._stuck_until_s[False] <= now_s:
            self._evict(int(self._used_bytes) - self.budget_bytes, with_windows=False)
        self.deadline_s = min(
            [self._measured_at_s + _MEASURE_S, *(due_s for due_s, _ in self._postponed)]
            + [until_s for until_s in self._stuck_until_s.values() if until_s > now_s]
            + [until_s for _, until_s in self._pauses.values() if until_s > now_s]
        )
        self._fill_gauges(now_s)
        answers, self._wants.answers = self._wants.answers, []
        return answers

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight, and nothing can be begun before a message comes."""
        return not (self._in_flight or self._is_evicting or self._postponed)

    def close(self) -> None:
        """Close the datasets; transfers in flight are abandoned."""
        os.close(self.wake_fd)
        for transfers in self._datasets.values():
            transfers.cached.close()

    # --- Transfers --------------------------------------------------------------------------------

    def _start_transfers(self, now_s: float) -> None:
        while (task := self._wants.take_doubted(now_s)) is not None:
            self._begin(self._blobs, task, self._datasets[task.key[0]].check, 0)
        takes: tuple[tuple[_Threads, Callable[[], Task | None]], ...] = (
            (self._blobs, lambda: self._wants.take_wanted(now_s, whole=False)),
            (self._pieces, lambda: self._wants.take_wanted(now_s, whole=True)),
            (self._pieces, lambda: self._take_ahead(now_s)),
        )
        for threads, take in takes:
            while threads.busy < threads.most and (task := take()) is not None:
                transfers = self._datasets[task.key[0]]
                expected = transfers.missing_bytes(task.ranges)
                if not self._has_room(expected, task.is_wanted, now_s):
                    self._wants.put_back(task)
                    break
                work = partial(transfers.fetch, ranges=task.ranges)
                self._begin(threads, task, work, expected)

    def _take_ahead(self, now_s: float) -> Task | None:
        paused = {name for name, (_, until_s) in self._pauses.items() if until_s > now_s}
        if self._stuck_until_s[False] > now_s:
            return None
        return self._wants.take_ahead(now_s, paused)

    def _begin(
        self, threads: _Threads, task: Task, work: Callable[[int], bool | None], expected: int
    ) -> None:
        self._in_flight[task.key] = expected
        self._start(threads, partial(work, task.key[1]), partial(self._end, task))

    def _start(
        self,
        threads: _Threads,
        work: Callable[[], Any],
        end: Callable[[Any, Exception | None], None],
    ) -> None:
        """Do ``work`` in a thread, then call ``end`` in ``run`` with its result or exception.

        ``end`` raises again what it does not expect.
        """

        def job() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as caught:  # noqa: BLE001 -- raised again where ``end`` runs
                error = caught
            self._results.append(partial(finish, result, error))
            os.eventfd_write(self.wake_fd, 1)

        def finish(result: Any, error: Exception | None) -> None:
            threads.busy -= 1
            end(result, error)

        threads.submit(job)

    def _end(self, task: Task, result: bool | None, error: Exception | None) -> None:
        now_s, (dataset, piece) = self._clock(), task.key
        expected = self._in_flight.pop(task.key)
        if error is not None:
            self._fail(task, error, now_s)
        elif result is None or (task.ranges and not result):  # another process is at it
            self._postponed.append((now_s + _POSTPONED_S, task))
        else:
            self._used_bytes += expected
            self._full_tries.pop(task.key, None)
            if task.ranges:
                self.record.pieces += len(task.ranges) == 1
                self._pauses.pop(dataset, None)
            if task.key in self._windows:  # for other daemons' evictions
                self._datasets[dataset].cached.pin(piece)
            self._wants.done(task)

    def _fail(self, task: Task, error: Exception, now_s: float) -> None:
        dataset = task.key[0]
        kind, message = self._explain(error)
        if kind == "disk-full":
            self._full_tries[task.key] += 1
            if self._full_tries[task.key] < _FULL_TRIES:
                missing = self._datasets[dataset].missing_bytes(task.ranges)
                self._evict(missing, with_windows=task.is_wanted)
                self._postponed.append((now_s + _POSTPONED_S, task))
                return
        self._full_tries.pop(task.key, None)
        _log.warning("%s", message, extra={"kind": kind, "dataset": dataset})
        is_transient = isinstance(error, StoreError) and error.is_transient
        failed = self._wants.failed(task, kind, message, now_s, is_transient=is_transient)
        self.record.failures[kind] += failed
        if not task.is_wanted:
            backoff = self._pauses.get(dataset, (Backoff(1.0, 30.0), 0.0))[0]
            self._pauses[dataset] = backoff, now_s + backoff.next_s()

    def _explain(self, error: Exception) -> tuple[str, str]:
        """The kind and the message of an Absent; other exceptions are raised."""
        if isinstance(error, StoreError):
            return error.kind, str(error)
        if isinstance(error, DatasetError):
            return "damaged", str(error)
        if not isinstance(error, OSError) or error.errno is None:
            raise error
        where = f"the disk cache in {self._cache.root}"
        match error.errno:
            case errno.ENOSPC | errno.EDQUOT:
                return "disk-full", f"{where} has no room left: free some, or lower disk_bytes"
            case errno.EROFS | errno.EACCES | errno.EPERM:
                return "disk-read-only", f"{where} cannot be written: make it writable"
        return "disk-failing", f"{where} fails ({error.strerror}): check the disk"

    # --- Room -------------------------------------------------------------------------------------

    def _has_room(self, needed: int, is_wanted: bool, now_s: float) -> bool:
        """Whether to begin a transfer of so many bytes; if not, an eviction is on its way, or was
        in vain."""
        excess = int(self._used_bytes + sum(self._in_flight.values()) + needed) - self.budget_bytes
        if excess <= 0:
            return True
        if self._is_evicting:
            return False
        if self._stuck_until_s[is_wanted] <= now_s:
            self._evict(excess, with_windows=is_wanted)
            return False
        self.record.over_budget += is_wanted
        return is_wanted  # a batch waits for it, and nothing else can go

    def _evict(self, goal: int, *, with_windows: bool) -> None:
        if self._is_evicting:
            return
        goal += self.budget_bytes // _SLACK_SHARE
        self._is_evicting = True
        own: list[tuple[Transfers, Holding]] = []
        for name, transfers in self._datasets.items():
            cached = transfers.cached
            held = np.zeros(cached.pieces, np.bool_)
            held[self._wants.held(name)] = True
            holding = Holding(
                there_bytes=transfers.there_bytes(),
                owned=self._windows.owned(name, cached.pieces, cached.piece),
                window=self._windows.added(name, cached.pieces),
                held=held,
            )
            own.append((transfers, holding))
        work = partial(self._evict_in_thread, own, goal, with_windows)
        self._start(self._chores, work, partial(self._end_eviction, goal, with_windows))

    def _evict_in_thread(
        self, own: list[tuple[Transfers, Holding]], goal: int, with_windows: bool
    ) -> tuple[int, int, int]:
        """Evict until ``goal`` bytes are free; return bytes and pieces evicted, and bytes left."""
        freed = pieces = 0
        with contextlib.ExitStack() as stack:
            holdings = own + self._others(stack)
            order = eviction_order([h for _, h in holdings], with_windows=with_windows)
            for number, piece, size in order:
                if freed >= goal:
                    break
                if holdings[number][0].evict(piece):
                    freed += size
                    pieces += 1
            emptied = [
                transfers.cached.folder
                for transfers, holding in holdings[len(own) :]
                if not holding.is_served and not transfers.cached.samples_there.any()
            ]
        for folder in emptied:
            self._cache.drop(folder)
        return freed, pieces, self._cache.used_bytes()

    def _others(self, stack: contextlib.ExitStack) -> list[tuple[Transfers, Holding]]:
        """The datasets of the folder that this fetcher does not serve, the oldest last."""
        others = []
        own = {transfers.cached.folder for transfers in self._datasets.values()}
        for folder in self._cache.folders():
            if folder not in own:
                with contextlib.suppress(DatasetError):  # damaged, or just dropped
                    cached = stack.enter_context(closing(CachedDataset.open(folder)))
                    transfers = Transfers(cached, None, self.record)
                    is_served = cached.is_used_by_others()
                    holding = Holding(there_bytes=transfers.there_bytes(), is_served=is_served)
                    others.append((transfers, holding))
        return others

    def _end_eviction(
        self,
        goal: int,
        with_windows: bool,
        result: tuple[int, int, int] | None,
        error: Exception | None,
    ) -> None:
        self._is_evicting = False
        if error is not None:
            _log.warning("%s", self._explain(error)[1], extra={"kind": "eviction"})
        freed, pieces, used = result or (0, 0, int(self._used_bytes))
        self.record.evicted_bytes += freed
        self.record.evicted_pieces += pieces
        self._set_used(used)
        if freed < goal:
            self._stuck_until_s[with_windows] = self._clock() + _STUCK_S
            if with_windows:
                self._stuck_until_s[False] = self._stuck_until_s[True]

    def _set_used(self, used_bytes: int) -> None:
        self._used_bytes = used_bytes
        self.budget_bytes = self._fixed_bytes
        if not self._fixed_bytes:
            with contextlib.suppress(OSError):
                status = os.statvfs(self._cache.root)
                spare = status.f_bavail - status.f_blocks // _FREE_SHARE
                self.budget_bytes = max(0, used_bytes + spare * status.f_frsize)

    # --- Parts ------------------------------------------------------------------------------------

    def _leave(self, keys: list[Key]) -> None:
        for dataset, piece in keys:
            self._datasets[dataset].cached.unpin(piece)
        self._wants.drop_ahead(keys)
        self._stuck_until_s = {True: 0.0, False: 0.0}  # there may be something to evict now

    def _check(self, dataset: str, ranges: tuple[tuple[int, int], ...]) -> CachedDataset:
        transfers = self._datasets.get(dataset)
        if transfers is None:
            raise ProtocolError(f"there is no dataset {dataset!r} to fetch")
        samples = transfers.cached.manifest.samples
        if any(not 0 <= first < end <= samples for first, end in ranges):
            raise ProtocolError(f"samples that {dataset} has not: it has {samples}")
        return transfers.cached

    def _open_store(self, folder: Path, patience_s: float) -> Store:
        from feeder.disk_cache.cached import read_origin

        address = StoreAddress.parse(read_origin(folder).url)
        return Store(address, on_retry=self._count_retry, patience_s=patience_s)

    def _count_retry(self, kind: str) -> None:
        self.record.retries[kind] += 1
        self.record.requests += 1

    def _fill_gauges(self, now_s: float) -> None:
        record = self.record
        record.clock_s = now_s
        record.waiting = self._wants.waiting
        record.queued_pieces = self._wants.queued
        record.transfers = len(self._in_flight)
        record.used_bytes = max(0, int(self._used_bytes))
        record.budget_bytes = self.budget_bytes


def _open(cache: DiskCache, folder: Path) -> CachedDataset:
    """Open a cached dataset, whose presence is made again if it is damaged."""
    try:
        return CachedDataset.open(folder)
    except DatasetError:
        if not is_cached(folder):
            raise
        with cache.locked(folder):
            mend_presence(folder, load_manifest(folder), _log.warning)
        return CachedDataset.open(folder)
