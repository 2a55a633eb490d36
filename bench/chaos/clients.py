"""The clients of ``feeder-bench chaos``: started, read, killed and resumed.

A client that is killed resumes after the last batch that it reported. Nothing here imports torch,
which only the processes need.
"""

import os
import select
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from feeder.errors import PeerError
from feeder.process.child import child_environment, python_command
from feeder.wire.messages import BatchKey

from ..line_process import LineProcess

TIMEOUT_S: Final = 60.0


class ClientOrders(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a client, and its batches: the same epochs again and again."""

    endpoints: Sequence[str]
    rank: int
    world_size: int
    batch_size: int
    image_size: int
    steps: int  # of each rank in an epoch
    epochs: int  # after this many it begins with epoch 0 again
    recipe: Mapping[str, Any] = {}  # further fields
    state: Mapping[str, int | str] = {}  # of the client before it; empty for the first

    @property
    def batches(self) -> int:
        return self.steps * self.epochs

    def key(self, position: int) -> BatchKey:
        epoch, step = divmod(position % self.batches, self.steps)
        return epoch, self.rank + self.world_size * step

    def position(self, key: BatchKey) -> int | None:
        """Return the first position of a batch, None when it is not for this rank."""
        epoch, index = key
        step, rank = divmod(index, self.world_size)
        is_its = rank == self.rank and 0 <= step < self.steps and 0 <= epoch < self.epochs
        return epoch * self.steps + step if is_its else None


class BatchLine(msgspec.Struct, frozen=True):
    key: BatchKey
    digest: str
    at_s: float  # on the monotonic clock, one for the whole machine
    delivered: dict[str, int] = {}  # how all batches of this process were delivered so far
    state: Mapping[str, int | str] = {}


class Client:
    """One rank, in a process that is replaced when it is killed."""

    def __init__(self, orders: ClientOrders) -> None:
        self.arrivals: list[BatchLine] = []
        self.error: str | None = None  # why it gave up, or how it ended; None while it runs
        self.orders = orders
        self.delivered = Counter[str]()  # the same of all batches, also of killed processes
        self._delivered_now: dict[str, int] = {}
        self._process = _start(orders)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        return self._process.fileno()

    def read(self) -> bool:
        """Record the lines received so far; return whether more may follow."""
        lines = self._process.read_lines()
        for line in lines or ():
            message = msgspec.json.decode(line, type=BatchLine | str)
            if isinstance(message, str):
                self.error = message
            else:
                self.arrivals.append(message)
                self.delivered.update(message.delivered)
                self.delivered.subtract(self._delivered_now)
                self._delivered_now = message.delivered
        return lines is not None

    def replace_killed(self) -> None:
        """SIGKILL it, and start another that resumes from the state that it last reported."""
        os.kill(self.pid, signal.SIGKILL)
        self._read_to_end()
        self._process.kill()
        self._delivered_now = {}
        self._process = _start(msgspec.structs.replace(self.orders, state=self.arrivals[-1].state))

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


def _start(orders: ClientOrders) -> LineProcess:
    text = msgspec.json.encode(orders).decode()
    command = python_command(f"{__package__}.trainer", os.getpid(), text)
    return LineProcess(command, environ=child_environment({"OMP_NUM_THREADS": "1"}))
