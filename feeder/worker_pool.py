"""The workers of a node process: started, watched and replaced.

A worker that dies is replaced at once if it had worked for a while, else after a growing pause.
One that says why it cannot start, or START_TRIES in a row that die while starting, end the node
process with that one line, not with a loop. So does one that would make other bytes than the first,
as libraries can be replaced under a daemon that runs. The pool never waits for a worker: what it
reads comes through the poll set, and ``tend`` does what is due at ``deadline_s``.
"""

import contextlib
import functools
import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from feeder.agreement import Agreement, Maker
from feeder.channel import Channel, ChannelClosedError, ChannelFullError
from feeder.child import start_child
from feeder.errors import ResourceError
from feeder.limit_remedies import PASSING, explain_start
from feeder.metrics import WorkerCounters
from feeder.worker_messages import (
    CannotStart,
    Configure,
    Filled,
    FillFailed,
    NodeToWorker,
    Started,
    WorkerToNode,
)

START_TRIES: Final = 3
_START_DEADLINE_S: Final = 60.0  # a cold page cache and a slow disk; usually 0.3
_YOUNG_S: Final = 1.0  # who dies before that age may do so again and again
_FIRST_PAUSE_S: Final = 0.1
_LAST_PAUSE_S: Final = 5.0
_EXIT_GRACE_S: Final = 0.2  # from the end of the channel to the end of the process
_REAP_DEADLINE_S: Final = 2.0

_log = logging.getLogger(__name__)


