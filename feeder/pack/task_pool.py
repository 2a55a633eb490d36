"""Runs tasks in worker processes, for listing, packing, verifying, unpacking and repacking.

    parent                                   worker: python -m feeder.pack.task_pool
      setup, then one task at a time ──────►   perform(setup, task, report)
      ◄─────── {"kind": "report", …} any number, then {"kind": "done", …} or {"kind": "error", …}

A module of tasks has the structs ``Setup`` and ``Task`` and the function ``perform``. Reports are
counts since the last one (``count``, ``bytes``, …) a few times a second, and whatever ``perform``
sends itself; "done" has the remaining counts and what ``perform`` returns.

Each worker is a fresh interpreter (never a fork) at the other end of a SOCK_SEQPACKET pair;
messages are JSON, one a packet, below 64 KiB. Workers ignore SIGINT and SIGTERM and die with their
parent. They may be killed at any time, so tasks write files atomically.
"""

import contextlib
import functools
import importlib
import json
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self

import msgspec

from feeder.dataset.manifest import Manifest, ShardEntry
from feeder.errors import ConfigError, DatasetError, FeederError, ResourceError
from feeder.host.topology import usable_cpus
from feeder.process.child import SINGLE_THREADS, die_with_parent, start_child
from feeder.process.shortage import check_import_memory, explain_shortage, name_file
from feeder.source.location.storage import SourceChangedError

Message = dict[str, Any]

_MESSAGE_BYTES_MAX: Final = 1 << 16
_STALL_S: Final = 600.0  # longer than any file, or any fsync of a shard on a slow disk, takes
_EXIT_MAX_S: Final = 10.0
_KILLED_EXIT_MAX_S: Final = 2.0
_JOBS_MAX: Final = 4096
_REPORT_EVERY_S: Final = 0.25
_KINDS: Final = (SourceChangedError, ConfigError, DatasetError, ResourceError)
_ERRORS: Final = {kind.__name__: kind for kind in _KINDS}  # derived classes first


class ShardTask(msgspec.Struct, frozen=True, kw_only=True):
    """A shard of a dataset to work on, its manifest entry, and the number of its first sample."""

    number: int
    first_sample: int
    entry: ShardEntry


def shard_tasks(manifest: Manifest) -> Iterator[ShardTask]:
    """Yield a task for each shard, in order."""
    first_sample = 0
    for number, entry in enumerate(manifest.shards):
        yield ShardTask(number=number, first_sample=first_sample, entry=entry)
        first_sample += entry.samples


@dataclass(slots=True, eq=False)
class _Worker:
    process: subprocess.Popen[bytes]
    socket: socket.socket
    is_busy: bool = False
    last_message_s: float = field(default_factory=time.monotonic)


class Pool(Protocol):
    """Performs tasks; a context manager that ends them all."""

    def run(self, tasks: Iterable[msgspec.Struct]) -> Iterator[Message]:
        """As ``TaskPool.run``."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


MakePool = Callable[..., Pool]
"""Called as ``TaskPool`` is."""


class TaskPool:
    """Worker processes for one module's tasks; a context manager that ends them all."""

    def __init__(self, module: str, setup: msgspec.Struct, *, jobs: int) -> None:
        self._module = module
        self._setup = setup
        self._jobs = jobs
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()

    def run(self, tasks: Iterable[msgspec.Struct]) -> Iterator[Message]:
        """Perform ``tasks``; yield the messages of kind "report" and "done" as they arrive.

        Tasks are taken from ``tasks`` as workers become free. Raises a task's FeederError or
        OSError, and ResourceError when a worker dies or stalls; tasks still running are abandoned.
        """
        waiting = iter(tasks)
        for _ in range(self._jobs):
            first = next(waiting, None)
            if first is None:
                break
            self._assign(self._start(), first)
        while any(worker.is_busy for worker in self._workers):
            for worker in self._ready():
                if not worker.is_busy:  # readable while idle: it died, but without a task
                    self._selector.unregister(worker.socket)
                    continue
                message = self._receive(worker)
                if message["kind"] == "error":
                    raise_error(message)
                if message["kind"] == "done":
                    self._assign(worker, next(waiting, None))
                yield message

    def _start(self) -> _Worker:
        try:
            process, ours = start_child(
                "feeder.pack.task_pool",
                self._module,
                more=SINGLE_THREADS,
                process_group=0,  # the terminal's Ctrl-C is for the parent
            )
        except OSError as error:
            raise ResourceError(
                f"no worker process can be started ({error.strerror}): use fewer --jobs"
            ) from error
        worker = _Worker(process, ours)
        self._workers.append(worker)
        self._selector.register(ours, selectors.EVENT_READ, worker)
        self._send(worker, self._setup)
        return worker

    def _assign(self, worker: _Worker, task: msgspec.Struct | None) -> None:
        worker.is_busy = task is not None
        if task is not None:
            worker.last_message_s = time.monotonic()
            self._send(worker, task)

    def _send(self, worker: _Worker, message: msgspec.Struct) -> None:
        try:
            worker.socket.send(_encode(message))
        except (BrokenPipeError, ConnectionResetError):
            raise self._death(worker) from None

    def _ready(self) -> list[_Worker]:
        """Wait 1 s at most for workers with a message; raise if one has stalled."""
        ready = [key.data for key, _ in self._selector.select(timeout=1.0)]
        now_s = time.monotonic()
        for worker in self._workers:
            if worker in ready:
                worker.last_message_s = now_s
            elif worker.is_busy and now_s - worker.last_message_s > _STALL_S:
                raise ResourceError(
                    f"worker process {worker.process.pid} sent nothing for {_STALL_S:.0f} s: check "
                    "that its disk responds, then run the same command again"
                )
        return ready

    def _receive(self, worker: _Worker) -> Message:
        try:
            packet = worker.socket.recv(_MESSAGE_BYTES_MAX)
        except ConnectionResetError:
            packet = b""
        if not packet:
            raise self._death(worker)
        message: Message = json.loads(packet)
        return message

    def _death(self, worker: _Worker) -> ResourceError:
        status = worker.process.wait(timeout=_EXIT_MAX_S)
        how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        return ResourceError(
            f"worker process {worker.process.pid} died ({how}): if memory ran out, use fewer "
            "--jobs; finished work is kept, run the same command again"
        )

    def close(self) -> None:
        """End all workers: busy ones are killed, idle ones exit as their socket closes."""
        for worker in self._workers:
            if worker.is_busy:
                worker.process.kill()
            worker.socket.close()
        _reap([worker for worker in self._workers if not worker.is_busy], _EXIT_MAX_S)
        for worker in self._workers:
            worker.process.kill()
        # A killed worker can linger in a read that does not return: only the kernel can end it.
        _reap(self._workers, _KILLED_EXIT_MAX_S)
        self._workers.clear()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _reap(workers: Iterable[_Worker], limit_s: float) -> None:
    """Reap ``workers``, ``limit_s`` at most in all."""
    by_s = time.monotonic() + limit_s
    for worker in workers:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(max(0.0, by_s - time.monotonic()))


