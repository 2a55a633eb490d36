"""A client in a process of its own, for benches that need several, or need one to die.

    python -m bench.client_process PARENT_PID ENDPOINT BATCH_SIZE SEED

It reads lines ``FIRST COUNT`` and fetches COUNT batches starting with FIRST, counted through the
epochs. Its replies are lines too: ``open`` once it has a session, then ``batch AT_S IMAGES`` for
each batch (AT_S is the monotonic clock, one for the whole machine), ``done CPU_S`` (of the whole
process since the request) after the last, and ``error TEXT`` before it ends by itself. Closed input
and SIGTERM end it cleanly, with a Bye to the node.
"""

import os
import selectors
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final

from feeder.errors import FeederError, PeerError
from feeder.plan.recipe import Recipe
from feeder.process.child import die_with_parent, python_command
from feeder.process.stop_signals import StopSignals

from .fetcher import BatchFetcher
from .line_process import LineProcess
from .machine import pinned_to

TIMEOUT_S: Final = 60.0


class ClientProcess(LineProcess):
    def __init__(self, endpoint: str, *, batch_size: int, core: int, seed: int = 0) -> None:
        """Start it on ``core``; ``await_open`` waits for its session."""
        self.endpoint = endpoint
        self.has_session = False
        module = f"{__package__}.client_process"
        with pinned_to(core):
            super().__init__(python_command(module, os.getpid(), endpoint, batch_size, seed))

    def fetch(self, first: int, count: int) -> None:
        self.write_line(f"{first} {count}")

    def read(self) -> list[list[str]]:
        """Return the words of the lines since the last call, without waiting.

        PeerError when it has ended by itself.
        """
        lines = self.read_lines()
        if lines is None:
            raise PeerError(
                f"a client over {self.endpoint} gave up: it ended with status {self.wait()}"
            )
        for line in lines:
            if line.startswith("error "):
                reason = line.removeprefix("error ")
                raise PeerError(f"a client over {self.endpoint} gave up: {reason}")
        self.has_session |= bool(lines)  # "open" is the first
        return [line.split() for line in lines]


def await_open(clients: Sequence[ClientProcess]) -> None:
    """Return once all clients have sessions; PeerError when one ends without."""
    until_s = time.monotonic() + TIMEOUT_S
    with selectors.DefaultSelector() as selector:
        for client in clients:
            selector.register(client, selectors.EVENT_READ)
        while not all(client.has_session for client in clients):
            list(read_clients(selector, until_s))


def read_clients(
    selector: selectors.BaseSelector, until_s: float
) -> Iterator[tuple[ClientProcess, list[str]]]:
    """Yield the words of each line from the clients, waiting for a line until ``until_s``.

    PeerError when a client has ended by itself.
    """
    for key, _ in selector.select(max(0.0, until_s - time.monotonic())):
        client = key.fileobj
        assert isinstance(client, ClientProcess)
        for words in client.read():
            yield client, words


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(parent: int, endpoint: str, batch_size: int, seed: int) -> int:
    die_with_parent(parent)
    recipe = Recipe.for_split("train", batch_size=batch_size)
    with StopSignals() as signals:
        try:
            with BatchFetcher(endpoint, recipe=recipe, seed=seed, timeout_s=TIMEOUT_S) as fetcher:
                _print("open")
                for line in sys.stdin:
                    first, count = map(int, line.split())
                    cpu_before_s = time.process_time()
                    for batch in fetcher.fetch(first, count):
                        _print(f"batch {time.monotonic()} {batch.valid}")
                    _print(f"done {time.process_time() - cpu_before_s}")
        except FeederError as error:
            _print(f"error {error}")
            return error.exit_status
        except KeyboardInterrupt:
            return signals.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
