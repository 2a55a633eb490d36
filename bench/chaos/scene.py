"""The feeders and clients of ``feeder-bench chaos``, and the faults that struck them.

One fault at a time: ``strike`` returns when all feeders have recovered and every client has got a
batch since. During this and every other wait, the clients' lines are read.
"""

import contextlib
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Self

import psutil

from feeder.errors import PeerError
from feeder.plan.recipe import Recipe

from ..daemon import Daemon
from ..footprint import mapped_slot_memories
from .clients import TIMEOUT_S, Client
from .feeders import Feeder
from .judgement import Fault

_LOOK_S: Final = 0.05
"""Between two checks of a feeder."""

_FDS_MORE: Final = 2
"""Growth of a process's descriptors that is no leak: libraries open some on first use."""

_GIVE_BACK_S: Final = 15.0
"""Deadline for sessions and slots of gone clients to be freed: a few times the lease."""

_GIVEN_BACK: Final = ("sessions", "slots_committed_bytes", "slots_held_bytes")
"""Counters that are 0 without clients."""


class Scene:
    """The feeders and their clients; a context manager that ends the clients."""

    def __init__(self, feeders: Sequence[Feeder]) -> None:
        self.feeders = feeders
        self.clients: list[Client] = []
        self.faults: list[Fault] = []
        self._selector = selectors.DefaultSelector()
        self._feeder_fds: list[Mapping[str, int]] = []
        self._client_holds: list[Mapping[str, int]] = []

    @property
    def is_well(self) -> bool:
        """Whether no client has given up."""
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
        """Read what clients report until then."""
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
            name = f"feeder {number}"
            leaks += [f"{held} of {name}" for held in self._await_given_back(feeder)]
            for role, fds in feeder.fds().items():
                more = fds - self._feeder_fds[number].get(role, fds)
                if more > _FDS_MORE:
                    leaks.append(f"{more} descriptors of {name}'s {role}")
            leaks += [f"{what} of {name}" for what in feeder.close()]
        return leaks

    def close(self) -> None:
        """End the clients. Idempotent."""
        self._selector.close()
        for client in self.clients:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _do(self, fault: Fault) -> None:
        if fault.kind == "kill-client":
            client = self.clients[fault.target]
            self._selector.unregister(client)
            client.replace_killed()
            self._selector.register(client, selectors.EVENT_READ)
            return
        feeder = self.feeders[fault.target]
        process = feeder.node
        if fault.kind.endswith("-worker"):
            process = feeder.workers[fault.worker % len(feeder.workers)]
        match fault.kind:
            case "kill-worker" | "kill-node":
                process.kill()
            case "kill-supervisor":
                feeder.restart(Daemon.kill)
            case "drain":
                feeder.restart(Daemon.terminate)
            case "stop-worker" | "stop-node":
                self._for_a_while(process.suspend, process.resume, fault.lasts_s)
            case "cut-network":
                self._for_a_while(feeder.proxy.cut, feeder.proxy.mend, fault.lasts_s)
            case "stall-network":
                self._for_a_while(feeder.proxy.stall, feeder.proxy.mend, fault.lasts_s)

    def _for_a_while(
        self, do: Callable[[], None], undo: Callable[[], None], lasts_s: float
    ) -> None:
        do()
        try:
            self.pump(time.monotonic() + lasts_s)
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):  # the daemon may have ended it as stuck
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