def choose_jobs(requested: int | None) -> int:
    """Check the requested number of worker processes; None means one for each usable core."""
    if requested is None:
        return usable_cpus().count
    if not 1 <= requested <= _JOBS_MAX:
        raise ConfigError(f"--jobs {requested} is not within 1 .. {_JOBS_MAX}")
    return requested


class Report:
    """What a task sends to its parent before its end."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._counts: Counter[str] = Counter()
        self._sent_s = time.monotonic()

    def add(self, **counts: int) -> None:
        """Add counts, which are sent a few times a second."""
        self._counts.update(counts)
        if time.monotonic() - self._sent_s > _REPORT_EVERY_S:
            self.send()
            self._sent_s = time.monotonic()

    def send(self, **body: Any) -> None:
        """Send a report at once."""
        self._send({"kind": "report", **body, **self.take()})

    def take(self) -> dict[str, int]:
        """Return and forget the counts that were not sent."""
        counts, self._counts = dict(self._counts), Counter()
        return counts


Perform = Callable[[Message, Message, Report], Message | None]


def _encode(message: Message | msgspec.Struct) -> bytes:
    # Not msgspec's JSON: paths may hold lone surrogates, which json escapes.
    return json.dumps(msgspec.to_builtins(message)).encode("ascii")


def raise_error(message: Message) -> None:
    """Raise what a task's message of kind "error" describes: a FeederError or OSError."""
    if "errno" in message:
        raise OSError(message["errno"], message["message"], message["path"])
    raise _ERRORS.get(message["error"], ResourceError)(message["message"])


def main(arguments: list[str]) -> int:
    """Run a worker; arguments: the socket's descriptor, the parent's pid, the module."""
    descriptor, parent, name = int(arguments[0]), int(arguments[1]), arguments[2]
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent gets them too and ends its workers
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as parent_socket:

        def send(message: Message) -> None:
            parent_socket.send(_encode(message))

        perform: Perform
        try:
            check_import_memory()
            perform = _load(name)
        except Exception as error:
            if explain_shortage(error) is None and not isinstance(error, FeederError):
                raise
            perform = functools.partial(_raise, error)  # reported as the first task's error
        setup = json.loads(parent_socket.recv(_MESSAGE_BYTES_MAX) or b"{}")
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone
            while packet := parent_socket.recv(_MESSAGE_BYTES_MAX):
                _perform_one(perform, setup, json.loads(packet), send)
    return 0


def perform_here(module: str, setup: Message, task: Message) -> list[Message]:
    """Perform a task in this process; return its reports and its end, as a worker sends them."""
    messages: list[Message] = []
    _perform_one(_load(module), setup, task, messages.append)
    return messages


def _load(name: str) -> Perform:
    module = importlib.import_module(name)

    def perform(setup: Message, task: Message, report: Report) -> Message | None:
        typed = msgspec.convert(setup, module.Setup), msgspec.convert(task, module.Task)
        answer: Message | None = module.perform(*typed, report)
        return answer

    return perform


def _raise(error: Exception, *_: object) -> Message:
    raise error


def _perform_one(
    perform: Perform,
    setup: Message,
    task: Message,
    send: Callable[[Message], None],
) -> None:
    """Perform a task and send its end. Raises only if the parent is gone, or for a bug."""
    report = Report(send)
    try:
        answer = perform(setup, task, report)
        message = {"kind": "done", **report.take(), **(answer or {})}
    except (BrokenPipeError, ConnectionResetError):
        raise
    except OSError as error:
        path = name_file(error) or None
        message = {"errno": error.errno, "message": error.strerror, "path": path, "kind": "error"}
    except FeederError as error:
        kind = next((k.__name__ for k in _ERRORS.values() if isinstance(error, k)), "")
        message = {"kind": "error", "error": kind, "message": str(error)}
    except Exception as error:
        shortage = explain_shortage(error)
        if shortage is None:
            raise
        message = {"kind": "error", "error": "ResourceError", "message": str(shortage)}
    send(message)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
