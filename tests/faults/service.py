"""A feeder at one endpoint that comes back, as systemd has it; and the traces that faults leave."""

import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import psutil

from feeder.client.stats import request_counters
from feeder.errors import PeerError
from tests.support.daemon import DEADLINE_S, Daemon, wait_until

WORKERS = 2


class Service:
    """Daemons at one endpoint, one after the other; leaving its context ends the last one."""

    def __init__(self, packed: Path, bind: str, *more: str) -> None:
        self.endpoint = bind
        self._arguments = ("--data", f"d={packed}", "--bind", bind, *more)
        self._arguments += ("--workers", str(WORKERS), "--chunk-images", "4")
        self.daemon = Daemon(*self._arguments)

    def start(self, *, is_ready: bool = True) -> Daemon:
        """Start the next, which must be the only one."""
        assert not self.is_running, "the former is still there"
        self.end()
        self.daemon = Daemon(*self._arguments, is_ready=is_ready)
        return self.daemon

    @property
    def is_running(self) -> bool:
        return self.daemon.is_running

    def revive(self) -> None:
        """See to it that it serves, with all its workers, whatever was done to it."""
        if not self.is_running:
            self.start()
        self.await_all()

    def await_all(self) -> None:
        """Return once it answers and has all its workers."""
        wait_until(lambda: self.counters().get("workers") == WORKERS, "it serves with all workers")
        self.daemon.family()

    def counters(self) -> dict[str, Any]:
        """Return the counters of its node process; nothing while it is away."""
        try:
            return dict(request_counters(self.endpoint, 1.0))
        except PeerError:
            return {}

    def await_end(self) -> None:
        """Return once the supervisor has ended, killed or in good order."""
        assert self.daemon.process.wait(DEADLINE_S) in (0, -signal.SIGKILL)

    def await_counters(self, **wanted: int) -> None:
        wait_until(lambda: wanted.items() <= self.counters().items(), f"counters are {wanted}")

    def await_none_held(self) -> None:
        self.await_counters(sessions=0, slots_committed_bytes=0, slots_held_bytes=0)

    def end(self) -> None:
        self.daemon.__exit__(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.daemon.__exit__(kind, *error)


def await_fds(process: psutil.Process, most: int) -> None:
    """Return once a process has no more than ``most`` descriptors."""
    wait_until(lambda: process.num_fds() <= most, f"{process} has {most} descriptors", DEADLINE_S)


def shared_names(processes: Iterable[psutil.Process]) -> set[str]:
    """Return what processes hold of /dev/shm, where nothing of ours may ever be."""
    return {
        str(target)
        for process in processes
        for folder in ("fd", "map_files")
        for link in Path(f"/proc/{process.pid}/{folder}").iterdir()
        if (target := _target(link)).startswith("/dev/shm")
    }


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except FileNotFoundError:  # closed meanwhile
        return ""
