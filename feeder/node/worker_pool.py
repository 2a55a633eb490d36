"""The workers of a node process: started, watched and replaced.

A worker that dies is replaced at once if it has run for a while, else with exponential backoff.
Before any worker has come up, a retry does not help: one that reports why it cannot start ends the
node process with that one line, and so do START_TRIES in a row that crash while starting. A worker
that would produce other bytes than the first one ends the node process at any time: libraries can
be replaced under a running daemon. The pool blocks only to reap a worker, for _EXIT_GRACE_S at
most. A killed worker that does not end, because its read does not return, is left to the kernel.
"""

import functools
import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from feeder.errors import ResourceError
from feeder.host.processes import look_at
from feeder.metrics.counters import WorkerCounters
from feeder.metrics.hangs import ProcessLook
from feeder.metrics.records import NodeRecord
from feeder.node.polling import PollSet
from feeder.process.backoff import Backoff
from feeder.process.channel import Channel, ChannelClosedError, ChannelFullError
from feeder.process.child import describe_ending, start_child, wait_for_exit
from feeder.remedies import TRANSIENT_ERRORS, explain_start
from feeder.session.events import WorkerJoined, WorkerLost, WorkerReleased
from feeder.wire.agreement import Agreement, Producer
from feeder.wire.chunk_work import Filled, FillFailed
from feeder.worker.index_memory import IndexMemory
from feeder.worker.messages import (
    BlobsRead,
    CannotStart,
    Configure,
    IndexProven,
    NamesRead,
    NodeToWorker,
    ShareIndexes,
    Started,
    WorkerToNode,
)

START_TRIES: Final = 3
_START_DEADLINE_S: Final = 60.0  # a cold page cache and a slow disk; usually 0.3
_YOUNG_S: Final = 1.0  # a worker that dies before this age is replaced with backoff
_BACKOFF_MIN_S: Final = 0.2
_BACKOFF_MAX_S: Final = 5.0
_KILL_GRACE_S: Final = 1.0  # from SIGKILL to the end; later it is in an uninterruptible sleep
_CHECK_S: Final = 0.2
_EXIT_GRACE_S: Final = 0.2  # from the end of the channel to the end of the process
_REAP_DEADLINE_S: Final = 2.0

_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    channel: Channel[NodeToWorker, WorkerToNode]
    deadline_s: float  # until when it must come up or, once killed, end
    up_s: float = float("inf")  # when it came up
    is_killed: bool = False

    @property
    def is_up(self) -> bool:
        return self.up_s < float("inf")


class BlobsArrived(NamedTuple):
    """What a worker read for another feeder; whoever handles it closes the descriptor."""

    read: BlobsRead
    fd: int | None


PoolEvent = (
    WorkerJoined | WorkerLost | WorkerReleased | Filled | FillFailed | NamesRead | BlobsArrived
)


