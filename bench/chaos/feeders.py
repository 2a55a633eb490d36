"""The feeders of ``feeder-bench chaos``: one daemon each, which faults strike and which restarts.

A feeder keeps its two endpoints: ipc, and tcp behind a proxy. When its daemon has ended, another is
started at the same endpoints, as systemd would.
"""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Self

import psutil

from feeder.client.stats import request_counters
from feeder.errors import PeerError
from feeder.metrics.fields import Counters
from feeder.plan.recipe import Recipe

from ..daemon import Daemon, free_port
from ..fetcher import BatchFetcher
from .proxy import TcpProxy

_ANSWER_S: Final = 1.0


class Feeder:
    """One feeder; a context manager that ends it."""

    def __init__(self, dataset: Path, *, workers: int, lease_s: float) -> None:
        """Start it; it is ready when this returns."""
        self._dataset = dataset
        self._workers = workers
        self._options = ["--lease-s", str(lease_s)]
        self._folder = Path(tempfile.mkdtemp(prefix="feeder-chaos-"))
        self.ipc = f"ipc://{self._folder}/node"
        port = free_port()
        self._tcp = f"tcp://127.0.0.1:{port}"
        self.proxy = TcpProxy(port)
        self._seen: set[psutil.Process] = set()
        try:
            self.daemon = self._start()
        except BaseException:
            self._remove()
            raise

    @property
    def node(self) -> psutil.Process:
        """Its node process."""
        return self._of_module("feeder.node")[0]

    @property
    def workers(self) -> list[psutil.Process]:
        """Its workers."""
        return self._of_module("feeder.worker")

    def restart(self, end: Callable[[Daemon], None]) -> None:
        """End its daemon with ``Daemon.kill`` or ``terminate``, and start another."""
        self._look()
        end(self.daemon)
        self.daemon = self._start()

    def is_whole(self) -> bool:
        """Whether it replies and has all its workers; a daemon that has ended is restarted."""
        if not self.daemon.is_running:
            self.daemon = self._start()
        return self.counters().get("workers") == self._workers

    def counters(self) -> Counters:
        """Return its counters, not through the proxy; none when it does not reply."""
        try:
            return request_counters(self._tcp, _ANSWER_S)
        except PeerError:
            return {}

    def warm_up(self, recipe: Recipe) -> None:
        """Fetch a batch over each endpoint: lazily opened descriptors must not count as leaks."""
        for endpoint in (self.ipc, self._tcp):
            with BatchFetcher(endpoint, recipe=recipe, window=1) as fetcher:
                next(fetcher.fetch([(0, 0)]))

    def fds(self) -> Mapping[str, int]:
        """Return the number of descriptors of each process, without shards of the dataset."""
        processes = {"supervisor": self._look()[0], "node": self.node}
        for number, worker in enumerate(self.workers, start=1):
            processes[f"worker-{number}"] = worker
        return {role: _count_fds(each.pid, self._dataset) for role, each in processes.items()}

    def close(self) -> list[str]:
        """End it cleanly; return what it left behind: processes and sockets."""
        self._look()
        self.daemon.terminate()
        _, alive = psutil.wait_procs(list(self._seen), timeout=_ANSWER_S)
        left = [f"process {process.pid}" for process in alive]
        left += [f"socket {path.name}" for path in self._folder.glob("node*")]
        for process in alive:
            process.kill()
        self._remove()
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder.exists():
            self.close()

    def _start(self) -> Daemon:
        daemon = Daemon(
            self._dataset,
            ipc=self.ipc,
            tcp=self._tcp,
            workers=self._workers,
            options=self._options,
        )
        self._seen.update(daemon.processes())
        return daemon

    def _look(self) -> list[psutil.Process]:
        """Return its current processes, and remember them."""
        processes = self.daemon.processes() if self.daemon.is_running else []
        self._seen.update(processes)
        return processes

    def _of_module(self, module: str) -> list[psutil.Process]:
        processes: list[psutil.Process] = []
        for process in self._look():
            with contextlib.suppress(psutil.NoSuchProcess):  # dataset checks are short-lived
                if module in process.cmdline():
                    processes.append(process)
        return processes

    def _remove(self) -> None:
        self.proxy.close()
        shutil.rmtree(self._folder)


def _count_fds(pid: int, dataset: Path) -> int:
    count, shards = 0, str(dataset.resolve())
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            count += not str(link.readlink()).startswith(shards)
    return count
