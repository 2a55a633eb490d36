"""A training process for tests, which can be killed and stopped: a batch for each line on stdin.

    python -m tests.support.lent_client ENDPOINT

Prints ``epoch index digest`` for each batch, and at the end of its input why batches were copied,
or None.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tests.support.sources import REPOSITORY
from trainer_client import Batch, FeederLoader

WINDOW = 3
SLOTS = WINDOW + 1  # one more, which the CPU reads
BATCH, SIDE = 10, 32

WAIT_S = 90.0
"""What a loader waits for a batch, if need be for two starts of a feeder, the first of which fails:
on a machine with ten busy processes for each CPU one takes 20 s."""


def make_loader(endpoint: str | Sequence[str], **options: object) -> FeederLoader:
    """Return a loader of small batches."""
    settings: dict[str, object] = {
        "dataset": "d",
        "batch_size": BATCH,
        "image_size": SIDE,
        "recipe": {"resize_size": 36},
        "seed": 3,
        "device": "cpu",
        "window": WINDOW,
        "timeout_s": WAIT_S,
    }
    return FeederLoader(endpoint, **(settings | options))  # type: ignore[arg-type]


def digest(batch: Batch) -> str:
    """Return a hash of all that a batch consists of."""
    parts = hashlib.sha256()
    for tensor in (batch.images.contiguous(), batch.labels, batch.sample_ids):
        parts.update(tensor.numpy().tobytes())
    return f"{batch.epoch} {batch.index} {parts.hexdigest()}"


@dataclass
class LentClient:
    """The process, and its conversation with the test; leaving its context kills it."""

    process: "subprocess.Popen[str]"

    @classmethod
    def start(cls, endpoint: str) -> Self:
        """Start it."""
        return cls(
            subprocess.Popen(
                [sys.executable, "-m", "tests.support.lent_client", endpoint],
                cwd=REPOSITORY,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self) -> None:
        """Have it take a batch."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        """Return what it says of the batch."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def take(self, batches: int) -> list[str]:
        """Have it take batches; return their keys and hashes."""
        taken = []
        for _ in range(batches):
            self.ask()
            taken.append(self.answer())
        return taken

    def finish(self) -> str:
        """End it in good order; return its last words."""
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
            words = self.answer()
        assert self.process.returncode == 0
        return words

    def kill(self) -> None:
        """SIGKILL; idempotent."""
        self.process.kill()
        with self.process:
            pass


def expected(endpoint: str, batches: int, **options: object) -> list[str]:
    """Return what an undisturbed client gets, copied over the socket."""
    taken: list[str] = []
    with make_loader(endpoint, share_memory=False, **options) as loader:
        while True:
            for batch in loader:
                taken.append(digest(batch))
                if len(taken) == batches:
                    return taken


def main() -> None:
    """Run as the process."""
    with make_loader(sys.argv[1]) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)
        for _ in sys.stdin:
            print(digest(next(batches)), flush=True)  # noqa: T201
        print(loader.statistics().copied_because, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
