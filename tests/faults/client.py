"""A training process that does one step when told to, and says what came of it.

    python -m tests.faults.client

Lines in: ``open OPTIONS`` (JSON for ``make_loader``, with ``endpoint``: one, or a list), ``epoch
E`` (``set_epoch``), ``take N``, ``statistics``, ``close``. Lines out: ``opened``; ``batch WAITED_S
EPOCH INDEX HASH`` for each batch; the statistics as JSON; ``closed``; and ``error WAITED_S TYPE:
TEXT`` instead of any of them. Between two steps it holds on to all slots that it was lent.
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
    """What came of a step: a batch as ``EPOCH INDEX HASH``, or an error."""

    waited_s: float
    text: str


class Client:
    """Our end of the process; leaving its context kills it."""

    def __init__(
        self, *, prefix: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        """Start it; it imports its libraries meanwhile.

        ``prefix`` is a command that becomes the one that follows it.
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
        """Have it make its loader; ``opened`` waits for that."""
        self._tell("open " + json.dumps({"endpoint": endpoint} | options))

    def opened(self) -> None:
        """Return once it has its welcome."""
        assert self.hear() == "opened"

    def go_to(self, epoch: int) -> None:
        """Have it continue with an epoch."""
        self._tell(f"epoch {epoch}")

    def ask(self, batches: int = 1) -> None:
        """Have it take batches; ``answer`` and ``answers`` tell of them."""
        self._tell(f"take {batches}")

    def answer(self) -> Step:
        """Return what came of the next batch that it was asked for."""
        kind, waited_s, text = self.hear().split(" ", 2)
        assert kind in ("batch", "error")
        return Step(float(waited_s), text)

    def answers(self, batches: int) -> list[str]:
        """Return the keys and hashes of batches that it was asked for."""
        return [self.answer().text for _ in range(batches)]

    def take(self, batches: int) -> list[str]:
        """Have it take batches; return their keys and hashes."""
        self.ask(batches)
        return self.answers(batches)

    def statistics(self) -> dict[str, Any]:
        """Return the loader's statistics."""
        self._tell("statistics")
        return dict(json.loads(self.hear()))

    def await_lent(self) -> None:
        """Return once all of its slots hold batches that it has not read yet."""

        def has_all() -> bool:
            statistics = self.statistics()
            return bool(statistics["batches_lent"] >= statistics["batches"] + SLOTS)

        wait_until(has_all, "all slots are lent to it")

    def close(self) -> None:
        """Have it close its loader, and end it in good order."""
        self._tell("close")
        assert self.hear() == "closed"
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(DEADLINE_S) == 0

    def hear(self) -> str:
        """Return the next line that it says."""
        line = self._lines.get(timeout=WAIT_S + DEADLINE_S)  # a loader says first why it gives up
        assert line, f"{self.process} has ended"
        return line

    def stop(self) -> None:
        """SIGSTOP; returns once it has stopped."""
        stop(self.process)

    def kill(self) -> None:
        """SIGKILL; idempotent."""
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
        with contextlib.suppress(BrokenPipeError):  # it has not read its last order
            self.kill()
        self._reader.join()

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put("")


def stop(process: psutil.Process) -> None:
    """SIGSTOP a process; returns once it has stopped."""
    process.suspend()
    wait_until(lambda: process.status() == psutil.STATUS_STOPPED, f"{process} is stopped")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Run as the process."""
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
                    _say("opened")
                case "epoch":
                    batches.close()
                    loader.set_epoch(int(rest))
                    batches = _all_batches(loader)
                case "take":
                    for _ in range(int(rest)):
                        began_s = time.monotonic()
                        batch = next(batches)
                        _say(f"batch {time.monotonic() - began_s:.3f} {digest(batch)}")
                case "statistics":
                    _say(json.dumps(asdict(loader.statistics())))
                case "close":
                    loader.close()
                    _say("closed")
        except FeederError as error:
            batches = _all_batches(loader)
            _say(f"error {time.monotonic() - began_s:.3f} {type(error).__name__}: {error}")


def _all_batches(loader: Any) -> Any:
    """Yield batches for ever; closing it gives up the epoch."""
    while True:
        epoch = iter(loader)
        try:
            yield from epoch
        finally:
            epoch.close()


if __name__ == "__main__":
    main()
