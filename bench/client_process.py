"""A client in a process of its own, for benches that need several, or need one to die.

    python -m bench.client_process PARENT_PID ENDPOINT BATCH_SIZE WINDOW SEED

It reads lines ``FIRST COUNT`` and fetches COUNT batches starting with FIRST, counted through the
epochs. Its replies are lines too: ``open BATCHES`` (in an epoch) once it has a session, then
``batch AT_S IMAGES`` for each batch (AT_S is the monotonic clock, one for the whole machine),
``done CPU_S`` after the last, and ``error TEXT`` before it ends by itself. Closed input and SIGTERM
end it cleanly, with a Bye to the node.
"""

import os
import selectors
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from feeder.errors import FeederError, PeerError
from feeder.plan.recipe import Recipe
from feeder.process.child import die_with_parent, python_command
from feeder.process.stop_signals import StopSignals

from .daemon import DATASET_NAME
from .fetcher import BatchFetcher
from .line_process import LineProcess
from .machine import pinned_to

TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch is whole at a client."""

    at_s: float
    images: int


@dataclass(frozen=True, slots=True)
class Done:
    """A client has fetched all the batches of one ``fetch``."""

    cpu_s: float
    """Processor time of the whole process since that ``fetch``."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A client has ended by itself; nothing follows."""

    reason: str


ClientEvent = Arrived | Done | Ended


class ClientProcess(LineProcess):
    """A client; a context manager that ends it."""

    def __init__(
        self, endpoint: str, *, batch_size: int, window: int, seed: int, cores: frozenset[int]
    ) -> None:
        """Start it on ``cores``; ``await_open`` waits for its session."""
        self.endpoint = endpoint
        self.has_session = False
        with pinned_to(cores):
            super().__init__(
                python_command(
                    f"{__package__}.client_process", os.getpid(), endpoint, batch_size, window, seed
                )
            )

    def fetch(self, first: int, count: int) -> None:
        """Have it fetch ``count`` batches from ``first`` on."""
        self.write_line(f"{first} {count}")

    def read(self) -> list[ClientEvent]:
        """Return the events since the last call, without waiting."""
        lines = self.read_lines()
        if lines is None:
            return [Ended(f"a client ended with status {self.wait()}")]
        return [event for line in lines if (event := self._parse(line)) is not None]

    def _parse(self, line: str) -> ClientEvent | None:
        match line.split(" ", 1):
            case ["open", _]:
                self.has_session = True
            case ["batch", rest]:
                at_s, images = rest.split()
                return Arrived(float(at_s), int(images))
            case ["done", cpu_s]:
                return Done(float(cpu_s))
            case ["error", text]:
                return Ended(text)
        return None


def await_open(clients: Sequence[ClientProcess]) -> None:
    """Return once all clients have sessions; PeerError when one ends without."""
    until_s = time.monotonic() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ)
        while not all(client.has_session for client in clients):
            read_clients(selector, until_s)


def read_clients(
    selector: selectors.BaseSelector, until_s: float
) -> Mapping[ClientProcess, Sequence[ClientEvent]]:
    """Return the events of the clients in ``selector``, waiting for some until ``until_s``.

    PeerError when a client has ended by itself.
    """
    received: dict[ClientProcess, Sequence[ClientEvent]] = {}
    for key, _ in selector.select(max(0.0, until_s - time.monotonic())):
        client = key.fileobj
        assert isinstance(client, ClientProcess)
        events = received[client] = client.read()
        for event in events:
            if isinstance(event, Ended):
                raise PeerError(f"a client over {client.endpoint} gave up: {event.reason}")
    return received


def _serve(endpoint: str, batch_size: int, window: int, seed: int) -> None:
    with BatchFetcher(
        endpoint,
        dataset=DATASET_NAME,
        recipe=Recipe.for_split("train", batch_size=batch_size),
        seed=seed,
        window=window,
        timeout_s=TIMEOUT_S,
        client="feeder-bench client",
    ) as fetcher:
        _print(f"open {fetcher.welcome.batches}")
        for line in sys.stdin:
            first, count = map(int, line.split())
            cpu_before_s = time.process_time()
            for batch in fetcher.fetch_run(first, count):
                _print(f"batch {time.monotonic()} {batch.valid}")
            _print(f"done {time.process_time() - cpu_before_s}")


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(parent: int, endpoint: str, batch_size: int, window: int, seed: int) -> int:
    """Run a client; return the exit status."""
    die_with_parent(parent)
    with StopSignals() as signals:
        try:
            _serve(endpoint, batch_size, window, seed)
        except FeederError as error:
            _print(f"error {error}")
            return error.exit_status
        except KeyboardInterrupt:
            return signals.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])))
