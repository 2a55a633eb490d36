"""A client in a process of its own, for benches that need several, or need one to die.

    python -m bench.client_process PARENT_PID ENDPOINT BATCH_SIZE WINDOW SEED

It reads lines ``FIRST COUNT`` and fetches so many batches from the FIRST on, counted through the
epochs. Its answers are lines too: ``open BATCHES`` (in an epoch) once it has a session, then
``batch AT_S IMAGES`` for each batch (AT_S is the monotonic clock, one for the whole machine),
``done CPU_S`` after the last, and ``error TEXT`` before it ends by itself. Closed input and SIGTERM
end it cleanly, with a Bye to the node.
"""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from bench.daemon import DATASET_NAME
from bench.machine import pinned_to
from feeder.errors import FeederError, PeerError
from feeder.fetch import BatchFetcher
from feeder.parent_death import die_with_parent
from feeder.recipe import Recipe
from feeder.stop_signals import StopSignals

TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """A batch is whole at a client."""

    at_s: float
    images: int


@dataclass(frozen=True, slots=True)
class Done:
    """A client has all that it was told to fetch."""

    cpu_s: float
    """Processor time of the whole process since it was told to."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A client has ended by itself; nothing follows."""

    reason: str


ClientEvent = Arrived | Done | Ended


class ClientProcess:
    """Our end of a client; a context manager that ends it."""

    def __init__(
        self, endpoint: str, *, batch_size: int, window: int, seed: int, cores: frozenset[int]
    ) -> None:
        """Start it on ``cores``; it opens its session meanwhile."""
        self.endpoint = endpoint
        with pinned_to(cores):
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "bench.client_process", str(os.getpid()), endpoint),
                    *(str(batch_size), str(window), str(seed)),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is ours to pass on
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._unread = b""
        self.is_open = False

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def fileno(self) -> int:
        """Return what to poll before ``read``."""
        return self._output.fileno()

    def fetch(self, first: int, count: int) -> None:
        """Have it fetch ``count`` batches from ``first`` on."""
        self._input.write(f"{first} {count}\n".encode())
        self._input.flush()

    def read(self) -> list[ClientEvent]:
        """Return what it has said since; nothing when it has said nothing."""
        try:
            data = os.read(self._output.fileno(), 1 << 16)
        except BlockingIOError:
            return []
        if not data:
            return [Ended(f"a client ended with status {self._process.wait(_STOP_TIMEOUT_S)}")]
        *lines, self._unread = (self._unread + data).split(b"\n")
        return [event for line in lines if (event := self._parse(line.decode())) is not None]

    def terminate(self) -> None:
        """End it cleanly: it closes its session first."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would: the node hears nothing from it."""
        self._end(signal.SIGKILL)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.terminate()

    def _parse(self, line: str) -> ClientEvent | None:
        match line.split(" ", 1):
            case ["open", _]:
                self.is_open = True
            case ["batch", rest]:
                at_s, images = rest.split()
                return Arrived(float(at_s), int(images))
            case ["done", cpu_s]:
                return Done(float(cpu_s))
            case ["error", text]:
                return Ended(text)
        return None

    def _end(self, number: signal.Signals) -> None:
        if self._output.closed:
            return
        self._process.send_signal(number)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._input.close()
        self._output.close()


def await_open(clients: Sequence[ClientProcess]) -> None:
    """Return once all have sessions; PeerError when one cannot get one."""
    until_s = time.monotonic() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ)
        while not all(client.is_open for client in clients):
            read_clients(selector, until_s)


def read_clients(
    selector: selectors.BaseSelector, until_s: float
) -> Mapping[ClientProcess, Sequence[ClientEvent]]:
    """Return what the clients in ``selector`` say, waiting for it until then at most.

    PeerError when one has ended by itself.
    """
    said: dict[ClientProcess, Sequence[ClientEvent]] = {}
    for key, _ in selector.select(max(0.0, until_s - time.monotonic())):
        client = key.fileobj
        assert isinstance(client, ClientProcess)
        events = said[client] = client.read()
        for event in events:
            if isinstance(event, Ended):
                raise PeerError(f"a client over {client.endpoint} gave up: {event.reason}")
    return said


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
        epoch_batches = fetcher.welcome.batches
        _say(f"open {epoch_batches}")
        for line in sys.stdin:
            first, count = map(int, line.split())
            cpu_before_s = time.process_time()
            numbers = range(first, first + count)
            for batch in fetcher.fetch(divmod(number, epoch_batches) for number in numbers):
                _say(f"batch {time.monotonic()} {batch.valid}")
            _say(f"done {time.process_time() - cpu_before_s}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(parent: int, endpoint: str, batch_size: int, window: int, seed: int) -> int:
    """Run a client; return the exit status."""
    die_with_parent(parent)
    with StopSignals() as signals:
        try:
            _serve(endpoint, batch_size, window, seed)
        except FeederError as error:
            _say(f"error {error}")
            return error.exit_status
        except KeyboardInterrupt:
            return signals.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])))