class PollSet(Protocol):
    """Who polls the channels."""

    def add(self, source: int, call: Callable[[], None], /) -> None:
        """Begin to poll a descriptor, and call when it has input."""

    def remove(self, source: int, /) -> None:
        """End polling it."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes]
    channel: Channel[NodeToWorker, WorkerToNode]
    start_by_s: float  # infinite once it has started
    started_s: float = 0.0
    is_killed: bool = False
    libraries: dict[str, str] = field(default_factory=dict)  # known once it has started


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker has come up; it knows of no session yet."""

    worker: int


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker that had come up has died; what it has in hand will never be filled."""

    worker: int


PoolEvent = Joined | Lost | Filled | FillFailed


class WorkerPool:
    """Keeps ``size`` workers running; ``close()`` is idempotent and bounded in time."""

    def __init__(
        self,
        size: int,
        configure: Configure,
        poll_set: PollSet,
        report: Callable[[PoolEvent], None],
        cache_fd: int | None = None,
    ) -> None:
        """Remember what to start and to whom to report; nothing runs before ``start``.

        ``cache_fd`` is the decoded cache that ``configure`` speaks of; it stays the caller's.
        """
        self.counters = WorkerCounters()
        self._size = size
        self._configure = configure
        self._poll_set = poll_set
        self._report = report
        self._cache_fd = cache_fd
        self._workers: dict[int, _Worker] = {}
        self._agreement = Agreement()
        self._stages: tuple[str, ...] = ()
        self._cache_counts: tuple[str, ...] = ()
        self._next_number = 0
        self._failed_starts = 0
        self._young_deaths = 0
        self._missing_from_s: list[float] = []  # when the workers that are missing are started
        self.deadline_s = float("inf")
        """When ``tend`` is due."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of all workers."""
        return tuple(worker.process.pid for worker in self._workers.values())

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the workers that are up."""
        return tuple(number for number, worker in self._workers.items() if worker.libraries)

    @property
    def libraries(self) -> dict[str, str]:
        """The workers' library versions, once all of them are up; empty before."""
        found = [worker.libraries for worker in self._workers.values()]
        return found[0] if len(found) == self._size and all(found) else {}

    @property
    def self_test(self) -> str:
        """The workers' self-test; empty before the first one is up."""
        return self._agreement.self_test

    def start(self) -> None:
        """Start all workers at once; they come up later, each reported as Joined.

        ResourceError where one cannot be started.
        """
        for _ in range(self._size):
            try:
                self._spawn(self_test=self._configure.self_test)
            except OSError as error:
                raise ResourceError(explain_start("a worker", error)) from error

    def tend(self, now_s: float) -> None:
        """Start what is to be started by now and end what did not come up in time.

        ResourceError where none can be started and waiting does not help.
        """
        if now_s < self.deadline_s:
            return
        for worker in list(self._workers.values()):
            if worker.start_by_s <= now_s:
                _log.warning("worker %d did not start in %.0f s", worker.number, _START_DEADLINE_S)
                self._bury(worker)
        due = [at_s for at_s in self._missing_from_s if at_s <= now_s]
        self._missing_from_s = [at_s for at_s in self._missing_from_s if at_s > now_s]
        for started in range(len(due)):
            try:
                self._spawn(self_test=False)
            except OSError as error:
                text = explain_start("a worker", error)
                if error.errno not in PASSING:
                    raise ResourceError(text) from error
                _log.warning("%s; trying again in %.0f s", text, _LAST_PAUSE_S)
                self._missing_from_s += [now_s + _LAST_PAUSE_S] * (len(due) - started)
                break
        self._set_deadline()

    def send(self, number: int, message: NodeToWorker, fd: int | None = None) -> None:
        """Send to a worker that has come up; one that does not read its channel is ended."""
        worker = self._workers.get(number)
        if worker is None:
            return
        try:
            worker.channel.send(message, fd)
        except ChannelFullError:
            self.kill(number)
        except ChannelClosedError:
            pass  # its end is about to be read

    def send_to_all(self, message: NodeToWorker, fd: int | None = None) -> None:
        """Send to all workers that have come up."""
        for worker in list(self._workers.values()):
            if worker.libraries:
                self.send(worker.number, message, fd)

    def kill(self, number: int) -> None:
        """End a worker that makes no progress; that it is lost is read from its channel."""
        worker = self._workers.get(number)
        if worker is not None and not worker.is_killed:
            worker.is_killed = True
            _log.warning("worker %d (pid %d) is stuck: ended", number, worker.process.pid)
            self.counters.workers_killed += 1
            worker.process.kill()

    def close(self) -> None:
        """End all workers: they leave when their channel does, and are killed to be sure."""
        workers = list(self._workers.values())
        self._missing_from_s.clear()
        for worker in workers:
            self._forget(worker)
        _end([worker.process for worker in workers], grace_s=0.0)

    def _spawn(self, *, self_test: bool) -> None:
        process, ours = start_child("feeder.worker")
        channel: Channel[NodeToWorker, WorkerToNode] = Channel(ours, WorkerToNode)
        channel.set_timeout(0)
        self._next_number += 1
        worker = _Worker(
            number=self._next_number,
            process=process,
            channel=channel,
            start_by_s=time.monotonic() + _START_DEADLINE_S,
        )
        self._workers[worker.number] = worker
        self._poll_set.add(channel.fileno(), functools.partial(self._read, worker))
        configure = msgspec.structs.replace(self._configure, self_test=self_test)
        self.send(worker.number, configure, self._cache_fd)
        self._set_deadline()

    def _read(self, worker: _Worker) -> None:
        """Take one message from a worker; raises what it says it cannot start for."""
        try:
            message = worker.channel.receive()
        except ChannelClosedError:
            self._bury(worker)
            return
        match message:
            case Filled():
                totals = self.counters.stage_seconds
                for stage, seconds in zip(self._stages, message.stage_seconds, strict=True):
                    totals[stage] = totals.get(stage, 0.0) + seconds
                counts = self.counters.cache
                for name, count in zip(self._cache_counts, message.cache_counts, strict=True):
                    counts[name] = counts.get(name, 0) + count
                self._report(message)
            case FillFailed():
                self._report(message)
            case Started():
                name = f"worker {worker.number}"
                self._agreement.check(Maker(name, message.self_test, message.libraries))
                self._failed_starts = 0
                self._stages, self._cache_counts = message.stages, message.cache_counts
                worker.libraries, worker.start_by_s = message.libraries, float("inf")
                worker.started_s = time.monotonic()
                self._set_deadline()
                self._report(Joined(worker.number))
            case CannotStart():
                raise message.as_error()

    def _bury(self, worker: _Worker) -> None:
        """Reap a worker and plan its successor; ResourceError when successors keep dying."""
        self._forget(worker)
        _end([worker.process], _EXIT_GRACE_S)
        ending = _describe_ending(worker.process.returncode)
        self.counters.worker_restarts += 1
        now_s = time.monotonic()
        is_young = now_s - worker.started_s < _YOUNG_S or not worker.libraries
        self._young_deaths = self._young_deaths + 1 if is_young else 0
        pause_s = min(_FIRST_PAUSE_S * 2**self._young_deaths, _LAST_PAUSE_S) if is_young else 0.0
        self._missing_from_s.append(now_s + pause_s)
        self._set_deadline()
        if worker.libraries:
            _log.warning(
                "worker %d (pid %d) %s: replaced", worker.number, worker.process.pid, ending
            )
            self._report(Lost(worker.number))
            return
        self._failed_starts += 1
        if self._failed_starts >= START_TRIES:
            raise ResourceError(
                f"{START_TRIES} workers in a row ended while starting, the last one {ending}: "
                "see their messages above"
            )

    def _set_deadline(self) -> None:
        starting = [worker.start_by_s for worker in self._workers.values()]
        self.deadline_s = min(self._missing_from_s + starting, default=float("inf"))

    def _forget(self, worker: _Worker) -> None:
        del self._workers[worker.number]
        self._poll_set.remove(worker.channel.fileno())
        worker.channel.close()


def _end(processes: Sequence[subprocess.Popen[bytes]], grace_s: float) -> None:
    """Reap processes, which have ``grace_s`` to end by themselves: then they say how they ended.

    One that the kernel holds on to (for a disk) is left to it, and ends with this process.
    """
    for wait_s in (grace_s, _REAP_DEADLINE_S):
        by_s = time.monotonic() + wait_s
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, by_s - time.monotonic()))
        for process in processes:
            if process.returncode is None:
                process.kill()


def _describe_ending(status: int | None) -> str:
    if status is None:
        return "does not end"
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
