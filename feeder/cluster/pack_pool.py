"""A pool like ``feeder.pack.task_pool``'s whose tasks run on the hosts of a Ray cluster.

    feeder pack ── tasks ──► ray_process (a child, see ``command``) ──► Ray tasks on any host
                ◄── {"kind": "report" | "done" | "error", …}

Tasks read and write a folder that all hosts share. Ray repeats those whose host is lost; they write
their files atomically, so a repeated one changes nothing. A task's reports arrive with its end, so
that a repeated task is not counted twice.
"""

import os
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final, Self

import msgspec

from feeder.cluster.command import RayChild, error_of
from feeder.errors import PeerError, ResourceError
from feeder.pack.task_pool import Message, perform_here, raise_error
from feeder.process.child import SINGLE_THREADS

CONNECT_MAX_S: Final = 30.0
STALL_S: Final = 3600.0
"""Without the end of any task: longer than a part takes whose host is lost at its end."""


_RESUMABLE: Final = "finished parts are kept, run the same command again"


class RayTaskPool:
    """Runs one module's tasks on a Ray cluster; a context manager that ends them all."""

    def __init__(
        self, module: str, setup: msgspec.Struct, *, jobs: int, address: str, tasks: int
    ) -> None:
        """Join the cluster; PeerError and ResourceError where that is impossible.

        ``tasks`` run at once, as many as the cluster has CPUs where that is 0. ``jobs``, the number
        of this host's processes, is not used.
        """
        described = msgspec.to_builtins(setup)
        self._child = RayChild(
            {"do": "pack", "address": address, "module": module, "setup": described}
        )
        try:
            answer = self._next(CONNECT_MAX_S, f"joining the Ray cluster at {address or 'auto'}")
            if "error" in answer:
                raise error_of(answer)
            self._tasks = tasks or max(1, int(answer["cpus"]))
        except BaseException:
            self._child.close()
            raise

    def run(self, tasks: Iterable[msgspec.Struct]) -> Iterator[Message]:
        """As ``TaskPool.run``. PeerError when Ray is lost; finished parts are kept then."""
        waiting = iter(tasks)
        running = 0
        while True:
            while running < self._tasks and (task := next(waiting, None)) is not None:
                self._send(msgspec.to_builtins(task))
                running += 1
            if not running:
                return
            message = self._next(STALL_S, "waiting for a task")
            if message["kind"] == "error":
                raise_error(message)
            running -= message["kind"] == "done"
            yield message

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.close()

    def _send(self, message: Message) -> None:
        try:
            self._child.send(message)
        except EOFError as end:
            raise self._lost(end) from None

    def _next(self, limit_s: float, doing: str) -> Message:
        by_s = time.monotonic() + limit_s
        try:
            while (message := self._child.receive(by_s)) is not None:
                if "doing" not in message:
                    return message
        except EOFError as end:
            raise self._lost(end) from None
        raise PeerError(
            f"Ray did not answer within {limit_s:g} s, {doing}: see `ray status`; {_RESUMABLE}"
        )

    def _lost(self, end: EOFError) -> ResourceError:
        return ResourceError(f"the connection to Ray was lost ({end}); {_RESUMABLE}")


def perform_task(module: str, setup: dict[str, Any], task: dict[str, Any]) -> list[dict[str, Any]]:
    """Perform a task in a worker of Ray; its reports and its end, as messages."""
    os.environ.update(SINGLE_THREADS)  # as the pool's processes: Ray starts several on a host
    return perform_here(module, setup, task)
