"""The feeders and clients of ``feeder-bench chaos``, and the faults that struck them.

A feeder keeps its two endpoints: ipc, and tcp behind a proxy. When its daemon has ended, another is
started at the same endpoints, as systemd would.

One fault at a time: ``strike`` returns when all feeders have recovered and every client has got a
batch since. During this and every other wait, the clients' lines are read.
"""

import math
import selectors
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple, Self, cast

import psutil

from feeder.client.stats import request_counters
from feeder.errors import PeerError
from feeder.metrics.fields import Counters
from feeder.plan.recipe import Recipe

from ..daemon import Daemon, free_port
from ..fetcher import BatchFetcher
from ..footprint import mapped_slot_memories
from ..store_proxy import Kind as StoreFault
from ..store_proxy import StoreProxy
from .clients import TIMEOUT_S, Client
from .judgement import Fault
from .proxy import TcpProxy

FETCHER: Final = "feeder.disk_cache"

_MODULES: Final = {"worker": "feeder.worker", "node": "feeder.node", "fetcher": FETCHER}
_AMOUNTS: Final = {"slow": 1e6, "late": 0.2}  # bytes a second of each body; seconds
_TIMES: Final = {"flip": 2}  # what is wrong three times in a row is damaged in the store
_ANSWER_S: Final = 1.0
_LOOK_S: Final = 0.05  # between two checks of a feeder

_FDS_MORE: Final = 2  # that are no leak: libraries open some descriptors on first use

_GIVE_BACK_S: Final = 15.0  # for what gone clients held to be freed: a few times the lease

_GIVEN_BACK: Final = ("sessions", "slots_committed_bytes", "slots_held_bytes")
"""Counters that are 0 without clients."""


class Remote(NamedTuple):
    """A dataset in a store, and the disk cache of all feeders."""

    url: str
    environ: Mapping[str, str]
    cache: Path
    disk_bytes: int
    working_set: int
    """What the clients' recipe asks for."""
    proxy: StoreProxy

    def options(self) -> list[str]:
        return ["--disk-path", str(self.cache), "--disk-bytes", str(self.disk_bytes)]


class Feeder:
    """One feeder with one worker; a context manager that ends it."""

    def __init__(self, dataset: Path | Remote, *, lease_s: float) -> None:
        self._dataset, self._lease_s = dataset, lease_s
        self._seen: set[psutil.Process] = set()
        port = free_port()
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="feeder-chaos-"))
            self._folder = Path(folder)
            self.ipc, self._tcp = f"ipc://{folder}/node", f"tcp://127.0.0.1:{port}"
            self.proxy = stack.enter_context(TcpProxy(port))
            self._start()
            self._resources = stack.pop_all()

    def restart(self, number: signal.Signals) -> None:
        """End its daemon with a signal, and start another."""
        self._look()
        self.daemon.terminate(number)
        self._start()

    def is_whole(self) -> bool:
        """Whether it replies and has its worker; a daemon that has ended is restarted."""
        if not self.daemon.is_running:
            self._start()
        self._look()
        return self.has_fetcher() and self.counters().get("workers") == 1

    def has_fetcher(self) -> bool:
        """Whether it has its fetcher, if it needs one."""
        if isinstance(self._dataset, Path):
            return True
        try:
            return self.daemon.find(FETCHER).is_running()
        except PeerError:
            return False

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
                next(fetcher.fetch())

    def fds(self) -> Mapping[str, int]:
        """Return the number of descriptors of each process, without shards of the dataset."""
        counts = {}
        # A selection is a file, whose samples are in a dataset elsewhere.
        cache = None if isinstance(self._dataset, Path) else self._dataset.cache.resolve()
        processes = {
            "supervisor": self.daemon.processes()[0],
            "node": self.daemon.find("feeder.node"),
            "worker-1": self.daemon.find("feeder.worker"),
        }
        for role, process in processes.items():
            counts[role] = 0
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # closed meanwhile
                    file = link.readlink()
                    is_cached = cache is not None and file.is_relative_to(cache)
                    counts[role] += not (is_cached or file.suffix == ".fds")
        return counts

    def close(self) -> list[str]:
        """End it cleanly; return what it left behind: processes and sockets."""
        self._look()
        self.daemon.terminate()
        _, alive = psutil.wait_procs(list(self._seen), timeout=_ANSWER_S)
        left = [f"process {process.pid}" for process in alive]
        left += [f"socket {path.name}" for path in self._folder.glob("node*")]
        for process in alive:
            process.kill()
        self._resources.close()
        return left

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._folder.exists():
            self.close()

    def _start(self) -> None:
        options = ["--lease-s", str(self._lease_s)]
        environ: Mapping[str, str] | None = None
        dataset: Path | str
        if isinstance(self._dataset, Remote):
            dataset, environ = self._dataset.url, self._dataset.environ
            options += self._dataset.options()
        else:
            dataset = self._dataset
        self.daemon = Daemon(
            dataset, ipc=self.ipc, tcp=self._tcp, workers=1, options=options, environ=environ
        )
        self._look()

    def _look(self) -> None:
        """Remember its present processes: they must end with it."""
        if self.daemon.is_running:
            self._seen.update(self.daemon.processes())


