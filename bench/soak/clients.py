"""The streaming clients of a soak, which are restarted one after the other."""

import selectors
import time
from collections.abc import Sequence
from typing import Final

from ..client_process import TIMEOUT_S, Arrived, ClientProcess, await_open, read_clients
from .cpu_use import CpuUse

WINDOW: Final = 4
_FOR_EVER: Final = 10**9
"""Batches that a client is asked for: more than it can fetch during any soak."""


class SoakClients:
    """Clients that stream without a pause, alternately from each of ``endpoints``."""

    def __init__(
        self, endpoints: Sequence[str], *, clients: int, batch_size: int, core: int
    ) -> None:
        """Nothing is started yet."""
        self._endpoints = endpoints
        self._clients = clients
        self._batch_size = batch_size
        self._core = core
        self._selector = selectors.DefaultSelector()
        self._running: list[ClientProcess] = []
        self._started = 0
        self._ended = CpuUse.of_processes([])
        self.images = 0
        """Delivered to all clients so far."""

    def start(self) -> None:
        """Start all clients; return once batches arrive."""
        for number in range(self._clients):
            self._running.append(self._start(number))
        await_open(self._running)
        while not self.images:  # read raises if a client gives up, as it does after TIMEOUT_S
            self.read(time.monotonic() + TIMEOUT_S)

    def restart(self, turn: int) -> str:
        """End the client that is next in ``turn``, start another, and return how it ended."""
        number = turn % len(self._running)
        old = self._running[number]
        self._selector.unregister(old)
        # Alternately, but shifted by one after each cycle, so that every client ends in both ways.
        how = "killed" if (turn + turn // len(self._running)) % 2 else "clean"
        self._ended += CpuUse.of_processes([old.pid])
        (old.kill if how == "killed" else old.terminate)()
        self._running[number] = self._start(number)
        return how

    def read(self, until_s: float) -> None:
        """Count the batches that clients report, waiting for some until ``until_s``."""
        for events in read_clients(self._selector, until_s).values():
            self.images += sum(event.images for event in events if isinstance(event, Arrived))

    def cpu_use(self) -> CpuUse:
        """Return what all clients have used so far, those that ended included."""
        return self._ended + CpuUse.of_processes(client.pid for client in self._running)

    def close(self) -> None:
        """End all clients."""
        self._selector.close()
        for client in self._running:
            client.terminate()

    def _start(self, number: int) -> ClientProcess:
        client = ClientProcess(
            self._endpoints[number % len(self._endpoints)],
            batch_size=self._batch_size,
            window=WINDOW,
            seed=self._started,
            cores=frozenset({self._core}),
        )
        self._started += 1
        client.fetch(0, _FOR_EVER)
        self._selector.register(client, selectors.EVENT_READ)
        return client
