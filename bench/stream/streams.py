"""Streams from a daemon behind one interface: one client in this process, or several processes.

A stream returns the number of images, the gaps between whole batches at each client, and the
processor time of the clients.
"""

import selectors
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

import numpy as np

from feeder.errors import PeerError
from feeder.plan.recipe import Recipe

from ..client_process import (
    TIMEOUT_S,
    Arrived,
    ClientProcess,
    Done,
    await_open,
    read_clients,
)
from ..daemon import DATASET_NAME
from ..fetcher import BatchFetcher
from ..report import RATE, Result, single, summarise

WINDOW: Final = 4


@dataclass(slots=True, kw_only=True)
class Delivered:
    """The images that arrived, and the cost of receiving them."""

    images: int = 0
    gaps_s: list[float] = field(default_factory=list)
    client_cpu_s: float = 0.0


@dataclass(slots=True)
class Measured:
    """The results of one stream: a value for each round, and all gaps."""

    rates: list[float] = field(default_factory=list)
    daemon_cpu_us: list[float] = field(default_factory=list)
    """Per image, like ``client_cpu_us``."""
    client_cpu_us: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)

    def add(self, delivered: Delivered, taken_s: float, daemon_cpu_s: float) -> None:
        """Add a round with its duration and the daemon's processor time."""
        self.rates.append(delivered.images / taken_s)
        self.daemon_cpu_us.append(1e6 * daemon_cpu_s / delivered.images)
        self.client_cpu_us.append(1e6 * delivered.client_cpu_s / delivered.images)
        self.gaps_s += delivered.gaps_s

    def rate(self, name: str, baseline: Result, baseline_rates: Sequence[float]) -> Result:
        """Return the row of images a second."""
        return summarise(name, RATE, self.rates, baseline=baseline, baseline_values=baseline_rates)

    def details(self, name: str, suffix: str, image_bytes: int) -> list[Result]:
        """Return all other rows."""
        gigabytes = [rate * image_bytes / 1e9 for rate in self.rates]
        rows = [summarise(f"{name}-bytes{suffix}", "GB/s", gigabytes)]
        for percent in (50, 99) if self.gaps_s else ():
            gap_ms = 1e3 * float(np.percentile(self.gaps_s, percent))
            rows.append(single(f"{name}-gap-p{percent}{suffix}", "ms", gap_ms))
        for side, values in (("daemon", self.daemon_cpu_us), ("client", self.client_cpu_us)):
            rows.append(summarise(f"{name}-{side}-cpu{suffix}", "µs/image", values))
        return rows


class Stream(Protocol):
    """A client, or several, that fetch batches."""

    def fetch(self, first: int, batches: int) -> Delivered:
        """Fetch ``batches`` batches starting with number ``first``, counted through the epochs."""


class StreamHere:
    """One client in this process; a context manager."""

    def __init__(self, endpoint: str, recipe: Recipe, *, share_memory: bool = True) -> None:
        """Open the session."""
        self.fetcher = BatchFetcher(
            endpoint,
            dataset=DATASET_NAME,
            recipe=recipe,
            window=WINDOW,
            timeout_s=TIMEOUT_S,
            client="feeder-bench stream",
            share_memory=share_memory,
        )

    def fetch(self, first: int, batches: int) -> Delivered:
        """Fetch as in Stream; the client does nothing with the batches."""
        began_cpu_s = time.process_time()
        delivered, arrived_s = Delivered(), []
        for batch in self.fetcher.fetch_run(first, batches):
            arrived_s.append(time.monotonic())
            delivered.images += batch.valid
        delivered.gaps_s = np.diff(arrived_s).tolist()
        delivered.client_cpu_s = time.process_time() - began_cpu_s
        return delivered

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.fetcher.close()


class ClientPool:
    """Client processes at one endpoint; a context manager that ends them."""

    def __init__(self, endpoint: str, *, clients: int, batch_size: int, core: int) -> None:
        """Start them on ``core``, each with a session of its own."""
        with ExitStack() as stack:
            self._clients = [
                stack.enter_context(
                    ClientProcess(
                        endpoint,
                        batch_size=batch_size,
                        window=WINDOW,
                        seed=0,
                        cores=frozenset({core}),
                    )
                )
                for _ in range(clients)
            ]
            await_open(self._clients)
            self._stack = stack.pop_all()

    def some(self, count: int) -> "_SomeClients":
        """Return the stream to the first ``count`` of them."""
        return _SomeClients(self._clients[:count])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


class _SomeClients:
    """Several clients at once, which share the batches."""

    def __init__(self, clients: Sequence[ClientProcess]) -> None:
        self._clients = clients

    def fetch(self, first: int, batches: int) -> Delivered:
        """Fetch as in Stream, or a few more if the batches cannot be shared evenly."""
        share = -(-batches // len(self._clients))
        delivered = Delivered()
        last_s = dict.fromkeys(self._clients, 0.0)
        with selectors.DefaultSelector() as selector:
            for number, client in enumerate(self._clients):
                selector.register(client, selectors.EVENT_READ)
                client.fetch(first + number * share, share)
            while selector.get_map():
                received = read_clients(selector, time.monotonic() + TIMEOUT_S)
                if not received:
                    raise PeerError(f"no client has got a batch within {TIMEOUT_S:g} s")
                for client, events in received.items():
                    for event in events:
                        match event:
                            case Arrived(at_s, images):
                                delivered.images += images
                                if last_s[client]:
                                    delivered.gaps_s.append(at_s - last_s[client])
                                last_s[client] = at_s
                            case Done(cpu_s):
                                delivered.client_cpu_s += cpu_s
                                selector.unregister(client)
        return delivered
