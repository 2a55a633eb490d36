"""The clients of ``feeder-bench chaos``: started, read, killed and resumed.

A client that is killed resumes after the last batch that it reported. Nothing here imports torch,
which only the processes need.
"""

import os
import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from feeder.errors import PeerError
from feeder.process.child import child_environment, python_command
from feeder.wire.messages import BatchKey

from ..line_process import LineProcess
from .check import Arrival

TIMEOUT_S: Final = 60.0


class ClientOrders(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a client."""

    endpoints: Sequence[str]
    rank: int
    world_size: int
    batch_size: int
    image_size: int
    epochs: int
    """After this many it begins with epoch 0 again."""
    timeout_s: float = TIMEOUT_S
    state: Mapping[str, int | str] = {}
    """The loader state of the client before it; empty for the first."""


class DeliveryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How batches were delivered, from the statistics of the loader."""

    lent: int = 0
    asked_again: int = 0
    hedged: int = 0

    def __add__(self, other: "DeliveryCounts") -> "DeliveryCounts":
        """Return the sums."""
        return DeliveryCounts(
            lent=self.lent + other.lent,
            asked_again=self.asked_again + other.asked_again,
            hedged=self.hedged + other.hedged,
        )


class BatchLine(msgspec.Struct, frozen=True, kw_only=True):
    """A client's report of a batch."""

    epoch: int
    index: int
    digest: str
    at_s: float
    delivered: DeliveryCounts
    """All batches of this process so far."""
    state: Mapping[str, int | str]


class Client:
    """One rank, in a process that is replaced when it is killed."""

    def __init__(self, orders: ClientOrders) -> None:
        """Start it."""
        self.arrivals: list[Arrival] = []
        self.error: str | None = None
        """Why it gave up, or how it ended; None while it runs."""
        self.orders = orders
        self._delivered_before = self._delivered_now = DeliveryCounts()
        self._process = _start(orders)

    @property
    def pid(self) -> int:
        """Its process id now."""
        return self._process.pid

    @property
    def delivered(self) -> DeliveryCounts:
        """All batches so far, including those of killed processes."""
        return self._delivered_before + self._delivered_now

    def fileno(self) -> int:
        """Return what to poll before ``read``."""
        return self._process.fileno()

    def read(self) -> bool:
        """Record the lines received so far; return whether more may follow."""
        lines = self._process.read_lines()
        for line in lines or ():
            message = msgspec.json.decode(line, type=BatchLine | str)
            if isinstance(message, str):
                self.error = message
                continue
            key = message.epoch, message.index
            self.arrivals.append(Arrival(key, message.digest, message.at_s))
            self.orders = msgspec.structs.replace(self.orders, state=message.state)
            self._delivered_now = message.delivered
        return lines is not None

    def replace_killed(self) -> None:
        """SIGKILL it, and start another that resumes from the state that it last reported."""
        os.kill(self.pid, signal.SIGKILL)
        self._read_to_end()
        self._process.kill()
        self._delivered_before, self._delivered_now = self.delivered, DeliveryCounts()
        self._process = _start(self.orders)

    def close(self) -> None:
        """End it cleanly and record its last lines. Idempotent."""
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
    """Return the hashes of batches, made by the sample path in one process without a daemon."""
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
    return python_command(f"{__package__}.trainer", os.getpid(), text, *more)
