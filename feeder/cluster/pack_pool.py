"""Runs tasks as ``feeder.pack.task_pool`` does, on the hosts of a Ray cluster.

    feeder pack ── tasks ──► ray_process (a child, see ``command``) ──► Ray tasks on any host
                ◄── {"kind": "report" | "done" | "error", …}

Tasks read and write a folder that all hosts share. Ray repeats those whose host is lost; they write
their files atomically, so a repeated one changes nothing. A task's reports arrive with its end, so
that a repeated task is not counted twice.
"""

import os
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

import msgspec

from feeder.cluster.command import RayChild
from feeder.errors import PeerError, ResourceError
from feeder.pack.task_pool import Message, Messages, perform_here, raise_error
from feeder.process.child import SINGLE_THREADS

CONNECT_MAX_S: Final = 30.0
STALL_S: Final = 3600.0
"""Without the end of any task: longer than a part takes whose host is lost at its end."""


_RESUMABLE: Final = "finished parts are kept, run the same command again"


def run_on_ray(
    module: str,
    setup: msgspec.Struct,
    tasks: Iterable[msgspec.Struct],
    *,
    jobs: int,
    address: str,
    at_once: int,
) -> Messages:
    """As ``run_tasks``, on a Ray cluster. PeerError and ResourceError where that is lost.

    ``at_once`` tasks run together, as many as the cluster has CPUs where that is 0. ``jobs``, the
    number of this host's processes, is not used.
    """
    described = msgspec.to_builtins(setup)
    request = {"do": "pack", "address": address, "module": module, "setup": described}
    waiting = iter(tasks)
    running = 0
    with RayChild(request) as child:
        try:
            at_once = at_once or max(1, int(_next(child, CONNECT_MAX_S)["cpus"]))
            child.doing = "waiting for a task"
            while True:
                for task in islice(waiting, at_once - running):
                    child.send(msgspec.to_builtins(task))
                    running += 1
                if not running:
                    return
                message = _next(child, STALL_S)
                if message["kind"] == "error":
                    raise_error(message)
                running -= message["kind"] == "done"
                yield message
        except EOFError as end:
            raise ResourceError(f"the connection to Ray was lost ({end}); {_RESUMABLE}") from None


def _next(child: RayChild, limit_s: float) -> Message:
    try:
        return child.receive(limit_s)
    except TimeoutError:
        raise PeerError(
            f"Ray did not answer within {limit_s:g} s, {child.doing}: see `ray status`; "
            f"{_RESUMABLE}"
        ) from None


def perform_task(module: str, setup: dict[str, Any], task: dict[str, Any]) -> list[dict[str, Any]]:
    """Perform a task in a worker of Ray; its reports and its end, as messages."""
    os.environ.update(SINGLE_THREADS)  # as the pool's processes: Ray starts several on a host
    messages: list[Message] = []
    perform_here(module, setup, task, messages.append)
    return messages
