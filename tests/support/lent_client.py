"""A training process that tests kill and stop: it takes a batch for each line on stdin.

    python -m tests.support.lent_client ENDPOINT

Prints ``epoch index digest`` for each batch, and at the end of its input the reason for which
batches were copied, or None.
"""

import hashlib
import os
import sys
from collections.abc import Sequence

from bench.line_process import LineProcess
from tests.support.sources import REPOSITORY
from trainer_client import Batch, FeederLoader

WINDOW = 3
SLOTS = WINDOW + 1  # one more for the batch that the CPU reads
BATCH, SIDE = 10, 32

WAIT_S = 90.0
"""A loader's deadline for a batch: enough for two starts of a feeder, the first of which fails; a
start takes 20 s on a machine with ten busy processes for each CPU."""


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
    """Return ``epoch index hash`` of a batch; the hash covers images, labels and sample ids."""
    parts = hashlib.sha256()
    for tensor in (batch.images.contiguous(), batch.labels, batch.sample_ids):
        parts.update(tensor.numpy().tobytes())
    return f"{batch.epoch} {batch.index} {parts.hexdigest()}"


class LentClient(LineProcess):
    """The test's handle on the process; leaving its context kills the process."""

    def __init__(self, endpoint: str) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "tests.support.lent_client", endpoint]
        super().__init__(command, environ=os.environ | {"OMP_NUM_THREADS": "1"}, cwd=REPOSITORY)

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self) -> None:
        """Request a batch."""
        self.write_line("")

    def answer(self) -> str:
        """Return the key and hash of the requested batch."""
        return self.next_line(WAIT_S)

    def take(self, batches: int) -> list[str]:
        """Request batches; return their keys and hashes."""
        taken = []
        for _ in range(batches):
            self.ask()
            taken.append(self.answer())
        return taken

    def finish(self) -> str:
        """End the process cleanly; return the last line that it prints."""
        self.close_input()
        reason = self.answer()
        assert self.wait() == 0
        return reason


def expected(endpoint: str, batches: int, **options: object) -> list[str]:
    """Return the batches of an undisturbed client, copied over the socket."""
    taken: list[str] = []
    with make_loader(endpoint, share_memory=False, **options) as loader:
        while True:
            for batch in loader:
                taken.append(digest(batch))
                if len(taken) == batches:
                    return taken


def main() -> None:
    """Take a batch for each line of the input."""
    with make_loader(sys.argv[1]) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)
        for _ in sys.stdin:
            print(digest(next(batches)), flush=True)  # noqa: T201
        print(loader.statistics().copied_because, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
