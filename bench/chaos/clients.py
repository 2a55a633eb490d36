"""The clients of ``feeder-bench chaos``: started, listened to, killed, and started where they were.

What a client has said counts: one that is killed goes on after the last batch that it told of.
Nothing here needs torch, which only the processes import.
"""

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from bench.chaos.check import Arrival
from bench.line_process import LineProcess
from feeder.errors import PeerError
from feeder.process.python_process import child_environment, python_command
from feeder.wire.messages import BatchKey

TIMEOUT_S: Final = 60.0


class ClientOrders(msgspec.Struct, frozen=True, kw_only=True):
    """What a client is to do."""

    endpoints: Sequence[str]
    rank: int
    world_size: int
    batch_size: int
    image_size: int
    epochs: int
    """After so many it begins with epoch 0 again."""
    timeout_s: float = TIMEOUT_S
    state: Mapping[str, int | str] = {}
    """Of the client before it; empty for the first."""


class Ways(msgspec.Struct, frozen=True, kw_only=True):
    """How batches came to a client, as its loader counts it."""

    lent: int = 0
    asked_again: int = 0
    hedged: int = 0

    def __add__(self, other: "Ways") -> "Ways":
        """Return both together."""
        return Ways(
            lent=self.lent + other.lent,
            asked_again=self.asked_again + other.asked_again,
            hedged=self.hedged + other.hedged,
        )


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a client says of a batch."""

    epoch: int
    index: int
    digest: str
    at_s: float
    ways: Ways
    """Of all batches of this process so far."""
    state: Mapping[str, int | str]


class Client:
    """One rank, in a process that is replaced when it is killed."""

    def __init__(self, orders: ClientOrders) -> None:
        """Start it."""
        self.arrivals: list[Arrival] = []
        self.error: str | None = None
        """What it gave up for, or how it ended; None while all is well."""
        self.orders = orders
        self._ways_before = self._ways_now = Ways()
        self._process = _start(orders)

    @property
    def pid(self) -> int:
        """Its process id now."""
        return self._process.pid

    @property
    def ways(self) -> Ways:
        """How batches came, to those that were killed too."""
        return self._ways_before + self._ways_now

    def fileno(self) -> int:
        """Return what to poll before ``read``."""
        return self._process.fileno()

    def read(self) -> bool:
        """Take in what it has said; return whether there may be more to come."""
        lines = self._process.read_lines()
        for line in lines or ():
            said = msgspec.json.decode(line, type=BatchLine | str)
            if isinstance(said, str):
                self.error = said
                continue
            self.arrivals.append(Arrival((said.epoch, said.index), said.digest, said.at_s))
            self.orders = msgspec.structs.replace(self.orders, state=said.state)
            self._ways_now = said.ways
        return lines is not None

    def replace_killed(self) -> None:
        """SIGKILL it, and start another that goes on with what it has said last."""
        os.kill(self.pid, signal.SIGKILL)
        self._read_to_end()
        self._process.kill()
        self._ways_before, self._ways_now = self.ways, Ways()
        self._process = _start(self.orders)

    def close(self) -> None:
        """End it cleanly and take in what it still says. Idempotent."""
        if self._process.is_open:
            os.kill(self.pid, signal.SIGTERM)
            self._read_to_end()
            self._process.terminate()

    def _read_to_end(self) -> None:
        until_s = time.monotonic() + TIMEOUT_S
        while self.read():
            if time.monotonic() > until_s:
                raise PeerError(f"client {self.orders.rank} does not end within {TIMEOUT_S:g} s")
            select.select([self], [], [], 1.0)


def make_digests(
    orders: ClientOrders, dataset: Path, keys: Iterable[BatchKey]
) -> Mapping[BatchKey, str]:
    """Return the hashes of batches, made by the sample path alone in one process."""
    digests: dict[BatchKey, str] = {}
    with LineProcess(_command(orders, str(dataset)), environ=_environment()) as process:
        for epoch, index in sorted(set(keys)):
            process.write_line(f"{epoch} {index}")
            try:
                line = process.next_line(TIMEOUT_S)
            except (EOFError, TimeoutError) as error:
                raise PeerError(f"the reference process failed: {error}") from None
            digests[epoch, index] = msgspec.json.decode(line, type=str)
    return digests


def _start(orders: ClientOrders) -> LineProcess:
    return LineProcess(_command(orders), environ=_environment())


def _environment() -> dict[str, str]:
    return child_environment({"OMP_NUM_THREADS": "1"})


def _command(orders: ClientOrders, *more: str) -> list[str]:
    text = msgspec.json.encode(orders).decode()
    return python_command("bench.chaos.trainer", os.getpid(), text, *more)
