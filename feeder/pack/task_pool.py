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
import importlib
import json
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from feeder.dataset.manifest import Manifest, ShardEntry
from feeder.errors import (
    ConfigError,
    DatasetError,
    FeederError,
    ResourceError,
    SourceChangedError,
    StoreError,
)
from feeder.host.topology import usable_cpus
from feeder.process.child import SINGLE_THREADS, die_with_parent, start_child, wait_for_exit
from feeder.process.shortage import check_import_memory, explain_shortage, name_file

Message = dict[str, Any]
Messages = Generator[Message, None, None]
RunTasks = Callable[..., Messages]
"""Called as ``run_tasks`` is."""

_MESSAGE_BYTES_MAX: Final = 1 << 16
_STALL_S: Final = 600.0  # longer than any file, or any fsync of a shard on a slow disk, takes
_EXIT_MAX_S: Final = 10.0
_KILLED_EXIT_MAX_S: Final = 2.0
_JOBS_MAX: Final = 4096
_REPORT_EVERY_S: Final = 0.25
_KINDS: Final = (SourceChangedError, ConfigError, DatasetError, ResourceError)
_ERRORS: Final = {kind.__name__: kind for kind in _KINDS}  # derived classes first
_STORE: Final = "store"
"""The key of a StoreError's kind."""


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


def choose_jobs(requested: int | None) -> int:
    """Check the requested number of worker processes; None means one for each usable core."""
    if requested is None:
        return usable_cpus().count
    if not 1 <= requested <= _JOBS_MAX:
        raise ConfigError(f"--jobs {requested} is not within 1 .. {_JOBS_MAX}")
    return requested


# In the parent


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    socket: socket.socket


def run_tasks(
    module: str, setup: msgspec.Struct, tasks: Iterable[msgspec.Struct], *, jobs: int
) -> Messages:
    """Perform ``tasks``; yield the messages of kind "report" and "done" as they arrive.

    Tasks are taken from ``tasks`` as workers become free. Raises a task's FeederError or OSError,
    and ResourceError when a worker dies or all stall. However this ends, closed early included, no
    worker is left, and tasks still running are abandoned.
    """
    waiting = iter(tasks)
    workers: list[_Worker] = []
    with selectors.DefaultSelector() as busy:
        try:
            for task in islice(waiting, jobs):
                worker = _start(module)
                workers.append(worker)
                busy.register(worker.socket, selectors.EVENT_READ, worker)
                _send(worker, setup)
                _send(worker, task)
            while busy.get_map():
                ready = busy.select(_STALL_S)
                if not ready:
                    stalled = next(iter(busy.get_map().values())).data
                    raise ResourceError(
                        f"worker process {stalled.process.pid} sent nothing for {_STALL_S:.0f} s: "
                        "check that its disk responds, then run the same command again"
                    )
                for key, _ in ready:
                    worker = key.data
                    message = _receive(worker)
                    if message["kind"] == "error":
                        raise_error(message)
                    if message["kind"] == "done":
                        following = next(waiting, None)
                        if following is None:
                            busy.unregister(worker.socket)
                        else:
                            _send(worker, following)
                    yield message
        finally:
            _end(workers)


def _start(module: str) -> _Worker:
    try:
        process, ours = start_child(
            "feeder.pack.task_pool",
            module,
            more=SINGLE_THREADS,
            process_group=0,  # the terminal's Ctrl-C is for the parent
        )
    except OSError as error:
        raise ResourceError(
            f"no worker process can be started ({error.strerror}): use fewer --jobs"
        ) from error
    return _Worker(process, ours)


def _send(worker: _Worker, message: msgspec.Struct) -> None:
    try:
        worker.socket.send(_encode(message))
    except (BrokenPipeError, ConnectionResetError):
        raise _death(worker) from None


def _receive(worker: _Worker) -> Message:
    try:
        packet = worker.socket.recv(_MESSAGE_BYTES_MAX)
    except ConnectionResetError:
        packet = b""
    if not packet:
        raise _death(worker)
    message: Message = json.loads(packet)
    return message


def _death(worker: _Worker) -> ResourceError:
    status = worker.process.wait(timeout=_EXIT_MAX_S)
    how = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
    return ResourceError(
        f"worker process {worker.process.pid} died ({how}): if memory ran out, use fewer "
        "--jobs; finished work is kept, run the same command again"
    )


def _end(workers: Iterable[_Worker]) -> None:
    """Kill and reap all workers, busy or not: what they finished is durable."""
    for worker in workers:
        worker.process.kill()
        worker.socket.close()
    # A killed worker can linger in a read that does not return: only the kernel can end it.
    by_s = time.monotonic() + _KILLED_EXIT_MAX_S
    for worker in workers:
        wait_for_exit(worker.process, max(0.0, by_s - time.monotonic()))


def raise_error(message: Message) -> None:
    """Raise what a task's message of kind "error" describes: a FeederError or OSError."""
    if "errno" in message:
        raise OSError(message["errno"], message["message"], message["path"])
    if _STORE in message:
        raise StoreError(message[_STORE], message["message"])
    raise _ERRORS.get(message["error"], ResourceError)(message["message"])


def _encode(message: Message | msgspec.Struct) -> bytes:
    # Not msgspec's JSON: paths may hold lone surrogates, which json escapes.
    return json.dumps(msgspec.to_builtins(message)).encode("ascii")


# In a worker


class Report:
    """What a task sends to its parent before its end."""

    def __init__(self, send: Callable[[Message], object]) -> None:
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


def main(arguments: list[str]) -> int:
    """Run a worker; arguments: the socket's descriptor, the parent's pid, the module."""
    descriptor, parent, name = int(arguments[0]), int(arguments[1]), arguments[2]
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent gets them too and ends its workers
        signal.signal(number, signal.SIG_IGN)
    with (
        socket.socket(fileno=descriptor) as parent_socket,
        contextlib.suppress(BrokenPipeError, ConnectionResetError),  # the parent is gone
    ):
        setup = json.loads(parent_socket.recv(_MESSAGE_BYTES_MAX) or b"{}")
        while packet := parent_socket.recv(_MESSAGE_BYTES_MAX):
            perform_here(name, setup, json.loads(packet), lambda m: parent_socket.send(_encode(m)))
    return 0


def perform_here(
    module: str, setup: Message, task: Message, send: Callable[[Message], object]
) -> None:
    """Perform a task of ``module`` in this process; ``send`` gets its reports and its end.

    Raises only what ``send`` does if the parent is gone, and for a bug.
    """
    report = Report(send)
    try:
        if module not in sys.modules:  # else it has its memory
            check_import_memory()
        tasks = importlib.import_module(module)
        answer = tasks.perform(
            msgspec.convert(setup, tasks.Setup), msgspec.convert(task, tasks.Task), report
        )
        message = {"kind": "done", **report.take(), **(answer or {})}
    except (BrokenPipeError, ConnectionResetError):
        raise
    except OSError as error:
        path = name_file(error) or None
        message = {"errno": error.errno, "message": error.strerror, "path": path, "kind": "error"}
    except StoreError as error:
        message = {"kind": "error", _STORE: error.kind, "message": str(error)}
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
