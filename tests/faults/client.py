"""A training process driven by commands on its standard input.

    python -m tests.faults.client

Its loader is a NumpyLoader: importing torch takes three seconds of a core. Tests compare its
batches with those of a FeederLoader, which must have the same bytes.

Commands: ``open OPTIONS`` (JSON for ``make_numpy_loader``, with ``endpoint``: one, or a list),
``take N``, ``statistics``, ``close``. Replies: ``opened``; ``batch WAITED_S EPOCH INDEX HASH`` for
each batch; the statistics as JSON; ``closed``; or ``error WAITED_S TYPE: TEXT`` instead of any of
them.
Between two commands it keeps all slots that it was lent.
"""

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import psutil

from bench.line_process import LineProcess
from feeder.dataset.opened import Dataset
from feeder.errors import FeederError
from tests.support.daemon import DEADLINE_S, Key, RawClient, check_batch, wait_until
from tests.support.lent_client import SLOTS, WAIT_S, digest, make_numpy_loader
from tests.support.sources import REPOSITORY

EPOCH = 5


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of a step: a batch as ``EPOCH INDEX HASH``, or an error."""

    waited_s: float
    text: str


class Client(LineProcess):
    """The test's handle on the process; leaving its context kills the process."""

    def __init__(
        self, *, prefix: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        """Start the process; it imports its libraries in the background.

        ``prefix`` is a command that executes the arguments that follow it, as ``env`` does.
        """
        super().__init__(
            [*prefix, sys.executable, "-m", "tests.faults.client"],
            environ=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environ or {}),
            cwd=REPOSITORY,
        )
        self.process = psutil.Process(self.pid)

    def open(self, endpoint: str | list[str], **options: object) -> None:
        """Create the loader; ``opened`` waits for it."""
        self.write_line("open " + json.dumps({"endpoint": endpoint} | options))

    def opened(self) -> None:
        assert self.reply() == "opened"

    def ask(self, batches: int = 1) -> None:
        """Request batches; ``answer`` and ``answers`` return them."""
        self.write_line(f"take {batches}")

    def answer(self) -> Step:
        """Return the outcome of the next batch that was requested."""
        kind, waited_s, text = self.reply().split(" ", 2)
        assert kind in ("batch", "error")
        return Step(float(waited_s), text)

    def answers(self, batches: int) -> list[str]:
        return [self.answer().text for _ in range(batches)]

    def take(self, batches: int) -> list[str]:
        self.ask(batches)
        return self.answers(batches)

    def statistics(self) -> dict[str, Any]:
        self.write_line("statistics")
        return dict(json.loads(self.reply()))

    def await_lent(self) -> None:
        """Return once each of its slots holds a batch that it has not read yet."""

        def has_all() -> bool:
            statistics = self.statistics()
            return bool(statistics["batches_lent"] >= statistics["batches"] + SLOTS)

        wait_until(has_all, "all slots are lent to the client")

    def close(self) -> None:
        """Close the loader, then end the process cleanly."""
        self.write_line("close")
        assert self.reply() == "closed"
        self.close_input()
        assert self.wait(DEADLINE_S) == 0

    def reply(self) -> str:
        """Return the next line; the deadline leaves a loader time to report why it gives up."""
        return self.next_line(WAIT_S + DEADLINE_S)

    def stop(self) -> None:
        stop(self.process)

    def __exit__(self, *_: object) -> None:
        self.kill()


@dataclass
class Trainee:
    """A client, and its position in the batches that an undisturbed one gets."""

    client: Client
    undisturbed: list[str]
    taken: int = 0
    requested: int = 0

    def ask(self, batches: int) -> None:
        self.client.ask(batches)
        self.requested += batches

    def receive(self) -> None:
        """Receive all requested batches; check their content and waiting times."""
        while self.taken < self.requested:
            step = self.client.answer()
            assert step.text == self.undisturbed[self.taken]
            assert step.waited_s < WAIT_S
            self.taken += 1

    def take(self, batches: int) -> None:
        self.ask(batches)
        self.receive()

    def take_to(self, index: int) -> None:
        """Take batches, at least one, until the next one has ``index`` in its epoch."""
        self.take((index - self.requested - 1) % EPOCH + 1)


def fetch(client: RawClient, dataset: Dataset, *keys: Key) -> None:
    """Request batches, and compare each with the same one made in this process."""
    client.want(*keys)
    for key in keys:
        assert client.recipe is not None
        check_batch(dataset, client.recipe, key, client.take(key))


def stop(process: psutil.Process) -> None:
    """Send SIGSTOP to a process; return once it has stopped."""
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"{process} is stopped")


def _reply(line: str) -> None:
    os.write(1, line.encode() + b"\n")


def main() -> None:
    loader: Any = None
    batches: Any = iter(())
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        began_s = time.monotonic()
        try:
            match word:
                case "open":
                    loader = make_numpy_loader(**json.loads(rest))
                    batches = _all_batches(loader)
                    _reply("opened")
                case "take":
                    for _ in range(int(rest)):
                        began_s = time.monotonic()
                        batch = next(batches)
                        _reply(f"batch {time.monotonic() - began_s:.3f} {digest(batch)}")
                case "statistics":
                    _reply(json.dumps(asdict(loader.statistics())))
                case "close":
                    loader.close()
                    _reply("closed")
        except FeederError as error:
            batches = _all_batches(loader)
            _reply(f"error {time.monotonic() - began_s:.3f} {type(error).__name__}: {error}")


def _all_batches(loader: Any) -> Any:
    """Yield batches for ever, over the ends of epochs."""
    while True:
        yield from loader


if __name__ == "__main__":
    main()
