"""A training process driven by commands on its standard input.

    python -m tests.faults.client

Commands: ``open OPTIONS`` (JSON for ``make_loader``, with ``endpoint``: one, or a list), ``take
N``, ``statistics``, ``close``. Replies: ``opened``; ``batch WAITED_S EPOCH INDEX HASH`` for each
batch; the statistics as JSON; ``closed``; or ``error WAITED_S TYPE: TEXT`` instead of any of them.
Between two commands it keeps all slots that it was lent.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

import psutil

from feeder.errors import FeederError
from tests.support.daemon import DEADLINE_S, wait_until
from tests.support.lent_client import SLOTS, WAIT_S, digest, make_loader
from tests.support.sources import REPOSITORY


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of a step: a batch as ``EPOCH INDEX HASH``, or an error."""

    waited_s: float
    text: str


class Client:
    """The test's handle on the process; leaving its context kills the process."""

    def __init__(
        self, *, prefix: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        """Start the process; it imports its libraries in the background.

        ``prefix`` is a command that executes the arguments that follow it, as ``env`` does.
        """
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.faults.client"],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environ or {}),
        )
        self.process = psutil.Process(self._process.pid)
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def open(self, endpoint: str | list[str], **options: object) -> None:
        """Create the loader; ``opened`` waits for it."""
        self._send("open " + json.dumps({"endpoint": endpoint} | options))

    def opened(self) -> None:
        """Return once the loader has its welcome."""
        assert self._receive() == "opened"

    def ask(self, batches: int = 1) -> None:
        """Request batches; ``answer`` and ``answers`` return them."""
        self._send(f"take {batches}")

    def answer(self) -> Step:
        """Return the outcome of the next batch that was requested."""
        kind, waited_s, text = self._receive().split(" ", 2)
        assert kind in ("batch", "error")
        return Step(float(waited_s), text)

    def answers(self, batches: int) -> list[str]:
        """Return the keys and hashes of requested batches."""
        return [self.answer().text for _ in range(batches)]

    def take(self, batches: int) -> list[str]:
        """Request batches and return their keys and hashes."""
        self.ask(batches)
        return self.answers(batches)

    def statistics(self) -> dict[str, Any]:
        """Return the loader's statistics."""
        self._send("statistics")
        return dict(json.loads(self._receive()))

    def await_lent(self) -> None:
        """Return once each of its slots holds a batch that it has not read yet."""

        def has_all() -> bool:
            statistics = self.statistics()
            return bool(statistics["batches_lent"] >= statistics["batches"] + SLOTS)

        wait_until(has_all, "all slots are lent to the client")

    def close(self) -> None:
        """Close the loader, then end the process cleanly."""
        self._send("close")
        assert self._receive() == "closed"
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(DEADLINE_S) == 0

    def _receive(self) -> str:
        # The loader gives up after WAIT_S; its error must arrive before this deadline.
        line = self._lines.get(timeout=WAIT_S + DEADLINE_S)
        assert line, f"{self.process} has ended"
        return line

    def stop(self) -> None:
        """Send SIGSTOP; return once the process has stopped."""
        stop(self.process)

    def kill(self) -> None:
        """Send SIGKILL; idempotent."""
        self._process.kill()
        with self._process:
            pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with contextlib.suppress(BrokenPipeError):  # the last command was not read
            self.kill()
        self._reader.join()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")


def stop(process: psutil.Process) -> None:
    """Send SIGSTOP to a process; return once it has stopped."""
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"{process} is stopped")


def _reply(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Execute commands until the end of the input."""
    loader: Any = None
    batches: Any = iter(())
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        began_s = time.monotonic()
        try:
            match word:
                case "open":
                    loader = make_loader(**json.loads(rest))
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