class WorkerPool:
    """Keeps ``size`` workers running; ``close()`` is idempotent and bounded in time."""

    def __init__(
        self,
        size: int,
        configure: Configure,
        poll_set: PollSet,
        report: Callable[[PoolEvent, float], None],
        record: NodeRecord,
        indexes: IndexMemory,
        cache_fd: int | None = None,
    ) -> None:
        """Nothing runs before ``start``; events go to ``report``; counts in ``record``.

        ResourceError is raised where workers that test themselves crash before the first one has
        come up. ``indexes`` is the memory for those of datasets, ``cache_fd`` the decoded cache of
        ``configure``; both stay the caller's to close.
        """
        self.record = record
        self.counters = WorkerCounters()
        self._size = size
        self._configure = configure
        self._poll_set = poll_set
        self._report = report
        self._indexes = indexes
        self._cache_fd = cache_fd
        self._workers: dict[int, _Worker] = {}
        self._held: dict[int, subprocess.Popen[bytes]] = {}  # killed, but held by the kernel
        self._next_number = 0
        self._agreement = Agreement()
        self.started: Started | None = None
        """What the workers have reported that are up: all the same."""
        self._crashed_starts = 0
        self._backoff = Backoff(_BACKOFF_MIN_S, _BACKOFF_MAX_S)
        self._start_s = 0.0  # when missing workers are started
        self.deadline_s = float("inf")
        """When ``run_due`` is due; 0, for the next turn, when a worker is killed or has ended."""

    @property
    def pids(self) -> dict[int, int]:
        """The process id of each worker by its number, of those that start as well."""
        return {number: worker.process.pid for number, worker in self._workers.items()}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the workers that are up."""
        return tuple(number for number, worker in self._workers.items() if worker.is_up)

    def start(self) -> None:
        """Start all workers at once; they come up later, each reported as WorkerJoined.

        ResourceError where one cannot be started.
        """
        self._poll_set.timed.append(self)
        self.run_due(time.monotonic())

    def run_due(self, now_s: float) -> None:
        """Start the missing workers; end those that did not come up or end in time.

        ResourceError where none can be started and a retry does not help.
        """
        for worker in list(self._workers.values()):
            if worker.deadline_s > now_s:
                continue
            if worker.is_killed:
                self._reap(worker, now_s, grace_s=0.0)
            else:
                self.kill(worker.number, f"it did not start in {_START_DEADLINE_S:.0f} s")
        for number, process in list(self._held.items()):
            if process.poll() is not None:
                del self._held[number]
                self.counters.workers_held = len(self._held)
                self._report(WorkerReleased(number), now_s)
        try:
            while len(self._workers) < self._size and self._start_s <= now_s:
                self._spawn(now_s)
        except OSError as error:
            text = explain_start("a worker", error)
            if self._configure.self_test or error.errno not in TRANSIENT_ERRORS:
                raise ResourceError(text) from error
            _log.warning("%s; trying again in %.0f s", text, _BACKOFF_MAX_S)
            self._start_s = now_s + _BACKOFF_MAX_S
        settled = [worker for worker in self._workers.values() if worker.deadline_s == float("inf")]
        is_settled = len(settled) == self._size and not self._held
        self.deadline_s = float("inf") if is_settled else now_s + _CHECK_S

    def send(self, number: int, message: NodeToWorker, fd: int | None = None) -> None:
        """Send to a worker that has come up; one that does not read its channel is killed."""
        worker = self._workers.get(number)
        if worker is None:
            return
        try:
            worker.channel.send(message, fd)
        except ChannelFullError:
            self.kill(number, "it does not read its channel")
        except ChannelClosedError:
            pass  # it has ended: _read handles that

    def look(self, numbers: Iterable[int]) -> dict[int, ProcessLook]:
        """Look at these workers, as far as the kernel lets them be seen."""
        pids = self.pids
        looks = {number: look_at(pids[number]) for number in pids.keys() & numbers}
        return {number: look for number, look in looks.items() if look is not None}

    def kill(self, number: int, reason: str) -> None:
        """Kill a worker that makes no progress; WorkerLost follows, even if it cannot end."""
        worker = self._workers.get(number)
        if worker is not None and not worker.is_killed:
            worker.is_killed, worker.deadline_s = True, time.monotonic() + _KILL_GRACE_S
            self.deadline_s = 0.0
            self.record.workers_killed += 1
            pid = worker.process.pid
            text = "worker %d (pid %d) is stuck, %s: ended"
            _log.warning(text, number, pid, reason, extra={"worker": number})
            worker.process.kill()

    def close(self) -> None:
        """End all workers by closing their channels, and kill those that have not ended.

        One that the kernel holds in a read is left to it.
        """
        for worker in list(self._workers.values()):
            self._forget(worker)
            self._held[worker.number] = worker.process
        for process in self._held.values():
            process.kill()
        by_s = time.monotonic() + _REAP_DEADLINE_S
        for process in self._held.values():
            wait_for_exit(process, max(0.0, by_s - time.monotonic()))

    def _spawn(self, now_s: float) -> None:
        process, ours = start_child("feeder.worker")
        channel: Channel[NodeToWorker, WorkerToNode] = Channel(ours, WorkerToNode)
        channel.set_timeout(0)
        self._next_number += 1
        worker = _Worker(self._next_number, process, channel, now_s + _START_DEADLINE_S)
        self._workers[worker.number] = worker
        self._poll_set.add(channel.fileno(), functools.partial(self._read, worker))
        self.send(worker.number, self._configure, self._cache_fd)
        share = ShareIndexes(starts=self._indexes.starts, selections=self._indexes.selections)
        self.send(worker.number, share, self._indexes.fileno())

    def _read(self, worker: _Worker, now_s: float) -> None:
        """Raises the error of a worker that cannot start, unless another has come up."""
        try:
            message, fd = worker.channel.receive_with_fd()
        except ChannelClosedError:
            self._reap(worker, now_s)
            return
        match message:
            case Filled():
                stages, cache = self.record.stages, self.record.cache
                for stage, seconds in message.stage_seconds.items():
                    stages[stage] = stages.get(stage, 0.0) + seconds
                for name, count in message.cache_counts.items():
                    setattr(cache, name, getattr(cache, name) + count)
                self.record.decoded_bytes += message.decoded_bytes
                if message.fallbacks:
                    self.counters.fallbacks["turbojpeg"] += message.fallbacks
                self._report(message, now_s)
            case FillFailed() | NamesRead():
                self._report(message, now_s)
            case BlobsRead():
                self._report(BlobsArrived(message, fd), now_s)
            case IndexProven(dataset, shard):
                assert fd is not None, "its rows come with it"
                self._take_index(dataset, shard, fd)
            case Started():
                name = f"worker {worker.number}"
                self._agreement.check(Producer(name, message.self_test, message.libraries))
                # Its self-test stands for those of its successors.
                self._configure = msgspec.structs.replace(self._configure, self_test=False)
                self._crashed_starts, self.started, worker.up_s = 0, message, now_s
                if not worker.is_killed:
                    worker.deadline_s = float("inf")
                self._report(WorkerJoined(worker.number), now_s)
            case CannotStart():
                if self._configure.self_test:
                    raise message.as_error()
                if not self._crashed_starts:  # the first of a row
                    what = "ends" if worker.is_up else "cannot start"
                    _log.warning("worker %d %s: %s", worker.number, what, message.message)

    def _take_index(self, dataset: str, shard: int, fd: int) -> None:
        try:
            self._indexes.take(dataset, shard, fd)
        except OSError as error:
            text = "each worker keeps its own copy of the index of shard %d of dataset %s: %s"
            _log.warning(text, shard, dataset, error.strerror)
        finally:
            os.close(fd)

    def _reap(self, worker: _Worker, now_s: float, grace_s: float = _EXIT_GRACE_S) -> None:
        """Reap a worker or leave it to the kernel, and plan its successor.

        ResourceError when none has ever come up and they keep crashing.
        """
        self._forget(worker)
        status = wait_for_exit(worker.process, grace_s)
        if status is None:
            worker.process.kill()
            self._held[worker.number] = worker.process
        ending = describe_ending(status)
        was_killed = status in (None, -signal.SIGKILL)
        self.record.worker_restarts += 1
        self.counters.workers_held = len(self._held)
        # At once, or with exponential backoff while workers die young.
        if now_s - worker.up_s >= _YOUNG_S:
            self._backoff.reset()
            backoff_s = 0.0
        else:
            backoff_s = self._backoff.next_s()
        former_s, self.counters.worker_pause_s = self.counters.worker_pause_s, backoff_s
        self._start_s, self.deadline_s = now_s + backoff_s, 0.0
        if worker.is_up:
            text, extra = "worker %d (pid %d) %s: replaced", {"worker": worker.number}
            _log.warning(text, worker.number, worker.process.pid, ending, extra=extra)
            self._report(WorkerLost(worker.number, was_killed, is_held=status is None), now_s)
            return
        if backoff_s > former_s:
            text = "worker %d (pid %d) %s while starting: the next one starts in %.1f s"
            _log.warning(text, worker.number, worker.process.pid, ending, backoff_s)
        self.counters.worker_starts_failed += 1
        self._crashed_starts += not was_killed
        if self._configure.self_test and self._crashed_starts >= START_TRIES:
            raise ResourceError(
                f"{START_TRIES} workers in a row ended while starting, the last one {ending}: "
                "see their messages above"
            )

    def _forget(self, worker: _Worker) -> None:
        del self._workers[worker.number]
        self._poll_set.remove(worker.channel.fileno())
        worker.channel.close()