class Scene:
    """The feeders and their clients; a context manager that ends the clients."""

    def __init__(self, feeders: Sequence[Feeder], store: StoreProxy | None = None) -> None:
        self.feeders, self.store = feeders, store
        self.clients: list[Client] = []
        self.faults: list[Fault] = []
        self._selector = selectors.DefaultSelector()
        self._feeder_fds: list[Mapping[str, int]] = []
        self._client_holds: list[Mapping[str, int]] = []

    @property
    def is_well(self) -> bool:
        return all(client.error is None for client in self.clients)

    def note_idle(self, recipe: Recipe) -> None:
        """Record what the feeders hold after they have served a batch, without clients."""
        for feeder in self.feeders:
            feeder.warm_up(recipe)
            self._await_given_back(feeder)
            self._feeder_fds.append(feeder.fds())

    def note_clients(self) -> None:
        """Record what the clients hold before any fault."""
        self._client_holds = [_holds(client) for client in self.clients]

    def add_clients(self, clients: Sequence[Client]) -> None:
        """Add started clients; return when all have got a batch."""
        self.clients += clients
        for client in clients:
            self._selector.register(client, selectors.EVENT_READ)
        self._await(lambda: all(client.arrivals for client in self.clients), "a first batch")

    def pump(self, until_s: float) -> None:
        while (remaining_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(remaining_s):
                client = key.fileobj
                assert isinstance(client, Client)
                if not client.read():
                    self._selector.unregister(client)
                    client.error = client.error or "it ended without an error message"

    def strike(self, fault: Fault) -> None:
        """Carry out a fault, undo it if it lasts, and return after the recovery."""
        fault.at_s = time.monotonic()
        before = [(client, len(client.arrivals)) for client in self.clients]
        try:
            self._do(fault)
        finally:
            self._await(
                lambda: all(feeder.is_whole() for feeder in self.feeders),
                "all feeders with all their workers",
            )
            self._await(
                lambda: all(len(client.arrivals) > count for client, count in before),
                f"a batch after {fault.kind}",
            )
            fault.until_s = time.monotonic()
            self.faults.append(fault)

    def close_and_count(self) -> list[str]:
        """End clients and feeders cleanly; return a line for each leak."""
        leaks = [
            f"{now - before[what]} {what} of client {client.orders.rank}"
            for client, before in zip(self.clients, self._client_holds, strict=True)
            if client.error is None
            for what, now in _holds(client).items()
            if now > before[what] + (_FDS_MORE if what == "descriptors" else 0)
        ]
        self.close()
        for number, feeder in enumerate(self.feeders):
            held = self._await_given_back(feeder)
            for role, fds in feeder.fds().items():
                more = fds - self._feeder_fds[number].get(role, fds)
                held += [f"{more} descriptors of {role}"] if more > _FDS_MORE else []
            leaks += [f"{what} of feeder {number}" for what in (*held, *feeder.close())]
        return leaks

    def close(self) -> None:
        self._selector.close()
        for client in self.clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, fault: Fault) -> None:
        what, _, whom = fault.kind.partition("-")
        if whom == "client":
            client = self.clients[fault.target]
            self._selector.unregister(client)
            client.replace_killed()
            self._selector.register(client, selectors.EVENT_READ)
            return
        if whom == "store":
            assert self.store is not None
            self.store.strike(
                cast(StoreFault, what),
                amount=_AMOUNTS.get(what, 0.0),
                times=_TIMES.get(what, math.inf),
            )
            self._for_a_while(lambda: None, self.store.mend, fault.lasts_s)
            return
        feeder = self.feeders[fault.target]
        match what, whom:
            case ("kill", "supervisor"):
                feeder.restart(signal.SIGKILL)
            case ("drain", _):
                feeder.restart(signal.SIGTERM)
            case ("kill", _):
                feeder.daemon.find(_MODULES[whom]).kill()
            case ("stop", _):
                process = feeder.daemon.find(_MODULES[whom])
                self._for_a_while(process.suspend, process.resume, fault.lasts_s)
            case ("cut", _):
                self._for_a_while(feeder.proxy.cut, feeder.proxy.mend, fault.lasts_s)
            case ("stall", _):
                self._for_a_while(feeder.proxy.stall, feeder.proxy.mend, fault.lasts_s)

    def _for_a_while(
        self, do: Callable[[], None], undo: Callable[[], None], lasts_s: float
    ) -> None:
        do()
        try:
            self.pump(time.monotonic() + lasts_s)
        finally:
            with suppress(psutil.NoSuchProcess):  # the daemon may have ended it as stuck
                undo()

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        """Read what clients report until ``holds()`` is true or a client has given up."""
        until_s = time.monotonic() + TIMEOUT_S
        while self.is_well and not holds():
            if time.monotonic() > until_s:
                logs = "; ".join(feeder.daemon.last_log_line() for feeder in self.feeders)
                raise PeerError(f"not within {TIMEOUT_S:g} s: {what}; last log lines: {logs}")
            self.pump(time.monotonic() + _LOOK_S)

    def _await_given_back(self, feeder: Feeder) -> list[str]:
        """Return the sessions and slots that a feeder still holds after all clients have gone."""
        until_s = time.monotonic() + _GIVE_BACK_S
        while True:
            counters = feeder.counters()
            held = [f"{counters.get(name)} {name}" for name in _GIVEN_BACK if counters.get(name)]
            if not counters:
                held = ["unknown resources (it does not reply)"]
            if not held or time.monotonic() > until_s:
                return held
            time.sleep(_LOOK_S)  # the end of a lease is not signalled


def _holds(client: Client) -> Mapping[str, int]:
    """Return the numbers of descriptors and of mapped slot memories of a client."""
    return {
        "descriptors": psutil.Process(client.pid).num_fds(),
        "slot memories": mapped_slot_memories(client.pid),
    }
