"""All that takes part in ``feeder-bench chaos``: feeders, clients, the faults that struck them.

One fault at a time: ``strike`` returns when what it broke is whole again and every client has got a
batch since. Meanwhile, as in every wait, what clients say is taken in.
"""

import contextlib
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import psutil

from bench.chaos.clients import TIMEOUT_S, Client
from bench.chaos.faults import Fault
from bench.chaos.feeders import Feeder
from bench.footprint import mapped_slot_memories
from feeder.errors import PeerError
from feeder.plan.recipe import Recipe

_LOOK_S: Final = 0.05
"""Between two looks at whether a feeder is whole."""

_FDS_MORE: Final = 2
"""Descriptors that a process may have more in the end: libraries open some when they first need."""

_GIVE_BACK_S: Final = 15.0
"""For sessions and slots of clients that have gone: a few times the lease."""

_GIVEN_BACK: Final = ("sessions", "slots_committed_bytes", "slots_held_bytes")
"""Counters that are 0 when no client is there."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that happened."""

    fault: Fault
    at_s: float
    until_s: float
    """When all was whole again."""

    def hits_client(self, rank: int) -> bool:
        """Whether it is that client's own end."""
        return self.fault.kind == "kill-client" and self.fault.target == rank


class Scene:
    """The feeders and their clients; a context manager that ends the clients."""

    def __init__(self, feeders: Sequence[Feeder]) -> None:
        self.feeders = feeders
        self.clients: list[Client] = []
        self.struck: list[Struck] = []
        self._selector = selectors.DefaultSelector()
        self._feeder_fds: list[Mapping[str, int]] = []
        self._client_holds: list[Mapping[str, int]] = []

    @property
    def is_well(self) -> bool:
        """Whether no client has given up."""
        return all(client.error is None for client in self.clients)

    def note_idle(self, recipe: Recipe) -> None:
        """Remember what the feeders hold when they have served somebody and nobody is there."""
        for feeder in self.feeders:
            feeder.warm_up(recipe)
            self._await_given_back(feeder)
            self._feeder_fds.append(feeder.fds())

    def note_clients(self) -> None:
        """Remember what the clients hold while all is well."""
        self._client_holds = [_holds(client) for client in self.clients]

    def add_clients(self, clients: Sequence[Client]) -> None:
        """Take clients in, which have been started; return when all have got a batch."""
        self.clients += clients
        for client in clients:
            self._selector.register(client, selectors.EVENT_READ)
        self._await(lambda: all(client.arrivals for client in self.clients), "a first batch")

    def pump(self, until_s: float) -> None:
        """Take in what clients say until then."""
        while (rest_s := until_s - time.monotonic()) > 0:
            for key, _ in self._selector.select(rest_s):
                client = key.fileobj
                assert isinstance(client, Client)
                if not client.read():
                    self._selector.unregister(client)
                    client.error = client.error or "it ended without a word"

    def strike(self, fault: Fault) -> None:
        """Have a fault happen, undo what lasts, and return when all is whole again."""
        at_s = time.monotonic()
        seen = [len(client.arrivals) for client in self.clients]
        try:
            self._do(fault)
        finally:
            self.await_whole()
            self._await(
                lambda: all(
                    len(client.arrivals) > count
                    for client, count in zip(self.clients, seen, strict=True)
                ),
                f"a batch after {fault.kind}",
            )
            self.struck.append(Struck(fault, at_s, time.monotonic()))

    def await_whole(self) -> None:
        """Return when all feeders answer and have all their workers."""
        self._await(
            lambda: all(feeder.is_whole() for feeder in self.feeders),
            "a feeder that is whole again",
        )

    def close_and_count(self) -> list[str]:
        """End clients and feeders in good order; return a line for each thing that is left."""
        left = self._grown_clients()
        self.close()
        for number, feeder in enumerate(self.feeders):
            name = f"feeder {number}"
            left += [f"{held} of {name}" for held in self._await_given_back(feeder)]
            for role, now in feeder.fds().items():
                before = self._feeder_fds[number].get(role, now)
                if now > before + _FDS_MORE:
                    left.append(f"{now - before} descriptors of {name}'s {role}")
            left += [f"{what} of {name}" for what in feeder.close()]
        return left

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
        match fault.kind:
            case "kill-worker":
                _pick(feeder.workers, fault.worker).kill()
            case "kill-node":
                feeder.node.kill()
            case "kill-supervisor":
                feeder.kill()
            case "drain":
                feeder.drain()
            case "stop-worker":
                worker = _pick(feeder.workers, fault.worker)
                self._for_a_while(worker.suspend, worker.resume, fault.lasts_s)
            case "stop-node":
                self._for_a_while(feeder.node.suspend, feeder.node.resume, fault.lasts_s)
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
            with contextlib.suppress(psutil.NoSuchProcess):  # the daemon has ended it as stuck
                undo()

    def _await(self, holds: Callable[[], bool], what: str) -> None:
        """Take in what clients say until it holds, or one has given up."""
        until_s = time.monotonic() + TIMEOUT_S
        while self.is_well and not holds():
            if time.monotonic() > until_s:
                words = "; ".join(feeder.last_log_line() for feeder in self.feeders)
                raise PeerError(f"not within {TIMEOUT_S:g} s: {what}; the feeders said: {words}")
            self.pump(time.monotonic() + _LOOK_S)

    def _await_given_back(self, feeder: Feeder) -> list[str]:
        """Return what of its sessions and slots a feeder still holds when all clients are gone."""
        until_s = time.monotonic() + _GIVE_BACK_S
        while True:
            counters = feeder.counters()
            held = [f"{counters.get(name)} {name}" for name in _GIVEN_BACK if counters.get(name)]
            if not counters:
                held = ["what nobody knows: it does not answer"]
            if not held or time.monotonic() > until_s:
                return held
            time.sleep(_LOOK_S)  # nothing tells when a lease is over

    def _grown_clients(self) -> list[str]:
        return [
            f"{now - then[what]} {what} of client {rank}"
            for rank, (client, then) in enumerate(
                zip(self.clients, self._client_holds, strict=True)
            )
            if client.error is None
            for what, now in _holds(client).items()
            if now > then[what] + (_FDS_MORE if what == "descriptors" else 0)
        ]


def _pick(processes: Sequence[psutil.Process], number: int) -> psutil.Process:
    return processes[number % len(processes)]


def _holds(client: Client) -> Mapping[str, int]:
    """Return how many descriptors and memories of feeders' slots a client has."""
    return {
        "descriptors": psutil.Process(client.pid).num_fds(),
        "slot memories": mapped_slot_memories(client.pid),
    }
