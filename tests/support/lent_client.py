"""A training process that tests kill and stop: it takes a batch for each line on stdin.

    python -m tests.support.lent_client ENDPOINT

Prints ``epoch index digest`` for each batch, and at the end of its input the reason for which
batches were copied, or None. Its loader is a NumpyLoader: importing torch takes three seconds of
a core. Tests compare its batches with those of a FeederLoader, which must have the same bytes.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.line_process import LineProcess
from tests.support.sources import REPOSITORY
from trainer_client import Batch, NumpyLoader

if TYPE_CHECKING:
    from trainer_client import FeederLoader

WINDOW = 3
SLOTS = WINDOW + 1  # one more for the batch that the CPU reads
BATCH, SIDE = 10, 32
LANES = 2  # so that two feeders have work: few samples would be one lane

WAIT_S = 90.0
"""A loader's deadline for a batch: enough for two starts of a feeder, the first of which fails; a
start takes 20 s on a machine with ten busy processes for each CPU."""


def make_loader(endpoint: str | Sequence[str], **options: object) -> "FeederLoader":
    """Return a loader of small batches."""
    from trainer_client import FeederLoader  # imports torch

    settings = _settings() | {"device": "cpu"} | options
    return FeederLoader(endpoint, **settings)  # type: ignore[arg-type]


def make_numpy_loader(endpoint: str | Sequence[str], **options: object) -> NumpyLoader:
    """Return a loader of the same batches, for a process without torch."""
    settings = _settings() | {"dtype": "float32"} | options
    return NumpyLoader(endpoint, **settings)  # type: ignore[arg-type]


def digest(batch: Batch[Any]) -> str:
    """Return ``epoch index hash`` of a batch; the hash covers images, labels and sample ids."""
    images = np.asarray(batch.images)
    if isinstance(batch.images, np.ndarray):
        images = np.moveaxis(images, -1, 1)  # as torch has them
    parts = hashlib.sha256()
    for array in (images, np.asarray(batch.labels), np.asarray(batch.sample_ids)):
        parts.update(np.ascontiguousarray(array).tobytes())
    return f"{batch.epoch} {batch.index} {parts.hexdigest()}"


def _settings() -> dict[str, object]:
    return {
        "dataset": "d",
        "batch_size": BATCH,
        "image_size": SIDE,
        "recipe": {"resize_size": 36, "lanes": LANES},
        "seed": 3,
        "window": WINDOW,
        "timeout_s": WAIT_S,
    }


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
    with make_numpy_loader(sys.argv[1]) as loader:
        batches = (batch for _ in iter(int, 1) for batch in loader)
        for _ in sys.stdin:
            print(digest(next(batches)), flush=True)  # noqa: T201
        print(loader.statistics().copied_because, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
